"""The KV router of NVIDIA Dynamo with the defaults of its wheel 1.6.1: blocks to prefill and blocks held, added.

Its ledger charges a prompt less what was resident with the booking and drops the charge with the first token; so
does the account read here. Approximated is only the count of active blocks: those that live sequences pin by the last
report, outputs included, and those that booked prefill has still to take. A block that several use counts once; a
resident one counts from when a sequence begins to use it, not from the booking on.
"""

from lmpool.core.fleet import Choice, RankView, RouteView, drawn
from lmpool.core.ids import Rank
from lmpool.core.messages.ingress_control import RouteAsked

CREDIT = 1.0
"""Of a resident block. No host, disk or shared tier exists here, and its decay with load is off by default."""


class Dynamo:
    """`scale` weighs prefill against held blocks; its users raise it from 1 to get more reuse."""

    __slots__ = ("_scale", "name")
    term_names = ("prefill_blocks", "credit", "decode_blocks")

    def __init__(self, name: str, scale: float) -> None:
        self.name = name
        self._scale = scale

    def choose(self, view: RouteView) -> Choice:
        terms: list[float] = []
        costs: list[float] = []
        for index, rank in enumerate(view.ranks):
            prefill = (rank.account.prefilling_missing + view.asked.prompt_tokens) / rank.block_size
            credit = CREDIT * view.ready[index]
            decode = _active_blocks(view, index, rank)
            terms += (prefill, credit, decode)
            costs.append(self._scale * max(prefill - credit, 0.0) + decode)
        return Choice(drawn(costs, view), "least prefill and decode blocks", terms, costs)

    def remember(self, asked: RouteAsked, rank: Rank) -> None:
        pass

    def digest_state(self) -> str:
        return ""


def _active_blocks(view: RouteView, index: int, rank: RankView) -> float:
    """On the rank with the request there. What an open booking brings of its chain is active already."""
    shared = view.known[index] if view.arriving[index] else 0
    added = max(-(-view.asked.prompt_tokens // rank.block_size) - shared, 0)
    return float(rank.blocks - rank.blocks_open + added)
