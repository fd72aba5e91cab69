"""The ingress machine: open requests, where each is, and what its client may be told.

`specs/request.md` is the table of a request. A request has one attempt at a time; what answers an older one is
dropped. So a stream survives its worker: the rest is submitted elsewhere, with every token that has come.
"""

from collections.abc import Iterable
from hashlib import blake2b
from itertools import repeat
from typing import assert_never

import attrs

from lmpool.core.effects import (
    AnswerQuery,
    ChoiceEnd,
    CloseRequest,
    DeliverPromptLogprobs,
    DeliverStart,
    DeliverToken,
    IngressEffect,
    Outcome,
)
from lmpool.core.events import (
    ClientGone,
    DrainOrdered,
    IngressEvent,
    PeerJoined,
    PeerLost,
    Received,
    RequestArrived,
    StopFound,
    Tick,
)
from lmpool.core.history import History
from lmpool.core.ids import Epoch, Nanos, Peer, Rank, RequestId, Role
from lmpool.core.linked_workers import LinkedWorkers
from lmpool.core.messages import Message
from lmpool.core.messages.ingress_control import Busy, DecisionsReported, RouteDecided, StateReported, Unroutable
from lmpool.core.messages.ingress_worker import (
    Abort,
    Accepted,
    CacheCleared,
    Ended,
    Finish,
    FinishChoice,
    PromptScored,
    Refused,
    TokensProduced,
)
from lmpool.core.messages.transfer import TransferDecided
from lmpool.core.messages.worker_control import DrainBegun, WorkerJoined
from lmpool.core.open_request import (
    FAULTS,
    LATE,
    NONSENSE,
    Leaving,
    OpenRequest,
    Routing,
    Streaming,
    Submitted,
    Waiting,
    early_end,
    open_request,
)
from lmpool.core.plan import TokenLogprobs
from lmpool.core.request_table import RequestTable
from lmpool.core.search import PROBE, Search, SearchSettings


@attrs.frozen
class IngressSettings:
    epoch: Epoch
    requests_max: int
    """Open requests, choices counted."""
    abort_wait_ns: Nanos
    """How long a worker may take to say that an aborted request is gone."""
    search: SearchSettings


@attrs.frozen
class IngressSnapshot:
    """For metrics and status."""

    phases: tuple[tuple[str, int], ...]
    """Open requests in each phase."""
    choices: int
    """Of all open requests."""
    outcomes: tuple[tuple[Outcome, int], ...]
    degraded: int
    """Submits that were routed without control."""
    resumed: int
    """Requests that went on after the loss of their worker."""
    dropped: int
    """Token rows of an older attempt, beyond an end or twice, and answers of control to an older attempt."""
    is_control_heard: bool
    linked: tuple[Rank, ...]
    """Ranks with a link, draining ones included."""
    homes: int
    """Sessions remembered."""


class Ingress:
    """Deterministic: the same settings and events give the same effects and digest."""

    __slots__ = ("_dropped", "_is_draining", "_now", "_requests", "_search", "_settings", "_workers")

    def __init__(self, settings: IngressSettings, now: Nanos) -> None:
        self._settings = settings
        self._now = now
        self._requests = RequestTable()
        self._workers = LinkedWorkers(settings.search.replicas)
        self._search = Search(settings.search, self._requests, self._workers)
        self._is_draining = False
        self._dropped = 0

    def handle(self, now: Nanos, event: IngressEvent) -> list[IngressEffect]:
        self._now = self._requests.now = now
        match event:
            case Received(peer=peer, message=message):
                self._receive(peer, message)
            case RequestArrived():
                self._arrive(event)
            case StopFound():
                self._stop(event)
            case ClientGone(request=request):
                gone = self._requests.get(request.counter)
                if gone is not None:
                    self._end(gone, Outcome.CANCELLED, "")
            case PeerJoined(peer=peer):
                self._join(peer)
            case PeerLost(peer=peer):
                self._lose(peer)
            case DrainOrdered():
                self._is_draining = True
            case Tick():
                pass
            case _:
                assert_never(event)
        for late in self._requests.expired(now):
            self._expire(late)
        return self._requests.take_effects()

    def next_deadline(self) -> Nanos | None:
        return self._requests.next_deadline()

    def snapshot(self) -> IngressSnapshot:
        return IngressSnapshot(
            phases=self._requests.phases(),
            choices=self._requests.choices,
            outcomes=tuple(self._requests.outcomes.items()),
            degraded=self._search.degraded,
            resumed=self._search.resumed,
            dropped=self._dropped,
            is_control_heard=self._search.is_control_heard,
            linked=self._workers.ranks,
            homes=self._search.homes,
        )

    def history(self, request: RequestId) -> History | None:
        """What has become of it so far; None for one that is unknown or forgotten."""
        return self._requests.history(request)

    def requests_of(self, tenant: str) -> tuple[RequestId, ...]:
        """Those that have a history."""
        return self._requests.requests_of(tenant)

    def digest(self) -> bytes:
        """Of the whole state."""
        state = blake2b(digest_size=16)
        for part in (self._requests.digest_state(), self._search.digest_state(), self._workers.digest_state()):
            state.update(part.encode())
        state.update(repr((self._now, self._is_draining, self._dropped)).encode())
        return state.digest()

    def _join(self, peer: Peer) -> None:
        match peer.role:
            case Role.CONTROL:
                self._search.control_joined(self._now, peer)
            case Role.WORKER:
                former = self._workers.link(peer)
                if former is not None:
                    self._lose_requests(former)
            case Role.INGRESS:
                self._dropped += 1
            case _:
                assert_never(peer.role)

    def _lose(self, peer: Peer) -> None:
        if peer == self._search.control:
            self._search.control_lost(self._now)
        elif self._workers.unlink(peer):
            self._lose_requests(peer)

    def _lose_requests(self, worker: Peer) -> None:
        for request in self._requests.at(worker):
            if isinstance(request.phase, Leaving):
                self._let_go(request, request.phase)
            else:
                self._search.begin_again(self._now, request)

    def _receive(self, peer: Peer, message: Message) -> None:
        if peer == self._search.control:
            self._search.control_spoke()
            self._receive_from_control(peer, message)
        elif self._workers.knows(peer):
            self._receive_from_worker(peer, message)
        else:
            self._dropped += 1

    def _receive_from_control(self, peer: Peer, message: Message) -> None:
        match message:
            case RouteDecided() | Busy() | Unroutable():
                request = self._requests.get(message.request.counter)
                if request is None or not isinstance(request.phase, Routing) or request.attempt != message.attempt:
                    self._dropped += 1
                else:
                    self._search.take_route(self._now, request, message)
            case StateReported(number=number) if number == PROBE:
                pass
            case StateReported() | DecisionsReported() | TransferDecided():
                self._requests.put(AnswerQuery(peer, message))
            case _:
                self._dropped += 1

    def _receive_from_worker(self, peer: Peer, message: Message) -> None:
        match message:
            case TokensProduced():
                self._take_tokens(peer, message)
            case Accepted() | PromptScored() | Refused() | Ended():
                request = self._requests.get(message.request.counter)
                if request is not None and request.worker == peer and request.attempt == message.attempt:
                    self._take_word(request, peer, message)
            case WorkerJoined():
                self._workers.learn(peer, message)
                self._search.worker_ready(self._now)
            case DrainBegun():
                self._workers.drain(peer)
            case CacheCleared():
                self._requests.put(AnswerQuery(peer, message))
            case _:
                self._dropped += 1

    def _arrive(self, arrived: RequestArrived) -> None:
        assert arrived.request.ingress == self._settings.epoch
        request = open_request(self._requests.in_its_class(arrived), Waiting(self._now))
        why_full = self._requests.why_full(arrived, self._settings.requests_max)
        if self._is_draining:
            close = CloseRequest(arrived.request, Outcome.DRAINING, "The server is ending.", Nanos(0))
            self._requests.turn_away(request, close)
        elif why_full:
            retry_after = self._settings.search.busy_retry_ns
            self._requests.turn_away(request, CloseRequest(arrived.request, Outcome.BUSY, why_full, retry_after))
        else:
            self._requests.add(request)
            self._search.begin(self._now, request)

    def _take_word(self, request: OpenRequest, worker: Peer, word: Accepted | PromptScored | Refused | Ended) -> None:
        if isinstance(request.phase, Leaving):
            if isinstance(word, Refused):
                self._search.withdraw(request)
            if isinstance(word, Refused | Ended):
                self._finish(request, request.phase.close)
            return
        match word:
            case Accepted(cached_tokens=cached, waited_ns=waited):
                request.is_booked = False
                request.visits.accept(self._now, cached, waited)
                self._requests.move(request, Streaming(worker))
                if not request.has_begun:
                    request.has_begun = True
                    queued = Nanos(self._now - request.arrived.arrived_ns)
                    self._requests.put(DeliverStart(request.id, cached, queued))
            case PromptScored(start=start, entries=entries):
                self._take_scores(request, start, entries)
            case Refused():
                self._search.take_refusal(self._now, request, worker, word)
            case Ended(reason=reason):
                self._finish(request, early_end(request.id, reason))
            case _:
                assert_never(word)

    def _take_tokens(self, peer: Peer, produced: TokensProduced) -> None:
        logprobs: Iterable[TokenLogprobs | None] = produced.logprobs or repeat(None)
        rows = zip(
            produced.requests,
            produced.attempts,
            produced.choices,
            produced.output_indexes,
            produced.tokens,
            produced.finishes,
            logprobs,
            strict=False,
        )
        for counter, attempt, number, index, token, finish, scored in rows:
            request = self._requests.get(counter)
            if request is None or request.attempt != attempt or request.worker != peer or not request.is_at_worker:
                self._dropped += 1
            elif finish in FAULTS:
                self._end(request, Outcome.FAILED, FAULTS[finish])
            elif request.lacks_before(number, index):
                self._end(request, Outcome.FAILED, NONSENSE)
            else:
                self._take_token(request, number, index, token, finish, scored)

    def _take_token(
        self,
        request: OpenRequest,
        number: int,
        index: int,
        token: int,
        finish: Finish | None,
        logprobs: TokenLogprobs | None,
    ) -> None:
        choice = request.choices[number]
        if not choice.is_open or index < len(choice.output):
            self._dropped += 1
            return
        request.visits.take_token(self._now)
        choice.output.append(token)
        choice.is_open = finish is None
        request.has_progressed = True
        end = None if finish is None else ChoiceEnd.STOP if finish is Finish.END_TOKEN else ChoiceEnd.LENGTH
        hidden = finish is Finish.END_TOKEN and token in request.arrived.stop.hidden_ends
        self._requests.put(DeliverToken(request.id, number, index, token, logprobs, end, hidden))
        if finish is not None and request.is_complete:
            self._end(request, Outcome.COMPLETE, "")

    def _take_scores(self, request: OpenRequest, start: int, entries: tuple[TokenLogprobs, ...]) -> None:
        """Those delivered before the loss of a worker come again."""
        known = request.scored - start
        if known >= len(entries) or not request.is_scoring:
            self._dropped += 1
            return
        if known < 0:
            self._end(request, Outcome.FAILED, NONSENSE)
            return
        self._requests.put(DeliverPromptLogprobs(request.id, request.scored, entries[known:]))
        request.scored = start + len(entries)
        request.has_progressed = True
        if request.is_complete:
            self._end(request, Outcome.COMPLETE, "")

    def _stop(self, found: StopFound) -> None:
        request = self._requests.get(found.request.counter)
        if request is None or isinstance(request.phase, Leaving) or not request.choices[found.choice].is_open:
            return
        choice = request.choices[found.choice]
        assert found.output_index < len(choice.output), f"{found} after {len(choice.output)} tokens"
        choice.is_open = False
        if request.worker is not None:
            finish = FinishChoice(found.request, found.choice, found.output_index)
            self._requests.send(request.worker, finish)
        if request.is_complete:
            self._end(request, Outcome.COMPLETE, "")

    def _expire(self, request: OpenRequest) -> None:
        deadline = request.arrived.deadline_ns
        match request.phase:
            case Leaving():
                self._let_go(request, request.phase)
            case _ if deadline is not None and self._now >= deadline:
                self._end(request, Outcome.DEADLINE, LATE)
            case Routing() | Waiting():
                self._search.expire(self._now, request)
            case Submitted() | Streaming():
                raise AssertionError(f"{request.id} has no deadline at its worker")
            case _:
                assert_never(request.phase)

    def _finish(self, request: OpenRequest, close: CloseRequest) -> None:
        """By its worker's word, or with every token: the worker reports its end, to whoever had its booking then."""
        if request.is_offered:
            self._search.withdraw(request)
        self._requests.finish(request, close)

    def _let_go(self, request: OpenRequest, leaving: Leaving) -> None:
        """Without its worker's word, which may never have seen it."""
        self._search.release(request)
        self._requests.finish(request, leaving.close)

    def _end(self, request: OpenRequest, outcome: Outcome, detail: str) -> None:
        """By ourselves. What is complete has ended at its worker as well; the rest has to be let go there first."""
        close = CloseRequest(request.id, outcome, detail, Nanos(0))
        match request.phase:
            case Submitted(worker=worker) | Streaming(worker=worker) if outcome is not Outcome.COMPLETE:
                self._requests.send(worker, Abort(request.id))
                until = Nanos(self._now + self._settings.abort_wait_ns)
                self._requests.move(request, Leaving(worker, until, close))
            case Routing():
                self._search.withdraw(request)
                self._finish(request, close)
            case Waiting() | Submitted() | Streaming():
                self._finish(request, close)
            case Leaving():
                pass
            case _:
                assert_never(request.phase)
