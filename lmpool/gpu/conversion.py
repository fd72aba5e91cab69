"""GGUF files become safetensors folders, in a process of their own, which gives its memory back.

The process is `python -m lmpool.gpu.conversion GGUF FOLDER DTYPE`; it prints lines of progress.
"""

import sys
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

from lmpool.gpu.model_cache import Origin, Progress, SourceError, entry_path, provide, remembered_sha256
from lmpool.gpu.tether import run_tethered

VERSION = 1
"""Of what is written here; raised when folders have to be made anew."""

SURROUNDINGS = {"HF_HUB_OFFLINE": "1", "HF_HUB_DISABLE_PROGRESS_BARS": "1", "TRANSFORMERS_VERBOSITY": "error"}
"""All that is read lies in the file: nothing may ask the hub."""

LIBRARIES = ("torch", "transformers", "accelerate", "gguf")

FLOAT32_BYTES_MAX = 1 << 30
"""GGUF files up to here are written as float32, which keeps every value; larger ones as bfloat16, half the disk."""


def origin_of(gguf: Path, source: str, sha256: str, name: str) -> Origin:
    dtype = "float32" if gguf.stat().st_size <= FLOAT32_BYTES_MAX else "bfloat16"
    return Origin(name=name, source=source, source_sha256=sha256, dtype=dtype)


def converted(gguf: Path, cache: Path, progress: Progress) -> Path:
    """The safetensors folder of a local GGUF file, made once for its content. Raises SourceError and OSError."""
    with gguf.open("rb") as stream:
        if stream.read(4) != b"GGUF":
            raise SourceError(f"{gguf} is not a GGUF file", "check the file, or download it again")
    origin = origin_of(gguf, str(gguf.resolve()), remembered_sha256(gguf, cache), gguf.stem)

    def make(folder: Path, scratch: Path) -> None:
        convert(gguf, folder, origin.dtype, progress)

    return provide(entry_path(cache, origin, VERSION), origin, make, progress)


def check_libraries() -> None:
    """Raises SourceError where the extra `model` is not installed, without importing what is."""
    missing = [name for name in LIBRARIES if find_spec(name) is None]
    if missing:
        raise SourceError(
            f"to convert a model takes {', '.join(missing)}", "install lmpool with its extra: lmpool[model]"
        )


def convert(gguf: Path, folder: Path, dtype: str, progress: Progress) -> None:
    """Fills `folder`. Raises SourceError."""
    check_libraries()
    progress(f"converting {gguf.name} to {dtype} safetensors (once)")
    outcome = run_tethered("lmpool.gpu.conversion", (str(gguf), str(folder), dtype), SURROUNDINGS, progress)
    if outcome.code:
        raise SourceError(
            f"{gguf} cannot be converted: {outcome.cause}", "take the same model as a folder with safetensors"
        )


def _write(gguf: Path, folder: Path, dtype: str, tell: Callable[[str], object]) -> None:
    import torch  # noqa: PLC0415 - the start of a server imports this module and must stay quick
    from transformers import AutoModelForCausalLM, AutoTokenizer  # noqa: PLC0415
    from transformers.utils import logging  # noqa: PLC0415

    logging.disable_progress_bar()
    tell("reading the tokenizer")
    tokenizer = AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name)
    tokenizer.save_pretrained(folder)
    tell("unpacking the weights")
    model = AutoModelForCausalLM.from_pretrained(gguf.parent, gguf_file=gguf.name, dtype=getattr(torch, dtype))
    # transformers refuses to save what it thinks is still quantised
    del model.config.quantization_config
    model.hf_quantizer = None  # type: ignore[assignment]
    tell("writing the weights")
    model.save_pretrained(folder)


def main(arguments: list[str]) -> None:
    gguf, folder, dtype = arguments

    def tell(line: str) -> None:
        sys.stdout.write(f"{line}\n")
        sys.stdout.flush()

    _write(Path(gguf), Path(folder), dtype, tell)


if __name__ == "__main__":
    main(sys.argv[1:])
