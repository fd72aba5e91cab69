"""A report as one HTML page that needs nothing else: figures and style are in it, and no script is."""

import re
from collections.abc import Iterator, Sequence
from html import escape

from lmpool.bench.study.figures import drawn, pictures
from lmpool.bench.study.plan import Plan
from lmpool.bench.study.report import PointReport, StudyReport
from lmpool.bench.study.rules import RuleVerdict
from lmpool.bench.study.words import estimate_text, metric_name, number, point_title, share
from lmpool.bench.trial.metrics import METRICS

STYLE = """\
body { font: 15px/1.5 system-ui, sans-serif; max-width: 72rem; margin: 2rem auto; padding: 0 1rem; color: #1d2430; }
h1, h2, h3 { line-height: 1.25; } h2 { margin-top: 2.2em; border-bottom: 1px solid #ccd3dd; }
table { border-collapse: collapse; margin: .8em 0; font-size: 13px; display: block; overflow-x: auto; }
th, td { padding: .25em .7em; border-bottom: 1px solid #e3e7ed; text-align: right; white-space: nowrap; }
th:first-child, td:first-child { text-align: left; } td.text { text-align: left; white-space: normal; }
.met { color: #20702f; font-weight: 600; } .not-met { color: #b3261e; font-weight: 600; }
.undecided { color: #8a5a00; font-weight: 600; }
figure { margin: 1.2em 0; } figure svg { max-width: 100%; height: auto; } figcaption { color: #55606e; }
pre { background: #f5f7fa; padding: 1em; overflow-x: auto; font-size: 12.5px; } code { font-size: 13px; }
.note { color: #55606e; }
"""


def html_page(report: StudyReport, plan: Plan) -> str:
    parts = [
        *_head(report),
        *_verdicts(report),
        *_departures(report),
        *_allowed(report, plan),
        *_knees(report),
        *_crossover(report, plan),
        *_figures(report, plan),
        *_tables(report, plan),
        *_decisions(report, plan),
        *_trials(report),
        *_machines(report),
        *_again(report),
    ]
    body = "\n".join(parts)
    return (
        f'<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n<title>{escape(report.name)}</title>\n'
        f'<meta name="viewport" content="width=device-width">\n<style>\n{STYLE}</style>\n</head>\n<body>\n{body}\n'
        "</body>\n</html>\n"
    )


def _table(columns: Sequence[str], rows: Sequence[Sequence[str]], text_columns: Sequence[int] = ()) -> str:
    """Cells are plain text, save those that begin with a tag of ours."""
    head = "".join(f"<th>{escape(column)}</th>" for column in columns)
    lines = [f"<table><thead><tr>{head}</tr></thead><tbody>"]
    for row in rows:
        cells = "".join(
            f"<td{' class=text' if place in text_columns else ''}>{_cell(cell)}</td>" for place, cell in enumerate(row)
        )
        lines.append(f"<tr>{cells}</tr>")
    return "\n".join([*lines, "</tbody></table>"])


def _cell(text: str) -> str:
    return text if text.startswith("<span class=") else escape(text)


def _verdict(word: str) -> str:
    return f'<span class="{word.replace(" ", "-")}">{escape(word)}</span>'


def _head(report: StudyReport) -> Iterator[str]:
    valid = sum(trial.is_valid for trial in report.trials)
    yield f"<h1>{escape(report.name)}</h1>"
    yield f"<p><strong>{escape(report.question)}</strong></p>"
    left_out = f", {report.needless} left out as a lower load had ended their search" if report.needless else ""
    yield (
        f'<p class="note">Venue: {escape(report.venue)}. {valid} valid trials of {report.planned} planned{left_out}; '
        f"{report.repetitions} repetitions. Plan sha256 <code>{report.plan_sha256}</code>.</p>"
    )


def _verdicts(report: StudyReport) -> Iterator[str]:
    yield "<h2>Verdicts</h2>"
    if not report.rules:
        yield "<p>The plan has no rules: it asks for figures alone.</p>"
        return
    for word, verdict in (("Success", report.success), ("Go", report.go)):
        if verdict is not None:
            yield f"<p>{word}: {_verdict(verdict)}</p>"
    rows = [[rule.name, rule.kind.value, _verdict(rule.verdict.value), rule.text] for rule in report.rules]
    yield _table(("rule", "of", "verdict", "what should be so"), rows, (3,))
    for rule in report.rules:
        yield from _rule_points(rule)


def _rule_points(rule: RuleVerdict) -> Iterator[str]:
    yield f"<h3>{escape(rule.name)}</h3>"
    rows = [
        [
            one.workload,
            f"{one.budget:g}",
            f"{one.rate:g}",
            estimate_text(one.estimate),
            _verdict(one.verdict.value),
            one.why,
        ]
        for one in rule.points
    ]
    yield _table(("workload", "KV budget", "load", "mean [95 %]", "verdict", "why"), rows, (5,))


def _departures(report: StudyReport) -> Iterator[str]:
    yield "<h2>Departures from the plan</h2>"
    if report.departures:
        yield "<ul>" + "".join(f"<li>{escape(said)}</li>" for said in report.departures) + "</ul>"
    else:
        yield "<p>None.</p>"


def _allowed(report: StudyReport, plan: Plan) -> Iterator[str]:
    yield "<h2>What the trace allows, and what was achieved</h2>"
    yield (
        '<p class="note">Allowed: shares of requests and of prompt tokens that complete blocks seen earlier could '
        "serve, with an endless cache and perfect placement.</p>"
    )
    rows = []
    for point in report.points:
        for arm in point.arms:
            found = {one.metric: one.value for one in arm.metrics}
            rows.append(
                [
                    point_title(plan, point),
                    arm.arm,
                    share(point.request_sharing) if point.requests else "",
                    estimate_text(found.get("request_hit")),
                    share(point.token_sharing) if point.requests else "",
                    estimate_text(found.get("reuse")),
                ]
            )
    columns = ("point", "arm", "requests allowed", "request_hit", "tokens allowed", "reuse")
    yield _table(columns, rows)


def _knees(report: StudyReport) -> Iterator[str]:
    if not report.knees:
        return
    within = report.knees[0].within
    yield "<h2>Knee of the KV budget</h2>"
    yield (
        f'<p class="note">The smallest budget from which on the mean of {escape(report.knees[0].metric)} is within '
        f"{within:.0%} of that at the largest budget.</p>"
    )
    rows = []
    for one in report.knees:
        at = "not known" if one.budget is None else f"{one.budget:g}"
        tried = ", ".join(f"{budget}: {number(mean)}" for budget, mean in one.means.items())
        rows.append([one.workload, f"{one.rate:g}", one.arm, f"{at}, the largest tried" if one.is_last else at, tried])
    yield _table(("workload", "load", "arm", "knee", "means by budget"), rows, (4,))


def _crossover(report: StudyReport, plan: Plan) -> Iterator[str]:
    if plan.crossover is None:
        return
    asked = plan.crossover
    yield "<h2>Crossover</h2>"
    yield (
        f'<p class="note">An arm wins over {escape(asked.against)} at a load if the whole interval of its paired '
        f"ratio of {escape(asked.metric)} is on the better side of 1. Loads rise until no arm does.</p>"
    )
    rows = []
    for one in report.crossover:
        tried = ", ".join(f"{rung.rate:g}: {estimate_text(rung.ratio)} {rung.win.value}" for rung in one.rungs)
        won = "" if one.last_won is None else f"{one.last_won:g}"
        lost = "" if one.first_lost is None else f"{one.first_lost:g}"
        rows.append([one.workload, one.arm, one.search.value, won, lost, tried])
    yield _table(("workload", "arm", "crossover", "last won at", "stopped at", "ratios by load"), rows, (5,))


def _figures(report: StudyReport, plan: Plan) -> Iterator[str]:
    yield "<h2>Figures</h2>"
    for picture in pictures(report, plan):
        svg = drawn(picture, "svg").decode()
        inline = re.sub(r"^.*?(?=<svg)|<metadata>.*?</metadata>", "", svg, flags=re.DOTALL)
        unique = re.sub(r'(\bid="|url\(#|href="#)', rf"\g<1>{picture.name}-", inline)
        yield f"<figure>{unique}<figcaption>{escape(picture.caption)}</figcaption></figure>"


def _tables(report: StudyReport, plan: Plan) -> Iterator[str]:
    yield "<h2>All figures</h2>"
    ratio = f"the ratio to {escape(report.baseline)}, paired by repetition"
    yield f'<p class="note">Mean [95 % interval]; then {ratio}.</p>'
    yield "<ul>" + "".join(f"<li>{escape(metric)}: {escape(METRICS[metric].about)}</li>" for metric in plan.metrics)
    yield "</ul>"
    for point in report.points:
        yield f"<h3>{escape(point_title(plan, point))}</h3>"
        yield _point_facts(point, report.repetitions)
        columns = ["arm"]
        for metric in plan.metrics:
            columns += [metric_name(metric), "ratio"]
        yield _table(columns, [[arm.arm, *_cells(plan, point, arm.arm)] for arm in point.arms])


def _point_facts(point: PointReport, repetitions: int) -> str:
    return (
        f'<p class="note">{point.requests:,} requests, {point.prompt_tokens:,} prompt tokens; {point.complete} of '
        f"{repetitions} repetitions are complete.</p>"
    )


def _cells(plan: Plan, point: PointReport, arm: str) -> Iterator[str]:
    found = {one.metric: one for one in next(one for one in point.arms if one.arm == arm).metrics}
    for metric in plan.metrics:
        one = found.get(metric)
        yield "" if one is None else estimate_text(one.value)
        yield "" if one is None else estimate_text(one.ratio)


def _decisions(report: StudyReport, plan: Plan) -> Iterator[str]:
    yield "<h2>Decisions</h2>"
    yield (
        '<p class="note">Passed over: the request went where less of its prompt was cached than on another rank. '
        "Recomputed: tokens that this rank had, and that were computed again. "
        "<code>lmpool study decisions DIR</code> lists them one by one.</p>"
    )
    rows = []
    for point in report.points:
        for arm in point.arms:
            one = arm.decisions
            waited = "" if one.queued_s is None or not one.joined else number(one.queued_s / one.joined)
            counts = (one.joined, one.passed_over, one.recomputed_tokens, one.expected_tokens, one.reused_tokens)
            rows.append([point_title(plan, point), arm.arm, *(f"{count:,}" for count in counts), waited])
    columns = ("point", "arm", "decisions", "passed over", "recomputed", "reuse expected", "reused", "mean wait, s")
    yield _table(columns, rows)


def _trials(report: StudyReport) -> Iterator[str]:
    yield "<h2>Trials</h2>"
    rows = [
        [
            trial.name,
            str(trial.seed),
            trial.workload,
            str(trial.attempts),
            trial.began_at,
            f"{trial.seconds:.1f}",
            "valid" if trial.is_valid else "; ".join(trial.problems),
        ]
        for trial in report.trials
    ]
    yield _table(("trial", "seed", "workload", "attempt", "began", "seconds", "checks"), rows, (6,))


def _machines(report: StudyReport) -> Iterator[str]:
    yield "<h2>Machine</h2>"
    for one in report.machines:
        git = "not from a checkout"
        if one.git is not None:
            git = f"commit {one.git.commit}" + (" with changes" if one.git.is_changed else "")
        packages = ", ".join(f"{name} {version}" for name, version in one.packages.items())
        yield (
            f"<p>{escape(one.system)}; {escape(one.processor or 'processor not told')}, {one.cores} cores; Python "
            f"{escape(one.python)}, lmpool {escape(one.lmpool)} ({escape(git)}); {escape(packages)}.</p>"
        )


def _again(report: StudyReport) -> Iterator[str]:
    yield "<h2>How to repeat it</h2>"
    yield (
        "<p>Save the plan below, and run it; the report is made from the folder alone.</p>"
        f"<pre>lmpool study run plan.toml --out DIR --venue {escape(report.venue)}\n"
        f"lmpool study report DIR --html report.html --json report.json</pre>"
    )
    yield f"<h3>Plan</h3>\n<pre>{escape(report.plan)}</pre>"
