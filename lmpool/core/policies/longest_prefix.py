"""The deepest holder; what is cold goes where least was computed so far."""

from lmpool.core.fleet import Choice, RouteView, first_from
from lmpool.core.ids import Rank
from lmpool.core.messages.ingress_control import RouteAsked

COLD_SHARE = 0.05
"""A match of less than this share of the chain is none."""


class LongestPrefix:
    __slots__ = ()
    name = "longest-prefix"
    term_names = ("ready_blocks", "routed_tokens")

    def choose(self, view: RouteView) -> Choice:
        deepest = max(view.ready)
        is_cold = deepest == 0 or deepest < COLD_SHARE * view.chain_blocks
        work = [rank.routed_tokens for rank in view.ranks]
        holders = [index for index, ready in enumerate(view.ready) if is_cold or ready == deepest]
        smallest = min(work[index] for index in holders)
        index = first_from([index for index in holders if work[index] == smallest], view)
        terms = [float(term) for pair in zip(view.ready, work, strict=True) for term in pair]
        costs = [
            float(done) if is_cold else float(view.chain_blocks - ready)
            for ready, done in zip(view.ready, work, strict=True)
        ]
        return Choice(index, "cold: least computed work" if is_cold else "deepest holder", terms, costs)

    def remember(self, asked: RouteAsked, rank: Rank) -> None:
        pass

    def digest_state(self) -> str:
        return ""
