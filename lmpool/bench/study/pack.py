"""A study's folder as one compressed file with the same bytes each time, and such a file opened again."""

import io
import lzma
import tarfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from lmpool.bench.study.folder import STUDY, Folder, StudyError, open_folder

PACKED_MAX = 5_000_000
"""Bytes of a file that is to be kept beside code: hundreds of simulated trials take more, if somebody says so."""
ROOT = "study"


def pack(folder: Folder, file: Path, size_max: int = PACKED_MAX) -> int:
    """All files of the study, and nothing of when and by whom they were written. The size. Raises StudyError."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=tarfile.PAX_FORMAT) as archive:
        for path in _files(folder.path):
            member = tarfile.TarInfo(f"{ROOT}/{path.relative_to(folder.path).as_posix()}")
            content = path.read_bytes()
            member.size = len(content)
            member.mode = 0o644
            archive.addfile(member, io.BytesIO(content))
    packed = lzma.compress(out.getvalue(), preset=9 | lzma.PRESET_EXTREME)
    if len(packed) > size_max:
        raise StudyError(f"{file} would have {len(packed):,} bytes, more than {size_max:,} (--size-max)")
    file.write_bytes(packed)
    return len(packed)


def _files(path: Path) -> list[Path]:
    """Without what an interruption has left."""
    return sorted(
        file
        for file in path.rglob("*")
        if file.is_file() and not any(part.startswith(".") for part in file.relative_to(path).parts)
    )


@contextmanager
def opened(path: Path) -> Iterator[Folder]:
    """A folder, or a packed one. Raises PlanError, StudyError."""
    if not path.is_file():
        yield open_folder(path)
        return
    with TemporaryDirectory() as place:
        try:
            with tarfile.open(path, "r:xz") as archive:
                archive.extractall(place, filter="data")
        except (tarfile.TarError, lzma.LZMAError, EOFError) as error:
            raise StudyError(f"{path} is no packed study: {error}") from error
        root = Path(place) / ROOT
        if not (root / STUDY).exists():
            raise StudyError(f"{path} is no packed study: there is no {ROOT}/{STUDY} in it")
        yield open_folder(root)
