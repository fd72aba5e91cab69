"""The transfers of one rank, both sides: what control orders, what the driver has copied, and what ends when.

Owned by the worker machine. Every transfer that is over leaves its last answer behind, which is given again to whatever
comes late. Blocks are given up for sequences that need them in this order: leases, arrivals, chains that others read.
"""

from typing import TypeAlias, assert_never

import attrs

from lmpool.core.block_pool import BlockPool
from lmpool.core.effects import CopyEffect
from lmpool.core.events import BlocksCopied, BlocksSent, CopyEvent, CopyFailed, SendFailed
from lmpool.core.ids import SECOND, BlockId, Nanos, Peer, SequenceId, TransferId, Version
from lmpool.core.messages.transfer import (
    AbortTransfer,
    Awaited,
    BeginCopy,
    BeginSend,
    Confirm,
    Confirmed,
    Finalize,
    PrepareSource,
    PrepareTarget,
    Publish,
    Published,
    TransferAnswer,
    TransferEnd,
    TransferEnded,
    TransferOrder,
    TransferRefusal,
    TransferRefused,
)
from lmpool.core.outbox import Outbox
from lmpool.core.transfer.inbound import TargetSide, prepare_target
from lmpool.core.transfer.leases import Leases
from lmpool.core.transfer.life import SourceEvent, SourceState, TargetState
from lmpool.core.transfer.outbound import SourceSide, prepare_source
from lmpool.core.transfer.waiters import Waiters

SIDES_MAX = 16
"""Transfers that a rank takes part in at once. Control orders one as source and one as target; others are aborting."""
ANSWERS_KEPT = 1024
"""Transfers that are over and remembered: minutes of a busy control. What is forgotten is answered as unknown."""

WAITERS_LEASE_NS = 30 * SECOND
"""For those who waited for blocks and still queue for a slot: as long as anybody waits in a queue that is not full."""

Side: TypeAlias = SourceSide | TargetSide


@attrs.frozen
class ExchangeSnapshot:
    sources: int
    """Sides that hold something."""
    targets: int
    leases: int
    waiting: int
    """Sequences that wait for blocks."""
    published: int
    ends: tuple[tuple[str, int], ...]
    """Sides that are over otherwise, by reason."""
    missed: int
    """Sequences that computed what they were promised."""


class Exchange:
    __slots__ = (
        "_answers",
        "_control",
        "_effects",
        "_leases",
        "_outbox",
        "_pool",
        "_sides",
        "_unreported",
        "ends",
        "is_draining",
        "published",
        "strays",
        "waiters",
    )

    def __init__(self, pool: BlockPool, outbox: Outbox) -> None:
        self._pool = pool
        self._outbox = outbox
        self._control: Peer | None = None
        self._sides: dict[TransferId, Side] = {}
        self._answers: dict[TransferId, TransferAnswer] = {}
        """Of those that are over, oldest first."""
        self._unreported: dict[TransferId, bytes] = {}
        """Published, and in no report yet: their chains."""
        self._leases = Leases(pool)
        self._effects: list[CopyEffect] = []
        self.waiters = Waiters()
        self.is_draining = False
        self.published = 0
        self.ends = dict.fromkeys(TransferEnd, 0)
        self.strays = 0
        """Orders that make no sense, or not from this control; dropped."""

    # What there is

    def side(self, transfer: TransferId) -> Side | None:
        """Read only."""
        return self._sides.get(transfer)

    def remembers(self, transfer: TransferId) -> bool:
        """Whether it is over here, and what is left of it is an answer."""
        return transfer in self._answers

    @property
    def is_idle(self) -> bool:
        return not self._sides

    @property
    def has_deadlines(self) -> bool:
        return bool(self._sides or self._leases or self.waiters)

    @property
    def is_releasing(self) -> bool:
        """Whether the driver keeps blocks from being free for a transfer that is off."""
        if not self._sides:
            return False
        return any(side.state in (TargetState.ABORTING, SourceState.ENDING) for side in self._sides.values())

    @property
    def has_published(self) -> bool:
        """Whether a report is due that tells of arrived blocks."""
        return bool(self._unreported)

    @property
    def arrived(self) -> tuple[bytes, ...]:
        """Chains that are resident, and in no report yet."""
        return tuple(self._unreported.values())

    def take_effects(self) -> list[CopyEffect]:
        effects, self._effects = self._effects, []
        return effects

    def next_deadline(self) -> Nanos | None:
        deadlines = [side.deadline_ns for side in self._sides.values() if side.end is None]
        for owner in (self._leases, self.waiters):
            deadline = owner.next_deadline()
            if deadline is not None:
                deadlines.append(deadline)
        return min(deadlines, default=None)

    # Links

    def join(self, control: Peer) -> None:
        """What was ordered over an earlier link ends here, also where its loss was not told."""
        self.lose_control()
        self._control = control
        kept = [item for item in self._answers.items() if item[0].control == control.epoch]
        self._answers = dict(kept)

    def lose_control(self) -> None:
        """Control ends all that has this rank in it when the link is down; so do we."""
        self._control = None
        self._stop_all(list(self._sides.values()), TransferEnd.CONTROL_LOST)
        self.waiters.miss_all()

    # Orders

    def hear(self, now: Nanos, peer: Peer, order: TransferOrder) -> None:
        self.expire(now)
        if peer != self._control or order.transfer.control != peer.epoch:
            self.strays += 1
            return
        answer = self._answers.get(order.transfer)
        side = self._sides.get(order.transfer)
        if answer is not None:
            self._say(answer)
        elif side is None:
            self._hear_first(now, order)
        elif isinstance(side, SourceSide):
            self._tell_source(side, order)
        else:
            self._tell_target(now, side, order)

    def _hear_first(self, now: Nanos, order: TransferOrder) -> None:
        match order:
            case PrepareSource():
                pinned = sum(len(side.pinned) for side in self._sides.values() if isinstance(side, SourceSide))
                why_not = self._why_not(now, order)
                self._open(order.transfer, why_not or prepare_source(order, self._pool, pinned))
            case PrepareTarget():
                why_not = self._why_not(now, order)
                self._open(order.transfer, why_not or prepare_target(order, self._pool, self._reserved()))
            case AbortTransfer(transfer=transfer):  # its preparation may yet come, and is refused then
                self._end(transfer, TransferEnd.ABORTED, 0)
            case BeginCopy() | BeginSend() | Confirm() | Publish() | Finalize():
                self._say(TransferEnded(order.transfer, TransferEnd.UNKNOWN, 0))
            case _:
                assert_never(order)

    def _open(self, transfer: TransferId, side: Side | TransferRefusal) -> None:
        if isinstance(side, TransferRefusal):
            self._remember(TransferRefused(transfer, side))
        else:
            self._sides[transfer] = side
            self._say(side.prepared)

    def _why_not(self, now: Nanos, order: PrepareSource | PrepareTarget) -> TransferRefusal | None:
        if order.deadline_ns <= now:
            return TransferRefusal.EXPIRED
        if self.is_draining and isinstance(order, PrepareTarget):
            return TransferRefusal.DRAINING
        return TransferRefusal.BUSY if len(self._sides) >= SIDES_MAX else None

    def _tell_source(self, side: SourceSide, order: TransferOrder) -> None:
        match order:
            case PrepareSource():
                if side.end is None:
                    self._say(side.prepared)
            case BeginSend():
                self._effects += side.send(order)
            case Confirm():
                if side.is_confirmed():
                    self._say(Confirmed(side.transfer))
            case Finalize():
                self._stop_all([side], TransferEnd.FINALIZED)
            case AbortTransfer():
                self._stop_all([side], TransferEnd.ABORTED)
            case PrepareTarget() | BeginCopy() | Publish():
                self.strays += 1
            case _:
                assert_never(order)

    def _tell_target(self, now: Nanos, side: TargetSide, order: TransferOrder) -> None:
        match order:
            case PrepareTarget():
                if side.end is None:
                    self._say(side.prepared)
            case BeginCopy():
                self._effects += side.copy(now, order)
                if side.copied is not None:
                    self._say(side.copied)
            case Publish(lease_until_ns=until_ns):
                self._publish(now, side, until_ns)
            case AbortTransfer():
                self._stop_all([side], TransferEnd.ABORTED)
            case PrepareSource() | BeginSend() | Confirm() | Finalize():
                self.strays += 1
            case _:
                assert_never(order)

    def _publish(self, now: Nanos, side: TargetSide, lease_until_ns: Nanos) -> None:
        if not side.publish():
            return
        del self._sides[side.transfer]
        self.published += 1
        self._unreported[side.transfer] = side.chain
        waiters = self.waiters.wake(side.transfer)
        until_ns = max(lease_until_ns, Nanos(now + WAITERS_LEASE_NS)) if waiters else lease_until_ns
        if until_ns > now:
            self._leases.grant(side.transfer, side.chain, until_ns, waiters)

    def tell_published(self, version: Version) -> None:
        """The report of this version has told of all that is published."""
        for transfer in self._unreported:
            self._remember(Published(transfer, version))
        self._unreported.clear()

    # Sequences

    def expect(self, now: Nanos, sequence: SequenceId, awaited: Awaited) -> bool:
        """Whether a sequence that was promised blocks has to wait for them."""
        transfer, control = awaited.transfer, self._control
        answer = self._answers.get(transfer)
        if isinstance(answer, Published):
            self._leases.join(transfer, sequence)
            return False
        if answer is not None or control is None or transfer.control != control.epoch or awaited.until_ns <= now:
            self.waiters.missed += 1
            return False
        self.waiters.add(sequence, awaited)
        return True

    def leave(self, sequence: SequenceId) -> None:
        """It has ended, whether it waited or not."""
        if self.has_deadlines or self.waiters.has_woken:
            self.waiters.leave(sequence)
            self._leases.leave(sequence)

    def use(self, sequence: SequenceId, chain: bytes) -> None:
        """A sequence has pinned what is resident of its chain."""
        if self._leases:
            self._leases.use(sequence, chain)

    # The driver

    def take(self, now: Nanos, event: CopyEvent) -> None:
        """What it says of a transfer that is unknown, or of its other side, changes nothing."""
        self.expire(now)
        side = self._sides.get(event.transfer)
        match side, event:
            case TargetSide(), BlocksCopied(blocks=blocks, size_bytes=size_bytes):
                side.end_copy(now, blocks, size_bytes)
                if side.copied is not None:
                    self._say(side.copied)
            case TargetSide(), CopyFailed():
                side.fail_copy(TransferEnd.COPY_FAILED)
            case SourceSide(), BlocksSent():
                side.end_send(SourceEvent.SENT)
            case SourceSide(), SendFailed():
                side.end_send(SourceEvent.SEND_FAILED)
            case _:
                self.strays += 1
        if side is not None:
            self._settle(side)

    # Ends

    def expire(self, now: Nanos) -> None:
        """Deadlines that have passed: before an event, so that it meets no side that is late."""
        self._leases.expire(now)
        self.waiters.expire(now)
        late = [side for side in self._sides.values() if side.end is None and side.deadline_ns <= now]
        self._stop_all(late, TransferEnd.EXPIRED)

    def yield_blocks(self) -> bool:
        """Gives up one thing, because a sequence needs blocks. False: there is nothing left to give up."""
        if self._leases.give_up():
            return True
        going_on = [side for side in self._sides.values() if side.end is None]
        arriving: list[Side] = [side for side in going_on if isinstance(side, TargetSide)]
        if going_on:
            self._stop_all((arriving or going_on)[-1:], TransferEnd.YIELDED)
        return bool(going_on)

    def _stop_all(self, sides: list[Side], end: TransferEnd) -> None:
        for side in sides:
            self._effects += side.stop(end)
            self._settle(side)

    def _settle(self, side: Side) -> None:
        """Once it holds nothing any more, all that is left of it is its last answer."""
        if side.is_over:
            assert side.end is not None
            del self._sides[side.transfer]
            self._end(side.transfer, side.end, side.freed)

    def _end(self, transfer: TransferId, end: TransferEnd, freed: int) -> None:
        self.ends[end] += 1
        self._remember(TransferEnded(transfer, end, freed))

    def _remember(self, answer: TransferAnswer) -> None:
        self._answers[answer.transfer] = answer
        self.waiters.miss(answer.transfer)
        if len(self._answers) > ANSWERS_KEPT:
            del self._answers[next(iter(self._answers))]
        self._say(answer)

    def _say(self, answer: TransferAnswer) -> None:
        if self._control is not None and answer.transfer.control == self._control.epoch:
            self._outbox.say(self._control, answer)

    def _reserved(self) -> int:
        return sum(side.reserved for side in self._sides.values() if isinstance(side, TargetSide))

    # What is told

    def snapshot(self) -> ExchangeSnapshot:
        sources = sum(isinstance(side, SourceSide) for side in self._sides.values())
        return ExchangeSnapshot(
            sources,
            len(self._sides) - sources,
            len(self._leases),
            len(self.waiters),
            self.published,
            tuple((end.value, count) for end, count in self.ends.items()),
            self.waiters.missed,
        )

    def pinned(self) -> list[list[BlockId]]:
        """Paths that are pinned for transfers and leases."""
        return [*(list(side.pinned) for side in self._sides.values()), *self._leases.pinned]

    def audit(self) -> None:
        """Asserts that whatever is kept is open, bounded, and nowhere twice."""
        assert not any(side.is_over for side in self._sides.values())
        assert len(self._sides) <= SIDES_MAX
        assert len(self._answers) <= ANSWERS_KEPT
        assert not any(transfer in self._answers for transfer in self._sides)
        counts = self._pool.counts()
        assert self._reserved() == counts.reserved + counts.aborting

    def digest_parts(self) -> tuple[object, ...]:
        return (
            [side.digest_parts() for side in self._sides.values()],
            list(self._answers.values()),
            list(self._unreported),
            self._leases.digest_parts(),
            self.waiters.digest_parts(),
            (self._control, self.is_draining, self.published, list(self.ends.items()), self.strays),
        )
