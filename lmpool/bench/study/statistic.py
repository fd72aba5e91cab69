"""Statistics of arms over complete repetitions, paired by repetition. `specs/studies.md` has the definitions."""

from collections.abc import Mapping, Sequence

import attrs

from lmpool.bench.interval import interval
from lmpool.bench.study.matrix import Point
from lmpool.bench.study.plan import Bound, Plan, Statistic


@attrs.frozen
class Cell:
    """What was measured at one point."""

    point: Point
    values: Mapping[str, Mapping[int, Mapping[str, float]]]
    """By arm, repetition and metric, of valid trials."""

    def complete(self, arms: Sequence[str]) -> list[int]:
        """Repetitions in which every arm has a valid trial."""
        first, *others = [self.values.get(arm, {}) for arm in arms]
        return sorted(repetition for repetition in first if all(repetition in other for other in others))


@attrs.frozen
class Estimate:
    repetitions: int
    """Complete ones."""
    mean: float
    low: float | None
    """Of the two-sided 95 % interval. None: fewer than two repetitions."""
    high: float | None

    def at(self, bound: Bound) -> float | None:
        match bound:
            case Bound.MEAN:
                return self.mean
            case Bound.LOWER:
                return self.low
            case Bound.UPPER:
                return self.high


def estimate(values: Sequence[float]) -> Estimate | None:
    """None: of nothing."""
    if not values:
        return None
    found = interval(values)
    is_one = found.half is None
    return Estimate(found.count, found.mean, None if is_one else found.low, None if is_one else found.high)


def values_of(
    plan: Plan, cell: Cell, statistic: Statistic, metric: str, arm: str, against: str | None
) -> list[float] | None:
    """One a complete repetition. None: the metric is missing in some, or a ratio would be over 0."""
    found: list[float] = []
    for repetition in cell.complete(plan.arms):
        value = cell.values[arm][repetition].get(metric)
        other = None if against is None else cell.values[against][repetition].get(metric)
        if value is None or (against is not None and other is None):
            return None
        match statistic:
            case Statistic.VALUE:
                found.append(value)
            case Statistic.DIFFERENCE:
                assert other is not None
                found.append(value - other)
            case Statistic.RATIO:
                if not other:
                    return None
                found.append(value / other)
    return found


def estimate_of(
    plan: Plan, cell: Cell, statistic: Statistic, metric: str, arm: str, against: str | None
) -> Estimate | None:
    values = values_of(plan, cell, statistic, metric, arm, against)
    return None if values is None else estimate(values)
