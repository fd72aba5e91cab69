"""The port of all data paths: an order goes in, blocks arrive, bytes and checksum come out. No torch here.

A path has two ends. The target's end takes the bytes; the source's end sends them (pairs) or only states what they
are (one-sided paths, where the target reads the source's pool itself). Both are given the same order.
"""

from collections.abc import Callable
from enum import Enum
from pathlib import Path
from typing import Protocol

import attrs


class PathKind(Enum):
    SHARED_MEMORY = "shm"
    GLOO = "gloo"
    CUDA_IPC = "cuda-ipc"
    NCCL = "nccl"


CHUNK_BYTES = {
    PathKind.SHARED_MEMORY: 16 << 20,
    PathKind.GLOO: 4 << 20,
    PathKind.CUDA_IPC: 16 << 20,
    PathKind.NCCL: 16 << 20,
}
"""Usual ones: some milliseconds, which is how long a cancel may wait. Pairs keep two in staging, and fill their
pipeline with small ones; through shared memory, small ones cut runs short. On CUDA these are guesses."""

NOT_RUN_ON_HARDWARE = (PathKind.CUDA_IPC, PathKind.NCCL)
"""Written from documentation; no figure is claimed for these."""


@attrs.frozen
class PathSettings:
    kind: PathKind
    folder: Path
    """Where the groups of pairs meet; private to the processes of one pool."""
    name: str
    """Of this directed pair of two lives, unique in `folder`."""


class PathError(Exception):
    """The blocks have not arrived: the peer is lost or silent, or what came is not what was ordered."""


class CopyRefused(PathError):  # noqa: N818 (says it better without Error)
    """Nothing was copied: the order or the peer's pool does not fit."""


class CopyCancelled(PathError):  # noqa: N818
    """Ended between two chunks because somebody asked; what has arrived is of no use."""


@attrs.frozen
class PoolForm:
    """What must be known of a pool to find a block in it. `blocks` may differ between two pools, nothing else."""

    layers: int
    block_size: int
    kv_heads: int
    head_dim: int
    dtype: str
    item_bytes: int
    """Of `dtype`."""
    blocks: int
    """Without the scratch block."""

    @property
    def planes(self) -> int:
        """Keys and values of each layer: a block has one piece in each plane."""
        return 2 * self.layers

    @property
    def piece_bytes(self) -> int:
        return self.block_size * self.kv_heads * self.head_dim * self.item_bytes

    @property
    def block_bytes(self) -> int:
        return self.planes * self.piece_bytes

    @property
    def size_bytes(self) -> int:
        return (self.blocks + 1) * self.block_bytes


def check_forms(source: PoolForm, target: PoolForm) -> None:
    """Raises CopyRefused."""
    if attrs.evolve(source, blocks=target.blocks) != target:
        raise CopyRefused(f"the source's pool is {source}, the target's {target}: blocks of one do not fit the other")


@attrs.frozen
class CopyOrder:
    transfer: tuple[int, int]
    """Epoch of control, and its counter."""
    source_blocks: tuple[int, ...]
    target_blocks: tuple[int, ...]
    """Parallel."""
    chunk_bytes: int
    """Bounds what is copied between two looks at the cancel flag; one piece is the least."""
    is_summed: bool
    """Whether a checksum is computed of what was sent and of what has arrived."""
    timeout_s: float
    """Of the whole copy."""


def check_order(order: CopyOrder, source_blocks: int | None, target_blocks: int | None) -> None:
    """Each end checks against the pools that it knows. Raises CopyRefused."""
    if not order.source_blocks or len(order.source_blocks) != len(order.target_blocks):
        pairs = f"{len(order.source_blocks)} source and {len(order.target_blocks)} target blocks"
        raise CopyRefused(f"transfer {order.transfer} has {pairs}")
    if len(set(order.target_blocks)) < len(order.target_blocks):
        raise CopyRefused(f"transfer {order.transfer} has a target block twice")
    for name, blocks, held in (
        ("source", order.source_blocks, source_blocks),
        ("target", order.target_blocks, target_blocks),
    ):
        if held is not None and not (min(blocks) >= 0 and max(blocks) < held):
            raise CopyRefused(f"transfer {order.transfer} has {name} blocks outside of 0 to {held - 1}")


@attrs.frozen
class Copied:
    size_bytes: int
    checksum: int | None
    """CRC-32 of the payload, chunk after chunk: at the source of what it holds, at the target of what has arrived."""


@attrs.frozen
class CopyWatch:
    """What a copy asks and tells between two chunks, on its own thread."""

    is_cancelled: Callable[[], bool]
    advanced: Callable[[int], None]
    """Bytes so far."""


class DataPath(Protocol):
    """One end of one directed pair. Blocks its caller, who has a thread for it, and lets other threads run."""

    def copy(self, order: CopyOrder, watch: CopyWatch) -> Copied:
        """One at a time. On return nothing touches the blocks any more, nor after an error. Raises PathError; the path
        may be used again after any of them."""
        ...

    def close(self) -> None: ...


class ReadingPath(DataPath, Protocol):
    """The target's end of a one-sided path: it reads the source's pool by itself."""

    def checksum_held(self, order: CopyOrder, watch: CopyWatch) -> int:
        """Of what the source holds now, as `copy` sums what has arrived. Raises PathError."""
        ...
