"""A pool as other workers read it, through shared memory or CUDA IPC: `core.data_path.SharedPool`."""

import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from lmpool.core.data_path import BlockReader, BlockReading, CopyFaultError
from lmpool.core.ids import SECOND
from lmpool.core.plan import ReplicaError
from lmpool.gpu.kv_pool import KVPool
from lmpool.gpu.paths.cuda_driver import CopyEngine, CudaDriver
from lmpool.gpu.paths.cuda_ipc import CudaIPCTarget, device_memory
from lmpool.gpu.paths.ends import open_source, open_target
from lmpool.gpu.paths.port import CHUNK_BYTES, CopyOrder, CopyWatch, PathError, PathKind, PathSettings, ReadingPath
from lmpool.gpu.paths.shared_memory import SharedMemoryTarget

AUTO = "auto"
AGAIN = "leave --transfer-path out"


class ReadablePool:
    def __init__(self, pool: KVPool, kind: PathKind, engine: CopyEngine | None) -> None:
        """`engine` is for CUDA IPC. Raises CopyFaultError where the memory of the pool cannot be given to others."""
        self._pool = pool
        self._engine = engine
        self._settings = PathSettings(kind, Path(), "")  # no group has to meet anywhere
        if engine is not None:
            with _faults():
                device_memory(pool, engine)

    def offer(self, connected: int) -> None:
        with _faults():
            open_source(self._settings, socket.socket(fileno=connected), self._pool, self._engine).close()

    def attach(self, connected: int) -> BlockReader:
        with _faults():
            path = open_target(self._settings, socket.socket(fileno=connected), self._pool, self._engine)
            assert isinstance(path, SharedMemoryTarget | CudaIPCTarget)
            return _PoolReader(path, CHUNK_BYTES[self._settings.kind])


def readable_pool(pool: KVPool, path: str) -> ReadablePool | None:
    """`path`: auto, or the one that the operator wants. None on CUDA by auto, where no path was run on hardware yet.
    Raises ReplicaError."""
    on_host = pool.descriptor is not None
    if path == AUTO:
        return ReadablePool(pool, PathKind.SHARED_MEMORY, None) if on_host else None
    if on_host:
        raise ReplicaError(f"--transfer-path {path} is for replicas on CUDA, and this one is on the CPU", AGAIN)
    try:
        return ReadablePool(pool, PathKind(path), CudaDriver())
    except (PathError, CopyFaultError) as error:
        raise ReplicaError(f"--transfer-path {path}: {error}", AGAIN) from error


@contextmanager
def _faults() -> Iterator[None]:
    """What a path raises, as the port of workers has it."""
    try:
        yield
    except PathError as error:
        raise CopyFaultError(str(error)) from error


class _PoolReader:
    def __init__(self, path: ReadingPath, chunk_bytes: int) -> None:
        self._path = path
        self._chunk_bytes = chunk_bytes

    def read(self, reading: BlockReading, is_cancelled: Callable[[], bool]) -> int:
        order = CopyOrder(
            transfer=reading.transfer,
            source_blocks=reading.source_blocks,
            target_blocks=reading.target_blocks,
            chunk_bytes=self._chunk_bytes,
            is_summed=reading.is_summed,
            timeout_s=max(0, reading.deadline_ns - time.monotonic_ns()) / SECOND,
        )
        watch = CopyWatch(is_cancelled, lambda _: None)
        with _faults():
            copied = self._path.copy(order, watch)
            if reading.is_summed and copied.checksum != self._path.checksum_held(order, watch):
                raise CopyFaultError("the checksum of what has arrived is not that of what the source holds")
            return copied.size_bytes

    def close(self) -> None:
        self._path.close()
