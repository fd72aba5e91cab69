"""Pull on route: bringing a rank the blocks that it lacks of a request, instead of computing them."""

from collections.abc import Mapping, Sequence

import attrs

from lmpool.core.fleet import RankView, RouteView
from lmpool.core.ids import Epoch, Nanos, Rank
from lmpool.core.messages.transfer import TransferMode
from lmpool.core.placement.price import Pair, Price, TransferPrices
from lmpool.core.placement.proposal import (
    Conditions,
    Gate,
    Occasion,
    PlacementSettings,
    Proposal,
    Underway,
    chain_prefill_ns,
    gate_of,
)
from lmpool.core.placement.rent import rent_ns
from lmpool.core.prefix import HASH_BYTES, common_blocks
from lmpool.core.transfer.inbound import ARRIVAL_SHARE

NO_PRICE = Price(0.0, 0.0)
"""Of what runs already. Read only."""


@attrs.define
class Giver:
    """A rank that may send, also one that takes nothing new. Read only."""

    rank: Rank
    epoch: Epoch
    depth: int
    """Leading blocks of the chain that are resident there, and that it may pin for a transfer."""


def fetches(
    view: RouteView,
    givers: Sequence[Giver],
    settings: PlacementSettings,
    prices: TransferPrices,
    conditions: Conditions,
) -> list[Proposal | None]:
    """For each rank of the view its best pull, with the gate that refuses it. None: nobody has more than it."""
    order = sorted(givers, key=_by_depth)
    deepest = order[0].depth if order else 0
    now, sending, receiving = view.now, dict[Rank, float](), dict[Rank, float]()
    for other in conditions.underway:
        sending[other.pair.source] = receiving[other.pair.target] = other.remaining_ns(now)
    found: list[Proposal | None] = []
    for index, rank in enumerate(view.ranks):
        pull: Proposal | None = None
        if deepest > view.ready[index]:
            joined, end = _joined(view, index, conditions)
            if joined is not None:
                pull = _join(view, index, joined, end, conditions)
            elif deepest > view.known[index]:
                giver = _giver(rank.rank, view.ready[index], order, sending, conditions)
                if giver is not None:
                    wait = max(sending.get(giver.rank, 0.0), receiving.get(rank.rank, 0.0))
                    pull = _pull(view, index, giver, wait, settings, prices, conditions)
        found.append(pull)
    return found


def _by_depth(giver: Giver) -> tuple[int, Rank]:
    return -giver.depth, giver.rank


def _joined(view: RouteView, index: int, conditions: Conditions) -> tuple[Underway | None, int]:
    """A transfer that brings this rank more of the chain than it has, and up to which block: those who await it already
    compute none of it. It may be a sibling's, of another end."""
    rank, chain, ready = view.ranks[index].rank, view.asked.chain, view.ready[index]
    start = ready * HASH_BYTES
    wanted = chain[start : start + HASH_BYTES]
    for other in conditions.underway:
        if other.pair.target == rank and wanted and other.chain[start : start + HASH_BYTES] == wanted:
            return other, common_blocks(chain, other.chain, ready)
    return None, 0


def _giver(
    target: Rank, ready: int, order: Sequence[Giver], sending: Mapping[Rank, float], conditions: Conditions
) -> Giver | None:
    """Who is done with others first, then who has most."""
    least, chosen = 0.0, None
    for giver in order:
        if giver.depth <= ready:
            break
        if giver.rank != target and (giver.rank, target) in conditions.paths:
            wait = sending.get(giver.rank, 0.0)
            if chosen is None or wait < least:
                least, chosen = wait, giver
            if wait <= 0.0:
                break
    return chosen


def _join(view: RouteView, index: int, joined: Underway, end: int, conditions: Conditions) -> Proposal:
    """`end`: blocks of the chain up to the last that the transfer brings."""
    rank, ready = view.ranks[index], view.ready[index]
    blocks = end - ready
    prefill = chain_prefill_ns(rank.rates, rank.block_size, ready, blocks)
    wait = joined.remaining_ns(view.now)
    return Proposal(
        Occasion.PULL,
        joined.pair,
        joined.epochs,
        TransferMode.COPY,
        conditions.paths[joined.pair],
        view.asked.chain[: end * HASH_BYTES],
        ready,
        blocks,
        joined.transfer,
        wait,
        NO_PRICE,
        prefill,
        1.0,
        prefill,
        0.0,
        Nanos(0),
        Gate.NOT_WORTH_IT if prefill <= wait else None,
    )


def _pull(
    view: RouteView,
    index: int,
    giver: Giver,
    wait: float,
    settings: PlacementSettings,
    prices: TransferPrices,
    conditions: Conditions,
) -> Proposal:
    rank, ready = view.ranks[index], view.ready[index]
    pair = Pair(giver.rank, rank.rank)
    blocks = min(giver.depth - ready, settings.blocks_max, rank.blocks // ARRIVAL_SHARE)
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
        rent_ns(conditions.rents.get(rank.rank), rank.rates, rank.block_size, blocks, rank.blocks_free),
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


def with_pulls(view: RouteView, pulls: Sequence[Proposal | None]) -> tuple[list[int], list[float]]:
    """`uncached` and `waits` of the view, as they are if each rank takes its admitted pull.

    A pull that passes its gates is the sooner way, also where it has to wait.
    """
    uncached, waits = list(view.uncached), list(view.waits)
    for index, pull in enumerate(pulls):
        if pull is not None and pull.gate is None:
            covered = max(pull.first + pull.blocks, view.known[index]) * view.ranks[index].block_size
            uncached[index] = max(view.asked.prompt_tokens - covered, 1)
            waits[index] = max(waits[index], pull.arrives_ns)
    return uncached, waits
