"""The scheduler of llm-d with the weights of its chart: scores of queue, KV use and prefix, added; the highest wins.

Queue and KV use are as the last report has them: it scrapes its servers and books nothing itself. The prefix is what
is resident (its precise scorer; speculative entries are off by default). The cost is what a score lacks of full marks.
"""

from lmpool.core.fleet import Choice, RouteView, drawn
from lmpool.core.ids import Rank
from lmpool.core.messages.ingress_control import RouteAsked

QUEUE_WEIGHT = 2.0
KV_WEIGHT = 2.0
PREFIX_WEIGHT = 3.0


class LLMD:
    __slots__ = ()
    name = "llm-d"
    term_names = ("queue", "kv", "prefix")

    def choose(self, view: RouteView) -> Choice:
        waiting = [rank.load.waiting for rank in view.ranks]
        shortest, longest = min(waiting), max(waiting)
        terms: list[float] = []
        costs: list[float] = []
        for index, rank in enumerate(view.ranks):
            queue = 1.0 if shortest == longest else (longest - waiting[index]) / (longest - shortest)
            kv = (rank.load.blocks_free + rank.load.blocks_cached) / rank.blocks
            prefix = view.ready[index] / view.chain_blocks if view.chain_blocks else 0.0
            terms += (queue, kv, prefix)
            costs.append(QUEUE_WEIGHT * (1 - queue) + KV_WEIGHT * (1 - kv) + PREFIX_WEIGHT * (1 - prefix))
        return Choice(drawn(costs, view), "highest score of queue, KV use and prefix", terms, costs)

    def remember(self, asked: RouteAsked, rank: Rank) -> None:
        pass

    def digest_state(self) -> str:
        return ""
