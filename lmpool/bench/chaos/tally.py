"""What became of everything that was asked."""

from collections import Counter
from enum import Enum

import attrs

DETAILS_KEPT = 20


class Fate(Enum):
    """Of one request, as its client saw it."""

    COMPLETED = "completed"
    WRONG = "wrong"
    """Another answer than undisturbed, or not in the form that is promised."""
    LOST = "lost"
    """Taken, and never answered."""
    CANCELLED = "cancelled"
    """The client left."""
    INGRESS_LOST = "ingress_lost"
    """Its connection was open when the ingress died."""
    REFUSED = "refused"


ACCEPTED = (Fate.COMPLETED, Fate.WRONG, Fate.LOST)


@attrs.frozen
class Ask:
    """One that has ended."""

    fate: Fate
    kind: str
    """Of a refusal: status and code. Of others empty."""
    detail: str
    gap_s: float
    """Longest between two events of its stream, as far as the client did not tarry."""
    differs: bool
    """In its text from the undisturbed answer; wrong where the model is exact, rounding where it is a real one."""


class Tally:
    def __init__(self) -> None:
        self.fates: Counter[Fate] = Counter()
        self.refusals: Counter[str] = Counter()
        self.details: list[str] = []
        """Of the first that were wrong or lost."""
        self.longest_gap_s = 0.0
        self.under_way = 0
        self.differing = 0

    def add(self, ask: Ask) -> None:
        self.fates[ask.fate] += 1
        if ask.fate is Fate.REFUSED:
            self.refusals[ask.kind] += 1
        if ask.fate in (Fate.WRONG, Fate.LOST) and len(self.details) < DETAILS_KEPT:
            self.details.append(f"{ask.fate.value}: {ask.detail}")
        self.differing += ask.differs
        self.longest_gap_s = max(self.longest_gap_s, ask.gap_s)

    @property
    def accepted(self) -> int:
        return sum(self.fates[fate] for fate in ACCEPTED)

    def line(self) -> str:
        told = ", ".join(f"{self.fates[fate]} {fate.value.replace('_', ' ')}" for fate in Fate)
        return f"{told}, {self.under_way} under way"
