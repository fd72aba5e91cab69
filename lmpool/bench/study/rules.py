"""Rules of a plan against what was measured: met, not met, or undecided."""

from collections.abc import Sequence
from enum import Enum

import attrs

from lmpool.bench.study.matrix import Point
from lmpool.bench.study.plan import Kind, Plan, Rule
from lmpool.bench.study.statistic import Cell, Estimate, estimate_of


class Verdict(Enum):
    MET = "met"
    NOT_MET = "not met"
    UNDECIDED = "undecided"


@attrs.frozen
class RulePoint:
    workload: str
    budget: float
    rate: float
    estimate: Estimate | None
    """None: it has no value here."""
    verdict: Verdict
    why: str


@attrs.frozen
class RuleVerdict:
    name: str
    kind: Kind
    text: str
    verdict: Verdict
    points: tuple[RulePoint, ...]


def rule_text(rule: Rule) -> str:
    """In words: what should be so."""
    of = rule.arm if rule.against is None else f"{rule.arm} against {rule.against}"
    side = f"at most {rule.at_most:g}" if rule.at_most is not None else f"at least {rule.at_least:g}"
    return f"{rule.metric}, {rule.statistic.value} of {of}, {rule.bound.value}: {side}"


def judge(plan: Plan, rule: Rule, cells: Sequence[Cell]) -> RuleVerdict:
    """Met only if it is at every point that it names."""
    held = [_judge_point(plan, rule, cell) for cell in cells if _is_named(rule, cell.point)]
    return RuleVerdict(rule.name, rule.kind, rule_text(rule), together([one.verdict for one in held]), tuple(held))


def together(verdicts: Sequence[Verdict]) -> Verdict:
    """One that is not met decides; of nothing, undecided."""
    if Verdict.NOT_MET in verdicts:
        return Verdict.NOT_MET
    return Verdict.UNDECIDED if Verdict.UNDECIDED in verdicts or not verdicts else Verdict.MET


def _is_named(rule: Rule, point: Point) -> bool:
    return (
        (not rule.workloads or point.workload in rule.workloads)
        and (not rule.budgets or point.budget in rule.budgets)
        and (not rule.rates or point.rate in rule.rates)
    )


def _judge_point(plan: Plan, rule: Rule, cell: Cell) -> RulePoint:
    found = estimate_of(plan, cell, rule.statistic, rule.metric, rule.arm, rule.against)
    verdict, why = _judged(plan, rule, len(cell.complete(plan.arms)), found)
    return RulePoint(cell.point.workload, cell.point.budget, cell.point.rate, found, verdict, why)


def _judged(plan: Plan, rule: Rule, complete: int, found: Estimate | None) -> tuple[Verdict, str]:
    if complete < plan.repetitions:
        return Verdict.UNDECIDED, f"{complete} of {plan.repetitions} repetitions are complete"
    value = None if found is None else found.at(rule.bound)
    if value is None:
        return Verdict.UNDECIDED, "it has no value: the metric is missing, or a ratio is over 0"
    if rule.at_most is not None:
        holds = value <= rule.at_most
    else:
        assert rule.at_least is not None
        holds = value >= rule.at_least
    return (Verdict.MET if holds else Verdict.NOT_MET), f"{rule.bound.value} is {value:.4g}"
