"""A CPU pool as other workers read it: `core.data_path.SharedPool` by the shared memory path."""

import socket
import time
from collections.abc import Callable
from pathlib import Path

from lmpool.core.data_path import BlockReader, BlockReading, CopyFaultError
from lmpool.core.ids import SECOND
from lmpool.gpu.kv_pool import KVPool
from lmpool.gpu.paths.ends import open_source, open_target
from lmpool.gpu.paths.port import CHUNK_BYTES, CopyOrder, CopyWatch, DataPath, PathError, PathKind, PathSettings

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
            return _PoolReader(open_target(_SETTINGS, socket.socket(fileno=connected), self._pool, None))
        except PathError as error:
            raise CopyFaultError(str(error)) from error


class _PoolReader:
    def __init__(self, path: DataPath) -> None:
        self._path = path

    def read(self, reading: BlockReading, is_cancelled: Callable[[], bool]) -> int:
        order = CopyOrder(
            transfer=reading.transfer,
            source_blocks=reading.source_blocks,
            target_blocks=reading.target_blocks,
            chunk_bytes=CHUNK_BYTES[PathKind.SHARED_MEMORY],
            is_summed=False,
            timeout_s=max(0, reading.deadline_ns - time.monotonic_ns()) / SECOND,
        )
        try:
            return self._path.copy(order, CopyWatch(is_cancelled, lambda _: None)).size_bytes
        except PathError as error:
            raise CopyFaultError(str(error)) from error

    def close(self) -> None:
        self._path.close()
