"""Where a request goes: who can take it, what the policy makes of them, and the record of the decision."""

from collections.abc import Callable, Collection, Mapping, Sequence
from operator import add
from typing import TypeAlias

import attrs

from lmpool.core.booking import Placement
from lmpool.core.cost import (
    OUTPUT_TOKENS_PRIOR,
    Traffic,
    prefill_ns,
    prefill_pairs,
    smooth_output,
    traffic_after,
    traffic_rates,
)
from lmpool.core.decision_log import DecisionLog, Outcome
from lmpool.core.fleet import IN_TIME, Choice, Lineup, Policy, RankView, RouteView, outlook
from lmpool.core.ids import SECOND, Nanos, Rank, RequestId
from lmpool.core.ledger import Ledger
from lmpool.core.limits import RANKS_MAX
from lmpool.core.messages.ingress_control import (
    Busy,
    Decision,
    RouteAsked,
    RouteDecided,
    Unroutable,
    UnroutableReason,
)
from lmpool.core.page_table import PageTable
from lmpool.core.placement.proposal import Proposal
from lmpool.core.policies.cache_aware_tree import CacheAwareTree
from lmpool.core.policies.dynamo import Dynamo
from lmpool.core.policies.least_loaded import LeastLoaded
from lmpool.core.policies.llm_d import LLMD
from lmpool.core.policies.lmpool_paper import LMPoolPaper
from lmpool.core.policies.longest_prefix import LongestPrefix
from lmpool.core.policies.marginal_time import MarginalTime
from lmpool.core.policies.mooncake import Mooncake
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
    "dynamo": lambda: Dynamo("dynamo", 1.0),
    "dynamo-8": lambda: Dynamo("dynamo-8", 8.0),
    "dynamo-64": lambda: Dynamo("dynamo-64", 64.0),
    "cache-aware-tree": CacheAwareTree,
    "llm-d": LLMD,
    "mooncake": Mooncake,
}
"""By the name in the settings."""

RETRY_AFTER_MIN_NS = SECOND
"""The header that carries it to clients counts whole seconds."""


FETCHED = "with blocks that another rank sends"

NO_TIMES = (0.0,) * RANKS_MAX


@attrs.define
class Pulls:
    """What the ranks of a view could be sent instead of computing it, and the view's columns if they are. Read only."""

    proposals: Sequence[Proposal | None]
    """With their gates; None: nobody has more than that rank."""
    uncached: Sequence[int]
    waits: Sequence[float]
    fetch_ns: Sequence[float]
    rent_ns: Sequence[float]


FindPulls: TypeAlias = Callable[[RouteView, Lineup, Mapping[int, int]], Pulls | None]
"""With the blocks of the chain by holder, those of draining ranks among them. None: nobody has more than others."""


@attrs.define
class Ruling:
    """Read only."""

    answer: RouteDecided | Busy | Unroutable
    placement: Placement | None
    """To be booked, with a `RouteDecided`: as it is without the pull."""
    pull: Proposal | None
    """Of the chosen rank, with its gate."""
    wait_ns: float
    """Until that rank could begin; with an admitted pull, not before that has come."""

    @property
    def uncached(self) -> int:
        """Prefill tokens of the placement; 0 without."""
        return 0 if self.placement is None else self.placement.uncached


class Router:
    """Owns what decisions remember: the policy, the tie cursor, the traffic so far and the latest decisions."""

    __slots__ = ("_aim", "_cursor", "_log", "_number", "_output_mean", "_policy", "_traffic", "_wait_max_ns")

    def __init__(self, policy: str, wait_max_ns: Nanos, decisions_kept: int, now: Nanos) -> None:
        self._policy = POLICIES[policy]()
        self._aim = IN_TIME.get(self._policy.name)
        self._wait_max_ns = wait_max_ns
        self._log = DecisionLog(self._policy.name, self._policy.term_names, decisions_kept)
        self._number = 0
        self._cursor = 0
        self._traffic = Traffic(0.0, 0.0, now)
        self._output_mean = OUTPUT_TOKENS_PRIOR

    @property
    def policy(self) -> str:
        return self._policy.name

    @property
    def number(self) -> int:
        """Decisions so far."""
        return self._number

    def wrap_policy(self, wrap: Callable[[Policy], Policy]) -> None:
        """For replays, where another policy may look on. The wrapped one must go on as before."""
        self._policy = wrap(self._policy)

    def learn_outputs(self, outputs: int, output_tokens: int) -> None:
        self._output_mean = smooth_output(self._output_mean, outputs, output_tokens)

    def decisions(self, requests: Collection[RequestId] | None, limit: int) -> tuple[Decision, ...]:
        """The newest of some requests, or of all; newest first."""
        return self._log.newest(requests, limit)

    def route(
        self,
        now: Nanos,
        asked: RouteAsked,
        lineup: Lineup,
        table: PageTable,
        ledger: Ledger,
        find_pulls: FindPulls | None,
    ) -> Ruling:
        """Books nothing: the caller books the placement before it routes again. Without `find_pulls`, and in policies
        that do not reckon in time, every rank computes what it lacks."""
        self._number += 1
        tokens = asked.prompt_tokens + min(asked.output_tokens_max, 1)
        if tokens > lineup.tokens_most:
            reason = UnroutableReason.NEVER_FITS if lineup.eligible else UnroutableReason.NO_REPLICA
            return self._turn_away(now, asked, lineup, reason, _sort_out(asked, lineup, tokens)[2])
        ranks, numbers, absent = _sort_out(asked, lineup, tokens)
        if not ranks:
            return self._turn_away(now, asked, lineup, UnroutableReason.NO_REPLICA, absent)
        if self._aim is None:
            find_pulls = None
        holders = lineup.holders if find_pulls is None else lineup.holders | sum(map(_holder, lineup.leaving))
        depths = table.depths(asked.chain, holders)
        ready = [depths[rank.holder] for rank in ranks]
        arriving, writers = ledger.arriving(asked.chain, numbers, ready)
        view = self._view(now, asked, ranks, ready, arriving, len(lineup.eligible))
        pulls = None if find_pulls is None else find_pulls(view, lineup, depths)
        if pulls is not None:
            view.uncached, view.waits = pulls.uncached, pulls.waits
            view.fetch_ns, view.rent_ns = pulls.fetch_ns, pulls.rent_ns
        choice = self._policy.choose(view)
        pull = None if pulls is None else pulls.proposals[choice.index]
        if pull is not None and pull.gate is None:
            choice.reason = f"{self._aim}, {FETCHED}"
        wait = min(view.waits)
        if wait > self._wait_max_ns:
            self._note(view, choice, None, "busy: every wait is too long", numbers, absent, None)
            retry_after = Nanos(max(int(wait) - self._wait_max_ns, RETRY_AFTER_MIN_NS))
            return Ruling(Busy(asked.request, asked.attempt, retry_after), None, None, 0.0)
        self._note(view, choice, numbers[choice.index], choice.reason, numbers, absent, pull)
        return self._settle(view, choice, writers[choice.index], pull)

    def _view(
        self,
        now: Nanos,
        asked: RouteAsked,
        ranks: Sequence[RankView],
        ready: Sequence[int],
        arriving: Sequence[int],
        eligible: int,
    ) -> RouteView:
        output_mean = self._output_mean
        known = list(map(add, ready, arriving))
        uncached, waits = outlook(ranks, known, asked, now, output_mean)
        arrivals, busy = traffic_rates(self._traffic, now)
        return RouteView(
            asked,
            now,
            ranks,
            ready,
            arriving,
            known,
            uncached,
            waits,
            NO_TIMES,
            NO_TIMES,
            len(asked.chain) // HASH_BYTES,
            output_mean,
            arrivals / eligible,
            busy / eligible,
            self._cursor,
        )

    def _turn_away(
        self,
        now: Nanos,
        asked: RouteAsked,
        lineup: Lineup,
        reason: UnroutableReason,
        absent: tuple[tuple[Rank, str], ...],
    ) -> Ruling:
        self._note_refusal(now, asked, reason.value, absent)
        return Ruling(Unroutable(asked.request, asked.attempt, reason, lineup.tokens_most), None, None, 0.0)

    def _settle(self, view: RouteView, choice: Choice, writer: RequestId | None, pull: Proposal | None) -> Ruling:
        asked, index, now = view.asked, choice.index, view.now
        rank, uncached, ready = view.ranks[index], view.uncached[index], view.ready[index]
        self._cursor = rank.rank + 1
        pairs = prefill_pairs(uncached, asked.prompt_tokens - uncached)
        self._traffic = traffic_after(self._traffic, now, prefill_ns(rank.rates, uncached, pairs))
        self._policy.remember(asked, rank.rank)
        placement = Placement(
            asked.request,
            asked.attempt,
            rank.rank,
            rank.epoch,
            asked.chain,
            asked.prompt_tokens,
            asked.output_tokens_max,
            asked.choices,
            ready * rank.block_size,
            view.arriving[index] * rank.block_size,
            writer,
            rank.block_size,
        )
        answer = RouteDecided(
            asked.request, asked.attempt, self._number, rank.rank, rank.epoch, choice.reason, ready, None
        )
        return Ruling(answer, placement, pull, view.waits[index])

    def _note(
        self,
        view: RouteView,
        choice: Choice,
        rank: Rank | None,
        reason: str,
        candidates: tuple[Rank, ...],
        absent: tuple[tuple[Rank, str], ...],
        pull: Proposal | None,
    ) -> None:
        asked = view.asked
        self._log.append(
            Outcome(
                self._number,
                asked.request,
                asked.attempt,
                view.now,
                rank,
                reason,
                asked.prompt_tokens,
                view.chain_blocks,
                candidates,
                view.ready,
                view.arriving,
                view.uncached,
                choice.costs,
                choice.terms,
                absent,
                pull,
            )
        )

    def _note_refusal(self, now: Nanos, asked: RouteAsked, reason: str, absent: tuple[tuple[Rank, str], ...]) -> None:
        """Of a request that no rank can take."""
        blocks = len(asked.chain) // HASH_BYTES
        request, attempt, tokens = asked.request, asked.attempt, asked.prompt_tokens
        none: tuple[int, ...] = ()
        self._log.append(
            Outcome(
                self._number,
                request,
                attempt,
                now,
                None,
                reason,
                tokens,
                blocks,
                (),
                none,
                none,
                none,
                (),
                (),
                absent,
                None,
            )
        )

    def digest_state(self) -> str:
        return repr(
            (
                self._policy.name,
                self._policy.digest_state(),
                self._number,
                self._cursor,
                self._traffic,
                self._output_mean,
                self._log.digest_state(),
            )
        )


def _holder(rank: RankView) -> int:
    return rank.holder


def _sort_out(
    asked: RouteAsked, lineup: Lineup, tokens: int
) -> tuple[Sequence[RankView], tuple[Rank, ...], tuple[tuple[Rank, str], ...]]:
    """Ranks that can take the request, their numbers, and those that cannot, each with the reason."""
    if not asked.excluded and tokens <= lineup.tokens_least:
        return lineup.eligible, lineup.numbers, lineup.absent
    able: list[RankView] = []
    absent = list(lineup.absent)
    for view in lineup.eligible:
        if view.tokens_max < tokens:
            absent.append((view.rank, "too small"))
        elif view.rank in asked.excluded:
            absent.append((view.rank, "excluded by the request"))
        else:
            able.append(view)
    return able, tuple([view.rank for view in able]), tuple(absent)
