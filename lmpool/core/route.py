"""Where a request goes: who can take it, what the policy makes of them, and the record of the decision."""

from collections import deque
from collections.abc import Callable, Iterable, Sequence

import attrs

from lmpool.core.cost import (
    OUTPUT_TOKENS_PRIOR,
    DecayedSum,
    decay_add,
    per_ns,
    prefill_ns,
    prefill_pairs,
    smooth_output,
)
from lmpool.core.fleet import Choice, Policy, RankView, RouteView, queue_wait_ns, room_wait_ns
from lmpool.core.ids import SECOND, Epoch, Nanos, Rank, RequestId
from lmpool.core.ledger import Ledger, Placement
from lmpool.core.messages.ingress_control import (
    Busy,
    Candidate,
    Decision,
    RouteAsked,
    RouteDecided,
    Unroutable,
    UnroutableReason,
)
from lmpool.core.page_table import PageTable
from lmpool.core.policies.least_loaded import LeastLoaded
from lmpool.core.policies.lmpool_paper import LMPoolPaper
from lmpool.core.policies.longest_prefix import LongestPrefix
from lmpool.core.policies.marginal_time import MarginalTime
from lmpool.core.policies.round_robin import RoundRobin
from lmpool.core.policies.session import Session
from lmpool.core.policies.session_bounded import SessionBounded
from lmpool.core.policies.uniform_random import UniformRandom
from lmpool.core.prefix import HASH_BYTES

POLICIES: dict[str, Callable[[], Policy]] = {
    "default": MarginalTime,
    "marginal-time": MarginalTime,
    "round-robin": RoundRobin,
    "random": UniformRandom,
    "least-loaded": LeastLoaded,
    "session": Session,
    "session-bounded": SessionBounded,
    "longest-prefix": LongestPrefix,
    "lmpool-paper": LMPoolPaper,
}
"""By the name in the settings."""

RETRY_AFTER_MIN_NS = SECOND
"""The header that carries it to clients counts whole seconds."""


@attrs.frozen
class Standing:
    """One rank as membership sees it."""

    rank: Rank
    epoch: Epoch
    holder: int
    """Its bit in the page table."""
    why_not: str
    """Empty if it may be routed to."""
    view: RankView | None
    """Not None if it may be routed to."""


@attrs.frozen
class Ruling:
    decision: Decision
    answer: RouteDecided | Busy | Unroutable
    placement: Placement | None
    """To be booked, with a `RouteDecided`."""
    uncached: int
    """Prefill tokens of the placement; 0 without."""


@attrs.frozen
class Prospect:
    """An eligible rank that could take the request, with what it would find there."""

    standing: Standing
    view: RankView
    ready: int
    arriving: int
    writer: RequestId | None
    uncached: int
    wait_ns: float


class Router:
    """Owns what decisions remember: the policy, the tie cursor, the traffic so far and the latest decisions."""

    __slots__ = ("_arrivals", "_booked", "_cursor", "_decisions", "_number", "_output_mean", "_policy", "_wait_max_ns")

    def __init__(self, policy: str, wait_max_ns: Nanos, decisions_kept: int, now: Nanos) -> None:
        self._policy = POLICIES[policy]()
        self._wait_max_ns = wait_max_ns
        self._decisions: deque[Decision] = deque(maxlen=decisions_kept)
        self._number = 0
        self._cursor = 0
        self._arrivals = DecayedSum(0.0, now, now)
        self._booked = DecayedSum(0.0, now, now)
        """Nanoseconds of prefill."""
        self._output_mean = OUTPUT_TOKENS_PRIOR

    @property
    def policy(self) -> str:
        return self._policy.name

    @property
    def number(self) -> int:
        """Decisions so far."""
        return self._number

    def learn_outputs(self, outputs: int, output_tokens: int) -> None:
        self._output_mean = smooth_output(self._output_mean, outputs, output_tokens)

    def decisions(self, request: RequestId | None, limit: int) -> tuple[Decision, ...]:
        """The newest, newest first."""
        found: list[Decision] = []
        for decision in reversed(self._decisions):
            if len(found) >= limit:
                break
            if request is None or decision.request == request:
                found.append(decision)
        return tuple(found)

    def route(
        self, now: Nanos, asked: RouteAsked, standings: Sequence[Standing], table: PageTable, ledger: Ledger
    ) -> Ruling:
        """Books nothing; the caller must book the placement before it routes again."""
        self._number += 1
        tokens = asked.prompt_tokens + min(asked.output_tokens_max, 1)
        eligible = [standing for standing in standings if standing.view is not None]
        tokens_max = max((standing.view.tokens_max for standing in eligible if standing.view is not None), default=0)
        if not eligible or tokens > tokens_max:
            reason = UnroutableReason.NEVER_FITS if eligible else UnroutableReason.NO_REPLICA
            decision = self._record(now, asked, None, reason.value, (), _bystanders(standings, asked, tokens))
            return Ruling(decision, Unroutable(asked.request, asked.attempt, reason, tokens_max), None, 0)
        prospects = self._prospects(now, asked, tokens, eligible, (table, ledger))
        if not prospects:
            decision = self._record(
                now, asked, None, "busy: every rank that fits is excluded", (), _bystanders(standings, asked, tokens)
            )
            return Ruling(decision, Busy(asked.request, asked.attempt, RETRY_AFTER_MIN_NS), None, 0)
        view = self._view(now, asked, prospects, len(eligible))
        choice = self._policy.choose(view)
        candidates = _candidates(prospects, choice)
        if len(prospects) < len(standings):
            candidates += _bystanders(standings, asked, tokens)
            candidates.sort(key=lambda candidate: candidate.rank)
        wait = min(view.waits)
        if wait > self._wait_max_ns:
            decision = self._record(
                now, asked, None, "busy: every wait is too long", self._policy.term_names, candidates
            )
            retry_after = Nanos(max(int(wait) - self._wait_max_ns, RETRY_AFTER_MIN_NS))
            return Ruling(decision, Busy(asked.request, asked.attempt, retry_after), None, 0)
        prospect = prospects[choice.index]
        rank = prospect.view.rank
        decision = self._record(now, asked, rank, choice.reason, self._policy.term_names, candidates)
        self._count(now, asked, prospect)
        answer = RouteDecided(
            asked.request,
            asked.attempt,
            decision.number,
            rank,
            prospect.standing.epoch,
            choice.reason,
            prospect.ready,
        )
        return Ruling(decision, answer, _placement(asked, prospect), prospect.uncached)

    def _prospects(
        self,
        now: Nanos,
        asked: RouteAsked,
        tokens: int,
        eligible: Iterable[Standing],
        state: tuple[PageTable, Ledger],
    ) -> list[Prospect]:
        table, ledger = state
        holders = 0
        for standing in eligible:
            holders |= standing.holder
        depths = table.depths(asked.chain, holders)
        prompt = asked.prompt_tokens
        found: list[Prospect] = []
        for standing in eligible:
            view = standing.view
            assert view is not None
            if view.rank in asked.excluded or view.tokens_max < tokens:
                continue
            ready = depths[standing.holder]
            arriving, writer = ledger.arriving(view.rank, asked.chain, ready)
            uncached = max(prompt - (ready + arriving) * view.block_size, 1)
            wait = queue_wait_ns(view, now) + room_wait_ns(view, uncached, asked.choices, self._output_mean)
            found.append(Prospect(standing, view, ready, arriving, writer, uncached, wait))
        return found

    def _view(self, now: Nanos, asked: RouteAsked, prospects: Sequence[Prospect], eligible: int) -> RouteView:
        return RouteView(
            asked=asked,
            now=now,
            ranks=[prospect.view for prospect in prospects],
            ready=[prospect.ready for prospect in prospects],
            arriving=[prospect.arriving for prospect in prospects],
            uncached=[prospect.uncached for prospect in prospects],
            waits=[prospect.wait_ns for prospect in prospects],
            chain_blocks=len(asked.chain) // HASH_BYTES,
            output_mean=self._output_mean,
            arrivals_per_ns=per_ns(self._arrivals, now) / eligible,
            busy_share=per_ns(self._booked, now) / eligible,
            cursor=self._cursor,
        )

    def _count(self, now: Nanos, asked: RouteAsked, prospect: Prospect) -> None:
        self._cursor = prospect.view.rank + 1
        self._arrivals = decay_add(self._arrivals, now, 1.0)
        pairs = prefill_pairs(prospect.uncached, asked.prompt_tokens - prospect.uncached)
        self._booked = decay_add(self._booked, now, prefill_ns(prospect.view.rates, prospect.uncached, pairs))
        self._policy.remember(asked, prospect.view.rank)

    def _record(
        self,
        now: Nanos,
        asked: RouteAsked,
        rank: Rank | None,
        reason: str,
        term_names: tuple[str, ...],
        candidates: Sequence[Candidate],
    ) -> Decision:
        decision = Decision(
            number=self._number,
            request=asked.request,
            attempt=asked.attempt,
            at_ns=now,
            policy=self._policy.name,
            rank=rank,
            reason=reason,
            prompt_tokens=asked.prompt_tokens,
            chain_blocks=len(asked.chain) // HASH_BYTES,
            term_names=term_names,
            candidates=tuple(candidates),
        )
        self._decisions.append(decision)
        return decision

    def digest_state(self) -> str:
        return repr(
            (
                self._policy.name,
                self._policy.digest_state(),
                self._number,
                self._cursor,
                self._arrivals,
                self._booked,
                self._output_mean,
                self._decisions,
            )
        )


def _placement(asked: RouteAsked, prospect: Prospect) -> Placement:
    size = prospect.view.block_size
    return Placement(
        request=asked.request,
        attempt=asked.attempt,
        rank=prospect.view.rank,
        epoch=prospect.standing.epoch,
        chain=asked.chain,
        prompt_tokens=asked.prompt_tokens,
        output_tokens_max=asked.output_tokens_max,
        choices=asked.choices,
        ready_tokens=prospect.ready * size,
        arriving_tokens=prospect.arriving * size,
        writer=prospect.writer,
        block_size=size,
    )


def _candidates(prospects: Sequence[Prospect], choice: Choice) -> list[Candidate]:
    return [
        Candidate(prospect.view.rank, True, "", prospect.ready, prospect.arriving, prospect.uncached, terms, cost)
        for prospect, terms, cost in zip(prospects, choice.terms, choice.costs, strict=True)
    ]


def _bystanders(standings: Iterable[Standing], asked: RouteAsked, tokens: int) -> list[Candidate]:
    """Ranks that are no choice, each with the reason."""
    found: list[Candidate] = []
    for standing in standings:
        if standing.view is None:
            why_not = standing.why_not
        elif standing.view.tokens_max < tokens:
            why_not = "too small"
        elif standing.rank in asked.excluded:
            why_not = "excluded by the request"
        else:
            continue
        found.append(Candidate(standing.rank, False, why_not, 0, 0, asked.prompt_tokens, (), 0.0))
    return found
