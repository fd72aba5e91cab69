"""CUDA IPC: the target opens the device memory of the source's pool and pulls its blocks by the copy engine.

One two-dimensional copy a run: rows are the pieces of a run, one row a plane. Nothing of it takes time of the
multiprocessors, so steps go on meanwhile. The arithmetic is tested on host memory; on hardware it was not run yet.
"""

from typing import TypeAlias

import attrs
import torch

from lmpool.gpu.kv_pool import KVPool
from lmpool.gpu.paths.checksum import sum_held, summed
from lmpool.gpu.paths.chunks import Chunk, Run, chunk_blocks, chunk_bytes, chunks, runs
from lmpool.gpu.paths.cuda_driver import PITCH_MAX, CopyEngine, Rectangle
from lmpool.gpu.paths.deadline import Deadline
from lmpool.gpu.paths.planes import DevicePlanes, pool_form
from lmpool.gpu.paths.port import (
    Copied,
    CopyCancelled,
    CopyOrder,
    CopyRefused,
    CopyWatch,
    PathError,
    PoolForm,
    check_forms,
    check_order,
)

Pool: TypeAlias = tuple[int, PoolForm]
"""Where it begins, and what it is."""


@attrs.frozen
class DeviceMemory:
    """What a source tells of its pool."""

    handle: bytes
    offset: int
    """Of the pool in the allocation that `handle` opens."""


def device_memory(pool: KVPool, engine: CopyEngine) -> DeviceMemory:
    """Raises PathError."""
    make_current(pool.tensor.device)
    handle, offset = engine.memory_handle(pool.tensor.data_ptr())
    return DeviceMemory(handle, offset)


def packed_planes(address: int, chunk: Chunk, form: PoolForm) -> Pool:
    """Packed bytes of a chunk, as the pool of which they would be all blocks (the last is where a pool has scratch)."""
    alone = attrs.evolve(form, blocks=chunk.count - 1)
    return address - chunk.first_plane * chunk.count * form.piece_bytes, alone


def rectangles(chunk: Chunk, run: Run, source: Pool, target: Pool) -> list[Rectangle]:
    """A run in the planes of a chunk; one rectangle, or one a plane where planes are too far apart for that."""
    piece = source[1].piece_bytes
    pitches = [(form.blocks + 1) * piece for _, form in (source, target)]
    first, second = (
        address + chunk.first_plane * pitch + block * piece
        for (address, _), pitch, block in zip((source, target), pitches, (run.source, run.target), strict=True)
    )
    width = run.count * piece
    if max(pitches) <= PITCH_MAX:
        return [Rectangle(first, pitches[0], second, pitches[1], width, chunk.planes)]
    return [
        Rectangle(first + plane * pitches[0], width, second + plane * pitches[1], width, width, 1)
        for plane in range(chunk.planes)
    ]


def make_current(device: torch.device) -> None:
    """In this thread: driver calls go to its current context."""
    if device.type == "cuda":
        torch.cuda.set_device(device)
        torch.cuda.current_stream(device)


class CudaIPCTarget:
    """`ReadingPath` from one source's pool into `pool`."""

    def __init__(self, memory: DeviceMemory, form: PoolForm, pool: KVPool, engine: CopyEngine) -> None:
        """Raises CopyRefused."""
        check_forms(form, pool_form(pool))
        self._device = pool.tensor.device
        self._engine = engine
        self._planes = DevicePlanes(pool, is_staged_on_host=True)
        self._source_form = form
        self._target = (pool.tensor.data_ptr(), self._planes.form)
        make_current(self._device)
        self._opened: int | None
        self._opened, held = engine.open_handle(memory.handle)
        self._offset = memory.offset
        if memory.offset + form.size_bytes > held:
            self.close()
            raise CopyRefused(f"the source's memory has {held} bytes, and its pool would end beyond them")

    def copy(self, order: CopyOrder, watch: CopyWatch) -> Copied:
        source, form = self._source(), self._planes.form
        check_order(order, self._source_form.blocks, form.blocks)
        deadline = Deadline(order)
        cut = chunks(form, order)
        stage = self._planes.stage(max(chunk_bytes(form, chunk) for chunk in cut)) if order.is_summed else None
        done = checksum = 0
        for chunk in cut:
            if watch.is_cancelled():
                raise CopyCancelled(f"transfer {order.transfer} was cancelled")
            deadline.check()
            blocks = chunk_blocks(chunk, order.target_blocks)
            found = runs(chunk_blocks(chunk, order.source_blocks), blocks)
            self._pull([one for run in found for one in rectangles(chunk, run, source, self._target)])
            size = chunk_bytes(form, chunk)
            if stage is not None:
                self._planes.gather(chunk, blocks, stage[:size])
                checksum = summed(stage[:size], checksum)
            done += size
            watch.advanced(done)
        return Copied(done, checksum if order.is_summed else None)

    def checksum_held(self, order: CopyOrder, watch: CopyWatch) -> int:
        source = self._source()

        def fill(chunk: Chunk, packed: torch.Tensor) -> None:
            found = runs(chunk_blocks(chunk, order.source_blocks), range(chunk.count))
            whole = packed_planes(packed.data_ptr(), chunk, self._source_form)
            self._pull([one for run in found for one in rectangles(chunk, run, source, whole)])

        return sum_held(self._planes, order, watch, fill)

    def close(self) -> None:
        """Gives the source's memory back; not while a copy runs."""
        if self._opened is not None:
            make_current(self._device)
            self._engine.close_handle(self._opened)
            self._opened = None

    def _source(self) -> Pool:
        if self._opened is None:
            raise PathError("this path was closed")
        make_current(self._device)
        return self._opened + self._offset, self._source_form

    def _pull(self, found: list[Rectangle]) -> None:
        stream = self._planes.stream
        try:
            for rectangle in found:
                self._engine.copy(rectangle, 0 if stream is None else stream.cuda_stream)
        finally:
            if stream is not None:  # also after an error nothing may still write into these blocks
                stream.synchronize()
