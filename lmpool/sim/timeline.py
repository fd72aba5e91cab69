"""Virtual time: everything that will happen, in one order. Who asks first is served first among equals."""

from collections.abc import Callable
from heapq import heappop, heappush

from lmpool.core.ids import Nanos


class Timeline:
    __slots__ = ("_due", "_order", "happened", "now")

    def __init__(self, now: Nanos) -> None:
        self.now = now
        self.happened = 0
        """Actions so far."""
        self._due: list[tuple[Nanos, int, Callable[[], None]]] = []
        self._order = 0

    def at(self, when: Nanos, action: Callable[[], None]) -> None:
        """`when` may be now, but not before."""
        assert when >= self.now
        heappush(self._due, (when, self._order, action))
        self._order += 1

    def after(self, duration: int, action: Callable[[], None]) -> None:
        self.at(Nanos(self.now + duration), action)

    @property
    def next_at(self) -> Nanos | None:
        return self._due[0][0] if self._due else None

    def advance(self) -> bool:
        """Lets the next action happen. False: there is none."""
        if not self._due:
            return False
        self.now, _, action = heappop(self._due)
        self.happened += 1
        action()
        return True
