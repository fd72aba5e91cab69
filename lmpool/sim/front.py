"""The ingress of a trace: it asks control, submits, and notes what came when.

It speaks the messages of `core/ingress.py` and no more: one choice a request, no deadline, no lost peers. A client
whose request is turned away as busy comes again after the time that it was told.
"""

import random
from collections.abc import Callable

import attrs

from lmpool.core.ids import MILLISECOND, Nanos, Peer, Rank, RequestId, Role
from lmpool.core.limits import ROUTE_ATTEMPTS_MAX
from lmpool.core.messages import Message
from lmpool.core.messages.ingress_control import (
    BookingEnded,
    Busy,
    RouteAsked,
    RouteDecided,
    Unroutable,
    UnroutableReason,
)
from lmpool.core.messages.ingress_worker import Accepted, Ended, Finish, Refused, Submit, TokensProduced
from lmpool.core.messages.worker_control import WorkerJoined
from lmpool.core.sampling import StopSettings, greedy
from lmpool.sim.arrivals import Arrivals
from lmpool.sim.node import Way
from lmpool.sim.prompts import Prompts
from lmpool.sim.timeline import Timeline
from lmpool.sim.trace import END_TOKEN, Trace

BUSY_RETRY_NS = Nanos(1_000 * MILLISECOND)
"""What a client that is turned away waits at least."""
OUTPUT_TOKENS_MAX = 4_096
"""What clients allow, whatever the answer will be: no policy is told the future. Longer than common answers."""


@attrs.define
class RequestTimes:
    """Of one request. Moments are virtual nanoseconds; -1 is not yet, or never."""

    arrived_ns: int = -1
    first_ns: int = -1
    ended_ns: int = -1
    cached_tokens: int = -1
    """Prompt tokens found in complete cached blocks when it first began."""
    rank: int = -1
    """Where it was submitted last."""
    submitted_ns: int = -1
    begun_ns: int = -1
    """When the word came that it had begun, the first time."""
    waited_ns: int = -1
    """At the worker, until then."""
    busy: int = 0
    """How often it was turned away and came again."""
    refused: int = 0
    """How often a worker refused it."""


@attrs.define
class _Open:
    """A request from a question on, until it has been submitted for good."""

    attempt: int
    asked_ns: Nanos
    """When its client sent it, this time."""
    packed: bytes
    chain: bytes
    excluded: tuple[Rank, ...]


class Front:
    """An end of links to control and to every worker."""

    def __init__(
        self, timeline: Timeline, peer: Peer, trace: Trace, prompts: Prompts, namespace: bytes, replicas: int, seed: int
    ) -> None:
        chance = random.Random(seed)
        self.peer = peer
        self.times = [RequestTimes() for _ in trace.requests]
        self.closed = 0
        """Requests that have ended, or never can be served."""
        self.decided = 0
        """Answers of control."""
        self.unserved: dict[int, str] = {}
        """Requests that no rank can serve, with the reason."""
        self._timeline = timeline
        self._trace = trace
        self._prompts = prompts
        self._namespace = namespace
        self._stop = StopSettings(max(OUTPUT_TOKENS_MAX, trace.outputs_longest), 0, (END_TOKEN,), (END_TOKEN,))
        self.draws = [chance.getrandbits(63) for _ in trace.requests]
        """For policies that need chance, by request."""
        self._arrivals = Arrivals(trace)
        self._is_arrival_set = False
        self._begun_ns = Nanos(0)
        self._replicas = replicas
        self._absent = dict.fromkeys(map(Rank, range(replicas)))
        """Ranks without a link, or that have not told their facts."""
        self._ways: dict[Peer, Way] = {}
        self._control: Peer | None = None
        self._open: dict[int, _Open] = {}

    @property
    def is_done(self) -> bool:
        return self.closed == len(self._trace.requests)

    def begin(self, at_ns: Nanos) -> None:
        """The trace's time 0."""
        self._begun_ns = at_ns
        self._await_arrival()

    def _await_arrival(self) -> None:
        """Only the next arrival is on the timeline."""
        at_ns = self._arrivals.next_ns
        if at_ns is not None and not self._is_arrival_set:
            self._is_arrival_set = True
            self._timeline.at(Nanos(max(self._begun_ns + at_ns, self._timeline.now)), self._take_arrival)

    def _take_arrival(self) -> None:
        self._is_arrival_set = False
        number = self._arrivals.take()
        self._await_arrival()
        self._arrive(number)

    def _arrive(self, number: int) -> None:
        now = self._timeline.now
        self.times[number].arrived_ns = now
        packed = self._prompts.packed(number)
        self._open[number] = _Open(-1, now, packed, self._prompts.chain(number, packed), ())
        self._ask(number)

    def _later(self, duration: int, action: Callable[[int], None], number: int) -> None:
        self._timeline.after(duration, lambda: action(number))

    # Links

    def join(self, peer: Peer, line: Way) -> None:
        self._ways[peer] = line
        if peer.role is Role.CONTROL:
            self._control = peer

    def part(self, peer: Peer) -> None:
        raise AssertionError(f"{peer} was lost, which a trace does not foresee")

    def receive(self, peer: Peer, message: Message) -> None:
        match message:
            case TokensProduced():
                self._take_tokens(message)
            case RouteDecided():
                self.decided += 1
                self._submit(message)
            case Accepted(request=request, cached_tokens=cached, waited_ns=waited):
                times = self.times[request.counter]
                times.cached_tokens, times.waited_ns, times.begun_ns = cached, waited, self._timeline.now
            case Ended():
                pass  # the last token came before
            case Busy(request=request, retry_after_ns=retry_after):
                self.decided += 1
                self._turn_away(request.counter, retry_after)
            case Refused():
                self._take_refusal(peer, message)
            case WorkerJoined():
                self._absent.pop(peer.rank, None)
            case Unroutable(request=request, reason=UnroutableReason.NO_REPLICA):
                self.decided += 1
                self._turn_away(request.counter, BUSY_RETRY_NS)
            case Unroutable(request=request, reason=reason):
                self.decided += 1
                self._close(request.counter, reason.value)
            case _:
                raise AssertionError(message)

    def _say(self, peer: Peer, message: Message) -> None:
        self._ways[peer].carry(message)

    # Routes

    def _ask(self, number: int) -> None:
        request, opened, settings = self._trace.requests[number], self._open[number], self._stop
        assert self._control is not None
        opened.attempt += 1
        asked = RouteAsked(
            request=RequestId(self.peer.epoch, number),
            attempt=opened.attempt,
            chain=opened.chain,
            namespace=self._namespace,
            prompt_tokens=self._prompts.lengths[number],
            output_tokens_max=settings.output_tokens_max,
            choices=1,
            session=request.session,
            priority=0,
            arrived_ns=opened.asked_ns,
            deadline_ns=None,
            excluded=tuple(sorted({*opened.excluded, *self._absent})),
            draw=self.draws[number],
        )
        self._say(self._control, asked)

    def _submit(self, decided: RouteDecided) -> None:
        number = decided.request.counter
        opened = self._open[number]
        times = self.times[number]
        times.rank, times.submitted_ns = decided.rank, self._timeline.now
        submit = Submit(
            request=decided.request,
            attempt=decided.attempt,
            namespace=self._namespace,
            prompt=opened.packed,
            chain=opened.chain,
            choices=(0,),
            outputs=(b"",),
            sampling=greedy(number),
            stop=self._stop,
            prompt_logprobs=None,
            priority=0,
            arrived_ns=opened.asked_ns,
            deadline_ns=None,
            awaits=decided.awaits,
        )
        self._say(Peer(Role.WORKER, decided.rank, decided.epoch), submit)

    def _take_refusal(self, worker: Peer, refused: Refused) -> None:
        number = refused.request.counter
        opened, times = self._open[number], self.times[number]
        times.refused += 1
        opened.excluded = (*opened.excluded, worker.rank)
        may_ask = len(opened.excluded) <= ROUTE_ATTEMPTS_MAX
        if may_ask and len({*opened.excluded, *self._absent}) < self._replicas:
            self._ask(number)
            return
        assert self._control is not None
        self._say(self._control, BookingEnded(refused.request, refused.attempt))
        self._turn_away(number, refused.retry_after_ns)

    def _turn_away(self, number: int, retry_after_ns: Nanos) -> None:
        self.times[number].busy += 1
        self._open[number].excluded = ()
        self._later(max(retry_after_ns, BUSY_RETRY_NS), self._come_again, number)

    def _come_again(self, number: int) -> None:
        self._open[number].asked_ns = self._timeline.now
        self._ask(number)

    # Answers

    def _take_tokens(self, produced: TokensProduced) -> None:
        """Of most rows nothing is noted."""
        indexes, finishes = produced.output_indexes, produced.finishes
        if 0 in indexes:
            for counter, index in zip(produced.requests, indexes, strict=True):
                if index == 0:
                    self.times[counter].first_ns = self._timeline.now
        if finishes.count(None) != len(finishes):
            for counter, index, finish in zip(produced.requests, indexes, finishes, strict=True):
                if finish is not None:
                    tokens = self._trace.requests[counter].output_tokens
                    is_whole = finish is Finish.END_TOKEN and index + 1 == tokens
                    self._close(counter, "" if is_whole else f"{finish.value} after {index + 1} of {tokens} tokens")

    def _close(self, number: int, fault: str) -> None:
        """Closed-loop requests that continue it come after their pause."""
        del self._open[number]
        self.closed += 1
        if fault:
            self.unserved[number] = fault
        else:
            self.times[number].ended_ns = self._timeline.now
        for follower in self._arrivals.end(number):
            self._later(self._trace.requests[follower].pause_ns, self._arrive, follower)
        self._await_arrival()
