"""Which chains to bring where before anybody waits for them: what is observed goes in, proposals come out.

Nothing is remembered from one planning to the next, and no intention is kept: what was not admitted is proposed again
as long as it is still worth it. `specs/placement.md` has the formulas.
"""

from collections.abc import Iterator, Sequence

import attrs

from lmpool.core.fleet import RankView
from lmpool.core.ids import Epoch, Nanos, Rank
from lmpool.core.messages.transfer import TransferMode
from lmpool.core.placement.demand import FADE_NS, HotChain
from lmpool.core.placement.price import Pair, TransferPrices
from lmpool.core.placement.proposal import (
    Conditions,
    Gate,
    Occasion,
    PlacementSettings,
    Proposal,
    busy_with,
    chain_prefill_ns,
    gate_of,
    is_related,
)
from lmpool.core.prefix import HASH_BYTES
from lmpool.core.rates import Rates

ORDER = {Occasion.DRAIN: 0, Occasion.COPY: 1, Occasion.MOVE: 2, Occasion.PULL: 3}
"""What a draining rank has is gone soon; a queue is there now; a reclaim may not come."""


@attrs.define
class Site:
    """A rank as placement sees it. Read only."""

    rank: Rank
    epoch: Epoch
    holder: int
    """Its bit in the page table."""
    is_draining: bool
    """It gives, and takes nothing."""
    rates: Rates
    block_size: int
    blocks: int
    blocks_free: int
    blocks_open: int
    """Free or reclaimable."""
    wait_ns: float
    """Until it could begin something new."""


def site_of(view: RankView, wait_ns: float, *, is_draining: bool) -> Site:
    return Site(
        view.rank,
        view.epoch,
        view.holder,
        is_draining,
        view.rates,
        view.block_size,
        view.blocks,
        max(view.blocks_free, 0),
        max(view.blocks_open, 0),
        wait_ns,
    )


@attrs.define
class HeldChain:
    """A hot chain, and how much of it is where. The columns are parallel to the sites. Read only."""

    hot: HotChain
    depths: Sequence[int]
    """Leading blocks that are resident."""
    arriving: Sequence[int]
    """Blocks after those that requests compute there."""


@attrs.define
class PlacementView:
    """Read only."""

    now: Nanos
    sites: Sequence[Site]
    """Live and draining ranks, in the order of their numbers."""
    chains: Sequence[HeldChain]
    conditions: Conditions


@attrs.define
class _Plan:
    """A transfer as one of the occasions wants it."""

    occasion: Occasion
    source: Site
    target: Site
    held: HeldChain
    depth: int
    """Blocks of the chain that the source has."""
    first: int
    arriving: int


def propose(view: PlacementView, settings: PlacementSettings, prices: TransferPrices) -> tuple[Proposal, ...]:
    """All that were considered, the admitted ones first; each with its terms, and its gate if it was refused."""
    proposals: list[tuple[tuple[int, float, float, Rank, Rank, bytes], Proposal]] = []
    for held in view.chains:
        for plan in _plans(view, held, settings, prices):
            proposal = _proposal(view, plan, settings, prices)
            proposals.append((_key(plan, proposal), proposal))
    ranked = [proposal for _, proposal in sorted(proposals, key=lambda pair: pair[0])]
    _admit(ranked, view.conditions, settings)
    return (
        *[proposal for proposal in ranked if proposal.gate is None],
        *[proposal for proposal in ranked if proposal.gate is not None],
    )


def _key(plan: _Plan, proposal: Proposal) -> tuple[int, float, float, Rank, Rank, bytes]:
    """A move takes the chain with the fewest visitors, which is nearest to being reclaimed; others the best worth."""
    worth = -proposal.saved_ns / proposal.price.p95_ns
    order = plan.held.hot.weight if plan.occasion is Occasion.MOVE else worth
    return ORDER[plan.occasion], order, plan.target.wait_ns, plan.source.rank, plan.target.rank, proposal.last


def _admit(ranked: Sequence[Proposal], conditions: Conditions, settings: PlacementSettings) -> None:
    """Gates that depend on what else is admitted: the first of several takes its ranks and its chain."""
    admitted: list[Proposal] = []
    for proposal in ranked:
        if proposal.gate is not None:
            continue
        if any(is_related(proposal.chain, other.chain) for other in admitted):
            proposal.gate = Gate.CHAIN_TAKEN
        elif any(
            proposal.pair.source == other.pair.source or proposal.pair.target == other.pair.target for other in admitted
        ):
            proposal.gate = Gate.RANK_BUSY
        elif len(conditions.underway) + len(admitted) >= settings.transfers_max:
            proposal.gate = Gate.TOO_MANY
        else:
            admitted.append(proposal)


# Occasions


def _plans(
    view: PlacementView, held: HeldChain, settings: PlacementSettings, prices: TransferPrices
) -> Iterator[_Plan]:
    deepest = max(held.depths, default=0)
    if deepest == 0:
        return
    live = [index for index, site in enumerate(view.sites) if not site.is_draining]
    live.sort(key=lambda index: (view.sites[index].wait_ns, view.sites[index].rank))
    holders = [index for index in live if held.depths[index] == deepest]
    takers = [index for index in live if held.depths[index] < deepest][: settings.targets_max]
    givers = [index for index, depth in enumerate(held.depths) if depth == deepest]
    if holders:
        occasions = [(Occasion.COPY, takers)]
        if len(givers) == 1 and _is_pressed(view.sites[givers[0]], settings):
            occasions.append((Occasion.MOVE, takers))
    else:
        occasions = [(Occasion.DRAIN, takers)]
    for occasion, targets in occasions:
        for target in targets:
            source = _source(view, givers, target, deepest - held.depths[target], prices)
            if source is not None:
                yield _Plan(
                    occasion,
                    view.sites[source],
                    view.sites[target],
                    held,
                    deepest,
                    held.depths[target],
                    held.arriving[target],
                )


def _is_pressed(site: Site, settings: PlacementSettings) -> bool:
    return site.blocks_free < settings.pressure_share * site.blocks


def _source(view: PlacementView, givers: Sequence[int], target: int, blocks: int, prices: TransferPrices) -> int | None:
    """One that sends nothing else, then the cheapest, then the least busy."""
    best: tuple[bool, float, float, int] | None = None
    for index in givers:
        site = view.sites[index]
        pair = Pair(site.rank, view.sites[target].rank)
        if pair in view.conditions.paths:
            busy = bool(busy_with(view.conditions, pair))
            key = (busy, prices.price(pair, blocks).median_ns, site.wait_ns, index)
            if best is None or key < best:
                best = key
    return None if best is None else best[3]


# Terms


def _proposal(view: PlacementView, plan: _Plan, settings: PlacementSettings, prices: TransferPrices) -> Proposal:
    source, target, conditions = plan.source, plan.target, view.conditions
    pair = Pair(source.rank, target.rank)
    blocks = min(plan.depth - plan.first, settings.blocks_max)
    chain = plan.held.hot.chain[: (plan.first + blocks) * HASH_BYTES]
    prefill = chain_prefill_ns(target.rates, target.block_size, plan.first, blocks)
    visitors, each = _visitors(view, plan, settings, prefill)
    proposal = Proposal(
        plan.occasion,
        pair,
        (source.epoch, target.epoch),
        TransferMode.MOVE if plan.occasion is Occasion.MOVE else TransferMode.COPY,
        conditions.paths[pair],
        chain,
        plan.first,
        blocks,
        None,
        max([other.remaining_ns(view.now) for other in busy_with(conditions, pair)], default=0.0),
        prices.price(pair, blocks),
        prefill,
        visitors,
        visitors * each,
        _lease_ns(plan, chain, settings, conditions),
        None,
    )
    proposal.gate = _gate(view, plan, proposal, settings)
    return proposal


def _visitors(view: PlacementView, plan: _Plan, settings: PlacementSettings, prefill: float) -> tuple[float, float]:
    """Who is expected, and what each would save: never more than a cold prefill."""
    hot = plan.held.hot
    if plan.occasion is not Occasion.COPY:
        return min(hot.weight * settings.reuse_discount, settings.reuses_max), prefill
    waits = [
        site.wait_ns
        for site, depth in zip(view.sites, plan.held.depths, strict=True)
        if depth == plan.depth and not site.is_draining
    ]
    visitors = hot.weight * settings.horizon_ns / (FADE_NS * (len(waits) + 1))
    return visitors, min(prefill, max(min(waits) - plan.target.wait_ns, 0.0))


def _lease_ns(plan: _Plan, chain: bytes, settings: PlacementSettings, conditions: Conditions) -> Nanos:
    """A lease pins the whole chain."""
    leased = conditions.leased.get(plan.target.rank, 0) + len(chain) // HASH_BYTES
    return settings.lease_ns if leased <= settings.lease_share * plan.target.blocks else Nanos(0)


def _gate(view: PlacementView, plan: _Plan, proposal: Proposal, settings: PlacementSettings) -> Gate | None:
    if plan.held.hot.visits < settings.visits_min:
        return Gate.ASKED_ONCE
    if plan.arriving:
        return Gate.ARRIVING
    if any(is_related(plan.held.hot.chain, other.chain) for other in view.conditions.underway):
        return Gate.CHAIN_TAKEN
    target = plan.target
    spare = target.blocks_free if plan.occasion is Occasion.MOVE else target.blocks_open
    room = spare - proposal.blocks - int(settings.room_share * target.blocks)
    return gate_of(view.now, proposal, room, settings, view.conditions)
