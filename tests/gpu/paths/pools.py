"""Pools with known bytes, and orders between them."""

from collections.abc import Callable, Sequence

import numpy as np
import torch

from lmpool.gpu.kv_pool import BlockShape, KVPool, allocate_cpu_pool
from lmpool.gpu.paths.planes import Bytes, host_planes
from lmpool.gpu.paths.port import CopyOrder, CopyWatch

SHAPE = BlockShape(layers=3, block_size=8, kv_heads=2, head_dim=4, dtype=torch.bfloat16)
"""128 bytes a piece, 768 a block."""
ODD = BlockShape(layers=5, block_size=16, kv_heads=3, head_dim=7, dtype=torch.float16)
WIDE = BlockShape(layers=2, block_size=32, kv_heads=1, head_dim=64, dtype=torch.float32)


def filled_pool(shape: BlockShape, blocks: int, seed: int) -> KVPool:
    """Every bit pattern occurs, also those that are no numbers."""
    pool = allocate_cpu_pool(shape, blocks)
    planes = host_planes(pool)
    planes[:] = np.random.default_rng(seed).integers(0, 256, planes.shape, dtype=np.uint8)
    return pool


def known_bytes(shape: BlockShape, blocks: int, seed: int) -> Bytes:
    return host_planes(filled_pool(shape, blocks, seed))


def order(
    source_blocks: Sequence[int],
    target_blocks: Sequence[int],
    *,
    counter: int = 1,
    chunk_bytes: int = 2000,
    timeout_s: float = 20.0,
) -> CopyOrder:
    return CopyOrder(
        transfer=(7, counter),
        source_blocks=tuple(source_blocks),
        target_blocks=tuple(target_blocks),
        chunk_bytes=chunk_bytes,
        is_summed=True,
        timeout_s=timeout_s,
    )


def watch(cancel_from: int | None = None, advanced: Callable[[int], None] = lambda _: None) -> CopyWatch:
    """Cancelled as soon as so many bytes have been copied; 0: from the start."""
    done = [0]

    def count(size: int) -> None:
        done[0] = size
        advanced(size)

    return CopyWatch(lambda: cancel_from is not None and done[0] >= cancel_from, count)


def assert_copied(copied: CopyOrder, source: Bytes, target: Bytes, before: Bytes) -> None:
    """The blocks of the order are the source's bit for bit, and no other byte of the target has changed."""
    expected = before.copy()
    expected[:, list(copied.target_blocks)] = source[:, list(copied.source_blocks)]
    assert np.array_equal(target, expected)
