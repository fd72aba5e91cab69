"""The source's side of a transfer: a chain that stays pinned, readable and routable until the transfer is over."""

from lmpool.core.block_pool import BlockPool
from lmpool.core.effects import CancelCopy, CopyEffect, SendBlocks
from lmpool.core.ids import BlockId, Nanos, StepNumber, TransferId
from lmpool.core.messages.transfer import (
    BeginSend,
    PrepareSource,
    SourcePrepared,
    TransferEnd,
    TransferMode,
    TransferRefusal,
)
from lmpool.core.prefix import chain_length
from lmpool.core.transfer.life import SOURCE_TRANSITIONS, SourceEvent, SourceState

COPY_SHARE = 4
"""At most one in so many blocks of the pool is pinned for copies, so that sequences always have the rest."""


def prepare_source(order: PrepareSource, pool: BlockPool, pinned: int) -> "SourceSide | TransferRefusal":
    """`pinned`: blocks that are pinned for other copies."""
    blocks = chain_length(order.chain)
    if pool.resident_depth(order.chain) < blocks:
        return TransferRefusal.CHAIN_MISSING
    if COPY_SHARE * (pinned + blocks) > pool.size:
        return TransferRefusal.PINS_FULL
    return SourceSide(order, pool)


class SourceSide:
    """Owned by the exchange. The chain is resident when it is made."""

    __slots__ = ("_blocks", "_freed", "_order", "_pool", "end", "state")

    def __init__(self, order: PrepareSource, pool: BlockPool) -> None:
        self._order = order
        self._pool = pool
        self._blocks = pool.hold(order.chain, chain_length(order.chain))
        self._freed = 0
        self.state = SourceState.HELD
        self.end: TransferEnd | None = None
        """Why it is off. None while it goes on."""

    @property
    def transfer(self) -> TransferId:
        return self._order.transfer

    @property
    def deadline_ns(self) -> Nanos:
        return self._order.deadline_ns

    @property
    def is_over(self) -> bool:
        """Whether it holds nothing any more."""
        return self.state is SourceState.ENDED

    @property
    def freed(self) -> int:
        return self._freed

    @property
    def pinned(self) -> list[BlockId]:
        return [] if self.is_over else self._blocks

    @property
    def prepared(self) -> SourcePrepared:
        blocks = tuple(self._blocks[self._order.first :])
        return SourcePrepared(self.transfer, blocks, tuple([self._pool.generation(block) for block in blocks]))

    def send(self, order: BeginSend) -> list[CopyEffect]:
        if not self._move(SourceEvent.SEND_ORDERED):
            return []
        blocks = tuple(self._blocks[max(order.first, self._order.first) :])
        prepared = self._order
        return [SendBlocks(self.transfer, prepared.target, prepared.target_epoch, blocks, prepared.deadline_ns)]

    def is_confirmed(self) -> bool:
        """Whether pins and generations hold, as they have since the beginning. Legal at any time."""
        return self._move(SourceEvent.CONFIRM_ASKED)

    def end_send(self, event: SourceEvent) -> None:
        """The driver has sent, or failed to, and reads no more."""
        if self._move(event) and self.is_over:
            if self.end is None:
                self.end = TransferEnd.SEND_FAILED
            self._let_go()

    def stop(self, end: TransferEnd) -> list[CopyEffect]:
        """It is off. Changes nothing if it was already."""
        if not self._move(SourceEvent(end.value)):
            return []
        self.end = end
        if self.is_over:
            self._let_go()
            return []
        return [CancelCopy(self.transfer)]

    def _move(self, event: SourceEvent) -> bool:
        """False: a repeat, or too late."""
        after = SOURCE_TRANSITIONS[self.state].get(event)
        if after is None:
            return False
        self.state = after
        return True

    def _let_go(self) -> None:
        self._pool.release(self._blocks, StepNumber(0))
        if self.end is TransferEnd.FINALIZED and self._order.mode is TransferMode.MOVE:
            self._freed = self._pool.shed(self._blocks[self._order.first :])

    def digest_parts(self) -> tuple[object, ...]:
        return self._order, self._blocks, self.state, self.end
