import math

import pytest

from lmpool.bench.interval import interval, t_quantile, t_within

TABLE = {1: 12.706, 2: 4.303, 3: 3.182, 4: 2.776, 5: 2.571, 9: 2.262, 10: 2.228, 29: 2.045, 30: 2.042, 120: 1.980}
"""Of printed tables, by degrees of freedom."""


@pytest.mark.parametrize("freedom", TABLE)
def test_quantiles_are_those_of_printed_tables(freedom: int) -> None:
    assert round(t_quantile(freedom), 3) == TABLE[freedom]


def test_five_values_have_the_interval_of_a_hand_computation() -> None:
    found = interval([1.0, 2.0, 3.0, 4.0, 5.0])
    assert found.mean == 3.0
    assert found.half == pytest.approx(2.776445 * math.sqrt(2.5 / 5), rel=1e-6)
    assert (found.low, found.high) == (3.0 - (found.half or 0), 3.0 + (found.half or 0))


def test_equal_values_leave_no_width() -> None:
    assert interval([0.25, 0.25]).half == 0


def test_one_value_says_nothing_of_its_spread() -> None:
    alone = interval([7.0])
    assert (alone.mean, alone.half, alone.low, alone.high) == (7.0, None, -math.inf, math.inf)


@pytest.mark.parametrize("freedom", range(1, 12))
def test_the_chance_to_be_within_rises_from_nothing_to_certainty(freedom: int) -> None:
    chances = [t_within(bound, freedom) for bound in (0, 0.5, 1, 2, 4, 8, 1e9)]
    assert chances == sorted(chances)
    assert chances[0] == 0
    assert chances[-1] == pytest.approx(1)
