"""How a request finds a worker: control is asked, or the ingress chooses while control does not answer."""

from typing import assert_never

import attrs

from lmpool.core.affinity import Affinity
from lmpool.core.effects import CloseRequest, Outcome
from lmpool.core.ids import Nanos, Peer, Role
from lmpool.core.linked_workers import LinkedWorkers
from lmpool.core.messages.ingress_control import (
    BookingEnded,
    BookingsOffered,
    Busy,
    RouteDecided,
    StateAsked,
    Unroutable,
    UnroutableReason,
)
from lmpool.core.messages.ingress_worker import RefusalReason, Refused
from lmpool.core.messages.transfer import Awaited
from lmpool.core.open_request import OpenRequest, Routing, Streaming, Submitted, Waiting, question, submission
from lmpool.core.request_table import RequestTable

PROBE = 0
"""Number of the machine's own query, which a silent control answers as soon as it speaks again."""

BUSY = "Every replica would keep the request waiting too long."
LASTING = (RefusalReason.NEVER_FITS, RefusalReason.NAMESPACE_UNKNOWN)
"""Time mends them only for a request that has begun somewhere."""


@attrs.frozen
class SearchSettings:
    replicas: int
    """Ranks 0 to replicas - 1 may be linked."""
    block_size: int
    attempts_max: int
    """Refusals in one search, and losses in a row of workers that had begun it and brought nothing, that a request may
    have and go on. Of workers that had not begun it, so many times the replicas."""
    route_wait_ns: Nanos
    """How long control may take to answer."""
    replica_wait_ns: Nanos
    """How long a request without a deadline waits for a replica that can take it; others wait until then."""
    retry_ns: Nanos
    """Between two tries of a request that no replica can take."""
    busy_retry_ns: Nanos
    """What a client is told to wait at least."""
    routes_degraded: bool
    """Whether requests are routed without control while it does not answer."""
    homes_max: int
    """Sessions remembered for that."""


class Search:
    """Owned by the ingress machine. A request is in search from its arrival, or the loss of its worker, until it has
    begun somewhere."""

    __slots__ = ("_affinity", "_control", "_is_silent", "_requests", "_settings", "_workers", "degraded", "resumed")

    def __init__(self, settings: SearchSettings, requests: RequestTable, workers: LinkedWorkers) -> None:
        self._settings = settings
        self._requests = requests
        self._workers = workers
        self._affinity = Affinity(settings.homes_max)
        self._control: Peer | None = None
        self._is_silent = False
        """Whether a question to it has been without an answer for too long, and nothing was heard since."""
        self.degraded = 0
        """Submits that were routed without control."""
        self.resumed = 0
        """Requests that went on after the loss of their worker."""

    @property
    def control(self) -> Peer | None:
        return self._control

    @property
    def is_control_heard(self) -> bool:
        return self._control is not None and not self._is_silent

    @property
    def homes(self) -> int:
        return len(self._affinity)

    def control_joined(self, now: Nanos, control: Peer) -> None:
        """It learns of every request at a worker, and every question is asked again."""
        self._control, self._is_silent = control, False
        self._offer_bookings(control)
        for request in self._requests.in_phase((Routing, Waiting)):
            self.seek(now, request)

    def control_lost(self, now: Nanos) -> None:
        self._control = None
        for request in self._requests.in_phase((Routing,)):
            self.seek(now, request)

    def control_spoke(self) -> None:
        self._is_silent = False

    def worker_ready(self, now: Nanos) -> None:
        for request in self._requests.in_phase((Waiting,)):
            self.seek(now, request)

    def _offer_bookings(self, control: Peer) -> None:
        booked = [(request, request.worker) for request in self._requests if request.is_at_worker]
        workers = [worker for _, worker in booked if worker is not None]
        for request, _ in booked:
            request.is_offered = True
        if booked:
            offered = BookingsOffered(
                requests=tuple(request.id for request, _ in booked),
                attempts=tuple(request.attempt for request, _ in booked),
                ranks=tuple(worker.rank for worker in workers),
                epochs=tuple(worker.epoch for worker in workers),
                prompt_tokens=tuple(request.prompt_tokens for request, _ in booked),
            )
            self._requests.send(control, offered)

    def begin(self, now: Nanos, request: OpenRequest) -> None:
        deadline = request.arrived.deadline_ns
        request.patience_ns = Nanos(now + self._settings.replica_wait_ns) if deadline is None else deadline
        request.refusals = 0
        request.refused.clear()
        request.unreachable.clear()
        self.seek(now, request)

    def begin_again(self, now: Nanos, request: OpenRequest) -> None:
        """Its worker is lost."""
        request.visits.end("worker lost")
        if request.has_progressed:
            request.losses = request.misses = 0
        elif isinstance(request.phase, Streaming):
            request.losses += 1
        else:
            request.misses += 1
        attempts_max, replicas = self._settings.attempts_max, self._settings.replicas
        if request.losses > attempts_max or request.misses > attempts_max * replicas:
            lost = request.losses + request.misses
            detail = f"{lost} replicas in a row were lost before they answered this request."
            self.release(request)
            self._requests.finish(request, CloseRequest(request.id, Outcome.FAILED, detail, Nanos(0)))
        else:
            self.resumed += 1
            self.begin(now, request)

    def seek(self, now: Nanos, request: OpenRequest) -> None:
        takers = self._workers.takers(request)
        if not takers:
            self._put_off(now, request)
        elif self._control is not None and not self._is_silent:
            request.attempt += 1
            request.is_booked = request.is_offered = False  # the question ends what control has of it
            asked = question(request, self._settings.block_size, self._workers.excluded(takers))
            self._requests.send(self._control, asked)
            self._requests.move(request, Routing(Nanos(now + self._settings.route_wait_ns)))
        elif self._settings.routes_degraded:
            self.release(request)
            request.attempt += 1
            self.degraded += 1
            counts = [self._requests.count_at(peer) for peer in takers]
            index = self._affinity.choose(request.arrived, [peer.rank for peer in takers], counts)
            self._submit(now, request, takers[index], None, is_degraded=True)
        else:
            self._put_off(now, request)

    def _put_off(self, now: Nanos, request: OpenRequest) -> None:
        request.unreachable.clear()
        self.release(request)
        self._requests.move(request, Waiting(Nanos(now + self._settings.retry_ns)))

    def _submit(
        self, now: Nanos, request: OpenRequest, worker: Peer, awaits: Awaited | None, *, is_degraded: bool
    ) -> None:
        request.visits.begin(now, request.attempt, worker.rank, worker.epoch, is_degraded=is_degraded)
        self._affinity.remember(request.arrived, worker.rank)
        request.has_progressed = False
        self._requests.send(worker, submission(request, awaits))
        self._requests.move(request, Submitted(worker))

    def take_route(self, now: Nanos, request: OpenRequest, answer: RouteDecided | Busy | Unroutable) -> None:
        match answer:
            case RouteDecided(rank=rank, epoch=epoch, awaits=awaits):
                request.is_booked = True
                worker = Peer(Role.WORKER, rank, epoch)
                if self._workers.knows(worker):
                    self._submit(now, request, worker, awaits, is_degraded=False)
                else:
                    request.unreachable.append(rank)
                    self.seek(now, request)
            case Busy(retry_after_ns=retry_after):
                if request.is_pledged:
                    self._wait_afresh(now, request)
                else:
                    self._turn_away(request, Outcome.BUSY, BUSY, retry_after)
            case Unroutable(reason=reason, tokens_max=tokens_max):
                if reason is UnroutableReason.NO_REPLICA and request.refused:
                    self._no_other_is_left(now, request)
                elif request.has_begun or reason is UnroutableReason.NO_REPLICA:
                    self._put_off(now, request)
                else:
                    self._turn_away(request, Outcome.NEVER_FITS, _never_fits(request, tokens_max), Nanos(0))
            case _:
                assert_never(answer)

    def take_refusal(self, now: Nanos, request: OpenRequest, worker: Peer, refused: Refused) -> None:
        """Asked again without this worker while there is another to ask, and not for ever."""
        request.refusals += 1
        request.refused[worker] = refused
        request.visits.end(f"refused: {refused.reason.value}")
        if refused.reason is RefusalReason.DRAINING:
            self._workers.drain(worker)
        if request.refusals <= self._settings.attempts_max and self._workers.takers(request):
            self.seek(now, request)
            return
        self.withdraw(request)
        self._no_other_is_left(now, request)

    def _no_other_is_left(self, now: Nanos, request: OpenRequest) -> None:
        """All that could be asked refused it; the latest says why."""
        refused = list(request.refused.values())[-1]
        if request.has_begun or (request.is_pledged and refused.reason not in LASTING):
            self._wait_afresh(now, request)
            return
        match refused.reason:
            case RefusalReason.DRAINING:
                self._wait_afresh(now, request)
            case RefusalReason.QUEUE_FULL:
                self._turn_away(request, Outcome.BUSY, BUSY, refused.retry_after_ns)
            case RefusalReason.NEVER_FITS:
                self._turn_away(request, Outcome.NEVER_FITS, _never_fits(request, self._workers.tokens_most), Nanos(0))
            case RefusalReason.NAMESPACE_UNKNOWN:
                detail = "No replica knows the namespace of this request: they run another model."
                self._turn_away(request, Outcome.FAILED, detail, Nanos(0))
            case _:
                assert_never(refused.reason)

    def _wait_afresh(self, now: Nanos, request: OpenRequest) -> None:
        """Those who refused it may be asked again."""
        request.refusals = 0
        request.refused.clear()
        self._put_off(now, request)

    def expire(self, now: Nanos, request: OpenRequest) -> None:
        """A question is without answer, a pause is over, or the search has lasted too long."""
        if isinstance(request.phase, Routing):
            self.withdraw(request)
        if now >= request.patience_ns:
            detail = "No replica came up in time to take the request."
            self._turn_away(request, Outcome.NO_REPLICA, detail, self._settings.busy_retry_ns)
            return
        if isinstance(request.phase, Routing) and self._control is not None and not self._is_silent:
            self._is_silent = True
            self._requests.send(self._control, StateAsked(PROBE))
        self.seek(now, request)

    def withdraw(self, request: OpenRequest) -> None:
        """Control keeps no booking and no question of a request that is at no worker."""
        request.is_booked = request.is_offered = False
        if self._control is not None:
            self._requests.send(self._control, BookingEnded(request.id, request.attempt))

    def release(self, request: OpenRequest) -> None:
        """Before it ends, or goes elsewhere without control: a booking must not wait for reports that do not come."""
        if request.is_booked or request.is_offered:
            self.withdraw(request)

    def _turn_away(self, request: OpenRequest, outcome: Outcome, detail: str, retry_after: Nanos) -> None:
        if outcome is Outcome.BUSY:
            retry_after = max(retry_after, self._settings.busy_retry_ns)
        self._requests.finish(request, CloseRequest(request.id, outcome, detail, retry_after))

    def digest_state(self) -> str:
        return repr((self._affinity.digest_state(), self._control, self._is_silent, self.degraded, self.resumed))


def _never_fits(request: OpenRequest, tokens_max: int) -> str:
    prompt, outputs = request.prompt_tokens, request.arrived.stop.output_tokens_max
    return (
        f"The longest context that a replica holds is {tokens_max} tokens, prompt and answer together; "
        f"the prompt has {prompt} tokens and {outputs} were asked for."
    )
