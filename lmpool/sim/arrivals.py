"""Which request of a trace comes next: by its time, by room in flight, by its stage, or after what it continues."""

from lmpool.core.ids import Nanos
from lmpool.sim.trace import Trace


class Arrivals:
    """One pass over a trace; the simulator and the load client ask the same questions."""

    __slots__ = ("_ended", "_followers", "_next", "_open", "_roots", "_stages", "_trace")

    def __init__(self, trace: Trace) -> None:
        self._trace = trace
        self._roots = [number for number, request in enumerate(trace.requests) if request.at_ns is not None]
        self._next = 0
        self._open = 0
        self._ended = 0
        self._followers: dict[int, list[int]] = {}
        self._stages: dict[int, int] = {}
        """How many requests stand before each stage."""
        for number, request in enumerate(trace.requests):
            self._stages.setdefault(request.stage, number)
            if request.at_ns is None:
                assert request.continues is not None
                self._followers.setdefault(request.continues, []).append(number)

    @property
    def next_ns(self) -> Nanos | None:
        """When the next request may come at the earliest, from the trace's time 0. None: no more, or one must end."""
        bound = self._trace.in_flight_max
        if self._next == len(self._roots) or (bound is not None and self._open >= bound):
            return None
        request = self._trace.requests[self._roots[self._next]]
        if self._ended < self._stages[request.stage]:
            return None
        return request.at_ns

    def take(self) -> int:
        """The number of that request, which is under way from now on."""
        number = self._roots[self._next]
        self._next += 1
        self._open += 1
        return number

    def end(self, number: int) -> list[int]:
        """A request has ended; answers those that follow it, each after its pause, and are under way already."""
        followers = self._followers.pop(number, [])
        self._ended += 1
        self._open += len(followers) - 1
        return followers
