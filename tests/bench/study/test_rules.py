import attrs
import pytest

from lmpool.bench.study.matrix import Point
from lmpool.bench.study.plan import Bound, Kind, Plan, Rule, Statistic
from lmpool.bench.study.plan_text import parse_plan
from lmpool.bench.study.rules import Verdict, judge, rule_text, together
from lmpool.bench.study.statistic import Cell
from tests.bench.study.made import PLAN

RULE = Rule("less", Kind.SUCCESS, "computed_tokens", "default", Statistic.RATIO, Bound.UPPER, "round-robin", 0.8)


def _plan() -> Plan:
    return parse_plan(PLAN.encode(), "plan")


def _cell(budget: float, ratios: list[float]) -> Cell:
    numbers = range(1, len(ratios) + 1)
    return Cell(
        Point("agent-sessions", budget, 1.0),
        {
            "round-robin": {number: {"computed_tokens": 100.0} for number in numbers},
            "default": dict(zip(numbers, [{"computed_tokens": 100.0 * ratio} for ratio in ratios], strict=True)),
        },
    )


def test_a_rule_holds_by_its_bound_and_not_by_the_mean() -> None:
    narrow, wide = _cell(100, [0.5, 0.5, 0.51]), _cell(100, [0.2, 0.9, 0.4])
    assert judge(_plan(), RULE, [narrow]).verdict is Verdict.MET
    assert judge(_plan(), RULE, [wide]).verdict is Verdict.NOT_MET
    assert judge(_plan(), attrs.evolve(RULE, bound=Bound.MEAN), [wide]).verdict is Verdict.MET


@pytest.mark.parametrize(("at_least", "verdict"), [(0.4, Verdict.MET), (0.6, Verdict.NOT_MET)])
def test_a_rule_may_ask_for_at_least(at_least: float, verdict: Verdict) -> None:
    rule = attrs.evolve(RULE, at_most=None, at_least=at_least, bound=Bound.LOWER)
    assert judge(_plan(), rule, [_cell(100, [0.5, 0.5, 0.5])]).verdict is verdict


def test_a_bound_that_is_reached_exactly_is_kept() -> None:
    rule = attrs.evolve(RULE, at_most=0.5)
    assert judge(_plan(), rule, [_cell(100, [0.5, 0.5, 0.5])]).verdict is Verdict.MET


def test_fewer_repetitions_than_planned_decide_nothing() -> None:
    found = judge(_plan(), RULE, [_cell(100, [0.1, 0.1])])
    assert found.verdict is Verdict.UNDECIDED
    assert found.points[0].why == "2 of 3 repetitions are complete"


def test_a_rule_is_met_only_at_all_its_points() -> None:
    good, bad = _cell(100, [0.5, 0.5, 0.5]), _cell(200, [1.0, 1.0, 1.0])
    both = judge(_plan(), RULE, [good, bad])
    assert [point.verdict for point in both.points] == [Verdict.MET, Verdict.NOT_MET]
    assert both.verdict is Verdict.NOT_MET
    only = judge(_plan(), attrs.evolve(RULE, budgets=(100.0,)), [good, bad])
    assert (only.verdict, len(only.points)) == (Verdict.MET, 1)


def test_one_that_is_not_met_decides_and_nothing_is_undecided() -> None:
    assert together([Verdict.MET, Verdict.UNDECIDED]) is Verdict.UNDECIDED
    assert together([Verdict.UNDECIDED, Verdict.NOT_MET]) is Verdict.NOT_MET
    assert together([]) is Verdict.UNDECIDED


def test_a_metric_that_is_missing_leaves_a_rule_undecided() -> None:
    rule = attrs.evolve(RULE, metric="goodput")
    assert judge(_plan(), rule, [_cell(100, [0.5, 0.5, 0.5])]).verdict is Verdict.UNDECIDED


def test_a_rule_says_in_words_what_should_be_so() -> None:
    assert rule_text(RULE) == "computed_tokens, ratio of default against round-robin, upper 95: at most 0.8"
