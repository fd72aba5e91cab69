"""A report in a few lines for a terminal: verdicts first."""

from lmpool.bench.study.plan import Plan
from lmpool.bench.study.report import MetricReport, PointReport, StudyReport
from lmpool.bench.study.words import estimate_text, metric_name, point_title, share
from lmpool.bench.table import table_lines

ARMS_BESIDE = 5
"""More columns of estimates are wider than terminals."""


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
    """Means with intervals, and below them the ratios to the baseline; many arms stand below each other."""
    found = {(arm.arm, one.metric): one for arm in point.arms for one in arm.metrics}
    metrics = [metric for metric in plan.metrics if any((arm, metric) in found for arm in plan.arms)]
    if len(plan.arms) > ARMS_BESIDE:
        rows = [
            [f"{metric_name(metric)}:" if arm == plan.arms[0] else "", arm, *_texts(found.get((arm, metric)))]
            for metric in metrics
            for arm in plan.arms
        ]
        return table_lines(("", "arm", "mean", "ratio"), rows)
    rows = []
    for metric in metrics:
        texts = [_texts(found.get((arm, metric))) for arm in plan.arms]
        rows.append([metric_name(metric), *(value for value, _ in texts)])
        if any(ratio for _, ratio in texts):
            rows.append(["  ratio", *(ratio for _, ratio in texts)])
    return table_lines(("", *plan.arms), rows)


def _texts(found: MetricReport | None) -> tuple[str, str]:
    return ("", "") if found is None else (estimate_text(found.value), estimate_text(found.ratio))
