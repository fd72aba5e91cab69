import pytest

from lmpool.bench.study.matrix import Point
from lmpool.bench.study.plan import Bound, Plan, Statistic
from lmpool.bench.study.plan_text import parse_plan
from lmpool.bench.study.statistic import Cell, estimate, estimate_of
from tests.bench.study.made import PLAN

POINT = Point("agent-sessions", 100.0, 1.0)


def _plan() -> Plan:
    return parse_plan(PLAN.encode(), "plan")


def _cell(baseline: dict[int, float], default: dict[int, float]) -> Cell:
    values = {"round-robin": baseline, "default": default}
    return Cell(POINT, {arm: {number: {"reuse": value} for number, value in of.items()} for arm, of in values.items()})


def test_the_interval_of_five_repetitions_is_2_776_standard_errors_wide() -> None:
    found = estimate([1.0, 2.0, 3.0, 4.0, 5.0])
    assert found is not None
    assert found.high is not None
    assert found.low is not None
    assert found.high - found.mean == pytest.approx(2.776 * (2.5**0.5) / 5**0.5, abs=1e-3)
    assert found.mean - found.low == pytest.approx(found.high - found.mean)


def test_one_repetition_has_a_mean_and_no_interval() -> None:
    found = estimate([3.0])
    assert found is not None
    assert [found.at(bound) for bound in (Bound.MEAN, Bound.LOWER, Bound.UPPER)] == [3.0, None, None]
    assert estimate([]) is None


def test_only_repetitions_with_all_arms_count() -> None:
    cell = _cell({1: 1.0, 2: 1.0, 3: 9.0}, {1: 2.0, 2: 2.0})
    assert cell.complete(["round-robin", "default"]) == [1, 2]
    found = estimate_of(_plan(), cell, Statistic.VALUE, "reuse", "round-robin", None)
    assert found is not None
    assert (found.mean, found.repetitions) == (1.0, 2)


def test_a_ratio_is_the_mean_of_ratios_of_the_same_repetition() -> None:
    cell = _cell({1: 1.0, 2: 10.0}, {1: 2.0, 2: 10.0})
    ratio = estimate_of(_plan(), cell, Statistic.RATIO, "reuse", "default", "round-robin")
    difference = estimate_of(_plan(), cell, Statistic.DIFFERENCE, "reuse", "default", "round-robin")
    assert ratio is not None
    assert ratio.mean == pytest.approx(1.5)
    assert difference is not None
    assert difference.mean == pytest.approx(0.5)


def test_pairing_takes_away_what_repetitions_have_in_common() -> None:
    cell = _cell({1: 1.0, 2: 10.0, 3: 100.0}, {1: 0.5, 2: 5.0, 3: 50.0})
    ratio = estimate_of(_plan(), cell, Statistic.RATIO, "reuse", "default", "round-robin")
    assert ratio is not None
    assert (ratio.low, ratio.mean, ratio.high) == (0.5, 0.5, 0.5)


def test_a_ratio_over_nothing_has_no_value() -> None:
    cell = _cell({1: 0.0, 2: 1.0}, {1: 1.0, 2: 1.0})
    assert estimate_of(_plan(), cell, Statistic.RATIO, "reuse", "default", "round-robin") is None
    assert estimate_of(_plan(), cell, Statistic.VALUE, "goodput", "default", None) is None
