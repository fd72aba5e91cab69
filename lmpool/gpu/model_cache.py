"""Folders that were made once from something else: found again, made by one process at a time, never seen half made."""

import fcntl
import hashlib
import json
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import attrs

from lmpool.core.plan import ReplicaError

FACTS = "lmpool.json"
"""In every folder made here: what it was made of, and the sizes of its files."""

READ_BYTES = 1 << 20

Progress = Callable[[str], None]


class SourceError(ReplicaError):
    """No local folder can be made of what the operator named."""


@attrs.frozen
class Origin:
    """What a made folder comes from."""

    name: str
    """Display name of the model, which is also the name of its folder."""
    source: str
    source_sha256: str
    dtype: str
    """Of the weights as written."""


def entry_path(cache: Path, origin: Origin, version: int) -> Path:
    """Where `origin` lies once it is made. `version` is that of the maker: a better one makes everything anew."""
    return cache / "models" / f"{origin.name}-{origin.source_sha256[:16]}-{origin.dtype}-{version}" / origin.name


def is_complete(entry: Path) -> bool:
    try:
        sizes: dict[str, int] = json.loads((entry / FACTS).read_text())["files"]
    except (FileNotFoundError, json.JSONDecodeError):  # a crash soon after the renaming may leave an empty file
        return False
    return all((entry / name).is_file() and (entry / name).stat().st_size == size for name, size in sizes.items())


def provide(entry: Path, origin: Origin, make: Callable[[Path, Path], None], progress: Progress) -> Path:
    """`entry` as it is, or after `make(folder, scratch)` has filled the new `folder`; `scratch` is thrown away.

    Raises what `make` raises, and OSError; then nothing is left behind.
    """
    if is_complete(entry):
        return entry
    entry.parent.mkdir(parents=True, exist_ok=True)
    with _locked(entry.parent.with_name(f"{entry.parent.name}.lock"), progress):
        if is_complete(entry):
            return entry
        _empty(entry.parent)
        folder, scratch = entry.parent / "partial", entry.parent / "scratch"
        folder.mkdir()
        scratch.mkdir()
        try:
            make(folder, scratch)
            sizes = {file.name: file.stat().st_size for file in sorted(folder.iterdir())}
            (folder / FACTS).write_text(json.dumps(attrs.asdict(origin) | {"files": sizes}, indent=2) + "\n")
            shutil.rmtree(scratch)
            folder.rename(entry)
        except BaseException:
            _empty(entry.parent)
            raise
    return entry


def file_sha256(file: Path) -> str:
    digest = hashlib.sha256()
    with file.open("rb") as stream:
        while data := stream.read(READ_BYTES):
            digest.update(data)
    return digest.hexdigest()


def remembered_sha256(file: Path, cache: Path) -> str:
    """`file_sha256`, computed once for a file of this path, size and time of change."""
    status = file.stat()
    identity = f"{file.resolve()} {status.st_ino} {status.st_size} {status.st_mtime_ns}"
    note = cache / "digests" / hashlib.sha256(identity.encode()).hexdigest()[:32]
    if note.exists():
        return note.read_text()
    digest = file_sha256(file)
    note.parent.mkdir(parents=True, exist_ok=True)
    partial = note.with_suffix(f".{os.getpid()}")
    partial.write_text(digest)
    partial.replace(note)
    return digest


def _empty(folder: Path) -> None:
    for child in folder.iterdir():
        shutil.rmtree(child)


@contextmanager
def _locked(lock: Path, progress: Progress) -> Iterator[None]:
    with lock.open("w") as handle:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            progress("waiting for another start that prepares the same model")
            fcntl.flock(handle, fcntl.LOCK_EX)
        yield
