"""Which chains to bring where before anybody waits for them: what is observed goes in, proposals come out.

Nothing is remembered from one planning to the next, and no intention is kept: what was not admitted is proposed again
as long as it is still worth it. `specs/placement.md` has the formulas.
"""

from collections.abc import Iterator, Sequence
from math import ceil

import attrs

from lmpool.core.fleet import RankView
from lmpool.core.ids import MILLISECOND, Epoch, Nanos, Rank
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
from lmpool.core.placement.rent import rent_ns
from lmpool.core.prefix import HASH_BYTES
from lmpool.core.rates import Rates
from lmpool.core.transfer.inbound import ARRIVAL_SHARE
from lmpool.core.transfer.outbound import COPY_SHARE

QUEUE_NS_MIN = float(MILLISECOND)
"""A wait is shorter than another one by so much, or as long: less than a step of a queue is none."""
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
    begins_ns: Sequence[float]
    """Nanoseconds until the first of those requests begins; 0 where it has begun, or there is none."""


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
    """Blocks of the chain that the source can send."""
    holders: Sequence[Site]
    """Live ones that have most of it."""
    first: int
    arriving: int
    begins_ns: float


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
    worth = -proposal.gain_ns / proposal.price.p95_ns
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
    givers = [index for index, depth in enumerate(held.depths) if depth == deepest]
    for occasion, targets in _occasions(view, held, givers, settings):
        for target in targets:
            source = _source(view, givers, target, deepest - held.depths[target], prices)
            if source is None:
                continue
            depth = min(deepest, view.sites[source].blocks // COPY_SHARE)
            if depth > held.depths[target] and (depth == deepest or occasion is not Occasion.MOVE):
                yield _Plan(
                    occasion,
                    view.sites[source],
                    view.sites[target],
                    held,
                    depth,
                    [view.sites[giver] for giver in givers if not view.sites[giver].is_draining],
                    held.depths[target],
                    held.arriving[target],
                    held.begins_ns[target],
                )


def _occasions(
    view: PlacementView, held: HeldChain, givers: Sequence[int], settings: PlacementSettings
) -> list[tuple[Occasion, list[int]]]:
    """With the ranks that it may pay for, those with the shortest waits first. `givers` have most of the chain."""
    sites, most = view.sites, settings.targets_max
    live = [index for index, site in enumerate(sites) if not site.is_draining]
    live.sort(key=lambda index: (sites[index].wait_ns, sites[index].rank))
    takers = [index for index in live if index not in givers]
    holders = [index for index in live if index in givers]
    if not holders:
        return [(Occasion.DRAIN, takers[:most])]
    shorter = sites[holders[0]].wait_ns - QUEUE_NS_MIN
    computing = [index for index in takers if held.arriving[index]]
    idler = [index for index in takers if not held.arriving[index] and sites[index].wait_ns < shorter]
    occasions = [(Occasion.COPY, idler[:most] + computing[:most])]
    if len(givers) == 1 and _is_pressed(sites[givers[0]], settings):
        roomy = [index for index in takers[:most] if _spare(sites[index], settings) > 0]
        occasions.append((Occasion.MOVE, roomy))
    return occasions


def _spare(site: Site, settings: PlacementSettings) -> int:
    """Free blocks that moves may fill: a rank that they press would move something on, perhaps back."""
    return site.blocks_free - ceil(max(settings.room_share, settings.pressure_share) * site.blocks)


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
    blocks = min(plan.depth - plan.first, settings.blocks_max, target.blocks // ARRIVAL_SHARE)
    chain = plan.held.hot.chain[: (plan.first + blocks) * HASH_BYTES]
    prefill = chain_prefill_ns(target.rates, target.block_size, plan.first, blocks)
    visitors, each = _visitors(plan, settings, prefill)
    pushing = blocks - min(plan.arriving, blocks)  # requests take the others in any case
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
        rent_ns(conditions.rents.get(target.rank), target.rates, target.block_size, pushing, target.blocks_free),
        _lease_ns(plan, chain, settings, conditions),
        None,
    )
    proposal.gate = _gate(view, plan, proposal, settings)
    return proposal


def _visitors(plan: _Plan, settings: PlacementSettings, prefill: float) -> tuple[float, float]:
    """Who is expected, and what each would save: never more than a cold prefill."""
    hot = plan.held.hot
    if plan.occasion is not Occasion.COPY:
        return min(hot.weight * settings.reuse_discount, settings.reuses_max), prefill
    if plan.arriving:
        return 1.0, prefill
    waits = [site.wait_ns for site in plan.holders]
    visitors = hot.weight * settings.horizon_ns / (FADE_NS * (len(waits) + 1))
    return visitors, min(prefill, max(min(waits) - plan.target.wait_ns, 0.0))


def _lease_ns(plan: _Plan, chain: bytes, settings: PlacementSettings, conditions: Conditions) -> Nanos:
    """A lease pins the whole chain."""
    leased = conditions.leased.get(plan.target.rank, 0) + len(chain) // HASH_BYTES
    return settings.lease_ns if leased <= settings.lease_share * plan.target.blocks else Nanos(0)


def _gate(view: PlacementView, plan: _Plan, proposal: Proposal, settings: PlacementSettings) -> Gate | None:
    if plan.held.hot.visits < settings.visits_min:
        return Gate.ASKED_ONCE
    if plan.arriving and plan.begins_ns <= proposal.wait_ns + proposal.price.p95_ns:
        return Gate.ARRIVING
    if any(is_related(plan.held.hot.chain, other.chain) for other in view.conditions.underway):
        return Gate.CHAIN_TAKEN
    room = _room(plan, settings) - proposal.blocks
    return gate_of(view.now, proposal, room, settings, view.conditions)


def _room(plan: _Plan, settings: PlacementSettings) -> int:
    """What open requests will take is not open any more: of that, what they would compute themselves."""
    target = plan.target
    if plan.occasion is Occasion.MOVE:
        return _spare(target, settings)
    if plan.arriving:
        return target.blocks_open + plan.arriving
    return target.blocks_open - int(settings.room_share * target.blocks)
