"""A workload in the making: what it draws from its seed, and the requests so far."""

from bisect import bisect_left
from collections.abc import Iterable
from random import Random
from typing import TypeAlias, TypeVar

from lmpool.core.ids import SECOND, Nanos
from lmpool.sim.trace import Part, TraceRequest

Span: TypeAlias = tuple[int, int]
Item = TypeVar("Item")


class Draft:
    def __init__(self, requests: int, seed: int) -> None:
        self.wanted = requests
        self.requests: list[TraceRequest] = []
        self._chance = Random(seed)
        self._content = 0
        self._arrival_s = 0.0

    def between(self, span: Span) -> int:
        return self._chance.randint(*span)

    def happens(self, share: float) -> bool:
        return self._chance.random() < share

    def pause(self, mean_s: float, most_s: float) -> Nanos:
        return Nanos(round(min(most_s, self._chance.expovariate(1 / mean_s)) * SECOND))

    def fresh(self, tokens: int) -> Part:
        """Of a content that nobody has yet."""
        self._content += 1
        return Part(self._content - 1, tokens)

    def choice(self, cumulated: list[float]) -> int:
        """An index, by cumulated weights."""
        return bisect_left(cumulated, self._chance.random() * cumulated[-1])

    def next_arrival(self) -> Nanos:
        """Poisson, one a second."""
        moment = Nanos(round(self._arrival_s * SECOND))
        self._arrival_s += self._chance.expovariate(1.0)
        return moment

    def arrive(self, at_ns: Nanos, session: str, output_tokens: int, *parts: Part) -> int:
        """Answers the number of the request."""
        self.requests.append(TraceRequest(session, at_ns, Nanos(0), None, parts, output_tokens))
        return len(self.requests) - 1

    def follow(self, before: int, pause_ns: Nanos, output_tokens: int, *parts: Part) -> int:
        session = self.requests[before].session
        self.requests.append(TraceRequest(session, None, pause_ns, before, parts, output_tokens))
        return len(self.requests) - 1

    def ask(self, stage: int, session: str, output_tokens: int, *parts: Part) -> None:
        """As soon as a bound in flight lets it."""
        self.requests.append(TraceRequest(session, Nanos(0), Nanos(0), None, parts, output_tokens, stage))

    def shuffled(self, items: Iterable[Item]) -> list[Item]:
        mixed = list(items)
        self._chance.shuffle(mixed)
        return mixed

    @property
    def is_short(self) -> bool:
        return len(self.requests) < self.wanted
