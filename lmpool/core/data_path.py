"""The port between a worker and whatever copies KV blocks from another worker's pool into its own, by reading it.

Two implementations: `lmpool.gpu.paths.shared_pool` (torch) and `lmpool.sim.integer_pool` (exact integers). Both ends
meet over one connected Unix socket, which the driver has greeted: it knows who is at the other end.
"""

from collections.abc import Callable
from typing import Protocol

import attrs

from lmpool.core.ids import BlockId, Nanos, TransferId


class CopyFaultError(Exception):
    """The blocks have not arrived: it was cancelled or late, the peer is gone, or its pool does not fit."""


@attrs.frozen
class BlockReading:
    """Fill blocks of this pool from blocks of the other, one for one."""

    transfer: TransferId
    source_blocks: tuple[BlockId, ...]
    target_blocks: tuple[BlockId, ...]
    deadline_ns: Nanos
    """It is of no use after that."""
    is_summed: bool
    """After the last byte, what the source holds and what has arrived are read again and compared."""


class BlockReader(Protocol):
    """Reads blocks of one life of one other worker into this one's. Blocks its caller, who has a thread for it."""

    def read(self, reading: BlockReading, is_cancelled: Callable[[], bool]) -> int:
        """The bytes that were copied. One reading at a time; asks now and then whether it is cancelled. When it is
        over, however it ended, nothing of it touches a block any more. Raises CopyFaultError."""
        ...

    def close(self) -> None:
        """Gives the other's memory back."""
        ...


class SharedPool(Protocol):
    """A pool that lies in memory which other processes can be given."""

    def offer(self, connected: int) -> None:
        """Tells a peer where the blocks are. Takes the descriptor over. Raises CopyFaultError."""
        ...

    def attach(self, connected: int) -> BlockReader:
        """Waits for a peer's offer. Takes the descriptor over. Raises CopyFaultError."""
        ...
