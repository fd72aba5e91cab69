import pytest
from hypothesis import given
from hypothesis import strategies as st

from lmpool.core.ids import SECOND, Nanos, Rank
from lmpool.core.placement.demand import FADE_NS
from lmpool.core.placement.rent import Rents, rent_ns
from tests.core.places import MILLI, NOW
from tests.core.plane import RATES, chain

R0, R1 = Rank(0), Rank(1)


def rents_of(*reports: tuple[int, int]) -> Rents:
    """Of rank 0: cached tokens of its life, and blocks reclaimed since the report before."""
    rents = Rents()
    rents.begin(NOW, R0, 0)
    for cached, reclaimed in reports:
        rents.count(NOW, R0, cached, chain(("a", reclaimed)))
    return rents


def test_a_block_costs_what_blocks_have_earned_until_they_were_reclaimed() -> None:
    assert rents_of((3_000, 0), (4_000, 1_000)).tokens == {R0: 4.0}


def test_of_a_rank_that_has_reclaimed_nothing_no_earnings_are_known() -> None:
    assert rents_of((3_000, 0)).tokens == {}


def test_rent_follows_the_load() -> None:
    rents = rents_of((4_000, 1_000))
    later = Nanos(NOW + 10 * FADE_NS)
    rents.count(later, R0, 4_000, chain(("b", 1_000)))
    assert rents.tokens[R0] == pytest.approx(0.0, abs=0.001)
    rents.count(later, R0, 12_000, b"")
    assert rents.tokens[R0] == pytest.approx(8.0, abs=0.01)


def test_time_alone_changes_no_rent() -> None:
    rents = rents_of((4_000, 1_000))
    rents.count(Nanos(NOW + FADE_NS), R0, 4_000, b"")
    assert rents.tokens[R0] == pytest.approx(4.0)


def test_a_full_report_begins_to_count_from_its_totals() -> None:
    """Control does not know what was reclaimed before it listened, nor what was behind a gap."""
    rents = Rents()
    rents.begin(NOW, R0, 50_000)
    rents.count(NOW, R0, 50_100, chain(("a", 10)))
    assert rents.tokens == {R0: 10.0}
    rents.begin(NOW, R0, 80_000)
    rents.count(NOW, R0, 80_000, b"")
    assert rents.tokens == {R0: 10.0}


def test_totals_that_fall_count_nothing() -> None:
    assert rents_of((4_000, 1_000), (100, 0), (100, 0)).tokens == {R0: 4.0}


def test_the_rent_of_a_life_ends_with_it() -> None:
    rents = rents_of((4_000, 1_000))
    rents.count(NOW, R1, 10, chain(("a", 1)))
    rents.count(NOW, R1, 15, chain(("b", 1)))
    rents.lose(R0)
    assert rents.tokens == {R1: 5.0}
    rents.begin(NOW, R0, 0)
    rents.count(NOW, R0, 60, chain(("c", 10)))
    assert rents.tokens[R0] == 6.0


ROW = st.tuples(st.integers(0, 50), st.integers(1, 5), st.integers(0, 120))


@given(st.lists(ROW, min_size=1, max_size=20))
def test_rent_lies_between_the_least_and_the_most_that_single_reports_tell(rows: list[tuple[int, int, int]]) -> None:
    rents, now, cached = Rents(), int(NOW), 0
    rents.begin(NOW, R0, 0)
    for tokens, reclaimed, seconds in rows:
        now, cached = now + seconds * SECOND, cached + tokens * reclaimed
        rents.count(Nanos(now), R0, cached, chain((f"{now}", reclaimed)))
    told = [tokens for tokens, _, _ in rows]
    assert min(told) - 1e-6 <= rents.tokens[R0] <= max(told) + 1e-6


def test_only_blocks_beyond_the_free_ones_cost_rent() -> None:
    rents = [rent_ns(4.0, RATES, 16, 64, free) / MILLI for free in (-5, 0, 32, 64, 900)]
    assert rents == pytest.approx([25.6, 25.6, 12.8, 0.0, 0.0])


def test_what_nobody_knows_yet_is_half_of_the_tokens_of_a_block() -> None:
    rents = [rent_ns(None, RATES, 16, 64, free) / MILLI for free in (0, 32, 64)]
    assert rents == pytest.approx([51.2, 25.6, 0.0])
