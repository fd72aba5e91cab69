"""A plan as text (TOML): read strictly, and refused with one line."""

import math
import re
import tomllib
from collections.abc import Mapping, Sequence
from typing import Any

from cattrs import BaseValidationError

from lmpool.bench.study.matrix import bare_spec
from lmpool.bench.study.plan import Bound, Budgets, Crossover, Plan, Rule, Statistic, WorkloadPlan
from lmpool.bench.trial.metrics import METRICS, Better
from lmpool.bench.trial.spec import SpecError, Venue, arm_named, check_spec
from lmpool.io.records import explain, strict_converter
from lmpool.sim.workload import WORKLOADS

NAME = re.compile(r"[a-z0-9][a-z0-9.-]*")
SCHEMA = 1
"""Rises with every change of a field's meaning."""
TRIALS_MAX = 10_000
"""Each is a process and a folder."""
SHARE_MAX, BLOCKS_MAX = 1_000, 1 << 32


class PlanError(Exception):
    """One line: what is wrong with a plan."""


def parse_plan(data: bytes, source: str) -> Plan:
    """Raises PlanError."""
    try:
        fields = tomllib.loads(data.decode())
        plan = strict_converter().structure(fields, Plan)
    except (UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise PlanError(f"{source}: no TOML: {error}") from error
    except BaseValidationError as error:
        raise PlanError(f"{source}: {explain(error)}") from error
    wrong = _empty_list(fields) or next((said for said in _faults(plan) if said), None)
    if wrong is not None:
        raise PlanError(f"{source}: {wrong}")
    return plan


def _empty_list(fields: Mapping[str, Any]) -> str | None:
    """A rule without a list is about everything, so an empty one says nothing."""
    for rule in fields.get("rule", ()):
        empty = [key for key, value in rule.items() if value == []]
        if empty:
            return f"rule {rule['name']!r}: {empty[0]} is empty; without it the rule holds everywhere"
    return None


def _faults(plan: Plan) -> Sequence[str | None]:
    """The first that is not None counts."""
    first = _arms_fault(plan) or _metrics_fault("metrics", plan.metrics)
    if first:
        return (first,)
    return (
        None if plan.schema == SCHEMA else f"schema {plan.schema}: this version reads {SCHEMA}",
        None if NAME.fullmatch(plan.name) else f"name {plan.name!r}: small letters, digits, dots and dashes",
        None if plan.repetitions >= 1 else "repetitions: at least 1",
        _workloads_fault(plan.workload) or _budgets_fault(plan.budget) or _size_fault(plan) or _specs_fault(plan),
        _goodput_fault(plan),
        next((said for rule in plan.rule if (said := _rule_fault(plan, rule))), None),
        _twice("rule names", [rule.name for rule in plan.rule]),
        _metrics_fault("sweep.metric", (plan.sweep.metric,)) if plan.sweep else None,
        _crossover_fault(plan, plan.crossover) if plan.crossover else None,
    )


def _twice(what: str, values: Sequence[object]) -> str | None:
    twice = next((value for value in values if values.count(value) > 1), None)
    return None if twice is None else f"{what}: {twice} stands twice"


def _size_fault(plan: Plan) -> str | None:
    points = sum(len(workload.rates) for workload in plan.workload) * len(plan.budget.values)
    trials = points * len(plan.arms) * plan.repetitions
    return None if trials <= TRIALS_MAX else f"{trials:,} trials: at most {TRIALS_MAX:,} (arms x points x repetitions)"


def _goodput_fault(plan: Plan) -> str | None:
    asked = [*plan.metrics, *(rule.metric for rule in plan.rule)]
    asked += [one.metric for one in (plan.sweep, plan.crossover) if one is not None]
    return "goodput needs system.e2e_max_s" if "goodput" in asked and plan.system.e2e_max_s is None else None


def _arms_fault(plan: Plan) -> str | None:
    if not plan.arms:
        return "arms: at least one"
    for arm in plan.arms:
        try:
            arm_named(arm)
        except SpecError as error:
            return f"arms: {error}"
    if plan.baseline not in plan.arms:
        return f"baseline {plan.baseline!r} is none of the arms"
    return _twice("arms", plan.arms)


def _metrics_fault(key: str, metrics: Sequence[str]) -> str | None:
    unknown = [metric for metric in metrics if metric not in METRICS]
    if unknown:
        return f"{key}: no metric is named {unknown[0]!r}; there is {', '.join(METRICS)}"
    return _twice(key, metrics) if metrics else f"{key}: at least one"


def _workloads_fault(workloads: Sequence[WorkloadPlan]) -> str | None:
    if not workloads:
        return "workload: at least one"
    for workload in workloads:
        if workload.name not in WORKLOADS and not workload.name.endswith(".jsonl"):
            return f"workload {workload.name!r}: neither a trace (.jsonl) nor one of {', '.join(WORKLOADS)}"
        if workload.requests < 1 or min(workload.scale, workload.budget_factor) <= 0 or workload.pauses < 0:
            return f"workload {workload.name}: requests, scale and budget_factor are more than 0, pauses at least 0"
        if not workload.rates or min(workload.rates) <= 0 or list(workload.rates) != sorted(set(workload.rates)):
            return f"workload {workload.name}: rates are more than 0 and rise"
    return _twice("workloads", [workload.name for workload in workloads])


def _budgets_fault(budget: Budgets) -> str | None:
    if bool(budget.shares) == bool(budget.blocks):
        return "budget: either shares or blocks"
    values, most = list(budget.values), SHARE_MAX if budget.shares else BLOCKS_MAX
    if not all(0 < value <= most for value in values) or values != sorted(set(values)):
        return f"budget: numbers are more than 0, at most {most:,}, and rise"
    return None


def _rule_fault(plan: Plan, rule: Rule) -> str | None:
    about = f"rule {rule.name!r}"
    if (rule.at_most is None) == (rule.at_least is None):
        return f"{about}: either at_most or at_least"
    if not all(math.isfinite(bound) for bound in (rule.at_most, rule.at_least) if bound is not None):
        return f"{about}: at_most and at_least are finite"
    if (rule.against is None) != (rule.statistic is Statistic.VALUE):
        return f"{about}: a ratio or difference is against another arm, a value is not"
    for arm in (rule.arm, rule.against):
        if arm is not None and arm not in plan.arms:
            return f"{about}: {arm!r} is none of the arms"
    if rule.arm == rule.against:
        return f"{about}: {rule.arm} is against itself"
    if rule.bound is not Bound.MEAN and plan.repetitions < 2:
        return f"{about}: {rule.bound.value} needs two repetitions"
    known: tuple[tuple[str, Sequence[object], Sequence[object]], ...] = (
        ("workloads", rule.workloads, [workload.name for workload in plan.workload]),
        ("budgets", rule.budgets, plan.budget.values),
        ("rates", rule.rates, [rate for workload in plan.workload for rate in workload.rates]),
    )
    for key, named, there in known:
        missing = [one for one in named if one not in there]
        if missing:
            return f"{about}: {key} has {missing[0]!r}, which the plan does not"
    return _metrics_fault(f"{about}: metric", (rule.metric,))


def _crossover_fault(plan: Plan, crossover: Crossover) -> str | None:
    if not crossover.arms or crossover.against in crossover.arms:
        return "crossover: arms are at least one, and not the one that they are against"
    unknown = [arm for arm in (*crossover.arms, crossover.against) if arm not in plan.arms]
    if unknown:
        return f"crossover: {unknown[0]!r} is none of the arms"
    if len(plan.budget.values) > 1:
        return "crossover: one budget, as loads and workloads are what changes"
    if crossover.metric in METRICS and METRICS[crossover.metric].better is Better.NEITHER:
        return f"crossover.metric {crossover.metric!r}: neither more nor less of it is better"
    return _metrics_fault("crossover.metric", (crossover.metric,))


def _specs_fault(plan: Plan) -> str | None:
    """Whether its trials are possible, in both venues."""
    for venue in Venue:
        for workload in plan.workload:
            for arm in plan.arms:
                try:
                    check_spec(bare_spec(plan, workload, workload.rates[0], arm, 1, venue))
                except SpecError as error:
                    return f"venue {venue.value}, workload {workload.name}, arm {arm}: {error}"
    return None
