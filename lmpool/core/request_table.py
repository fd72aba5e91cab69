"""All open requests of an ingress: where each is, its deadline, and the effects that they have in one event."""

from collections.abc import Iterator

import attrs

from lmpool.core.deadlines import Deadlines
from lmpool.core.effects import CloseRequest, IngressEffect, Outcome, Send
from lmpool.core.events import RequestArrived
from lmpool.core.history import History, HistoryLog
from lmpool.core.ids import Nanos, Peer, RequestId
from lmpool.core.limits import HISTORIES_KEPT
from lmpool.core.messages import Message
from lmpool.core.open_request import PHASE_NAMES, OpenRequest, Phase, history
from lmpool.core.tenant_shares import TenantShares


class RequestTable:
    """Owned by the ingress machine and its search. Every change of phase goes through `move`."""

    __slots__ = ("_at", "_deadlines", "_effects", "_histories", "_requests", "_shares", "choices", "now", "outcomes")

    def __init__(self) -> None:
        self._requests: dict[int, OpenRequest] = {}
        """By the counter of their ids, in the order of arrival."""
        self._at: dict[Peer, dict[int, OpenRequest]] = {}
        """Those that are or may be at a worker."""
        self._deadlines = Deadlines()
        self._effects: list[IngressEffect] = []
        self._histories = HistoryLog(HISTORIES_KEPT)
        self._shares = TenantShares()
        self.now = Nanos(0)
        """Of the event that is handled."""
        self.choices = 0
        """Of all open requests."""
        self.outcomes = dict.fromkeys(Outcome, 0)

    def __len__(self) -> int:
        return len(self._requests)

    def __iter__(self) -> Iterator[OpenRequest]:
        return iter(self._requests.values())

    def get(self, counter: int) -> OpenRequest | None:
        return self._requests.get(counter)

    def in_phase(self, phases: tuple[type[Phase], ...]) -> list[OpenRequest]:
        return [request for request in self if isinstance(request.phase, phases)]

    def at(self, worker: Peer) -> list[OpenRequest]:
        return list(self._at.get(worker, {}).values())

    def count_at(self, worker: Peer) -> int:
        return len(self._at.get(worker, ()))

    def why_full(self, arrived: RequestArrived, most: int) -> str:
        """Why there is no place for it, in one sentence; empty if there is one. Remembers that its tenant has asked."""
        shares, tenant = self._shares, arrived.tenant
        shares.see(tenant)
        if shares.may_add(tenant, arrived.choices, most - self.choices):
            return ""
        if self.choices + arrived.choices > most:
            return f"{self.choices} answers are under way and the server takes at most {most} at a time."
        return f"{self.choices} of at most {most} answers are under way, and {shares.of(tenant)} of them are yours."

    def in_its_class(self, arrived: RequestArrived) -> RequestArrived:
        """With the priority class that it has beside the requests of other tenants."""
        priority = self._shares.class_of(arrived.tenant, arrived.choices, arrived.priority)
        return arrived if priority == arrived.priority else attrs.evolve(arrived, priority=priority)

    def add(self, request: OpenRequest) -> None:
        assert request.counter not in self._requests
        self._requests[request.counter] = request
        self.choices += request.arrived.choices
        self._shares.change(request.arrived.tenant, request.arrived.choices)

    def move(self, request: OpenRequest, phase: Phase) -> None:
        self._leave(request)
        request.phase = phase
        worker, deadline = request.worker, request.deadline
        if worker is not None:
            self._at.setdefault(worker, {})[request.counter] = request
        if deadline is None:
            self._deadlines.drop(request.arrived.request)
        else:
            self._deadlines.set(request.arrived.request, deadline)

    def finish(self, request: OpenRequest, close: CloseRequest) -> None:
        """The last that is heard of it."""
        request.visits.end(close.outcome.value)
        del self._requests[request.counter]
        self._leave(request)
        self._deadlines.drop(request.arrived.request)
        self.choices -= request.arrived.choices
        self._shares.change(request.arrived.tenant, -request.arrived.choices)
        self.turn_away(request, close)

    def turn_away(self, request: OpenRequest, close: CloseRequest) -> None:
        """One that is not in the table."""
        self._histories.append(history(request, close, self.now))
        self.outcomes[close.outcome] += 1
        self._effects.append(close)

    def _leave(self, request: OpenRequest) -> None:
        worker = request.worker
        if worker is not None and worker in self._at:
            self._at[worker].pop(request.counter, None)
            if not self._at[worker]:
                del self._at[worker]

    def put(self, effect: IngressEffect) -> None:
        self._effects.append(effect)

    def send(self, peer: Peer, message: Message) -> None:
        self._effects.append(Send(peer, message))

    def take_effects(self) -> list[IngressEffect]:
        """Of the event that was handled, in order."""
        effects, self._effects = self._effects, []
        return effects

    def next_deadline(self) -> Nanos | None:
        return self._deadlines.earliest()

    def expired(self, now: Nanos) -> list[OpenRequest]:
        """Whose deadline has passed; it is taken off."""
        return [self._requests[request.counter] for request in self._deadlines.expired(now)]

    def history(self, request: RequestId) -> History | None:
        """None for one that is unknown or forgotten."""
        found = self._requests.get(request.counter)
        if found is not None and found.id == request:
            return history(found, None, self.now)
        return self._histories.get(request)

    def requests_of(self, tenant: str) -> tuple[RequestId, ...]:
        """Open ones, and those of the latest to end."""
        live = [request.id for request in self if request.arrived.tenant == tenant]
        return (*self._histories.requests_of(tenant), *live)

    def phases(self) -> tuple[tuple[str, int], ...]:
        counts = dict.fromkeys(PHASE_NAMES, 0)
        for request in self:
            counts[type(request.phase)] += 1
        return tuple((PHASE_NAMES[phase], count) for phase, count in counts.items())

    def digest_state(self) -> str:
        parts = self._deadlines.digest_parts(), self._histories.digest_state(), self._shares.digest_state()
        return repr((self._requests, self.outcomes, parts))
