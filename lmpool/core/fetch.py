"""Pull on route: bringing a rank the blocks that it lacks of a request, instead of computing them."""

from collections.abc import Sequence

import attrs

from lmpool.core.fleet import RankView, RouteView
from lmpool.core.ids import Epoch, Nanos, Rank
from lmpool.core.messages.transfer import TransferMode
from lmpool.core.prefix import HASH_BYTES
from lmpool.core.proposal import (
    Conditions,
    Gate,
    Occasion,
    PlacementSettings,
    Proposal,
    Underway,
    busy_with,
    chain_prefill_ns,
    gate_of,
    is_related,
)
from lmpool.core.transfer_price import Pair, Price, TransferPrices

NO_PRICE = Price(0.0, 0.0)
"""Of what runs already. Read only."""


@attrs.define
class Giver:
    """A rank that may send, also one that takes nothing new. Read only."""

    rank: Rank
    epoch: Epoch
    depth: int
    """Leading blocks of the chain that are resident there."""


def fetches(
    view: RouteView,
    givers: Sequence[Giver],
    settings: PlacementSettings,
    prices: TransferPrices,
    conditions: Conditions,
) -> list[Proposal | None]:
    """For each rank of the view its best pull, with the gate that refuses it. None: nobody has more than it."""
    deepest = max([giver.depth for giver in givers], default=0)
    found: list[Proposal | None] = []
    for index, rank in enumerate(view.ranks):
        ready = view.ready[index]
        if deepest <= view.known[index]:
            found.append(None)
            continue
        joined = _joined(view, index, conditions)
        giver = None if joined is not None else _giver(view.now, rank.rank, ready, givers, conditions)
        if joined is not None:
            found.append(_join(view, index, joined, conditions))
        elif giver is not None:
            found.append(_pull(view, index, giver, settings, prices, conditions))
        else:
            found.append(None)
    return found


def _joined(view: RouteView, index: int, conditions: Conditions) -> Underway | None:
    """A transfer that brings this rank more of the chain than it will have."""
    rank, chain = view.ranks[index].rank, view.asked.chain
    for other in conditions.underway:
        if other.pair.target == rank and is_related(chain, other.chain):
            blocks = min(len(chain), len(other.chain)) // HASH_BYTES
            return other if blocks > view.known[index] else None
    return None


def _giver(
    now: Nanos, target: Rank, ready: int, givers: Sequence[Giver], conditions: Conditions
) -> tuple[Giver, float] | None:
    """Who is done with others first, then who has most; and when it is."""
    best: tuple[float, int, Rank] | None = None
    chosen: Giver | None = None
    for giver in givers:
        pair = Pair(giver.rank, target)
        if giver.depth > ready and giver.rank != target and pair in conditions.paths:
            wait = max([other.remaining_ns(now) for other in busy_with(conditions, pair)], default=0.0)
            key = (wait, -giver.depth, giver.rank)
            if best is None or key < best:
                best, chosen = key, giver
    return None if best is None or chosen is None else (chosen, best[0])


def _join(view: RouteView, index: int, joined: Underway, conditions: Conditions) -> Proposal:
    rank, ready = view.ranks[index], view.ready[index]
    end = min(len(view.asked.chain), len(joined.chain))
    blocks = end // HASH_BYTES - ready
    prefill = chain_prefill_ns(rank.rates, rank.block_size, ready, blocks)
    wait = joined.remaining_ns(view.now)
    return Proposal(
        Occasion.PULL,
        joined.pair,
        joined.epochs,
        TransferMode.COPY,
        conditions.paths[joined.pair],
        view.asked.chain[:end],
        ready,
        blocks,
        joined.transfer,
        wait,
        NO_PRICE,
        prefill,
        1.0,
        prefill,
        Nanos(0),
        Gate.NOT_WORTH_IT if prefill <= wait else None,
    )


def _pull(
    view: RouteView,
    index: int,
    giver_wait: tuple[Giver, float],
    settings: PlacementSettings,
    prices: TransferPrices,
    conditions: Conditions,
) -> Proposal:
    giver, wait = giver_wait
    rank, ready = view.ranks[index], view.ready[index]
    pair = Pair(giver.rank, rank.rank)
    blocks = min(giver.depth - ready, settings.blocks_max)
    prefill = chain_prefill_ns(rank.rates, rank.block_size, ready, blocks)
    proposal = Proposal(
        Occasion.PULL,
        pair,
        (giver.epoch, rank.epoch),
        TransferMode.COPY,
        conditions.paths[pair],
        view.asked.chain[: (ready + blocks) * HASH_BYTES],
        ready,
        blocks,
        None,
        wait,
        prices.price(pair, blocks),
        prefill,
        1.0,
        prefill,
        Nanos(0),
        None,
    )
    if view.arriving[index]:
        proposal.gate = Gate.ARRIVING
    else:
        proposal.gate = gate_of(view.now, proposal, _room(rank, blocks), settings, conditions)
    return proposal


def _room(rank: RankView, blocks: int) -> int:
    """The request needs these blocks in any case."""
    return rank.blocks_open - blocks
