"""The knee of a sweep of KV budgets: from which budget on more of it changes little."""

from collections.abc import Mapping, Sequence

import attrs

from lmpool.bench.study.plan import Plan, Statistic, Sweep
from lmpool.bench.study.statistic import Cell, estimate_of


@attrs.frozen
class Knee:
    workload: str
    rate: float
    arm: str
    metric: str
    within: float
    means: dict[str, float]
    """By budget."""
    budget: float | None
    """None: something is missing at one of the budgets."""
    is_last: bool
    """Whether it is the largest that was tried, which says that no knee was found below."""


def knee(means: Mapping[float, float], within: float) -> float:
    """The smallest budget from which on every mean is within that share of the one at the largest budget."""
    largest = max(means)
    most = means[largest] * (1 + within)
    found = largest
    for budget in sorted(means, reverse=True):
        if means[budget] > most:
            break
        found = budget
    return found


def knees(plan: Plan, sweep: Sweep, cells: Sequence[Cell]) -> tuple[Knee, ...]:
    """Of every workload, rate and arm."""
    places = list(dict.fromkeys((cell.point.workload, cell.point.rate) for cell in cells))
    return tuple(
        _knee(plan, sweep, [cell for cell in cells if (cell.point.workload, cell.point.rate) == place], arm)
        for place in places
        for arm in plan.arms
    )


def _knee(plan: Plan, sweep: Sweep, cells: Sequence[Cell], arm: str) -> Knee:
    found = {cell.point.budget: estimate_of(plan, cell, Statistic.VALUE, sweep.metric, arm, None) for cell in cells}
    means = {budget: one.mean for budget, one in found.items() if one is not None}
    at = knee(means, sweep.within) if len(means) == len(plan.budget.values) else None
    first = cells[0].point
    return Knee(
        workload=first.workload,
        rate=first.rate,
        arm=arm,
        metric=sweep.metric,
        within=sweep.within,
        means={f"{budget:g}": mean for budget, mean in means.items()},
        budget=at,
        is_last=at == max(plan.budget.values),
    )
