from collections.abc import Sequence

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lmpool.core.ids import Epoch, Nanos, Rank
from lmpool.core.messages.transfer import TransferMode
from lmpool.core.placement.occasions import HeldChain, PlacementView, Site, propose, site_of
from lmpool.core.placement.price import TransferPrices
from lmpool.core.placement.proposal import (
    USUAL,
    Conditions,
    Gate,
    Occasion,
    PlacementSettings,
    Proposal,
    busy_with,
    is_related,
)
from lmpool.core.prefix import HASH_BYTES, chain_length
from lmpool.core.transfer.inbound import ARRIVAL_SHARE
from lmpool.core.transfer.outbound import COPY_SHARE
from tests.core.places import MILLI, NOW, POOL, conditions, flat_prices, held, pair, placement_view, site, underway
from tests.core.plane import RATES, chain
from tests.core.views import decoding_rank

CHEAP = flat_prices(1, 2)


def proposed(
    sites: Sequence[Site],
    *chains: HeldChain,
    found: Conditions | None = None,
    prices: TransferPrices = CHEAP,
    settings: PlacementSettings = USUAL,
) -> tuple[Proposal, ...]:
    return propose(placement_view(sites, chains, found), settings, prices)


def admitted(proposals: Sequence[Proposal]) -> list[tuple[Occasion, int, int, int]]:
    return [
        (proposal.occasion, proposal.pair.source, proposal.pair.target, proposal.blocks)
        for proposal in proposals
        if proposal.gate is None
    ]


def gates(proposals: Sequence[Proposal], occasion: Occasion = Occasion.COPY) -> list[Gate | None]:
    return [proposal.gate for proposal in proposals if proposal.occasion is occasion]


BUSY_AND_IDLE = (site(0, wait=800), site(1))


def test_a_hot_chain_goes_from_a_long_queue_to_a_short_one() -> None:
    (proposal,) = proposed(BUSY_AND_IDLE, held("a", (64, 0)))
    assert admitted([proposal]) == [(Occasion.COPY, 0, 1, 64)]
    assert (proposal.mode, proposal.epochs, proposal.first) == (TransferMode.COPY, (1, 1), 0)
    assert proposal.lease_ns == USUAL.lease_ns
    assert proposal.reason == (
        "copy of 64 blocks from rank 0 to rank 1 would save 103.4 ms of 1.0 requests"
        " and takes 1.0 ms, at P95 2.0 ms; admitted"
    )


def test_what_saves_less_time_than_its_price_is_refused() -> None:
    dear = flat_prices(50, 70)
    (proposal,) = proposed(BUSY_AND_IDLE, held("a", (64, 0)), prices=dear)
    assert proposal.gate is Gate.NOT_WORTH_IT
    assert proposal.price.median_ns < proposal.saved_ns <= USUAL.safety_ratio * proposal.price.p95_ns
    assert proposal.reason.endswith("refused: not worth it")


def test_what_others_lose_by_a_transfer_is_taken_from_what_it_saves() -> None:
    full = attrs.evolve(site(1), blocks_free=0)
    (free,) = proposed((BUSY_AND_IDLE[0], full), held("a", (64, 0)), found=conditions(2, rents={Rank(1): 0.0}))
    assert (free.rent_ns, free.gate) == (0.0, None)
    (proposal,) = proposed((BUSY_AND_IDLE[0], full), held("a", (64, 0)), found=conditions(2, rents={Rank(1): 4.0}))
    assert (proposal.saved_ns, proposal.gain_ns) == (free.saved_ns, free.saved_ns - proposal.rent_ns)
    assert proposal.reason == (
        "copy of 64 blocks from rank 0 to rank 1 would save 103.4 ms of 1.0 requests, 25.6 ms less for what it pushes"
        " out, and takes 1.0 ms, at P95 2.0 ms; admitted"
    )
    (dear,) = proposed((BUSY_AND_IDLE[0], full), held("a", (64, 0)), found=conditions(2, rents={Rank(1): 99.0}))
    assert dear.gate is Gate.NOT_WORTH_IT


def test_of_two_copies_the_one_that_takes_less_from_others_comes_first() -> None:
    sites = (site(0, wait=800), attrs.evolve(site(1), blocks_free=0), site(2))
    found = proposed(sites, held("a", (64, 0, 0)), found=conditions(3, rents={Rank(1): 4.0, Rank(2): 4.0}))
    assert admitted(found) == [(Occasion.COPY, 0, 2, 64)]


def test_nothing_is_copied_while_nobody_waits() -> None:
    assert proposed((site(0), site(1)), held("a", (64, 0))) == ()


def test_nothing_goes_where_the_wait_is_as_long_or_longer() -> None:
    assert proposed((site(0), site(1, wait=500)), held("a", (64, 0))) == ()
    assert proposed((site(0, wait=500), site(1, wait=499)), held("a", (64, 0))) == ()
    assert len(proposed((site(0, wait=500), site(1, wait=498)), held("a", (64, 0)))) == 1


def test_a_visitor_saves_no_more_than_a_cold_prefill() -> None:
    (proposal,) = proposed((site(0, wait=1e6), site(1)), held("a", (64, 0), weight=30))
    assert proposal.saved_ns == pytest.approx(proposal.visitors * proposal.prefill_ns)


def test_the_visitors_are_shared_by_the_holders() -> None:
    one = proposed((site(0, wait=800), site(1), site(2, wait=800)), held("a", (64, 0, 0)))
    two = proposed((site(0, wait=800), site(1), site(2, wait=800)), held("a", (64, 0, 64)))
    assert next(proposal.visitors for proposal in one if proposal.pair.target == 1) == pytest.approx(1.0)
    assert next(proposal.visitors for proposal in two) == pytest.approx(2 / 3)


def test_what_is_nowhere_is_not_proposed() -> None:
    hot = held("a", (64, 0)).hot
    assert proposed(BUSY_AND_IDLE, HeldChain(hot, (0, 0), (0, 0), (0.0, 0.0))) == ()


def test_no_tail_is_sent_without_its_beginning() -> None:
    """Neither what its own beginning lacks at the source, nor what the target could not attach to anything."""
    hot = held("a", (64, 0)).hot
    (proposal,) = proposed(BUSY_AND_IDLE, HeldChain(hot, (40, 10), (0, 0), (0.0, 0.0)))
    assert (proposal.first, proposal.blocks) == (10, 30)
    assert proposal.chain == hot.chain[: 40 * HASH_BYTES]


def test_a_long_chain_goes_in_parts_to_its_end() -> None:
    parts: list[tuple[int, int]] = []
    depth = 0
    while depth < 250:
        found = proposed(BUSY_AND_IDLE, held("a", (250, depth)), settings=attrs.evolve(USUAL, blocks_max=100))
        (proposal,) = found
        assert proposal.gate is None
        parts.append((proposal.first, proposal.blocks))
        depth = proposal.first + proposal.blocks
        assert chain_length(proposal.chain) == depth
    assert parts == [(0, 100), (100, 100), (200, 50)]


def test_no_more_is_sent_than_its_source_may_pin_and_its_target_reserve() -> None:
    (proposal,) = proposed(BUSY_AND_IDLE, held("a", (400, 0)))
    assert (proposal.blocks, chain_length(proposal.chain)) == (POOL // COPY_SHARE, POOL // COPY_SHARE)
    small = attrs.evolve(site(1), blocks=120)
    (proposal,) = proposed((BUSY_AND_IDLE[0], small), held("a", (400, 0)))
    assert proposal.blocks == 120 // ARRIVAL_SHARE
    assert proposed(BUSY_AND_IDLE, held("a", (400, POOL // COPY_SHARE))) == ()


def test_a_chain_that_its_holder_cannot_send_as_a_whole_is_not_moved() -> None:
    """Its beginning would stay where it is as well."""
    sites = (site(0, free=0), site(1))
    assert gates(proposed(sites, held("a", (POOL // COPY_SHARE, 0), weight=3)), Occasion.MOVE) == [None]
    assert gates(proposed(sites, held("a", (POOL // COPY_SHARE + 1, 0), weight=3)), Occasion.MOVE) == []


def test_every_pair_with_a_path_is_considered() -> None:
    sites = [site(0, wait=800), *[site(rank) for rank in range(1, 5)]]
    found = proposed(sites, held("a", (64, 0, 0, 0, 0)))
    assert sorted(proposal.pair.target for proposal in found) == [1, 2, 3, 4]
    paths = {known: means for known, means in conditions(5).paths.items() if known in (pair(0, 2), pair(2, 4))}
    found = proposed(sites, held("a", (64, 0, 0, 0, 0)), found=attrs.evolve(conditions(5), paths=paths))
    assert admitted(found) == [(Occasion.COPY, 0, 2, 64)]


def test_the_source_sends_nothing_else_if_another_holder_can() -> None:
    sites = [site(0, wait=800), site(1, wait=900), site(2)]
    running = conditions(3, underway=[underway(0, 1, chain(("other", 5)))])
    assert admitted(proposed(sites, held("a", (64, 64, 0)), found=running)) == [(Occasion.COPY, 1, 2, 64)]


def test_the_first_of_several_takes_its_ranks_and_its_chain() -> None:
    sites = [site(0, wait=800), site(1), site(2), site(3, wait=700)]
    found = proposed(
        sites, held("a", (64, 0, 0, 0), weight=20), held("b", (32, 0, 0, 0), weight=18), held("c", (0, 0, 0, 48))
    )
    assert sorted(admitted(found)) == [(Occasion.COPY, 0, 1, 64), (Occasion.COPY, 3, 2, 48)]
    refused = {proposal.gate for proposal in found if proposal.saved_ns > 0 and proposal.gate}
    assert {Gate.CHAIN_TAKEN, Gate.RANK_BUSY} <= refused


def test_a_chain_under_way_and_its_beginning_are_not_proposed_again() -> None:
    running = conditions(3, underway=[underway(2, 1, chain(("a", 64)))])
    for blocks in (64, 20, 80):
        assert set(gates(proposed([*BUSY_AND_IDLE, site(2)], held("a", (blocks, 0, 0)), found=running))) == {
            Gate.CHAIN_TAKEN
        }


def test_what_a_request_computes_there_is_not_sent() -> None:
    (proposal,) = proposed(BUSY_AND_IDLE, attrs.evolve(held("a", (64, 0)), arriving=(0, 64)))
    assert proposal.gate is Gate.ARRIVING
    (soon,) = proposed(BUSY_AND_IDLE, attrs.evolve(held("a", (64, 0)), arriving=(0, 64), begins_ns=(0.0, 2 * MILLI)))
    assert soon.gate is Gate.ARRIVING


def test_what_a_request_will_compute_there_is_sent_if_it_comes_before_that() -> None:
    """Then it saves one prefill, and pushes out nothing that the request would not."""
    full = attrs.evolve(site(1, wait=900), blocks_free=0, blocks_open=0)
    chained = attrs.evolve(held("a", (64, 0)), arriving=(0, 64), begins_ns=(0.0, 3 * MILLI))
    (proposal,) = proposed((site(0), full), chained, found=conditions(2, rents={Rank(1): 16.0}))
    assert admitted([proposal]) == [(Occasion.COPY, 0, 1, 64)]
    assert (proposal.visitors, proposal.saved_ns, proposal.rent_ns) == (1.0, proposal.prefill_ns, 0.0)


def test_more_than_a_request_will_compute_there_needs_room_and_pays_rent() -> None:
    full = attrs.evolve(site(1, wait=900), blocks_free=0, blocks_open=30)
    chained = attrs.evolve(held("a", (64, 0)), arriving=(0, 34), begins_ns=(0.0, 30 * MILLI))
    found = conditions(2, rents={Rank(1): 1.0})
    (proposal,) = proposed((site(0), full), chained, found=found)
    assert (proposal.gate, proposal.rent_ns) == (None, 30 * RATES.prefill)
    (proposal,) = proposed((site(0), attrs.evolve(full, blocks_open=29)), chained, found=found)
    assert proposal.gate is Gate.NO_ROOM


def test_what_was_sent_lately_cools_and_so_do_ranks_that_failed() -> None:
    hot = held("a", (64, 0))
    last = hot.hot.chain[-HASH_BYTES:]
    chains = conditions(2, chain_until={(last, Rank(1)): Nanos(NOW + 1)})  # type: ignore[dict-item]
    assert gates(proposed(BUSY_AND_IDLE, hot, found=chains)) == [Gate.CHAIN_COOLS]
    for rank in (0, 1):
        ranks = conditions(2, rank_until={Rank(rank): Nanos(NOW + 1)})
        assert gates(proposed(BUSY_AND_IDLE, hot, found=ranks)) == [Gate.RANK_COOLS]
    over = conditions(2, chain_until={(last, Rank(1)): NOW}, rank_until={Rank(0): NOW})  # type: ignore[dict-item]
    assert gates(proposed(BUSY_AND_IDLE, hot, found=over)) == [None]


def test_no_more_than_the_limit_are_under_way() -> None:
    running = conditions(6, underway=[underway(2, 3, chain(("x", 5)))])
    sites = [site(rank, wait=800 if rank % 2 == 0 else 0) for rank in range(6)]
    chains = [held("a", (64, 0, 0, 0, 0, 0)), held("b", (0, 0, 0, 0, 64, 0))]
    assert len(admitted(proposed(sites, *chains, found=running, settings=attrs.evolve(USUAL, transfers_max=3)))) == 2
    assert len(admitted(proposed(sites, *chains, found=running, settings=attrs.evolve(USUAL, transfers_max=2)))) == 1
    assert admitted(proposed(sites, *chains, found=running, settings=attrs.evolve(USUAL, transfers_max=1))) == []


def test_a_full_cache_does_not_stop_a_copy() -> None:
    target = attrs.evolve(site(1), blocks_free=0, blocks_open=900)
    assert admitted(proposed((site(0, wait=800), target), held("a", (64, 0)))) == [(Occasion.COPY, 0, 1, 64)]


def test_a_rank_that_reclaims_moves_to_one_with_free_blocks() -> None:
    found = proposed((site(0, free=0), site(1)), held("a", (64, 0)), held("b", (64, 0), weight=2))
    assert admitted(found) == [(Occasion.MOVE, 0, 1, 64)]
    (moved,) = [proposal for proposal in found if proposal.gate is None]
    assert moved.mode is TransferMode.MOVE
    assert moved.chain == chain(("b", 64))  # the one with fewer visitors


def test_what_another_rank_holds_too_is_not_moved() -> None:
    found = proposed((site(0, free=0), site(1), site(2)), held("a", (64, 0, 64)))
    assert gates(found, Occasion.MOVE) == []


@pytest.mark.parametrize(("room", "pressure"), [(0.0, 1 / 16), (1 / 16, 1 / 16), (1 / 8, 1 / 16), (1 / 16, 1 / 8)])
def test_a_move_never_presses_its_target(room: float, pressure: float) -> None:
    """Or that would move it back, and so on for ever. The share of a pool may be no whole number of blocks."""
    settings = attrs.evolve(USUAL, room_share=room, pressure_share=pressure)
    for free in range(8, 200):
        sites = (site(0, free=0), site(1, free=free))
        for proposal in proposed(sites, held("a", (8, 0), weight=3), settings=settings):
            left = free - proposal.blocks
            is_pressed = left < pressure * sites[1].blocks
            assert proposal.occasion is not Occasion.MOVE or proposal.gate is not None or not is_pressed


def test_a_move_has_nothing_reclaimed_at_its_target() -> None:
    full = attrs.evolve(site(1), blocks_free=0, blocks_open=900)
    assert gates(proposed((site(0, free=0), full), held("a", (64, 0))), Occasion.MOVE) == []
    nearly = attrs.evolve(site(1), blocks_free=100, blocks_open=900)
    assert gates(proposed((site(0, free=0), nearly), held("a", (64, 0))), Occasion.MOVE) == [Gate.NO_ROOM]


def test_what_only_a_draining_rank_holds_is_saved() -> None:
    sites = (site(0, is_draining=True), site(1, wait=300), site(2))
    found = proposed(sites, held("a", (64, 0, 0)), held("b", (64, 64, 0)))
    (proposal,) = [proposal for proposal in found if proposal.gate is None]
    assert admitted(found) == [(Occasion.DRAIN, 0, 2, 64)]
    assert (proposal.chain, proposal.mode) == (chain(("a", 64)), TransferMode.COPY)


def test_nothing_goes_to_a_draining_rank() -> None:
    assert proposed((site(0, wait=800), site(1, is_draining=True)), held("a", (64, 0))) == ()


def test_leases_end_at_their_share_of_the_rank() -> None:
    leased = conditions(2, leased={Rank(1): 100})
    assert [proposal.lease_ns for proposal in proposed(BUSY_AND_IDLE, held("a", (25, 0)), found=leased)] == [
        USUAL.lease_ns
    ]
    assert [proposal.lease_ns for proposal in proposed(BUSY_AND_IDLE, held("a", (26, 0)), found=leased)] == [0]


def test_a_site_is_a_rank_as_its_view_has_it() -> None:
    view = decoding_rank(3, 2, 800)
    found = site_of(attrs.evolve(view, blocks_free=-5), 7.0, is_draining=True)
    assert (found.rank, found.epoch, found.holder, found.wait_ns, found.is_draining) == (3, Epoch(1), 8, 7.0, True)
    assert (found.blocks, found.blocks_free, found.blocks_open) == (1_000, 0, view.blocks_open)


# Whatever is seen

RANKS = 4
SITE = st.tuples(st.floats(0, 1e4), st.integers(0, 1000), st.booleans())
CHAIN = st.tuples(
    st.sampled_from(["a", "b", "c"]),
    st.lists(st.integers(0, 90), min_size=RANKS, max_size=RANKS),
    st.lists(st.sampled_from([0, 0, 0, 5]), min_size=RANKS, max_size=RANKS),
    st.floats(0.01, 50),
    st.integers(1, 50),
)
UNDERWAY = st.tuples(st.permutations(range(RANKS)), st.sampled_from(["a", "x"]), st.integers(1, 90))


@st.composite
def views(draw: st.DrawFn) -> PlacementView:
    sites = [
        site(rank, wait=wait, free=free, is_draining=drains)
        for rank, (wait, free, drains) in enumerate(draw(st.lists(SITE, min_size=RANKS, max_size=RANKS)))
    ]
    chains = []
    for label, depths, arriving, weight, visits in draw(st.lists(CHAIN, max_size=4)):
        if max(depths) > 0:
            known = held(label, depths, weight=weight, visits=visits)
            begins = draw(st.lists(st.sampled_from((0.0, 300 * MILLI)), min_size=RANKS, max_size=RANKS))
            chains.append(attrs.evolve(known, arriving=arriving, begins_ns=begins))
    running = [
        underway(ranks[0], ranks[1], chain((label, blocks)))
        for ranks, label, blocks in draw(st.lists(UNDERWAY, max_size=1))
    ]
    cooling = draw(st.dictionaries(st.integers(0, RANKS - 1).map(Rank), st.integers(-1, 1), max_size=2))
    until = {rank: Nanos(NOW + sign) for rank, sign in cooling.items()}
    full = draw(st.lists(st.booleans(), min_size=RANKS, max_size=RANKS))
    sites = [attrs.evolve(each, blocks_free=0) if is_full else each for each, is_full in zip(sites, full, strict=True)]
    rents = draw(st.dictionaries(st.integers(0, RANKS - 1).map(Rank), st.floats(0, 20)))
    return placement_view(sites, chains, conditions(RANKS, underway=running, rank_until=until, rents=rents))


def _fits(proposal: Proposal, arriving: int, target: Site) -> bool:
    left = target.blocks_open + arriving - proposal.blocks
    return left >= (0 if arriving else int(USUAL.room_share * target.blocks))


@given(views(), st.floats(0.1, 200), st.floats(1, 3))
def test_no_admitted_proposal_passes_a_gate_that_it_fails(view: PlacementView, median: float, spread: float) -> None:
    proposals = propose(view, USUAL, flat_prices(median, median * spread))
    passed = [proposal for proposal in proposals if proposal.gate is None]
    assert list(proposals[: len(passed)]) == passed
    assert len(passed) + len(view.conditions.underway) <= USUAL.transfers_max
    depths = {(held.hot.chain, held.hot.weight): held for held in view.chains}
    for proposal in passed:
        source, target = view.sites[proposal.pair.source], view.sites[proposal.pair.target]
        assert not target.is_draining
        assert source is not target
        assert proposal.blocks >= USUAL.blocks_min
        assert chain_length(proposal.chain) == proposal.first + proposal.blocks
        assert proposal.saved_ns - proposal.rent_ns > USUAL.safety_ratio * proposal.price.p95_ns
        assert proposal.saved_ns <= proposal.visitors * proposal.prefill_ns * (1 + 1e-9)
        if proposal.rent_ns:
            assert proposal.blocks > target.blocks_free
            assert view.conditions.rents.get(target.rank, 1.0) > 0
        assert all(view.conditions.rank_until.get(rank, NOW) <= NOW for rank in proposal.pair)
        assert not busy_with(view.conditions, proposal.pair)
        assert not any(is_related(proposal.chain, other.chain) for other in view.conditions.underway)
        assert any(
            known.hot.chain.startswith(proposal.chain)
            and known.depths[source.rank] * HASH_BYTES >= len(proposal.chain)
            and known.depths[target.rank] == proposal.first
            and _fits(proposal, known.arriving[target.rank], target)
            and (not known.arriving[target.rank] or known.begins_ns[target.rank] > proposal.price.p95_ns)
            and known.hot.visits >= USUAL.visits_min
            for known in depths.values()
        )
    for side in (0, 1):
        ranks = [proposal.pair[side] for proposal in passed]
        assert len(ranks) == len(set(ranks))


@given(views())
def test_the_order_of_the_chains_changes_nothing(view: PlacementView) -> None:
    other = attrs.evolve(view, chains=list(reversed(view.chains)))
    one, two = (propose(seen, USUAL, flat_prices(5, 9)) for seen in (view, other))
    labels = [known.hot.chain for known in view.chains]
    if len(labels) == len(set(labels)):
        assert [repr(proposal) for proposal in one] == [repr(proposal) for proposal in two]


def test_times_are_nanoseconds() -> None:
    (proposal,) = proposed(BUSY_AND_IDLE, held("a", (64, 0)))
    assert proposal.prefill_ns == pytest.approx(103.448 * MILLI, rel=1e-4)
    assert proposal.arrives_ns == pytest.approx(1 * MILLI)
