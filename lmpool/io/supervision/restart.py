"""How often, and after which pause, a process that ended is started again."""


class RestartBudget:
    """Pauses double from the first to the longest; after good service everything begins anew."""

    __slots__ = ("_count", "_healthy_ticks", "_pause_max_s", "_pause_s", "_restarts_max", "_served")

    def __init__(self, restarts_max: int, pause_s: float, pause_max_s: float, healthy_ticks: float) -> None:
        """`healthy_ticks`: so long in service, in ticks of the supervisor, is good service."""
        self._restarts_max = restarts_max
        self._pause_s = pause_s
        self._pause_max_s = pause_max_s
        self._healthy_ticks = healthy_ticks
        self._count = 0
        self._served = 0

    def take(self) -> float | None:
        """Seconds to wait before the next start; None when the budget is spent."""
        self._served = 0
        if self._count == self._restarts_max:
            return None
        pause = min(self._pause_s * 2.0 ** min(self._count, 64), self._pause_max_s)
        self._count += 1
        return pause

    def serve(self) -> None:
        """It has served for one more tick."""
        self._served += 1
        if self._served >= self._healthy_ticks:
            self.refill()

    def refill(self) -> None:
        """Also after a completed step."""
        self._count = 0
