"""A report in a few lines for a terminal: verdicts first."""

from lmpool.bench.study.plan import Plan
from lmpool.bench.study.report import PointReport, StudyReport
from lmpool.bench.study.words import estimate_text, metric_name, point_title, share
from lmpool.bench.table import table_lines


def summary_lines(report: StudyReport, plan: Plan) -> list[str]:
    valid = sum(trial.is_valid for trial in report.trials)
    left_out = f", {report.needless} left out" if report.needless else ""
    lines = [
        f"{report.name}: {report.question}",
        f"venue {report.venue}, {valid} valid trials of {report.planned} planned{left_out}, plan sha256 "
        f"{report.plan_sha256}",
    ]
    for word, verdict in (("success", report.success), ("go", report.go)):
        if verdict is not None:
            lines.append(f"{word}: {verdict}")
    for rule in report.rules:
        lines.append(f"  {rule.verdict.value}: {rule.name} ({rule.text})")
        lines += [f"    {one.workload} {one.budget:g} {one.rate:g}: {one.why}" for one in rule.points]
    lines += [f"departure: {said}" for said in report.departures]
    lines += _found(report)
    for point in report.points:
        if point.requests:
            title = f"{point_title(plan, point)}; the trace allows {share(point.token_sharing)} of tokens"
            lines += ["", title, *_point_lines(plan, point)]
    return lines


def _found(report: StudyReport) -> list[str]:
    lines = []
    for knee in report.knees:
        where = "not known" if knee.budget is None else f"{knee.budget:g}" + (", the largest" if knee.is_last else "")
        lines.append(f"knee of {knee.workload}, load {knee.rate:g}, {knee.arm}: {where}")
    for one in report.crossover:
        tried = ", ".join(f"{rung.rate:g} {rung.win.value}" for rung in one.rungs)
        lines.append(f"crossover of {one.workload}, {one.arm}: {one.search.value} (tried {tried or 'nothing'})")
    return lines


def _point_lines(plan: Plan, point: PointReport) -> list[str]:
    """Means with intervals, and below them the ratios to the baseline."""
    rows = []
    for metric in plan.metrics:
        cells, ratios = [metric_name(metric)], ["  ratio"]
        for arm in point.arms:
            found = next((one for one in arm.metrics if one.metric == metric), None)
            cells.append("" if found is None else estimate_text(found.value))
            ratios.append("" if found is None else estimate_text(found.ratio))
        rows.append(cells)
        if any(ratios[1:]):
            rows.append(ratios)
    return table_lines(("", *(arm.arm for arm in point.arms)), rows)
