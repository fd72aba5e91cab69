"""Shared memory: the target maps the memory of the source's pool and reads its blocks by index, in one pass.

The mapping is read-only, so is the descriptor that is handed over, and both have no name: the memory goes with the
last process that has it. A source that died is still readable; whether what was read counts, its confirm says.
"""

import mmap
import os

import numpy as np
import torch

from lmpool.gpu.kv_pool import KVPool
from lmpool.gpu.paths.checksum import sum_held, summed
from lmpool.gpu.paths.chunks import Chunk, chunk_blocks, chunk_bytes, chunks
from lmpool.gpu.paths.deadline import Deadline
from lmpool.gpu.paths.planes import Bytes, HostPlanes, Move, chunk_moves, gather, host_planes, move, pool_form
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


def readable_descriptor(pool: KVPool) -> int:
    """A new descriptor of a CPU pool with which nobody can write. The caller closes it."""
    assert pool.descriptor is not None
    return os.open(f"/proc/self/fd/{pool.descriptor}", os.O_RDONLY | os.O_CLOEXEC)


def mapped_planes(descriptor: int, form: PoolForm) -> Bytes:
    """The pool behind `descriptor`, which may be closed afterwards. Raises CopyRefused."""
    try:
        held = os.fstat(descriptor).st_size
        if held != form.size_bytes:
            raise CopyRefused(f"the source's memory has {held} bytes, and its pool would have {form.size_bytes}")
        # populated at once, or the first copy pays a page fault every 4 KiB
        flags = mmap.MAP_SHARED | mmap.MAP_POPULATE
        mapping = mmap.mmap(descriptor, held, flags=flags, prot=mmap.PROT_READ)
    except OSError as error:
        raise CopyRefused(f"the source's memory cannot be mapped: {error.strerror}") from error
    # the array keeps the mapping alive, and the mapping refuses to close under it
    return np.frombuffer(mapping, dtype=np.uint8).reshape(form.planes, form.blocks + 1, form.piece_bytes)


class SharedMemoryTarget:
    """`ReadingPath` from one source's pool into `pool`."""

    def __init__(self, descriptor: int, form: PoolForm, pool: KVPool) -> None:
        """`descriptor` stays the caller's. Raises CopyRefused."""
        check_forms(form, pool_form(pool))
        self._form = form
        self._source: Bytes | None = mapped_planes(descriptor, form)
        self._target = host_planes(pool)
        self._planes = HostPlanes(pool)

    def copy(self, order: CopyOrder, watch: CopyWatch) -> Copied:
        if self._source is None:
            raise PathError("this path was closed")
        check_order(order, self._form.blocks, self._planes.form.blocks)
        deadline = Deadline(order)
        cut = chunks(self._form, order)
        sizes = [chunk_bytes(self._form, chunk) for chunk in cut]
        moves = [self._moves(chunk, order, self._source) for chunk in cut]
        stage = self._planes.stage(max(sizes)) if order.is_summed else None
        done = checksum = 0
        for chunk, size, ready in zip(cut, sizes, moves, strict=True):
            if watch.is_cancelled():
                raise CopyCancelled(f"transfer {order.transfer} was cancelled")
            deadline.check()
            move(ready)
            if stage is not None:
                self._planes.gather(chunk, chunk_blocks(chunk, order.target_blocks), stage[:size])
                checksum = summed(stage[:size], checksum)
            done += size
            watch.advanced(done)
        return Copied(done, checksum if order.is_summed else None)

    def checksum_held(self, order: CopyOrder, watch: CopyWatch) -> int:
        source = self._source
        if source is None:
            raise PathError("this path was closed")

        def fill(chunk: Chunk, packed: torch.Tensor) -> None:
            gather(source, chunk, chunk_blocks(chunk, order.source_blocks), packed)

        return sum_held(self._planes, order, watch, fill)

    def _moves(self, chunk: Chunk, order: CopyOrder, source: Bytes) -> list[Move]:
        blocks = chunk_blocks(chunk, order.source_blocks), chunk_blocks(chunk, order.target_blocks)
        return chunk_moves(chunk, source, blocks[0], self._target, blocks[1])

    def close(self) -> None:
        """Gives the source's memory back once no copy runs."""
        self._source = None
