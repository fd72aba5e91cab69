"""Control's side of all transfers under way: phases, deadlines, and who may still hold something.

`transfer.py` has the table of states; here is what is said on entering one, and how long it may last. A transfer that
is over leaves nothing behind: whoever still holds something of it and says so is told to let go.
"""

from enum import Enum
from typing import assert_never

import attrs

from lmpool.core.effects import Send
from lmpool.core.ids import Epoch, Nanos, Peer, Rank, TransferId
from lmpool.core.limits import TRANSFER_BLOCKS_MAX
from lmpool.core.messages.transfer import (
    AbortTransfer,
    BeginCopy,
    BeginSend,
    Confirm,
    Confirmed,
    Copied,
    CopyMeans,
    Finalize,
    PrepareSource,
    PrepareTarget,
    Publish,
    Published,
    SourcePrepared,
    TargetPrepared,
    TransferAnswer,
    TransferDenial,
    TransferEnd,
    TransferEnded,
    TransferMode,
    TransferOrder,
    TransferRefusal,
    TransferRefused,
)
from lmpool.core.prefix import chain_length
from lmpool.core.transfer.life import TRANSFER_TRANSITIONS, TransferEvent, TransferState

ANSWERS_AWAITED = 4
"""Of the sides, beside the copy: to prepare, confirm, publish and finalize."""


@attrs.frozen
class TransferTerms:
    """What is to be transferred, and how."""

    source: Peer
    target: Peer
    mode: TransferMode
    means: CopyMeans
    chain: bytes
    """Packed hashes from the first block of the chain to the last that is wanted."""
    first: int
    """The target holds the blocks before, or refuses."""
    copy_ns: Nanos
    """How long the copy may take."""
    lease_ns: Nanos
    """How long the target keeps it for its first use; 0: no lease."""


class TransferOutcome(Enum):
    PUBLISHED = "published"
    REFUSED = "refused"
    """By a side, in its preparation."""
    SIDE_ENDED = "side ended"
    """It let go by itself: a deadline of its own, a failed copy, a lack of blocks."""
    RANK_LOST = "rank lost"
    CANCELLED = "cancelled"
    LATE = "late"
    """A side did not answer in time."""


@attrs.define
class Transfer:
    id: TransferId
    terms: TransferTerms
    state: TransferState
    began_ns: Nanos
    late_ns: Nanos
    """When its phase has lasted too long."""
    deadline_ns: Nanos
    """When the sides end by themselves."""
    source_prepared: SourcePrepared | None
    target_prepared: TargetPrepared | None
    copied: Copied | None
    published_ns: Nanos | None
    """When control heard of it."""
    is_source_open: bool
    """It may hold something of the transfer."""
    is_target_open: bool
    outcome: TransferOutcome | None
    """None while it may yet publish."""
    cause: TransferRefusal | TransferEnd | None
    """In the words of the side that made it fail."""


class Transfers:
    """Owned by the control plane."""

    __slots__ = (
        "_counter",
        "_ended",
        "_epoch",
        "_sends",
        "_transfers",
        "answer_ns",
        "late_answers",
        "outcomes",
        "strays",
    )

    def __init__(self, epoch: Epoch, answer_ns: Nanos) -> None:
        self._epoch = epoch
        self.answer_ns = answer_ns
        """How long a side may take to answer an order, the copy apart. Read only."""
        self._counter = 0
        self._transfers: dict[TransferId, Transfer] = {}
        self._sends: list[Send] = []
        self._ended: list[Transfer] = []
        self.outcomes = dict.fromkeys(TransferOutcome, 0)
        self.late_answers = 0
        """About transfers that are over, or phases that are."""
        self.strays = 0
        """Of peers that have no part in the transfer, or that make no sense."""

    def __len__(self) -> int:
        return len(self._transfers)

    def get(self, transfer: TransferId) -> Transfer | None:
        """Read only. None: it is over, or never was."""
        return self._transfers.get(transfer)

    def under_way(self) -> list[Transfer]:
        """Read only; oldest first."""
        return list(self._transfers.values())

    def take_sends(self) -> list[Send]:
        sends, self._sends = self._sends, []
        return sends

    def take_ended(self) -> list[Transfer]:
        """Those that are over since the last call, in order, with their outcome."""
        ended, self._ended = self._ended, []
        return ended

    def next_deadline(self) -> Nanos | None:
        return min((transfer.late_ns for transfer in self._transfers.values()), default=None)

    # Begin and end

    def begin(self, now: Nanos, terms: TransferTerms) -> TransferId | TransferDenial:
        denial = self._why_not(terms)
        if denial is not None:
            return denial
        self._counter += 1
        transfer = TransferId(self._epoch, self._counter)
        answers, late = ANSWERS_AWAITED * self.answer_ns, Nanos(now + self.answer_ns)
        deadline = Nanos(now + answers + terms.copy_ns)
        self._transfers[transfer] = Transfer(
            id=transfer,
            terms=terms,
            state=TransferState.PREPARING,
            began_ns=now,
            late_ns=late,
            deadline_ns=deadline,
            source_prepared=None,
            target_prepared=None,
            copied=None,
            published_ns=None,
            is_source_open=True,
            is_target_open=True,
            outcome=None,
            cause=None,
        )
        source, target, chain, first = terms.source, terms.target, terms.chain, terms.first
        prepare_source = PrepareSource(transfer, terms.mode, target.rank, target.epoch, chain, first, deadline)
        prepare_target = PrepareTarget(transfer, terms.means, source.rank, source.epoch, chain, first, deadline)
        self._sends += [Send(target, prepare_target), Send(source, prepare_source)]
        return transfer

    def _why_not(self, terms: TransferTerms) -> TransferDenial | None:
        blocks = chain_length(terms.chain) - terms.first
        if terms.source.rank == terms.target.rank:
            return TransferDenial.SAME_RANK
        if blocks <= 0:
            return TransferDenial.NOTHING_WANTED
        if blocks > TRANSFER_BLOCKS_MAX:
            return TransferDenial.TOO_LONG
        for other in self._transfers.values():
            if other.terms.source.rank == terms.source.rank:
                return TransferDenial.SOURCE_BUSY
            if other.terms.target.rank == terms.target.rank:
                return TransferDenial.TARGET_BUSY
        return None

    def cancel(self, now: Nanos, transfer: TransferId) -> None:
        """Harmless once its publication is ordered, and for what is over."""
        open_transfer = self._transfers.get(transfer)
        if open_transfer is not None:
            self._fail(now, open_transfer, TransferEvent.CANCELLED, TransferOutcome.CANCELLED, None)

    def keep(self, now: Nanos, rank: Rank, linked: Peer | None) -> None:
        """No life of the rank but this one has a link: others have let go by themselves, or are no more."""
        for transfer in list(self._transfers.values()):
            for side in (transfer.terms.source, transfer.terms.target):
                if side.rank == rank and side != linked:
                    self._close_side(now, transfer, side, TransferOutcome.RANK_LOST, None)

    def tick(self, now: Nanos) -> None:
        while late := [transfer for transfer in self._transfers.values() if transfer.late_ns <= now]:
            for transfer in late:  # one that aborts may be late in that as well
                self._fail(now, transfer, TransferEvent.LATE, TransferOutcome.LATE, None)

    # Answers

    def hear(self, now: Nanos, peer: Peer, answer: TransferAnswer) -> None:
        transfer = self._transfers.get(answer.transfer)
        if transfer is None:
            self._hear_late(peer, answer)
        elif peer not in (transfer.terms.source, transfer.terms.target):
            self.strays += 1
        else:
            match answer:
                case SourcePrepared() | TargetPrepared():
                    self._take_preparation(now, transfer, peer, answer)
                case Copied() if peer == transfer.terms.target:
                    transfer.copied = answer
                    self._advance(now, transfer, TransferEvent.COPIED)
                case Confirmed() if peer == transfer.terms.source:
                    self._advance(now, transfer, TransferEvent.CONFIRMED)
                case Published() if peer == transfer.terms.target:
                    transfer.is_target_open = False
                    self._advance(now, transfer, TransferEvent.PUBLISHED)
                case TransferRefused(reason=reason):
                    self._close_side(now, transfer, peer, TransferOutcome.REFUSED, reason)
                case TransferEnded(end=end):
                    self._close_side(now, transfer, peer, TransferOutcome.SIDE_ENDED, end)
                case Copied() | Confirmed() | Published():
                    self.strays += 1
                case _:
                    assert_never(answer)

    def _hear_late(self, peer: Peer, answer: TransferAnswer) -> None:
        """Whoever speaks of a transfer that is over learns so, unless it has just said that it is."""
        self.late_answers += 1
        match answer:
            case SourcePrepared() | TargetPrepared() | Copied() | Confirmed():
                self._sends.append(Send(peer, AbortTransfer(answer.transfer)))
            case Published() | TransferRefused() | TransferEnded():
                pass
            case _:
                assert_never(answer)

    def _take_preparation(
        self, now: Nanos, transfer: Transfer, peer: Peer, answer: SourcePrepared | TargetPrepared
    ) -> None:
        terms = transfer.terms
        blocks = chain_length(terms.chain)
        match answer:
            case SourcePrepared() if peer == terms.source and len(answer.blocks) == blocks - terms.first:
                transfer.source_prepared = answer
            case TargetPrepared() if peer == terms.target and terms.first <= answer.first == blocks - answer.blocks:
                transfer.target_prepared = answer
            case _:
                self.strays += 1
                return
        if transfer.source_prepared is not None and transfer.target_prepared is not None:
            self._advance(now, transfer, TransferEvent.PREPARED)

    def _close_side(
        self,
        now: Nanos,
        transfer: Transfer,
        peer: Peer,
        outcome: TransferOutcome,
        cause: TransferRefusal | TransferEnd | None,
    ) -> None:
        if peer == transfer.terms.source:
            transfer.is_source_open = False
            event = TransferEvent.SOURCE_ENDED
        else:
            transfer.is_target_open = False
            event = TransferEvent.TARGET_ENDED
        self._fail(now, transfer, event, outcome, cause)

    def _fail(
        self,
        now: Nanos,
        transfer: Transfer,
        event: TransferEvent,
        outcome: TransferOutcome,
        cause: TransferRefusal | TransferEnd | None,
    ) -> None:
        """The outcome is that of whatever came first."""
        if transfer.outcome is None and TRANSFER_TRANSITIONS[transfer.state].get(event) is TransferState.ABORTING:
            transfer.outcome, transfer.cause = outcome, cause
        self._advance(now, transfer, event)

    # Phases

    def _advance(self, now: Nanos, transfer: Transfer, event: TransferEvent) -> None:
        after = TRANSFER_TRANSITIONS[transfer.state].get(event)
        if after is not None:
            transfer.state = after
            self._enter(now, transfer)
        elif event in (TransferEvent.COPIED, TransferEvent.CONFIRMED, TransferEvent.PUBLISHED):
            self.late_answers += 1
        if transfer.state is TransferState.ABORTING and not (transfer.is_source_open or transfer.is_target_open):
            self._advance(now, transfer, TransferEvent.CLOSED)

    def _enter(self, now: Nanos, transfer: Transfer) -> None:
        terms = transfer.terms
        transfer.late_ns = min(Nanos(now + self.answer_ns), transfer.deadline_ns)
        match transfer.state:
            case TransferState.PREPARING:
                raise AssertionError("a transfer begins once")
            case TransferState.COPYING:
                transfer.late_ns = min(Nanos(now + terms.copy_ns), transfer.deadline_ns)
                self._begin_copy(transfer)
            case TransferState.CONFIRMING:
                self._say(terms.source, Confirm(transfer.id))
            case TransferState.PUBLISHING:
                until = Nanos(now + terms.lease_ns) if terms.lease_ns else Nanos(0)
                self._say(terms.target, Publish(transfer.id, until))
            case TransferState.FINALIZING:
                transfer.outcome, transfer.published_ns = TransferOutcome.PUBLISHED, now
                if transfer.is_source_open:
                    self._say(terms.source, Finalize(transfer.id))
                else:
                    self._advance(now, transfer, TransferEvent.SOURCE_ENDED)
            case TransferState.ABORTING:
                transfer.late_ns = Nanos(transfer.deadline_ns + self.answer_ns)
                for side, is_open in (
                    (terms.source, transfer.is_source_open),
                    (terms.target, transfer.is_target_open),
                ):
                    if is_open:
                        self._say(side, AbortTransfer(transfer.id))
            case TransferState.ENDED:
                assert transfer.outcome is not None
                self.outcomes[transfer.outcome] += 1
                self._ended.append(transfer)
                del self._transfers[transfer.id]
            case _:
                assert_never(transfer.state)

    def _begin_copy(self, transfer: Transfer) -> None:
        """The receiver is told first."""
        terms, source, target = transfer.terms, transfer.source_prepared, transfer.target_prepared
        assert source is not None
        assert target is not None
        known = target.first - terms.first
        self._say(terms.target, BeginCopy(transfer.id, source.blocks[known:], source.generations[known:]))
        if terms.means is CopyMeans.SEND:
            self._say(terms.source, BeginSend(transfer.id, target.first))

    def _say(self, peer: Peer, order: TransferOrder) -> None:
        self._sends.append(Send(peer, order))

    # What is told

    def audit(self) -> None:
        """Asserts that a rank is the source of one transfer and the target of one, and that none outlives its end."""
        for role in ("source", "target"):
            ranks = [getattr(transfer.terms, role).rank for transfer in self._transfers.values()]
            assert len(ranks) == len(dict.fromkeys(ranks))
        for transfer in self._transfers.values():
            assert transfer.state is not TransferState.ENDED
            assert transfer.late_ns <= transfer.deadline_ns + self.answer_ns
            assert (transfer.outcome is None) == (
                transfer.state not in (TransferState.ABORTING, TransferState.FINALIZING)
            )

    def digest_state(self) -> str:
        rest = self._counter, list(self.outcomes.items()), self.late_answers, self.strays
        return repr((list(self._transfers.values()), rest))
