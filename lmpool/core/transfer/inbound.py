"""The target's side of a transfer: blocks that are reserved, filled, and made resident all at once or not at all."""

from lmpool.core.block_pool import BlockPool
from lmpool.core.effects import CancelCopy, CopyBlocks, CopyEffect
from lmpool.core.ids import BlockId, Nanos, TransferId
from lmpool.core.messages.transfer import (
    BeginCopy,
    Copied,
    PrepareTarget,
    TargetPrepared,
    TransferEnd,
    TransferRefusal,
)
from lmpool.core.prefix import chain_length
from lmpool.core.reservation import Reservation, ReserveRefusal
from lmpool.core.transfer.life import TARGET_TRANSITIONS, TargetEvent, TargetState

ARRIVAL_SHARE = 2
"""At most one in so many blocks of the pool is reserved for what arrives."""


def prepare_target(order: PrepareTarget, pool: BlockPool, reserved: int) -> "TargetSide | TransferRefusal":
    """`reserved`: blocks that are reserved for other transfers."""
    blocks, depth = chain_length(order.chain), pool.resident_depth(order.chain)
    if depth < order.first:
        return TransferRefusal.ANCHOR_MISSING
    if depth == blocks:
        return TransferRefusal.ALREADY_RESIDENT
    if ARRIVAL_SHARE * (reserved + blocks - depth) > pool.size:
        return TransferRefusal.NO_BLOCKS
    reservation = pool.reserve(order.chain, depth)
    return (
        TransferRefusal.NO_BLOCKS if isinstance(reservation, ReserveRefusal) else TargetSide(order, reservation, pool)
    )


class TargetSide:
    """Owned by the exchange."""

    __slots__ = ("_began_ns", "_order", "_pool", "_reservation", "copied", "end", "state")

    def __init__(self, order: PrepareTarget, reservation: Reservation, pool: BlockPool) -> None:
        self._order = order
        self._pool = pool
        self._reservation = reservation
        self._began_ns = Nanos(0)
        """When the copy was ordered."""
        self.state = TargetState.RESERVED
        self.copied: Copied | None = None
        """Once all bytes are there."""
        self.end: TransferEnd | None = None
        """Why it is off. None while it goes on, and if it is published."""

    @property
    def transfer(self) -> TransferId:
        return self._order.transfer

    @property
    def deadline_ns(self) -> Nanos:
        return self._order.deadline_ns

    @property
    def is_over(self) -> bool:
        """Whether it holds nothing any more."""
        return self.state is TargetState.ENDED or self.state is TargetState.PUBLISHED

    @property
    def freed(self) -> int:
        """Only a source frees what it held before."""
        return 0

    @property
    def chain(self) -> bytes:
        return self._order.chain

    @property
    def pinned(self) -> tuple[BlockId, ...]:
        has_path = self.state in (TargetState.RESERVED, TargetState.COPYING, TargetState.COPIED)
        return self._reservation.path if has_path else ()

    @property
    def reserved(self) -> int:
        """Blocks that are out of use for it."""
        return 0 if self.is_over else len(self._reservation.blocks)

    @property
    def prepared(self) -> TargetPrepared:
        return TargetPrepared(self.transfer, self._reservation.first, len(self._reservation.blocks))

    def copy(self, now: Nanos, order: BeginCopy) -> list[CopyEffect]:
        blocks, prepared = self._reservation.blocks, self._order
        if len(order.blocks) != len(blocks) or not self._move(TargetEvent.COPY_ORDERED):
            return []
        self._began_ns = now
        return [
            CopyBlocks(
                self.transfer,
                prepared.means,
                prepared.source,
                prepared.source_epoch,
                order.blocks,
                order.generations,
                blocks,
                prepared.deadline_ns,
            )
        ]

    def end_copy(self, now: Nanos, blocks: int, size_bytes: int) -> None:
        """The driver has filled so many blocks and touches none any more."""
        if blocks != len(self._reservation.blocks):
            self.fail_copy(TransferEnd.LENGTH_WRONG)
        elif self._move(TargetEvent.COPIED):
            if self.is_over:
                self._pool.end_abort(self._reservation)
            else:
                self.copied = Copied(self.transfer, size_bytes, Nanos(now - self._began_ns))

    def fail_copy(self, end: TransferEnd) -> None:
        """The driver has given up and touches no block any more."""
        was_copying = self.state is TargetState.COPYING
        if not self._move(TargetEvent.COPY_FAILED):
            return
        if was_copying:
            self.end = end
            self._pool.release_reserved(self._reservation)
        else:
            self._pool.end_abort(self._reservation)

    def publish(self) -> bool:
        """False: it is not copied, or not any more."""
        if not self._move(TargetEvent.PUBLISH_ORDERED):
            return False
        self._pool.publish_reserved(self._reservation)
        return True

    def stop(self, end: TransferEnd) -> list[CopyEffect]:
        """It is off. Changes nothing if it was already."""
        if not self._move(TargetEvent(end.value)):
            return []
        self.end = end
        if self.is_over:
            self._pool.release_reserved(self._reservation)
            return []
        self._pool.abort_reserved(self._reservation)
        return [CancelCopy(self.transfer)]

    def _move(self, event: TargetEvent) -> bool:
        """False: a repeat, or too late."""
        after = TARGET_TRANSITIONS[self.state].get(event)
        if after is None:
            return False
        self.state = after
        return True

    def digest_parts(self) -> tuple[object, ...]:
        return self._order, self._reservation, self._began_ns, self.state, self.copied, self.end
