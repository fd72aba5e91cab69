"""CRC-32 over payloads, chunk after chunk. A core does 1 to 3 GB/s of it, so it is a setting."""

import zlib

import torch

from lmpool.gpu.paths.chunks import chunk_blocks, chunk_bytes, chunks
from lmpool.gpu.paths.planes import Planes
from lmpool.gpu.paths.port import Copied, CopyCancelled, CopyOrder, CopyWatch, check_order


def summed(packed: torch.Tensor, before: int) -> int:
    return zlib.crc32(packed.cpu().numpy().data, before)


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
        stage = self._planes.stage(max(form.piece_bytes, min(order.chunk_bytes, size)))
        checksum = done = 0
        for chunk in chunks(form, len(order.source_blocks), order.chunk_bytes):
            if watch.is_cancelled():
                raise CopyCancelled(f"transfer {order.transfer} was cancelled")
            packed = stage[: chunk_bytes(form, chunk)]
            self._planes.gather(chunk, chunk_blocks(chunk, order.source_blocks), packed)
            checksum = summed(packed, checksum)
            done += packed.numel()
            watch.advanced(done)
        return Copied(done, checksum)

    def close(self) -> None:
        pass
