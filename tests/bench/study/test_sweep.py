import pytest

from lmpool.bench.study.matrix import Point
from lmpool.bench.study.plan import Sweep
from lmpool.bench.study.plan_text import parse_plan
from lmpool.bench.study.statistic import Cell
from lmpool.bench.study.sweep import knee, knees
from tests.bench.study.made import PLAN


@pytest.mark.parametrize(
    ("means", "found"),
    [
        ({0.3: 900.0, 0.5: 400.0, 0.8: 104.0, 1.1: 100.0}, 0.8),
        ({0.3: 900.0, 0.5: 400.0, 0.8: 106.0, 1.1: 100.0}, 1.1),
        ({0.3: 105.0, 0.5: 104.0, 0.8: 101.0, 1.1: 100.0}, 0.3),
        ({0.3: 103.0, 0.5: 400.0, 0.8: 101.0, 1.1: 100.0}, 0.8),
        ({0.3: 90.0, 1.1: 100.0}, 0.3),
        ({1.1: 100.0}, 1.1),
    ],
)
def test_the_knee_is_the_smallest_budget_from_which_on_all_are_near_the_largest(
    means: dict[float, float], found: float
) -> None:
    assert knee(means, 0.05) == found


def _cell(budget: float, computed: float | None) -> Cell:
    there = {} if computed is None else {1: {"computed_tokens": computed}}
    return Cell(Point("agent-sessions", budget, 1.0), {"round-robin": there, "default": there})


def test_each_arm_has_its_knee_unless_a_budget_is_missing() -> None:
    plan = parse_plan(PLAN.encode(), "plan")
    found = knees(plan, Sweep(), [_cell(100, 104.0), _cell(200, 100.0)])
    assert [(one.arm, one.budget, one.is_last) for one in found] == [
        ("round-robin", 100.0, False),
        ("default", 100.0, False),
    ]
    assert [one.budget for one in knees(plan, Sweep(), [_cell(100, None), _cell(200, 100.0)])] == [None, None]
    assert [one.is_last for one in knees(plan, Sweep(), [_cell(100, 900.0), _cell(200, 100.0)])] == [True, True]
