"""What a measurement of data paths needs of torch: pools with known bytes, cold caches, and the copies that a path is
compared with, which stay inside one process."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeAlias

import attrs
import numpy as np
import torch

from lmpool.gpu.device import DTYPES
from lmpool.gpu.kv_pool import BlockShape, KVPool, allocate_cpu_pool, allocate_cuda_pool
from lmpool.gpu.paths.planes import host_planes

Blocks: TypeAlias = Sequence[int]
IndexedCopy: TypeAlias = Callable[[Blocks, Blocks], None]
FlatCopy: TypeAlias = Callable[[int, int, int], None]
"""First block at the source and at the target, and how many blocks' worth of bytes, without regard for planes."""

CACHES = Path("/sys/devices/system/cpu/cpu0/cache")
COLD_BYTES_MAX = 1 << 30
UNITS = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}


@attrs.frozen
class PoolOrder:
    layers: int
    block_size: int
    kv_heads: int
    head_dim: int
    dtype: str
    blocks: int
    device: str
    """`cpu` or `cuda:N`."""


def cuda_devices() -> int:
    return torch.cuda.device_count() if torch.cuda.is_available() else 0


def known_pool(order: PoolOrder, seed: int) -> KVPool:
    """Equal orders and seeds give equal bytes in every process. Raises ReplicaError."""
    shape = BlockShape(order.layers, order.block_size, order.kv_heads, order.head_dim, DTYPES[order.dtype])
    device = torch.device(order.device)
    if device.type == "cpu":
        pool = allocate_cpu_pool(shape, order.blocks)
    else:
        pool = allocate_cuda_pool(shape, order.blocks, device)
    flat = pool.tensor.view(torch.uint8).view(-1)
    drawn = np.random.default_rng(seed).integers(0, 256, flat.numel(), dtype=np.uint8)
    flat.copy_(torch.from_numpy(drawn))
    return pool


def clear(pool: KVPool, blocks: Blocks) -> None:
    pool.tensor[:, :, _indices(pool, blocks)] = 0


class KnownBytes:
    """What a pool holds now, kept elsewhere: to compare with a pool would warm it for the next copy out of it."""

    def __init__(self, pool: KVPool) -> None:
        self._bytes = pool.tensor.view(torch.uint8).cpu().clone()

    def are_in(self, pool: KVPool, blocks: Blocks, known: Blocks) -> bool:
        """Whether `blocks` of `pool` hold what the `known` blocks held, bit by bit."""
        found = pool.tensor[:, :, _indices(pool, blocks)].view(torch.uint8).cpu()
        return bool(torch.equal(found, self._bytes[:, :, torch.tensor(known, dtype=torch.int64)]))


def cold_bytes() -> int:
    """Half more than the largest cache."""
    sizes = [file.read_text().strip() for file in CACHES.glob("index*/size")]
    largest = max((int(size[:-1]) * UNITS[size[-1]] for size in sizes), default=32 << 20)
    return min(COLD_BYTES_MAX, largest + largest // 2)


class ColdCaches:
    """Memory to be read through before something is to be cold."""

    def __init__(self, size_bytes: int) -> None:
        self.size_bytes = size_bytes
        self._memory = np.ones(self.size_bytes // 8, dtype=np.int64)

    def evict(self) -> None:
        self._memory.max()


class PlainCopies:
    """Between two pools of one form in one process, by the ways that torch and numpy have."""

    def __init__(self, source: KVPool, target: KVPool) -> None:
        self._source = source
        self._target = target
        self._from = source.tensor.view(torch.uint8).view(-1)
        self._into = target.tensor.view(torch.uint8).view(-1)
        self.indexed: dict[str, IndexedCopy] = {
            "index_select, index_copy_": self._by_index,
            "copy_ a block": self._by_block,
        }
        self.flat: dict[str, FlatCopy] = {"copy_": self._flat}
        if source.tensor.device.type == "cpu":
            self._planes = host_planes(source), host_planes(target)
            self.indexed["numpy a block"] = self._by_numpy
            self.flat["numpy"] = self._flat_numpy

    def run(self, copy: Callable[[], None]) -> None:
        """Complete on return."""
        copy()
        if self._target.tensor.device.type == "cuda":
            torch.cuda.synchronize(self._target.tensor.device)

    def _by_index(self, source: Blocks, target: Blocks) -> None:
        taken = self._source.tensor.index_select(2, _indices(self._source, source))
        self._target.tensor.index_copy_(2, _indices(self._target, target), taken)

    def _by_block(self, source: Blocks, target: Blocks) -> None:
        for one, other in zip(source, target, strict=True):
            self._target.tensor[:, :, other].copy_(self._source.tensor[:, :, one])

    def _by_numpy(self, source: Blocks, target: Blocks) -> None:
        left, right = self._planes
        for one, other in zip(source, target, strict=True):
            right[:, other] = left[:, one]

    def _flat(self, source: int, target: int, blocks: int) -> None:
        each = self._source.shape.block_bytes
        taken = self._from[source * each : (source + blocks) * each]
        self._into[target * each : (target + blocks) * each].copy_(taken)

    def _flat_numpy(self, source: int, target: int, blocks: int) -> None:
        each = self._source.shape.block_bytes
        left, right = (planes.reshape(-1) for planes in self._planes)
        np.copyto(right[target * each : (target + blocks) * each], left[source * each : (source + blocks) * each])


def _indices(pool: KVPool, blocks: Blocks) -> torch.Tensor:
    return torch.tensor(blocks, dtype=torch.int64, device=pool.tensor.device)
