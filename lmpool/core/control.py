"""The control plane: one door for everything that ingresses and workers say, and every route that goes out."""

from collections import deque
from collections.abc import Callable
from hashlib import blake2b
from typing import assert_never

import attrs

from lmpool.core.booking import Placement
from lmpool.core.carrier import Carrier, PlacementRules
from lmpool.core.effects import ControlEffect, Send
from lmpool.core.events import ControlEvent, PeerJoined, PeerLost, Received, Tick
from lmpool.core.fleet import Policy
from lmpool.core.ids import Epoch, Nanos, Peer, Rank, RequestId, Role
from lmpool.core.ledger import Ledger
from lmpool.core.membership import NAMES, Draining
from lmpool.core.messages import Message
from lmpool.core.messages.ingress_control import (
    BookingEnded,
    BookingsOffered,
    Busy,
    DecisionsAsked,
    DecisionsReported,
    RouteAsked,
    RouteDecided,
    StateAsked,
    StateReported,
    Unroutable,
)
from lmpool.core.messages.transfer import TransferAnswer, TransferAsked, TransferDecided
from lmpool.core.messages.worker_control import DrainBegun, FullReport, Report, ReportWanted, WorkerJoined
from lmpool.core.roster import Roster, RosterSettings
from lmpool.core.route import RETRY_AFTER_MIN_NS, Router, Ruling
from lmpool.core.transfer.transfers import Transfers

SWEEP_PAUSE_NS = 1_000_000
"""Between two slices of a sweep, so that other events get their turn."""

MAY_GIVE = ("", NAMES[Draining])
"""Why a rank may not be routed to, where it may still be the source of a transfer."""


@attrs.frozen
class ControlSettings:
    policy: str
    """A key of `route.POLICIES`."""
    replicas: int
    """Ranks 0 to replicas - 1 may join."""
    wait_max_ns: Nanos
    """Longest predicted wait before a request is told that the server is busy."""
    suspect_after_ns: Nanos
    """Silence after which a rank gets no new requests until it reports again."""
    settle_ns: Nanos
    """How long a new control waits for the full reports of all ranks before it routes with what is there."""
    report_wait_ns: Nanos
    """How long a full report, or its next part, may take before it is asked for again."""
    booking_ns: Nanos
    """How long a booking lives that no report of its worker names."""
    bookings_max: int
    waiting_routes_max: int
    """Questions kept while control settles."""
    sweep_hashes: int
    """Hashes looked at in one slice when marks of a lost rank are cleared."""
    decisions_kept: int
    transfer_answer_ns: Nanos
    """How long a side of a transfer may take to answer an order, the copy apart."""
    placement: PlacementRules | None
    """None: only operators order transfers."""


@attrs.frozen
class ControlSnapshot:
    """For metrics and status."""

    state: StateReported
    why_not: tuple[str, ...]
    """Parallel to the ranks of `state`; empty where a rank may be routed to."""
    routed: int
    busy: int
    unroutable: int
    unseen: int
    """Bookings that no report has named."""
    waiting_routes: int
    is_swept: bool
    transfers: int
    """Under way."""
    transfer_outcomes: tuple[tuple[str, int], ...]
    """Of all that are over, by name."""
    transferred_blocks: int
    """In those that were published."""
    transferred_bytes: int


class ControlPlane:
    """Deterministic: the same settings and events give the same effects and digest."""

    __slots__ = (
        "_busy",
        "_carrier",
        "_ingresses",
        "_ledger",
        "_now",
        "_roster",
        "_routed",
        "_router",
        "_settings",
        "_settle_at",
        "_transfers",
        "_unroutable",
        "_waiting",
    )

    def __init__(self, settings: ControlSettings, epoch: Epoch, now: Nanos) -> None:
        self._settings = settings
        self._now = now
        self._ledger = Ledger(settings.replicas)
        self._roster = Roster(
            RosterSettings(settings.replicas, settings.suspect_after_ns, settings.report_wait_ns), self._ledger
        )
        self._router = Router(settings.policy, settings.wait_max_ns, settings.decisions_kept, now)
        self._transfers = Transfers(epoch, settings.transfer_answer_ns)
        self._carrier = Carrier(self._transfers, settings.placement, settings.decisions_kept, now)
        self._settle_at: Nanos | None = Nanos(now + settings.settle_ns)
        """None once settled: from then on every question is answered at once."""
        self._waiting: deque[tuple[Peer, RouteAsked]] = deque()
        self._ingresses: dict[Peer, None] = {}
        self._routed, self._busy, self._unroutable = 0, 0, 0

    def handle(self, now: Nanos, event: ControlEvent) -> list[ControlEffect]:
        self._now = now
        effects: list[ControlEffect] = []
        self._elapse(now, effects)
        match event:
            case Received(peer=peer, message=message):
                self._receive(now, peer, message, effects)
            case PeerJoined(peer=peer):
                self._join(now, peer)
            case PeerLost(peer=peer):
                self._lose(now, peer)
            case Tick():
                self._roster.table.sweep(self._settings.sweep_hashes)
            case _:
                assert_never(event)
        self._elapse(now, effects)
        self._settle(now, effects)
        if self._settle_at is None and self._carrier.is_due(now):
            self._carrier.plan(now, self._roster.givers(), self._roster.table, self._ledger)
        return effects + self._transfers.take_sends()

    def _elapse(self, now: Nanos, effects: list[ControlEffect]) -> None:
        """Deadlines that have passed: before an event, so that it meets no state that is over, and after it."""
        self._ledger.expire(now)
        self._transfers.tick(now)
        self._carrier.count_ended(now, self._ledger)
        silent = self._roster.tick(now)
        if silent:
            effects.extend(Send(peer, ReportWanted()) for peer in silent)

    def _join(self, now: Nanos, peer: Peer) -> None:
        match peer.role:
            case Role.WORKER:
                if self._linked(peer.rank) == peer:  # a new link, before the end of the old one was told
                    self._lose(now, peer)
                self._roster.link(peer)
                self._carrier.keep(now, peer.rank, self._linked(peer.rank))
            case Role.INGRESS:
                self._ingresses[peer] = None
            case Role.CONTROL:
                self._roster.stale_dropped += 1
            case _:
                assert_never(peer.role)

    def _lose(self, now: Nanos, peer: Peer) -> None:
        match peer.role:
            case Role.WORKER:
                self._roster.unlink(peer)
                self._carrier.keep(now, peer.rank, self._linked(peer.rank))
            case Role.INGRESS:
                self._ingresses.pop(peer, None)
                self._waiting = deque(pair for pair in self._waiting if pair[0] != peer)
                self._ledger.lose_ingress(peer.epoch)
            case Role.CONTROL:
                self._roster.stale_dropped += 1
            case _:
                assert_never(peer.role)

    def _receive(self, now: Nanos, peer: Peer, message: Message, effects: list[ControlEffect]) -> None:
        if peer.role is Role.WORKER:
            if self._roster.knows(peer):
                self._receive_from_worker(now, peer, message)
        elif peer in self._ingresses:
            self._receive_from_ingress(now, peer, message, effects)
        else:
            self._roster.stale_dropped += 1

    def _receive_from_worker(self, now: Nanos, peer: Peer, message: Message) -> None:
        match message:
            case Report():
                self._router.learn_outputs(*self._roster.report(now, peer, message))
                self._carrier.report(now, peer.rank, message)
            case FullReport():
                self._router.learn_outputs(*self._roster.full_report(now, peer, message))
                self._carrier.report(now, peer.rank, message)
            case WorkerJoined():
                self._roster.join(now, peer, message)
            case DrainBegun():
                self._roster.drain(peer)
                self._carrier.drain(now)
            case _ if isinstance(message, TransferAnswer):
                self._transfers.hear(now, peer, message)
            case _:
                self._roster.stale_dropped += 1

    def _receive_from_ingress(self, now: Nanos, peer: Peer, message: Message, effects: list[ControlEffect]) -> None:
        match message:
            case RouteAsked(request=request) | BookingEnded(request=request) if request.ingress != peer.epoch:
                self._roster.stale_dropped += 1
            case RouteAsked():
                self._ask(now, peer, message, effects)
            case BookingEnded(request=request, attempt=attempt):
                self._withdraw(request, attempt)
                self._ledger.abandon(request, attempt)
            case BookingsOffered():
                self._restore(now, peer.epoch, message)
            case TransferAsked():
                effects.append(Send(peer, self._begin_transfer(now, message)))
            case StateAsked(number=number):
                effects.append(Send(peer, self._state(number)))
            case DecisionsAsked(number=number, requests=requests, limit=limit):
                wanted = None if requests is None else dict.fromkeys(requests)
                effects.append(Send(peer, DecisionsReported(number, self._router.decisions(wanted, limit))))
            case _:
                self._roster.stale_dropped += 1

    def _ask(self, now: Nanos, peer: Peer, asked: RouteAsked, effects: list[ControlEffect]) -> None:
        booking = self._ledger.booking(asked.request)
        if booking is not None and booking.placement.attempt > asked.attempt:
            self._roster.stale_dropped += 1
            return
        self._ledger.ask_again(asked.request)
        self._withdraw(asked.request, asked.attempt)
        if self._settle_at is None:
            self._route(now, peer, asked, effects)
        elif len(self._waiting) < self._settings.waiting_routes_max:
            self._waiting.append((peer, asked))
        else:
            self._busy += 1
            effects.append(Send(peer, Busy(asked.request, asked.attempt, RETRY_AFTER_MIN_NS)))

    def _withdraw(self, request: RequestId, attempt: int) -> None:
        """Forgets a waiting question of this attempt or an older one."""
        if self._waiting:
            self._waiting = deque(
                (peer, asked) for peer, asked in self._waiting if asked.request != request or asked.attempt > attempt
            )

    def _route(self, now: Nanos, peer: Peer, asked: RouteAsked, effects: list[ControlEffect]) -> None:
        if len(self._ledger) >= self._settings.bookings_max:
            self._busy += 1
            effects.append(Send(peer, Busy(asked.request, asked.attempt, RETRY_AFTER_MIN_NS)))
            return
        ruling = self._carrier.fetch(now, self.decide(now, asked))
        if not asked.attempt:
            self._carrier.note(now, asked.chain)
        match ruling.answer:
            case RouteDecided(rank=rank):
                self._carrier.route(rank, asked.chain)
                assert ruling.placement is not None
                self._roster.count_routed(rank, ruling.uncached)
                self._ledger.book(ruling.placement, Nanos(now + self._settings.booking_ns))
                self._routed += 1
            case Busy():
                self._busy += 1
            case Unroutable():
                self._unroutable += 1
            case _:
                assert_never(ruling.answer)
        effects.append(Send(peer, ruling.answer))

    def decide(self, now: Nanos, asked: RouteAsked) -> Ruling:
        """The decision alone, as the benchmark measures it: recorded, not booked."""
        roster, find_pulls = self._roster, self._carrier.find_pulls
        return self._router.route(now, asked, roster.lineup(), roster.table, self._ledger, find_pulls)

    def wrap_policy(self, wrap: Callable[[Policy], Policy]) -> None:
        """For replays (`Router.wrap_policy`)."""
        self._router.wrap_policy(wrap)

    def _begin_transfer(self, now: Nanos, asked: TransferAsked) -> TransferDecided:
        source, target = self._linked(asked.source), self._linked(asked.target)
        states = self._roster.why_not()
        if source is not None and states[source.rank] not in MAY_GIVE:
            source = None
        if target is not None and states[target.rank]:
            target = None
        return self._carrier.ask(now, asked, source, target)

    def _restore(self, now: Nanos, ingress: Epoch, offered: BookingsOffered) -> None:
        deadline = Nanos(now + self._settings.booking_ns)
        columns = (offered.requests, offered.attempts, offered.ranks, offered.epochs, offered.prompt_tokens)
        for request, attempt, rank, epoch, prompt_tokens in zip(*columns, strict=True):
            if request.ingress == ingress and self._may_live(rank, epoch):
                self._ledger.restore(_restored(request, attempt, rank, epoch, prompt_tokens), deadline)
            else:
                self._roster.stale_dropped += 1

    def _may_live(self, rank: Rank, epoch: Epoch) -> bool:
        """A rank whose link is not up yet may turn out to be in that life."""
        peer = self._linked(rank)
        return rank < self._settings.replicas and (peer is None or peer.epoch == epoch)

    def _linked(self, rank: Rank) -> Peer | None:
        """The life of a rank whose link is up."""
        return self._roster.peer(rank) if rank < self._settings.replicas else None

    def _settle(self, now: Nanos, effects: list[ControlEffect]) -> None:
        if self._settle_at is not None and (self._roster.is_settled or now >= self._settle_at):
            self._settle_at = None
            waiting, self._waiting = self._waiting, deque()
            for peer, asked in waiting:
                self._ledger.ask_again(asked.request)  # a report may have named it while the question waited
                self._route(now, peer, asked, effects)

    def next_deadline(self) -> Nanos | None:
        deadlines = [self._settle_at, self._roster.next_deadline(), self._ledger.next_deadline()]
        deadlines.append(self._transfers.next_deadline())
        if self._settle_at is None:
            deadlines.append(self._carrier.next_deadline())
        if not self._roster.table.is_clean:
            deadlines.append(Nanos(self._now + SWEEP_PAUSE_NS))
        return min((deadline for deadline in deadlines if deadline is not None), default=None)

    def _state(self, number: int) -> StateReported:
        return StateReported(
            number=number,
            policy=self._router.policy,
            ranks=self._roster.states(),
            page_table_hashes=len(self._roster.table),
            bookings=len(self._ledger),
            decisions=self._router.number,
            stale_dropped=self._roster.stale_dropped,
            resyncs=self._roster.resyncs,
            transfers=self._carrier.shown(),
        )

    def snapshot(self) -> ControlSnapshot:
        return ControlSnapshot(
            state=self._state(0),
            why_not=self._roster.why_not(),
            routed=self._routed,
            busy=self._busy,
            unroutable=self._unroutable,
            unseen=self._ledger.unseen,
            waiting_routes=len(self._waiting),
            is_swept=self._roster.table.is_clean,
            transfers=len(self._transfers),
            transfer_outcomes=tuple((each.value, count) for each, count in self._transfers.outcomes.items()),
            transferred_blocks=self._carrier.tally.blocks,
            transferred_bytes=self._carrier.tally.size_bytes,
        )

    def audit(self) -> None:
        """Asserts that derived sums follow from what they are derived from."""
        self._ledger.audit()
        self._roster.audit()
        self._transfers.audit()
        self._carrier.audit()

    def digest(self) -> bytes:
        """Of the whole state."""
        state = blake2b(digest_size=16)
        for owner in (self._roster, self._ledger, self._router, self._transfers, self._carrier):
            state.update(owner.digest_state().encode())
        rest = (self._now, self._settle_at, self._waiting, self._ingresses, self._routed, self._busy, self._unroutable)
        state.update(repr(rest).encode())
        return state.digest()


def _restored(request: RequestId, attempt: int, rank: Rank, epoch: Epoch, prompt_tokens: int) -> Placement:
    """What an ingress tells of a booking is enough to count it; reports of the worker bring the rest."""
    return Placement(
        request=request,
        attempt=attempt,
        rank=rank,
        epoch=epoch,
        chain=b"",
        prompt_tokens=prompt_tokens,
        output_tokens_max=0,
        choices=1,
        ready_tokens=0,
        arriving_tokens=0,
        writer=None,
        block_size=1,
    )
