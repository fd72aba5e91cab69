from collections.abc import Sequence

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lmpool.core.cost import prefill_ns, prefill_pairs
from lmpool.core.fleet import RankView, RouteView
from lmpool.core.ids import MILLISECOND, Epoch, Nanos, Rank, TransferId
from lmpool.core.placement.fetch import Giver, fetches, with_pulls
from lmpool.core.placement.price import TransferPrices
from lmpool.core.placement.proposal import USUAL, Conditions, Gate, Occasion, PlacementSettings, Proposal
from lmpool.core.prefix import HASH_BYTES
from tests.core.places import MILLI, NOW, conditions, flat_prices, pair, underway
from tests.core.plane import RATES, chain, question
from tests.core.views import decoding_rank, idle_rank, route_view

CHAIN = chain(("a", 40))
ASKED = question(1, CHAIN, 640)
CHEAP = flat_prices(1, 2)


def seen(ready: Sequence[int], ranks: Sequence[RankView] | None = None) -> RouteView:
    views = ranks or [idle_rank(rank) for rank in range(len(ready))]
    return attrs.evolve(route_view(ASKED, views, ready), now=NOW)


def pulls(
    view: RouteView,
    *,
    found: Conditions | None = None,
    settings: PlacementSettings = USUAL,
    prices: TransferPrices = CHEAP,
    givers: Sequence[Giver] | None = None,
) -> list[Proposal | None]:
    known = givers or [Giver(rank.rank, rank.epoch, depth) for rank, depth in zip(view.ranks, view.ready, strict=True)]
    return fetches(view, known, settings, prices, found or conditions(8))


def one(pull: Proposal | None) -> Proposal:
    assert pull is not None
    return pull


def test_a_rank_may_be_sent_what_another_one_has() -> None:
    mine, pull = pulls(seen((40, 0)))
    assert mine is None
    found = one(pull)
    assert (found.occasion, found.pair, found.epochs) == (Occasion.PULL, pair(0, 1), (Epoch(1), Epoch(1)))
    assert (found.first, found.blocks, found.chain, found.joins) == (0, 40, CHAIN, None)
    assert (found.gate, found.lease_ns, found.wait_ns) == (None, 0, 0.0)
    assert found.saved_ns == found.prefill_ns == pytest.approx(64.409 * MILLI, rel=1e-4)
    assert found.arrives_ns == 1 * MILLI


def test_only_what_is_missing_is_sent() -> None:
    found = one(pulls(seen((40, 15)))[1])
    assert (found.first, found.blocks) == (15, 25)
    assert found.chain == CHAIN


def test_who_knows_as_much_as_all_others_is_offered_nothing() -> None:
    assert pulls(seen((0, 0))) == [None, None]
    assert pulls(seen((40, 40))) == [None, None]


def test_a_long_chain_is_pulled_in_part() -> None:
    found = one(pulls(seen((40, 0)), settings=attrs.evolve(USUAL, blocks_max=10))[1])
    assert (found.blocks, found.chain) == (10, CHAIN[: 10 * HASH_BYTES])


def test_a_pull_that_costs_more_than_its_prefill_is_refused_with_its_terms() -> None:
    found = one(pulls(seen((40, 0)), prices=flat_prices(30, 50))[1])
    assert found.gate is Gate.NOT_WORTH_IT
    assert found.price.median_ns < found.saved_ns < USUAL.safety_ratio * found.price.p95_ns


def test_a_rank_that_computes_may_be_sent_blocks() -> None:
    busy = attrs.evolve(decoding_rank(1, 8, 4_000), pending_ns=500 * MILLI)
    assert one(pulls(seen((40, 0), [idle_rank(0), busy]))[1]).gate is None


def test_a_draining_rank_still_gives() -> None:
    givers = [Giver(Rank(0), Epoch(1), 0), Giver(Rank(1), Epoch(1), 0), Giver(Rank(7), Epoch(3), 40)]
    found = pulls(seen((0, 0)), givers=givers)
    assert [one(pull).pair.source for pull in found] == [7, 7]
    assert one(found[0]).epochs == (Epoch(3), Epoch(1))


def test_the_giver_that_is_free_comes_before_the_one_that_has_more() -> None:
    running = conditions(8, underway=[underway(0, 5, chain(("b", 9)))])
    assert one(pulls(seen((40, 30, 0)))[2]).pair == pair(0, 2)
    assert one(pulls(seen((40, 30, 0)), found=running)[2]).pair == pair(1, 2)


def test_a_busy_pair_adds_its_remaining_time() -> None:
    running = conditions(8, underway=[underway(0, 5, chain(("b", 9)))])
    refused = one(pulls(seen((40, 0)), found=running)[1])
    assert (refused.wait_ns, refused.gate) == (15 * MILLI, Gate.RANK_BUSY)
    assert refused.arrives_ns == 16 * MILLI
    patient = attrs.evolve(USUAL, pair_wait_max_ns=Nanos(20 * MILLISECOND))
    assert one(pulls(seen((40, 0)), found=running, settings=patient)[1]).gate is None


def test_the_time_until_a_pair_is_free_is_part_of_the_price() -> None:
    patient = attrs.evolve(USUAL, pair_wait_max_ns=Nanos(100 * MILLISECOND))
    for wait, gate in ((60, None), (63, Gate.NOT_WORTH_IT)):  # 64.4 ms would be saved, 3 are the margin
        running = conditions(8, underway=[underway(0, 5, chain(("b", 9)), price=(wait, 90))])
        assert one(pulls(seen((40, 0)), found=running, settings=patient)[1]).gate is gate


def test_a_rank_that_receives_another_transfer_is_busy() -> None:
    running = conditions(8, underway=[underway(5, 1, chain(("b", 9)))])
    found = one(pulls(seen((40, 0)), found=running)[1])
    assert (found.wait_ns, found.gate) == (15 * MILLI, Gate.RANK_BUSY)


def test_no_pull_is_begun_beyond_the_limit() -> None:
    running = conditions(8, underway=[underway(5, 6, chain(("b", 9)))])
    one_at_once = attrs.evolve(USUAL, transfers_max=1)
    assert one(pulls(seen((40, 0)), found=running, settings=one_at_once)[1]).gate is Gate.TOO_MANY
    assert one(pulls(seen((40, 0)), found=running)[1]).gate is None


def test_a_late_transfer_is_taken_at_its_p95() -> None:
    late = attrs.evolve(underway(0, 5, chain(("b", 9))), began=Nanos(NOW - 18 * MILLISECOND))
    assert one(pulls(seen((40, 0)), found=conditions(8, underway=[late]))[1]).wait_ns == 22 * MILLI


def test_a_pull_joins_a_transfer_of_its_chain() -> None:
    for blocks in (40, 60, 30):
        bringing = underway(0, 1, chain(("a", blocks)))
        found = one(pulls(seen((40, 5)), found=conditions(8, underway=[bringing]))[1])
        assert found.joins == bringing.transfer == TransferId(Epoch(1), 1)
        assert (found.first, found.blocks) == (5, min(blocks, 40) - 5)
        assert (found.arrives_ns, found.gate) == (15 * MILLI, None)


def test_nobody_joins_what_takes_longer_than_computing() -> None:
    bringing = underway(0, 1, CHAIN, price=(500, 600))
    found = one(pulls(seen((40, 0)), found=conditions(8, underway=[bringing]))[1])
    assert (found.joins, found.gate) == (bringing.transfer, Gate.NOT_WORTH_IT)


def test_a_transfer_that_brings_no_more_than_is_there_is_not_joined() -> None:
    bringing = underway(2, 1, chain(("a", 10)))
    assert one(pulls(seen((40, 10)), found=conditions(8, underway=[bringing]))[1]).joins is None
    assert one(pulls(seen((40, 9)), found=conditions(8, underway=[bringing]))[1]).joins == bringing.transfer


def test_who_comes_after_one_that_awaits_a_transfer_joins_it_as_well() -> None:
    """That one's booking makes the whole chain arriving, and computes none of what the transfer brings."""
    bringing = underway(0, 1, chain(("a", 30)))
    view = attrs.evolve(seen((40, 0)), arriving=[0, 40], known=[40, 40], uncached=[1, 1])
    found = pulls(view, found=conditions(8, underway=[bringing]))
    assert (one(found[1]).joins, one(found[1]).blocks) == (bringing.transfer, 30)
    uncached, waits = with_pulls(view, found)
    assert (uncached[1], waits[1]) == (1, 15 * MILLI)


def test_a_siblings_transfer_is_joined_up_to_where_they_part() -> None:
    """A booking that awaits blocks makes them arriving, and nobody would write them for a sibling that did not join."""
    bringing = underway(0, 1, chain(("a", 30), ("sibling", 6)))
    view = attrs.evolve(seen((40, 5)), arriving=[0, 25], known=[40, 30])
    found = one(pulls(view, found=conditions(8, underway=[bringing]))[1])
    assert (found.joins, found.first, found.blocks) == (bringing.transfer, 5, 25)
    assert (found.chain, found.gate) == (CHAIN[: 30 * HASH_BYTES], None)
    beyond = one(pulls(seen((40, 30)), found=conditions(8, underway=[bringing]))[1])
    assert beyond.joins is None


def test_a_transfer_of_another_chain_is_not_joined() -> None:
    bringing = underway(2, 1, chain(("b", 40)))
    assert one(pulls(seen((40, 0)), found=conditions(8, underway=[bringing]))[1]).joins is None


def test_what_a_request_computes_there_is_not_pulled() -> None:
    view = attrs.evolve(seen((40, 0)), arriving=[0, 20], known=[40, 20])
    assert one(pulls(view)[1]).gate is Gate.ARRIVING


def test_a_pull_needs_a_path() -> None:
    no_way = attrs.evolve(conditions(8), paths={pair(1, 0): conditions(8).paths[pair(1, 0)]})
    assert pulls(seen((40, 0)), found=no_way) == [None, None]


def test_a_pull_needs_the_blocks_that_its_request_needs_anyway() -> None:
    short = attrs.evolve(idle_rank(1), blocks_open=39)
    assert one(pulls(seen((40, 0), [idle_rank(0), short]))[1]).gate is Gate.NO_ROOM
    enough = attrs.evolve(idle_rank(1), blocks_open=40)
    assert one(pulls(seen((40, 0), [idle_rank(0), enough]))[1]).gate is None


def test_no_more_is_pulled_than_its_target_may_reserve() -> None:
    small = attrs.evolve(idle_rank(1), blocks=50)
    assert one(pulls(seen((40, 0), [idle_rank(0), small]))[1]).blocks == 25


def test_a_pull_pays_rent_for_what_it_pushes_out() -> None:
    full = [attrs.evolve(idle_rank(rank), blocks_free=8) for rank in range(2)]
    free = one(pulls(seen((40, 0), full), found=conditions(8, rents={Rank(1): 0.0}))[1])
    assert (free.rent_ns, free.gate) == (0.0, None)
    unknown = one(pulls(seen((40, 0), full))[1])
    assert (unknown.gain_ns, unknown.gate) == (free.saved_ns - 8.0 * RATES.prefill * 32, None)
    pull = one(pulls(seen((40, 0), full), found=conditions(8, rents={Rank(1): 5.0}))[1])
    assert (pull.gain_ns, pull.gate) == (free.saved_ns - 5.0 * RATES.prefill * 32, None)
    dear = one(pulls(seen((40, 0), full), found=conditions(8, rents={Rank(1): 99.0}), prices=flat_prices(5, 12))[1])
    assert dear.gate is Gate.NOT_WORTH_IT
    assert dear.saved_ns > USUAL.safety_ratio * dear.price.p95_ns


def test_who_joins_a_transfer_pays_no_rent() -> None:
    full = [attrs.evolve(idle_rank(rank), blocks_free=0) for rank in range(2)]
    running = [underway(0, 1, CHAIN)]
    pull = one(pulls(seen((40, 0), full), found=conditions(8, underway=running, rents={Rank(1): 5.0}))[1])
    assert (pull.joins, pull.rent_ns, pull.gate) == (running[0].transfer, 0.0, None)


def begins_and_computes(view: RouteView, found: Sequence[Proposal | None]) -> list[tuple[float, int]]:
    uncached, waits = with_pulls(view, found)
    return [(wait / MILLI, tokens) for wait, tokens in zip(waits, uncached, strict=True)]


def test_a_route_reckons_with_the_sooner_of_fetching_and_computing() -> None:
    view = seen((40, 0))
    assert begins_and_computes(view, pulls(view)) == [(0.0, 1), (1.0, 1)]
    assert begins_and_computes(view, [None, None]) == [(0.0, 1), (0.0, 640)]


def test_a_refused_pull_changes_no_route() -> None:
    view = seen((40, 0))
    assert begins_and_computes(view, pulls(view, prices=flat_prices(30, 50)))[1] == (0.0, 640)


def test_a_pull_goes_on_while_its_request_waits() -> None:
    view = attrs.evolve(seen((40, 0)), waits=[0.0, 30 * MILLI])
    assert begins_and_computes(view, pulls(view, prices=flat_prices(20, 21)))[1] == (30.0, 1)
    view = attrs.evolve(seen((40, 0)), waits=[0.0, 5 * MILLI])
    assert begins_and_computes(view, pulls(view, prices=flat_prices(20, 21)))[1] == (20.0, 1)


def test_a_partial_pull_leaves_the_rest_to_compute() -> None:
    view = seen((10, 0))
    assert begins_and_computes(view, pulls(view))[1] == (1.0, 640 - 160)


def prefill(rank: RankView, tokens: int) -> float:
    return prefill_ns(rank.rates, tokens, prefill_pairs(tokens, 640 - tokens))


RANKS = 4
DEPTHS = st.lists(st.integers(0, 40), min_size=RANKS, max_size=RANKS)


@given(
    DEPTHS,
    DEPTHS,
    st.lists(st.integers(0, 100), min_size=RANKS, max_size=RANKS),
    st.floats(0.1, 60),
    st.floats(1, 3),
    st.lists(st.permutations(range(RANKS)), max_size=1),
    st.sampled_from(["a", "b"]),
    st.floats(0, 500),
)
def test_no_pull_is_taken_that_a_gate_would_refuse(
    ready: list[int],
    arriving: list[int],
    room: list[int],
    median: float,
    spread: float,
    running: list[list[int]],
    label: str,
    wait: float,
) -> None:
    ranks = [attrs.evolve(idle_rank(rank), blocks_open=room[rank]) for rank in range(RANKS)]
    coming = [min(more, 40 - depth) if more % 3 == 0 else 0 for more, depth in zip(arriving, ready, strict=True)]
    known = [depth + more for depth, more in zip(ready, coming, strict=True)]
    view = attrs.evolve(seen(ready, ranks), arriving=coming, known=known, waits=[wait * MILLI] * RANKS)
    found = conditions(RANKS, underway=[underway(two[0], two[1], chain((label, 30))) for two in running])
    proposals = pulls(view, found=found, prices=flat_prices(median, median * spread))
    uncached, waits = with_pulls(view, proposals)
    for index, pull in enumerate(proposals):
        if pull is None or pull.gate is not None:
            assert (uncached[index], waits[index]) == (view.uncached[index], view.waits[index])
            continue
        assert pull.pair.target == index
        assert pull.first == ready[index]
        assert len(pull.chain) == (pull.first + pull.blocks) * HASH_BYTES <= len(CHAIN)
        assert CHAIN.startswith(pull.chain)
        if pull.joins is None:
            assert ready[pull.pair.source] * HASH_BYTES >= len(pull.chain)
            assert pull.saved_ns > USUAL.safety_ratio * pull.price.p95_ns
            assert coming[index] == 0
            assert pull.blocks <= room[index]
            busy = [side for two in running for side in two[:2]]
            assert pull.pair.source not in busy[:1]
            assert index not in busy[1:]
        else:
            assert label == "a"
            assert pull.arrives_ns < pull.saved_ns
        computed = view.waits[index] + prefill(view.ranks[index], view.uncached[index])
        fetched = waits[index] + prefill(view.ranks[index], uncached[index])
        assert view.waits[index] <= waits[index]
        assert fetched < computed + prefill(view.ranks[index], 1)
