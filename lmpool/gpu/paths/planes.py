"""A pool as `[planes, blocks, piece]` of bytes, on the host or on a device, and chunks in and out of it."""

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Protocol, TypeAlias

import numpy as np
import numpy.typing as npt
import torch

from lmpool.gpu.device import dtype_name
from lmpool.gpu.kv_pool import KVPool
from lmpool.gpu.paths.chunks import Chunk, runs
from lmpool.gpu.paths.port import PoolForm

Bytes: TypeAlias = npt.NDArray[np.uint8]
Move: TypeAlias = tuple[Bytes, Bytes]
"""Where to, and what."""


def pool_form(pool: KVPool) -> PoolForm:
    shape = pool.shape
    return PoolForm(
        layers=shape.layers,
        block_size=shape.block_size,
        kv_heads=shape.kv_heads,
        head_dim=shape.head_dim,
        dtype=dtype_name(shape.dtype),
        item_bytes=shape.dtype.itemsize,
        blocks=pool.blocks,
    )


def host_planes(pool: KVPool) -> Bytes:
    form = pool_form(pool)
    whole = pool.tensor.view(torch.uint8).numpy()
    return whole.reshape(form.planes, form.blocks + 1, form.piece_bytes)


def chunk_moves(
    chunk: Chunk, source: Bytes, source_blocks: Sequence[int], target: Bytes, target_blocks: Sequence[int]
) -> list[Move]:
    """One move a run. Made before the first byte is copied: between copies, code would come from cold caches."""
    planes = slice(chunk.first_plane, chunk.first_plane + chunk.planes)
    return [
        (target[planes, run.target : run.target + run.count], source[planes, run.source : run.source + run.count])
        for run in runs(source_blocks, target_blocks)
    ]


def move(moves: Sequence[Move]) -> None:
    """One pass: numpy moves whole pieces, and lets other threads run meanwhile.

    Against index_select with index_copy_ (two passes), one call a run had twice to three times the rate.
    """
    for into, taken in moves:
        into[...] = taken


def gather(held: Bytes, chunk: Chunk, blocks: Sequence[int], packed: torch.Tensor) -> None:
    """Fills `packed`, on the host."""
    part = held[chunk.first_plane : chunk.first_plane + chunk.planes]
    whole = packed.numpy().reshape(chunk.planes, chunk.count, held.shape[2])
    move(chunk_moves(_alone(chunk), part, blocks, whole, range(chunk.count)))


class Planes(Protocol):
    """What the ends of a pair need of a pool."""

    form: PoolForm

    def stage(self, size_bytes: int) -> torch.Tensor:
        """Memory for packed payloads, where `gather` and `scatter` want it."""
        ...

    def gather(self, chunk: Chunk, blocks: Sequence[int], packed: torch.Tensor) -> None:
        """Fills `packed`, complete on return."""
        ...

    def scatter(self, chunk: Chunk, blocks: Sequence[int], packed: torch.Tensor) -> None:
        """`packed` may be reused on return."""
        ...


class HostPlanes:
    def __init__(self, pool: KVPool) -> None:
        self.form = pool_form(pool)
        self._bytes = host_planes(pool)

    def stage(self, size_bytes: int) -> torch.Tensor:
        return torch.empty(size_bytes, dtype=torch.uint8)

    def gather(self, chunk: Chunk, blocks: Sequence[int], packed: torch.Tensor) -> None:
        gather(self._bytes, chunk, blocks, packed)

    def scatter(self, chunk: Chunk, blocks: Sequence[int], packed: torch.Tensor) -> None:
        part, whole = self._chunk_planes(chunk), self._packed(chunk, packed)
        move(chunk_moves(_alone(chunk), whole, range(chunk.count), part, blocks))

    def _chunk_planes(self, chunk: Chunk) -> Bytes:
        return self._bytes[chunk.first_plane : chunk.first_plane + chunk.planes]

    def _packed(self, chunk: Chunk, packed: torch.Tensor) -> Bytes:
        return packed.numpy().reshape(chunk.planes, chunk.count, self.form.piece_bytes)


def _alone(chunk: Chunk) -> Chunk:
    """The chunk inside arrays that hold only its planes."""
    return Chunk(0, chunk.planes, chunk.first, chunk.count)


class DevicePlanes:
    """By torch on a stream of its own, so that steps go on meanwhile. On CUDA not run on hardware yet.

    Packed payloads are on the device for NCCL and in pinned host memory for gloo.
    """

    def __init__(self, pool: KVPool, *, is_staged_on_host: bool) -> None:
        self.form = pool_form(pool)
        self._device = pool.tensor.device
        self._bytes = pool.tensor.view(torch.uint8).view(self.form.planes, pool.blocks + 1, self.form.piece_bytes)
        self._on_host = is_staged_on_host
        self.stream = torch.cuda.Stream(self._device) if self._device.type == "cuda" else None

    def stage(self, size_bytes: int) -> torch.Tensor:
        if self._on_host:
            return torch.empty(size_bytes, dtype=torch.uint8, pin_memory=self.stream is not None)
        return torch.empty(size_bytes, dtype=torch.uint8, device=self._device)

    def gather(self, chunk: Chunk, blocks: Sequence[int], packed: torch.Tensor) -> None:
        with self._own_stream():
            taken = torch.index_select(self._chunk_planes(chunk), 1, self._indices(blocks))
            packed.view(taken.shape).copy_(taken, non_blocking=True)
        self._finish()

    def scatter(self, chunk: Chunk, blocks: Sequence[int], packed: torch.Tensor) -> None:
        with self._own_stream():
            shape = (chunk.planes, chunk.count, self.form.piece_bytes)
            arrived = packed.view(shape).to(self._device, non_blocking=True)
            self._chunk_planes(chunk).index_copy_(1, self._indices(blocks), arrived)
        self._finish()

    def _chunk_planes(self, chunk: Chunk) -> torch.Tensor:
        return self._bytes[chunk.first_plane : chunk.first_plane + chunk.planes]

    def _indices(self, blocks: Sequence[int]) -> torch.Tensor:
        return torch.tensor(blocks, dtype=torch.int64, device=self._device)

    def _own_stream(self) -> AbstractContextManager[object]:
        return nullcontext() if self.stream is None else torch.cuda.stream(self.stream)

    def _finish(self) -> None:
        if self.stream is not None:
            self.stream.synchronize()
