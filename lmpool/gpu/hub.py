"""Models by hub id: from the local hub cache where they are there, else downloaded into it."""

import re
from collections.abc import Sequence
from pathlib import Path

from lmpool.gpu.model_cache import Progress, SourceError

WANTED = ["*.safetensors", "*.json", "*.jinja"]
LEFT_OUT = ["*/*", "consolidated*"]
"""Sub-folders hold other formats; consolidated files are a second copy of the same weights."""

_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*(/[A-Za-z0-9][\w.-]*)?")


def is_hub_id(name: str) -> bool:
    return _HUB_ID.fullmatch(name) is not None and not name.endswith((".gguf", ".safetensors", ".bin"))


def cached_snapshot(name: str) -> Path | None:
    """The folder in the hub cache, which may be incomplete."""
    from huggingface_hub import snapshot_download  # noqa: PLC0415 - half a second that local models need not pay
    from huggingface_hub.errors import LocalEntryNotFoundError  # noqa: PLC0415

    try:
        return Path(snapshot_download(name, local_files_only=True))
    except LocalEntryNotFoundError:
        return None


def downloaded_snapshot(name: str, progress: Progress) -> Path:
    """A folder with safetensors, or a single GGUF file. Raises SourceError."""
    from huggingface_hub import HfApi, constants, errors, hf_hub_download, snapshot_download  # noqa: PLC0415

    here = f"no folder or file {Path(name).absolute()}, nothing in the hub cache {constants.HF_HUB_CACHE}"
    if constants.HF_HUB_OFFLINE:
        hint = "unset it, or name a local folder with safetensors or a .gguf file"
        raise SourceError(f"no model {name!r}: {here}, and HF_HUB_OFFLINE forbids to ask the hub", hint)
    progress(f"asking the hub for {name}")
    try:
        siblings = HfApi().model_info(name, files_metadata=True, timeout=30).siblings or []
        sizes = {sibling.rfilename: sibling.size or 0 for sibling in siblings}
        gguf = choose_files(name, list(sizes))
        if gguf is not None:
            progress(f"downloading {name}: {gguf}, {_told(sizes[gguf])}")
            return Path(hf_hub_download(name, gguf))
        size = sum(sizes[file] for file in sizes if "/" not in file and file.endswith((".safetensors", ".json")))
        progress(f"downloading {name}, {_told(size)}")
        return Path(snapshot_download(name, allow_patterns=WANTED, ignore_patterns=LEFT_OUT))
    except errors.GatedRepoError as error:
        hint = "accept them on its page and set HF_TOKEN"
        raise SourceError(f"the hub gives {name!r} only to those who accept its terms", hint) from error
    except errors.RepositoryNotFoundError as error:
        hint = "check the name; a private one needs HF_TOKEN"
        raise SourceError(f"no model {name!r}: {here}, and the hub has none of that name", hint) from error
    except (errors.HTTPError, OSError) as error:  # type: ignore[attr-defined]
        cause = f"{type(error).__name__}: {error}".splitlines()[0]
        hint = "check the name and the network, or name a local folder with safetensors or a .gguf file"
        raise SourceError(f"no model {name!r}: {here}, and the hub cannot be reached ({cause})", hint) from error


def choose_files(name: str, files: Sequence[str]) -> str | None:
    """None: take the safetensors files. Else the one GGUF file to take. Raises SourceError."""
    if any(file.endswith(".safetensors") and "/" not in file for file in files):
        return None
    ggufs = [file for file in files if file.endswith(".gguf")]
    if len(ggufs) == 1:
        return ggufs[0]
    if ggufs:
        told = ", ".join(ggufs[:8])
        raise SourceError(f"{name} has {len(ggufs)} GGUF files: {told}", "download one of them and name that file")
    raise SourceError(
        f"{name} has no safetensors and no GGUF file", "take a repository that has; pickled weights may run code"
    )


def _told(size_bytes: int) -> str:
    return f"{size_bytes / 1e9:.1f} GB" if size_bytes >= 10**9 else f"{size_bytes / 1e6:.0f} MB"
