"""Whether a child that runs also lives: it must beat each second, and a replica with work must complete steps.

Time is counted in ticks, one a second of the supervisor's own loop: a supervisor that was itself stopped or starved
for a while has counted none of it, and blames nobody for what it had no time to read.
"""

from enum import Enum

from lmpool.io.orders import Beat


class Verdict(Enum):
    WELL = "well"
    SILENT = "silent"
    STALLED = "stalled"


class Vigil:
    """Over one life of a child. Before the first beat a child loads, which may take any time, unless it is stopped."""

    __slots__ = ("_beats", "_idle", "_silence", "_silence_max", "_stall_max", "steps")

    def __init__(self, silence_max: int, stall_max: int) -> None:
        """Both in ticks."""
        self._silence_max = silence_max
        self._stall_max = stall_max
        self._beats = False
        self._silence = 0
        self._idle = 0
        self.steps = 0
        """Completed in this life."""

    def beat(self, beat: Beat) -> None:
        self._beats = True
        self._silence = 0
        if not beat.working or beat.steps > self.steps:
            self._idle = 0
        self.steps = beat.steps

    def tick(self, *, is_stopped: bool) -> Verdict:
        """`is_stopped`: by a signal, so that nothing of it runs."""
        if not self._beats and not is_stopped:
            self._silence = self._idle = 0
            return Verdict.WELL
        self._silence += 1
        self._idle += 1
        if self._silence > self._silence_max:
            return Verdict.SILENT
        if self._idle > self._stall_max:
            return Verdict.STALLED
        return Verdict.WELL
