"""Marginal time: the seconds that a request costs itself and everybody else, per rank. `specs/routing.md`."""

from bisect import bisect_right
from collections.abc import Sequence

from lmpool.core.fleet import Choice, RankView, RouteView, first_from
from lmpool.core.ids import SECOND, Nanos, Rank
from lmpool.core.messages.ingress_control import RouteAsked

HORIZON_NS = 12.0 * SECOND
"""H: how long a queue is taken to last. Without it overload equalises all queues."""
DECODE_WEIGHT = 1 / 8
"""g: a second of anybody's decode against a second to first token. An answer takes about eight times as long as its
first token, so that shares of both weigh alike."""
BUSY_SHARE_MAX = 0.95
"""Of rho: the queue formula diverges at 1."""
TIE_SHARE = 1 / 10
"""Of the time to first token on the rank of least cost: no wait is known better, so a cost that exceeds the least by
no more is a tie."""

ONLY = "only eligible rank"
COLD = "nothing of it is known anywhere: least marginal time"
PREFIX = "least marginal time, with the longest known prefix"
ELSEWHERE = "least marginal time: waiting for the longest known prefix costs more than computing it"


class MarginalTime:
    __slots__ = ()
    name = "marginal-time"
    term_names = ("wait", "prefill", "followers", "stall", "slowdown", "answer")

    def choose(self, view: RouteView) -> Choice:
        terms: list[float] = []
        costs = _price(view, terms)
        least = min(costs)
        first = costs.index(least) * len(self.term_names)
        bound = least + TIE_SHARE * (terms[first] + terms[first + 1])
        tied = [index for index, cost in enumerate(costs) if cost <= bound]
        index = tied[0] if len(tied) == 1 else _untie(tied, view)
        return Choice(index, _reason(view.known, index), terms, costs)

    def remember(self, asked: RouteAsked, rank: Rank) -> None:
        pass

    def digest_state(self) -> str:
        return ""


def _price(view: RouteView, terms: list[float]) -> list[float]:
    """Costs of the ranks; their terms are appended. Subscripts, because a strict zip takes a microsecond to make."""
    prompt = view.asked.prompt_tokens
    outputs = min(view.output_mean, view.asked.output_tokens_max)
    context_mean = prompt + outputs / 2
    choices = view.asked.choices
    delay = 1 / (1 - min(view.busy_share, BUSY_SHARE_MAX))
    arrivals = view.arrivals_per_ns
    before_last = prompt - 0.5
    weight = DECODE_WEIGHT * outputs
    tokens, waits, arriving, fetch, rents = view.uncached, view.waits, view.arriving, view.fetch_ns, view.rent_ns
    costs: list[float] = []
    for index, rank in enumerate(view.ranks):
        rates, uncached = rank.rates, tokens[index]
        # Tokens before an uncached one: prompt - (uncached + 1) / 2 in the mean. Products are faster than quotients.
        prefill = uncached * (rates.prefill + rates.prefill_context * (before_last - 0.5 * uncached))
        wait = waits[index]
        if rank.account.prefills and not arriving[index]:
            wait = max(min(wait, overtaking_ns(view.now, rank, uncached)), fetch[index])
        begun = wait + ((uncached - 1) // rank.step_tokens_max + 1) * rank.step_ns
        delayed = (begun + 0.5 * prefill) * delay
        followers = prefill * arrivals * (delayed if delayed < HORIZON_NS else HORIZON_NS) + rents[index]
        present = rank.present
        own = choices * (rates.decode + rates.decode_context * context_mean)
        stall = DECODE_WEIGHT * present * prefill
        slowdown = weight * present * own
        answer = weight * (rank.present_step_ns + own)
        terms += (begun, prefill, followers, stall, slowdown, answer)
        costs.append(begun + prefill + followers + stall + slowdown + answer)
    return costs


def overtaking_ns(now: Nanos, rank: RankView, uncached: int) -> float:
    """The most that a prompt waits which nobody's arriving blocks hold up.

    A replica gives half of a step to the prompt that came first and the other half to shorter ones, short before long
    (`batch.py`): a prompt is done at the latest after twice itself and twice all that are no longer.
    """
    prefills = rank.account.prefills
    shorter = bisect_right(prefills, uncached)
    tokens = 2 * sum(prefills[:shorter])
    if shorter < len(prefills):
        tokens += uncached
    elapsed = now - rank.step_began_ns
    running = rank.step_cost_ns - elapsed if elapsed < rank.step_cost_ns else 0
    return running + tokens * rank.pending_ns / rank.account.prefill_tokens


def _untie(tied: Sequence[int], view: RouteView) -> int:
    known = view.known
    longest = max([known[index] for index in tied])
    return first_from([index for index in tied if known[index] == longest], view)


def _reason(known: Sequence[int], index: int) -> str:
    if len(known) == 1:
        return ONLY
    longest = max(known)
    if longest == 0:
        return COLD
    return PREFIX if known[index] == longest else ELSEWHERE
