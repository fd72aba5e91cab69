"""The latest decisions with every term, kept in columns and made into records when somebody asks.

Few are ever asked for, and a record with its candidates would make a decision longer by two fifths.
"""

from collections import deque
from collections.abc import Collection, Sequence

import attrs

from lmpool.core.ids import Nanos, Rank, RequestId
from lmpool.core.messages.ingress_control import Candidate, Decision
from lmpool.core.placement.proposal import Proposal


@attrs.define
class Outcome:
    """A decision with the numbers of its candidates, in columns that are parallel to `ranks`. Read only."""

    number: int
    request: RequestId
    attempt: int
    at_ns: Nanos
    rank: Rank | None
    reason: str
    prompt_tokens: int
    chain_blocks: int
    ranks: tuple[Rank, ...]
    """Candidates."""
    ready: Sequence[int]
    arriving: Sequence[int]
    uncached: Sequence[int]
    costs: Sequence[float]
    terms: Sequence[float]
    """One candidate after the other."""
    absent: tuple[tuple[Rank, str], ...]
    """Ranks that were no candidates, each with the reason."""
    pull: Proposal | None = attrs.field(repr=False)
    """Of the chosen rank."""


class DecisionLog:
    __slots__ = ("_outcomes", "_policy", "_term_names")

    def __init__(self, policy: str, term_names: tuple[str, ...], kept: int) -> None:
        self._policy = policy
        self._term_names = term_names
        self._outcomes: deque[Outcome] = deque(maxlen=kept)

    def append(self, outcome: Outcome) -> None:
        assert len(outcome.costs) == len(outcome.ranks)
        assert len(outcome.terms) == len(outcome.ranks) * len(self._term_names)
        self._outcomes.append(outcome)

    def newest(self, requests: Collection[RequestId] | None, limit: int) -> tuple[Decision, ...]:
        """Newest first; of some requests, or all."""
        found: list[Outcome] = []
        for outcome in reversed(self._outcomes):
            if len(found) >= limit:
                break
            if requests is None or outcome.request in requests:
                found.append(outcome)
        return tuple(self._record(outcome) for outcome in found)

    def _record(self, outcome: Outcome) -> Decision:
        candidates = [_candidate(outcome, index, len(self._term_names)) for index in range(len(outcome.ranks))]
        candidates += [
            Candidate(rank, False, why_not, 0, 0, outcome.prompt_tokens, (), 0.0) for rank, why_not in outcome.absent
        ]
        return Decision(
            number=outcome.number,
            request=outcome.request,
            attempt=outcome.attempt,
            at_ns=outcome.at_ns,
            policy=self._policy,
            rank=outcome.rank,
            reason=outcome.reason,
            prompt_tokens=outcome.prompt_tokens,
            chain_blocks=outcome.chain_blocks,
            term_names=self._term_names,
            candidates=tuple(sorted(candidates, key=lambda candidate: candidate.rank)),
            fetch="" if outcome.pull is None else outcome.pull.reason,
        )

    def digest_state(self) -> str:
        pulls = [(outcome.number, outcome.pull) for outcome in self._outcomes if outcome.pull is not None]
        return f"{self._outcomes!r}{pulls or ''}"


def _candidate(outcome: Outcome, index: int, terms: int) -> Candidate:
    return Candidate(
        rank=outcome.ranks[index],
        eligible=True,
        reason="",
        ready_blocks=outcome.ready[index],
        arriving_blocks=outcome.arriving[index],
        uncached_tokens=outcome.uncached[index],
        terms=tuple(outcome.terms[index * terms : (index + 1) * terms]),
        cost=outcome.costs[index],
    )
