"""Deadlines of live requests: the earliest in O(1), each change in O(log n)."""

from heapq import heapify, heappop, heappush

from lmpool.core.ids import Nanos, RequestId

HEAP_SLACK = 64
"""Entries of requests that have ended, beyond as many as live, before they are swept out."""


class Deadlines:
    __slots__ = ("_by_request", "_heap")

    def __init__(self) -> None:
        self._by_request: dict[RequestId, Nanos] = {}
        self._heap: list[tuple[Nanos, RequestId]] = []

    def set(self, request: RequestId, deadline_ns: Nanos) -> None:
        self._by_request[request] = deadline_ns
        heappush(self._heap, (deadline_ns, request))

    def drop(self, request: RequestId) -> None:
        """Harmless if it has none."""
        self._by_request.pop(request, None)
        if len(self._heap) > 2 * len(self._by_request) + HEAP_SLACK:
            self._heap = [(deadline, request) for request, deadline in self._by_request.items()]
            heapify(self._heap)

    def earliest(self) -> Nanos | None:
        while self._heap and self._by_request.get(self._heap[0][1]) != self._heap[0][0]:
            heappop(self._heap)
        return self._heap[0][0] if self._heap else None

    def expired(self, now: Nanos) -> list[RequestId]:
        """Requests whose deadline has passed; their deadlines are dropped."""
        passed: list[RequestId] = []
        while (earliest := self.earliest()) is not None and earliest <= now:
            _, request = heappop(self._heap)
            del self._by_request[request]
            passed.append(request)
        return passed

    def digest_parts(self) -> tuple[object, ...]:
        return tuple(sorted(self._by_request.items()))
