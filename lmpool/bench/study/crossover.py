"""Where arms stop winning over another: each workload's loads are tried from the lowest on, until none wins any more.

What ends the search is decided from the evidence alone, so a study that goes on decides as one that was never
interrupted.
"""

from collections.abc import Sequence
from enum import Enum

import attrs

from lmpool.bench.study.matrix import Point
from lmpool.bench.study.plan import Crossover, Plan, Statistic
from lmpool.bench.study.statistic import Cell, Estimate, estimate_of
from lmpool.bench.trial.metrics import METRICS, Better


class Win(Enum):
    WINS = "wins"
    EVEN = "no difference is shown"
    LOSES = "loses"
    UNKNOWN = "not yet known"


STOPS = (Win.EVEN, Win.LOSES)


class Search(Enum):
    FOUND = "found"
    NEVER_WON = "does not win at the lowest load"
    NOT_REACHED = "not reached"
    OPEN = "not yet searched to its end"


@attrs.frozen
class Rung:
    rate: float
    ratio: Estimate | None
    """Of the arm to the other."""
    win: Win


@attrs.frozen
class Crossed:
    """The search on one workload, for one arm."""

    workload: str
    arm: str
    rungs: tuple[Rung, ...]
    """That were tried, up to the first at which it does not win."""
    search: Search
    last_won: float | None
    first_lost: float | None


def win(plan: Plan, crossover: Crossover, arm: str, cell: Cell) -> tuple[Win, Estimate | None]:
    """By the paired ratio: which side of 1 it is on, with the whole interval where there is one."""
    found = estimate_of(plan, cell, Statistic.RATIO, crossover.metric, arm, crossover.against)
    if found is None or found.repetitions < plan.repetitions:
        return Win.UNKNOWN, found
    low, high = (found.mean if bound is None else bound for bound in (found.low, found.high))
    if METRICS[crossover.metric].better is Better.MORE:
        return _side(-high, -low, -1.0), found
    return _side(low, high, 1.0), found


def _side(low: float, high: float, even: float) -> Win:
    if high < even:
        return Win.WINS
    return Win.LOSES if low > even else Win.EVEN


def is_needless(plan: Plan, point: Point, cells: Sequence[Cell]) -> bool:
    """Whether lower loads of the workload have ended the search of every arm, so that this one is not run."""
    crossover = plan.crossover
    if crossover is None:
        return False
    lower = [cell for cell in cells if cell.point.workload == point.workload and cell.point.rate < point.rate]
    return all(any(win(plan, crossover, arm, cell)[0] in STOPS for cell in lower) for arm in crossover.arms)


def crossed(plan: Plan, crossover: Crossover, cells: Sequence[Cell]) -> tuple[Crossed, ...]:
    """In the order of the plan: of skew."""
    by_workload: dict[str, list[Cell]] = {workload.name: [] for workload in plan.workload}
    for cell in cells:
        by_workload[cell.point.workload].append(cell)
    return tuple(
        _crossed(plan, crossover, arm, workload, found)
        for workload, found in by_workload.items()
        for arm in crossover.arms
    )


def _crossed(plan: Plan, crossover: Crossover, arm: str, workload: str, cells: Sequence[Cell]) -> Crossed:
    rungs: list[Rung] = []
    search, last_won, first_lost = Search.NOT_REACHED, None, None
    for cell in sorted(cells, key=lambda cell: cell.point.rate):
        won, ratio = win(plan, crossover, arm, cell)
        rungs.append(Rung(cell.point.rate, ratio, won))
        if won is Win.WINS:
            last_won = cell.point.rate
            continue
        if won is Win.UNKNOWN:
            search = Search.OPEN
        else:
            first_lost = cell.point.rate
            search = Search.NEVER_WON if last_won is None else Search.FOUND
        break
    return Crossed(workload, arm, tuple(rungs), search, last_won, first_lost)
