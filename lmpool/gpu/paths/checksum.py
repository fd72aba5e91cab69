"""CRC-32 over payloads, chunk after chunk. A core does 1 to 3 GB/s of it, so it is a setting."""

import zlib
from collections.abc import Callable

import torch

from lmpool.gpu.paths.chunks import Chunk, chunk_blocks, chunk_bytes, chunks
from lmpool.gpu.paths.deadline import Deadline
from lmpool.gpu.paths.planes import Planes
from lmpool.gpu.paths.port import Copied, CopyCancelled, CopyOrder, CopyWatch, check_order


def summed(packed: torch.Tensor, before: int) -> int:
    return zlib.crc32(packed.cpu().numpy().data, before)


def sum_held(planes: Planes, order: CopyOrder, watch: CopyWatch, fill: Callable[[Chunk, torch.Tensor], None]) -> int:
    """The checksum of what the source holds: `fill` packs a chunk of its blocks. Raises PathError."""
    form, deadline = planes.form, Deadline(order)
    cut = chunks(form, order)
    stage = planes.stage(max(chunk_bytes(form, chunk) for chunk in cut))
    checksum = done = 0
    for chunk in cut:
        if watch.is_cancelled():
            raise CopyCancelled(f"transfer {order.transfer} was cancelled")
        deadline.check()
        packed = stage[: chunk_bytes(form, chunk)]
        fill(chunk, packed)
        checksum = summed(packed, checksum)
        done += packed.numel()
        watch.advanced(done)
    return checksum


class OneSidedSource:
    """The source's end where the target reads by itself: states what the blocks hold, and sends nothing."""

    def __init__(self, planes: Planes) -> None:
        self._planes = planes

    def copy(self, order: CopyOrder, watch: CopyWatch) -> Copied:
        form = self._planes.form
        check_order(order, form.blocks, None)
        size = len(order.source_blocks) * form.block_bytes
        if not order.is_summed:
            return Copied(size, None)

        def fill(chunk: Chunk, packed: torch.Tensor) -> None:
            self._planes.gather(chunk, chunk_blocks(chunk, order.source_blocks), packed)

        return Copied(size, sum_held(self._planes, order, watch, fill))

    def close(self) -> None:
        pass
