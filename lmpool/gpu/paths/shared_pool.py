"""A CPU pool as other workers read it: `core.data_path.SharedPool` by the shared memory path."""

import socket
import time
from collections.abc import Callable
from pathlib import Path

from lmpool.core.data_path import BlockReader, BlockReading, CopyFaultError
from lmpool.core.ids import SECOND
from lmpool.gpu.kv_pool import KVPool
from lmpool.gpu.paths.ends import open_source, open_target
from lmpool.gpu.paths.port import CHUNK_BYTES, CopyOrder, CopyWatch, PathError, PathKind, PathSettings
from lmpool.gpu.paths.shared_memory import SharedMemoryTarget

_SETTINGS = PathSettings(PathKind.SHARED_MEMORY, Path(), "")
"""No group has to meet anywhere."""


class SharedMemoryPool:
    def __init__(self, pool: KVPool) -> None:
        assert pool.descriptor is not None
        self._pool = pool

    def offer(self, connected: int) -> None:
        try:
            open_source(_SETTINGS, socket.socket(fileno=connected), self._pool, None).close()
        except PathError as error:
            raise CopyFaultError(str(error)) from error

    def attach(self, connected: int) -> BlockReader:
        try:
            path = open_target(_SETTINGS, socket.socket(fileno=connected), self._pool, None)
            assert isinstance(path, SharedMemoryTarget)
            return _PoolReader(path)
        except PathError as error:
            raise CopyFaultError(str(error)) from error


class _PoolReader:
    def __init__(self, path: SharedMemoryTarget) -> None:
        self._path = path

    def read(self, reading: BlockReading, is_cancelled: Callable[[], bool]) -> int:
        order = CopyOrder(
            transfer=reading.transfer,
            source_blocks=reading.source_blocks,
            target_blocks=reading.target_blocks,
            chunk_bytes=CHUNK_BYTES[PathKind.SHARED_MEMORY],
            is_summed=reading.is_summed,
            timeout_s=max(0, reading.deadline_ns - time.monotonic_ns()) / SECOND,
        )
        watch = CopyWatch(is_cancelled, lambda _: None)
        try:
            copied = self._path.copy(order, watch)
            if reading.is_summed and copied.checksum != self._path.checksum_held(order, watch):
                raise CopyFaultError("the checksum of what has arrived is not that of what the source holds")
        except PathError as error:
            raise CopyFaultError(str(error)) from error
        return copied.size_bytes

    def close(self) -> None:
        self._path.close()
