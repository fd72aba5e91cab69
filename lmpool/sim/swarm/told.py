"""What one life of control has been told, kept in the plainest way: the yardstick for page table and ledger.

`specs/membership.md` and `specs/booking.md` are its rules. It answers what control must know at a moment.
"""

import attrs

from lmpool.core.control import ControlSettings
from lmpool.core.events import PeerJoined, PeerLost, Received
from lmpool.core.ids import Epoch, Nanos, Peer, Rank, RequestId, Role, Version
from lmpool.core.messages import Message
from lmpool.core.messages.ingress_control import BookingEnded, BookingsOffered, RouteAsked, RouteDecided
from lmpool.core.messages.worker_control import DrainBegun, FullReport, Report, WorkerJoined
from lmpool.core.prefix import split_chain


@attrs.define
class ToldRank:
    """A linked life."""

    peer: Peer
    facts: WorkerJoined | None
    hashes: dict[bytes, None] | None
    """None before a full report is complete."""
    version: Version
    parts: dict[bytes, None]
    """Of a full report that is not complete."""
    next_part: int
    is_draining: bool
    silent_at: Nanos


@attrs.define
class ToldBooking:
    rank: Rank
    epoch: Epoch
    attempt: int
    chain: bytes
    prompt_tokens: int
    is_seen: bool
    late_at: Nanos
    has_prefill: bool


class Told:
    def __init__(self, settings: ControlSettings) -> None:
        self._settings = settings
        self.ranks: dict[Rank, ToldRank] = {}
        self._last: dict[Rank, Epoch] = {}
        self.bookings: dict[RequestId, ToldBooking] = {}
        self.asked: dict[RequestId, RouteAsked] = {}
        """Without an answer."""
        self.ingresses: dict[Peer, None] = {}
        self.prefilled: dict[RequestId, None] = {}
        """Requests whose prefill was reported complete."""

    def why_not(self, rank: Rank, now: Nanos) -> str:
        """Why it may not be routed to; empty if it may."""
        told = self.ranks.get(rank)
        if told is None:
            return "down"
        if told.is_draining:
            return "draining"
        if told.hashes is None:
            return "joining"
        return "silent" if now >= told.silent_at else ""

    def expire(self, now: Nanos) -> None:
        for request, booking in list(self.bookings.items()):
            if not booking.is_seen and booking.late_at <= now:
                del self.bookings[request]

    def take(self, now: Nanos, event: object) -> None:
        match event:
            case PeerJoined(peer=peer):
                self._join(peer)
            case PeerLost(peer=peer):
                self._lose(peer)
            case Received(peer=peer, message=message) if peer.role is Role.WORKER:
                told = self.ranks.get(peer.rank)
                if told is not None and told.peer == peer:
                    self._hear_worker(now, told, message)
            case Received(peer=peer, message=message) if peer in self.ingresses:
                self._hear_ingress(now, message)
            case _:
                pass

    def answer(self, request: RequestId) -> None:
        """With something else than a route."""
        del self.asked[request]
        self.bookings.pop(request, None)

    def route(self, now: Nanos, decided: RouteDecided) -> None:
        asked = self.asked.pop(decided.request)
        late_at = Nanos(now + self._settings.booking_ns)
        self.bookings[decided.request] = ToldBooking(
            decided.rank, decided.epoch, decided.attempt, asked.chain, asked.prompt_tokens, False, late_at, True
        )
        self.prefilled.pop(decided.request, None)

    def _join(self, peer: Peer) -> None:
        if peer.role is Role.INGRESS:
            self.ingresses[peer] = None
        elif peer.epoch >= self._last.get(peer.rank, 0):
            was_linked = peer.rank in self.ranks
            for request, booking in list(self.bookings.items()):
                if booking.rank == peer.rank and (was_linked or booking.epoch != peer.epoch):
                    del self.bookings[request]
            self._last[peer.rank] = peer.epoch
            self.ranks[peer.rank] = ToldRank(peer, None, None, Version(0), {}, 0, False, Nanos(0))

    def _lose(self, peer: Peer) -> None:
        if peer.role is Role.INGRESS:
            self.ingresses.pop(peer, None)
            for request in [request for request in self.asked if request.ingress == peer.epoch]:
                del self.asked[request]
            for request, booking in list(self.bookings.items()):
                if request.ingress == peer.epoch and not booking.is_seen:
                    del self.bookings[request]
        elif peer.rank in self.ranks and self.ranks[peer.rank].peer == peer:
            del self.ranks[peer.rank]
            for request, booking in list(self.bookings.items()):
                if booking.rank == peer.rank:
                    del self.bookings[request]

    def _hear_worker(self, now: Nanos, told: ToldRank, message: Message) -> None:
        match message:
            case WorkerJoined():
                told.facts = told.facts or message
            case DrainBegun():
                told.is_draining = True
            case Report():
                if told.hashes is not None and message.version > told.version:
                    self._take_report(now, told, message)
            case FullReport():
                self._take_full_report(now, told, message)
            case _:
                pass

    def _take_report(self, now: Nanos, told: ToldRank, report: Report) -> None:
        assert told.hashes is not None
        assert report.version == told.version + 1, "a stream loses nothing"
        for digest in split_chain(report.removed):
            del told.hashes[digest]
        told.hashes.update(dict.fromkeys(split_chain(report.added)))
        told.version = report.version
        told.silent_at = Nanos(now + self._settings.suspect_after_ns)
        prefills = dict(zip(report.prefill_requests, report.prefill_tokens, strict=True))
        for request in report.accepted:
            self._adopt(told.peer, request, prefills.get(request, 0))
        for request, tokens in prefills.items():
            self._see(told.peer, request)
            self._note_prefill(told.peer, request, tokens)
        for request in report.ended:
            if self._is_at(told.peer, request):
                del self.bookings[request]

    def _take_full_report(self, now: Nanos, told: ToldRank, report: FullReport) -> None:
        if told.facts is None or (told.hashes is not None and report.version < told.version):
            return
        if report.part == 0:
            told.parts, told.next_part = {}, 0
        if report.part != told.next_part:
            return
        told.parts.update(dict.fromkeys(split_chain(report.hashes)))
        told.next_part += 1
        told.silent_at = Nanos(now + self._settings.suspect_after_ns)
        if told.next_part < report.parts:
            return
        told.hashes, told.version, told.parts = told.parts, report.version, {}
        listed = dict(zip(report.requests, report.prefill_tokens, strict=True))
        for request, booking in list(self.bookings.items()):
            if self._is_at(told.peer, request) and booking.is_seen and request not in listed:
                del self.bookings[request]
        for request, tokens in listed.items():
            self._adopt(told.peer, request, tokens)
            self._note_prefill(told.peer, request, tokens)

    def _is_at(self, peer: Peer, request: RequestId) -> bool:
        booking = self.bookings.get(request)
        return booking is not None and (booking.rank, booking.epoch) == (peer.rank, peer.epoch)

    def _see(self, peer: Peer, request: RequestId) -> None:
        if self._is_at(peer, request):
            self.bookings[request].is_seen = True

    def _adopt(self, peer: Peer, request: RequestId, tokens: int) -> None:
        self._see(peer, request)
        if request not in self.bookings:
            self.bookings[request] = ToldBooking(peer.rank, peer.epoch, 0, b"", tokens, True, Nanos(0), True)

    def _note_prefill(self, peer: Peer, request: RequestId, tokens: int) -> None:
        if self._is_at(peer, request):
            self.bookings[request].has_prefill = tokens > 0
            if tokens == 0:
                self.prefilled[request] = None

    def _hear_ingress(self, now: Nanos, message: Message) -> None:
        match message:
            case RouteAsked(request=request, attempt=attempt):
                booking = self.bookings.get(request)
                if booking is None or booking.attempt <= attempt:
                    self.bookings.pop(request, None)
                    self.asked[request] = message
            case BookingEnded(request=request, attempt=attempt):
                if request in self.asked and self.asked[request].attempt <= attempt:
                    del self.asked[request]
                booking = self.bookings.get(request)
                if booking is not None and booking.attempt <= attempt:
                    del self.bookings[request]
            case BookingsOffered():
                self._restore(now, message)
            case _:
                pass

    def _restore(self, now: Nanos, offered: BookingsOffered) -> None:
        late_at = Nanos(now + self._settings.booking_ns)
        columns = (offered.requests, offered.attempts, offered.ranks, offered.epochs, offered.prompt_tokens)
        for request, attempt, rank, epoch, prompt_tokens in zip(*columns, strict=True):
            told, booking = self.ranks.get(rank), self.bookings.get(request)
            if told is not None and told.peer.epoch != epoch:
                continue
            if booking is not None and (booking.rank, booking.epoch) == (rank, epoch):
                if booking.prompt_tokens < prompt_tokens:
                    booking.attempt, booking.prompt_tokens, booking.chain = attempt, prompt_tokens, b""
            elif booking is None or booking.attempt < attempt:
                self.bookings[request] = ToldBooking(rank, epoch, attempt, b"", prompt_tokens, False, late_at, True)
