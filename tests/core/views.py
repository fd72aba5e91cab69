"""What a policy sees, made by hand for tests."""

from collections.abc import Sequence

import attrs

from lmpool.core.booking import Account
from lmpool.core.fleet import RankView, RouteView, outlook, view_rank
from lmpool.core.ids import Epoch, Nanos, Rank
from lmpool.core.messages.ingress_control import RouteAsked
from lmpool.core.rates import Rates
from tests.core.plane import FACTS, IDLE, RATES, question

NOTHING = Account(
    requests=0,
    prefilling=0,
    prefill_tokens=0,
    prefill_pairs=0,
    unseen_choices=0,
    unseen_tokens=0,
    prefilling_prompts=0,
    prefilling_outputs=0,
    prefilling_missing=0,
    decoding_lengths=0,
    prefills=[],
)


def idle_rank(rank: int, rates: Rates = RATES) -> RankView:
    return view_rank(Rank(rank), Epoch(1), 1 << rank, FACTS, IDLE, rates, NOTHING, 0)


def decoding_rank(rank: int, decoding: int, context: int) -> RankView:
    load = attrs.evolve(IDLE, decoding=decoding, decoding_context=context)
    account = attrs.evolve(NOTHING, requests=decoding, decoding_lengths=context + 100 * decoding)
    return view_rank(Rank(rank), Epoch(1), 1 << rank, FACTS, load, RATES, account, 0)


def route_view(asked: RouteAsked, ranks: Sequence[RankView], ready: Sequence[int]) -> RouteView:
    """Nothing is arriving, and nothing was routed before."""
    uncached, waits = outlook(ranks, ready, asked, Nanos(0), 128.0)
    return RouteView(
        asked=asked,
        now=Nanos(0),
        ranks=ranks,
        ready=ready,
        arriving=[0] * len(ready),
        known=ready,
        uncached=uncached,
        waits=waits,
        fetch_ns=[0.0] * len(ready),
        rent_ns=[0.0] * len(ready),
        chain_blocks=len(asked.chain) // 16,
        output_mean=128.0,
        arrivals_per_ns=0.0,
        busy_share=0.0,
        cursor=0,
    )


def plain_question() -> RouteAsked:
    """640 tokens, 40 blocks."""
    return question(1, bytes(640), 640)
