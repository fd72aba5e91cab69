"""How often, and after which pause, a process that ended is started again."""


class RestartBudget:
    """Pauses double from the first to the longest; after good service everything begins anew."""

    __slots__ = ("_count", "_pause_max_s", "_pause_s", "_restarts_max")

    def __init__(self, restarts_max: int, pause_s: float, pause_max_s: float) -> None:
        self._restarts_max = restarts_max
        self._pause_s = pause_s
        self._pause_max_s = pause_max_s
        self._count = 0

    def take(self) -> float | None:
        """Seconds to wait before the next start; None when the budget is spent."""
        if self._count == self._restarts_max:
            return None
        pause = min(self._pause_s * 2.0 ** min(self._count, 64), self._pause_max_s)
        self._count += 1
        return pause

    def refill(self) -> None:
        self._count = 0
