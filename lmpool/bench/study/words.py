"""How numbers and names of a report are written."""

from lmpool.bench.study.plan import Plan
from lmpool.bench.study.report import PointReport
from lmpool.bench.study.statistic import Estimate
from lmpool.bench.trial.metrics import METRICS


def number(value: float) -> str:
    if abs(value) >= 1_000:
        return f"{value:,.0f}"
    return f"{value:.4g}" if abs(value) >= 1e-4 or value == 0 else f"{value:.2e}"


def estimate_text(found: Estimate | None) -> str:
    """With the interval, where there is one."""
    if found is None:
        return ""
    if found.low is None or found.high is None:
        return number(found.mean)
    return f"{number(found.mean)} [{number(found.low)}, {number(found.high)}]"


def metric_name(metric: str) -> str:
    unit = METRICS[metric].unit
    name = metric.removesuffix("_s").replace("_", " ")
    return f"{name}, {unit}" if unit and unit not in name.split() else name


def budget_text(plan: Plan, budget: float) -> str:
    return f"{budget:g} of the blocks at the end" if plan.budget.shares else f"{budget:g} blocks"


def point_title(plan: Plan, point: PointReport) -> str:
    blocks = ""
    if point.kv_blocks and set(point.kv_blocks) != {point.budget}:
        least, most = point.kv_blocks[0], point.kv_blocks[-1]
        blocks = f" ({least:,})" if least == most else f" ({least:,} to {most:,})"
    return f"{point.workload}, KV budget {budget_text(plan, point.budget)}{blocks}, load {point.rate:g}"


def share(value: float) -> str:
    return f"{value:.1%}"
