"""What an operator names as MODEL becomes a local folder with safetensors, tokenizer and chat template."""

import errno
import json
from pathlib import Path

from lmpool.core.plan import ReplicaError
from lmpool.gpu.bundled import bundled
from lmpool.gpu.conversion import converted
from lmpool.gpu.hub import cached_snapshot, downloaded_snapshot, is_hub_id
from lmpool.gpu.model_cache import Progress, SourceError

__all__ = ["SourceError", "check_folder", "prepare"]

WEIGHTS = "model.safetensors"
INDEX = "model.safetensors.index.json"
PICKLES = ("*.bin", "*.pt", "*.pth", "*.ckpt")
CACHE_FAULTS = (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES, errno.EPERM, errno.ENOTDIR, errno.EEXIST)


def prepare(model: str | None, cache: Path, progress: Progress) -> Path:
    """A folder, a GGUF file or a hub id; None is the bundled model. Raises SourceError.

    What had to be converted lies in `cache` from then on, and is found again without importing torch.
    """
    try:
        if model is None:
            return bundled(cache, progress)
        path = Path(model).expanduser()
        if path.is_dir():
            return _from_folder(path.absolute(), cache, progress)
        if path.is_file():
            return _from_file(path.absolute(), cache, progress)
        if is_hub_id(model):
            return _from_hub(model, cache, progress)
    except OSError as error:
        if error.errno not in CACHE_FAULTS:
            raise
        what = f"the model cannot be prepared: {error.strerror}: {error.filename or cache}"
        raise SourceError(
            what, f"the cache folder {cache} must be writable and have room; --cache-folder names another"
        ) from error
    raise SourceError(
        f"no model {model!r}: no folder or file {path.absolute()}, and it has not the form of a hub id (owner/name)",
        "check the path",
    )


def check_folder(folder: Path) -> Path:
    """`folder`, if it has all that a server reads. Raises SourceError."""
    if (folder / "adapter_config.json").exists() and not (folder / "config.json").exists():
        raise SourceError(f"{folder} holds an adapter, not a model", "merge it into its base model and name the result")
    for weights in _weight_files(folder):
        _check_safetensors(weights)
    if not (folder / "config.json").exists():
        raise SourceError(f"{folder} has weights but no config.json", "copy it from where the weights come from")
    if not (folder / "tokenizer.json").exists():
        hint = "AutoTokenizer.from_pretrained(FOLDER).save_pretrained(FOLDER) of transformers writes one"
        raise SourceError(f"{folder} has no tokenizer.json", hint)
    return folder


def check_context(folder: Path, tokens: int | None) -> None:
    """The longest context that was ordered, against the model's limit. What is in the configuration beside it may make
    the limit shorter, which whoever loads the model knows. Raises ReplicaError."""
    limit = json.loads((folder / "config.json").read_bytes()).get("max_position_embeddings")
    if tokens is not None and isinstance(limit, int) and tokens > limit:
        raise context_refusal(tokens, limit, "the model's limit")


def context_refusal(asked: int, limit: int, reason: str) -> ReplicaError:
    return ReplicaError(
        f"--max-model-len {asked} is more than {limit}, {reason}", f"use --max-model-len {limit} or less"
    )


def _weight_files(folder: Path) -> list[Path]:
    if (folder / WEIGHTS).exists():
        return [folder / WEIGHTS]
    if (folder / INDEX).exists():
        names = sorted(set(json.loads((folder / INDEX).read_text())["weight_map"].values()))
        missing = [name for name in names if not (folder / name).exists()]
        if missing:
            what = f"{folder} lacks {len(missing)} of {len(names)} weight files, first {missing[0]}"
            raise SourceError(what, "download the folder again")
        return [folder / name for name in names]
    others = sorted(file.name for file in folder.glob("*.safetensors"))
    if others:
        raise SourceError(f"{folder} has {others[0]}, but no {WEIGHTS} and no {INDEX}", "save it with transformers")
    if any(file for pattern in PICKLES for file in folder.glob(pattern)):
        hint = "loading them may run code; convert the model to safetensors (save_pretrained of transformers)"
        raise SourceError(f"{folder} has only pickled weights", hint)
    raise SourceError(
        f"{folder} has no {WEIGHTS}, no {INDEX} and no .gguf file", "name the folder that holds the weights"
    )


def _check_safetensors(file: Path) -> None:
    """A file begins with the length of its header (8 bytes, little-endian), which a pointer or a stump does not."""
    with file.open("rb") as stream:
        beginning = stream.read(64)
    if beginning.startswith(b"version https://git-lfs"):
        raise SourceError(f"{file} is a pointer, not the weights", "run `git lfs pull` where it lies")
    if len(beginning) < 8 or int.from_bytes(beginning[:8], "little") + 8 > file.stat().st_size:
        raise SourceError(f"{file} is damaged or incomplete", "download it again")


def _from_folder(folder: Path, cache: Path, progress: Progress) -> Path:
    ggufs = sorted(folder.glob("*.gguf"))
    if ggufs and not (folder / WEIGHTS).exists() and not (folder / INDEX).exists():
        if len(ggufs) > 1:
            told = ", ".join(file.name for file in ggufs[:8])
            raise SourceError(f"{folder} has {len(ggufs)} GGUF files: {told}", "name one of them")
        return converted(ggufs[0], cache, progress)
    return check_folder(folder)


def _from_file(file: Path, cache: Path, progress: Progress) -> Path:
    if file.suffix == ".gguf":
        return converted(file, cache, progress)
    if file.suffix == ".safetensors":
        raise SourceError(f"{file} is one file of a model", f"name its folder: {file.parent}")
    raise SourceError(f"{file} is no .gguf file", "name a folder with safetensors, a .gguf file or a hub id")


def _from_hub(name: str, cache: Path, progress: Progress) -> Path:
    """A complete copy in the hub cache is used without asking whether there is a newer one."""
    snapshot = cached_snapshot(name)
    if snapshot is not None:
        try:
            return _from_folder(snapshot, cache, progress)
        except SourceError:
            progress(f"the hub cache holds only a part of {name}")
    got = downloaded_snapshot(name, progress)
    return _from_folder(got, cache, progress) if got.is_dir() else converted(got, cache, progress)
