"""The private folder of one run: sockets between its processes, and a lock that says whether the run still lives."""

import fcntl
import os
import re
import shutil
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

LOCK = "lock"
PREFIX = "run-"
PATH_BYTES_MAX = 70
"""A socket's path may have 107 bytes; the folder's own name takes 21 and `worker-63.sock` 15."""


class RunFolderError(Exception):
    """One line for the operator."""


class RunFolder:
    """Made private (0700), locked while this object is open, and removed by `close`."""

    def __init__(self, parent: Path, run: str) -> None:
        """Removes what dead runs left in `parent` first. Raises RunFolderError."""
        if len(os.fsencode(parent)) > PATH_BYTES_MAX:
            raise RunFolderError(f"{parent} is too long a path for sockets; give a shorter one with --run-folder")
        try:
            _make_private(parent)
            with _locked(parent):
                _remove_dead(parent)
                self.path = parent / f"{PREFIX}{run}"
                self.path.mkdir(mode=0o700)
                self._lock = os.open(self.path / LOCK, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
                fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            what = f"cannot make a folder for sockets in {parent}: {error.strerror}"
            raise RunFolderError(f"{what}; name another with --run-folder") from error

    def close(self) -> None:
        shutil.rmtree(self.path, ignore_errors=True)
        os.close(self._lock)


def _make_private(parent: Path) -> None:
    parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    facts = parent.lstat()
    if not stat.S_ISDIR(facts.st_mode) or facts.st_uid != os.getuid():
        raise RunFolderError(f"{parent} is not a folder of this user; name another with --run-folder")
    if facts.st_mode & 0o022:
        raise RunFolderError(f"others may write to {parent}; name another with --run-folder, or chmod 700 it")


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Else a starting run could take another's new folder, not locked yet, for a dead one."""
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)


def _remove_dead(parent: Path) -> None:
    for folder in parent.iterdir():
        if re.fullmatch(PREFIX + "[0-9a-f]+", folder.name) and not folder.is_symlink() and _is_dead(folder):
            shutil.rmtree(folder, ignore_errors=True)


def _is_dead(folder: Path) -> bool:
    try:
        handle = os.open(folder / LOCK, os.O_RDWR)
    except FileNotFoundError:
        return True
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    finally:
        os.close(handle)
    return True
