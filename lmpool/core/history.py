"""What really became of requests: each attempt at a worker, and how it ended. Kept for inspection, never for rules."""

import attrs

from lmpool.core.effects import Outcome
from lmpool.core.ids import Epoch, Nanos, Rank, RequestId

VISITS_KEPT = 16
"""Of one request. A request that moves more often has lost that many workers."""


@attrs.frozen
class Visit:
    """One attempt of a request at a worker, as the ingress saw it."""

    attempt: int
    rank: Rank
    epoch: Epoch
    is_degraded: bool
    """Routed by the ingress itself, because control did not answer: there is no decision."""
    submitted_ns: Nanos
    begun_ns: Nanos | None
    """When the word came that it had begun."""
    waited_ns: Nanos | None
    """At the worker, until it began."""
    cached_tokens: int | None
    """What it found in complete cached blocks when it began."""
    first_token_ns: Nanos | None
    end: str
    """Empty while it is there."""


@attrs.frozen
class History:
    request: RequestId
    tenant: str
    arrived_ns: Nanos
    prompt_tokens: int
    output_tokens: int
    """Of all choices."""
    visits: tuple[Visit, ...]
    """In order. Of many, the first and the latest."""
    phase: str
    """What it waits for; `closed` at the end."""
    outcome: Outcome | None
    """None while it is open."""
    detail: str
    """What its client was told besides."""
    ended_ns: Nanos | None


class HistoryLog:
    """Of requests that have ended: the latest, found by their id."""

    __slots__ = ("_histories", "_kept")

    def __init__(self, kept: int) -> None:
        self._kept = kept
        self._histories: dict[RequestId, History] = {}
        """In the order of their ends."""

    def append(self, history: History) -> None:
        self._histories[history.request] = history
        if len(self._histories) > self._kept:
            del self._histories[next(iter(self._histories))]

    def get(self, request: RequestId) -> History | None:
        return self._histories.get(request)

    def requests_of(self, tenant: str) -> list[RequestId]:
        return [request for request, history in self._histories.items() if history.tenant == tenant]

    def digest_state(self) -> str:
        return repr(self._histories)


@attrs.define
class Visits:
    """Of one open request."""

    _visits: list[Visit]

    def begin(self, now: Nanos, attempt: int, rank: Rank, epoch: Epoch, *, is_degraded: bool) -> None:
        if len(self._visits) == VISITS_KEPT:
            del self._visits[1]
        self._visits.append(Visit(attempt, rank, epoch, is_degraded, now, None, None, None, None, ""))

    def accept(self, now: Nanos, cached_tokens: int, waited_ns: Nanos) -> None:
        self._visits[-1] = attrs.evolve(
            self._visits[-1], begun_ns=now, cached_tokens=cached_tokens, waited_ns=waited_ns
        )

    def take_token(self, now: Nanos) -> None:
        if self._visits[-1].first_token_ns is None:
            self._visits[-1] = attrs.evolve(self._visits[-1], first_token_ns=now)

    def end(self, why: str) -> None:
        """Harmless before the first and after the end of the last."""
        if self._visits and not self._visits[-1].end:
            self._visits[-1] = attrs.evolve(self._visits[-1], end=why)

    def all(self) -> tuple[Visit, ...]:
        return tuple(self._visits)
