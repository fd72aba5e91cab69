"""The rule of the Mooncake paper (FAST'25, algorithm 1): least predicted time to first token.

Both parts are predicted with the rank's own rates. The queue is all booked prefill that is not done, as our ledger has
it; the original sums its own predictions. Requests are not refused for a target that they would miss, and ties, of
which the paper says nothing, go round. Where blocks can be sent, a rank waits for those that pass our gates of a pull,
not for all that are a hand-set factor more than its own.
"""

from lmpool.core.cost import prefill_ns, prefill_pairs
from lmpool.core.fleet import Choice, RouteView, least
from lmpool.core.ids import Rank
from lmpool.core.messages.ingress_control import RouteAsked


class Mooncake:
    __slots__ = ()
    name = "mooncake"
    term_names = ("queue", "prefill")

    def choose(self, view: RouteView) -> Choice:
        prompt = view.asked.prompt_tokens
        terms: list[float] = []
        costs: list[float] = []
        for index, rank in enumerate(view.ranks):
            queue = prefill_ns(rank.rates, rank.account.prefill_tokens, rank.account.prefill_pairs)
            fetch = view.fetch_ns[index]
            uncached = view.uncached[index] if fetch else max(prompt - view.ready[index] * rank.block_size, 1)
            prefill = prefill_ns(rank.rates, uncached, prefill_pairs(uncached, prompt - uncached))
            wait = max(queue, fetch)
            terms += (wait, prefill)
            costs.append(wait + prefill)
        return Choice(least(costs, view), "least predicted time to first token", terms, costs)

    def remember(self, asked: RouteAsked, rank: Rank) -> None:
        pass

    def digest_state(self) -> str:
        return ""
