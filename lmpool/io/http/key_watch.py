"""Keeps the keys of a server those of its file: a file that changes is read again, and a bad one changes nothing."""

import os
from pathlib import Path

from lmpool.io.http.keys import KeyFileError, read_keys
from lmpool.io.log import get_log

_log = get_log("keys")


class KeyWatch:
    def __init__(self, path: Path) -> None:
        """Raises KeyFileError."""
        self._path = path
        self._mark = _mark(path)
        self.keys = read_keys(path)
        """The same object for ever."""

    def look(self) -> None:
        """To be called now and again."""
        mark = _mark(self._path)
        if mark == self._mark:
            return
        self._mark = mark
        try:
            self.keys.replace(read_keys(self._path))
        except KeyFileError as error:
            _log.warning("the key file cannot be used; the keys before go on", cause=str(error))
            return
        _log.info("the key file was read again")


def _mark(path: Path) -> tuple[int, int, int] | None:
    """Changes with the file's content, as far as can be told without reading it. None: it is not there."""
    try:
        told = os.stat(path)
    except OSError:
        return None
    return told.st_ino, told.st_size, told.st_mtime_ns
