"""What a study has found, as one record: made from its frozen plan and the evidence of its trials alone.

The same files give the same record on every machine and at every hour.
"""

import json
from collections import Counter
from collections.abc import Iterator, Sequence
from statistics import fmean

import attrs
from cattrs import BaseValidationError

from lmpool.bench.study import decisions
from lmpool.bench.study.crossover import Crossed, crossed, is_needless
from lmpool.bench.study.decisions import JoinSummary
from lmpool.bench.study.folder import FAILED, TORN, Folder, last_entries
from lmpool.bench.study.matrix import Point
from lmpool.bench.study.plan import Kind, Plan, Statistic
from lmpool.bench.study.reading import Facts, TrialRead, cells_of, read_trials
from lmpool.bench.study.rules import RuleVerdict, Verdict, judge, together
from lmpool.bench.study.statistic import Cell, Estimate, estimate_of
from lmpool.bench.study.sweep import Knee, knees
from lmpool.bench.trial.evidence import MachineFacts
from lmpool.io.records import explain, strict_converter

SCHEMA_VERSION = 1


class ReportError(Exception):
    """One line: why this is no report."""


@attrs.frozen
class MetricReport:
    metric: str
    value: Estimate
    ratio: Estimate | None
    """To the baseline, paired by repetition. None: it is the baseline, or has no value."""
    difference: Estimate | None


@attrs.frozen
class ArmReport:
    arm: str
    valid: int
    """Trials."""
    metrics: tuple[MetricReport, ...]
    """Without those that have no value here."""
    decisions: JoinSummary


@attrs.frozen
class PointReport:
    workload: str
    budget: float
    rate: float
    kv_blocks: tuple[int, ...]
    """Of each replica: least and most of the repetitions. Empty: nothing has run."""
    requests: int
    prompt_tokens: int
    """Mean over valid trials."""
    request_sharing: float
    """What the trace itself allows, as the next."""
    token_sharing: float
    complete: int
    """Repetitions in which every arm has a valid trial."""
    arms: tuple[ArmReport, ...]


@attrs.frozen
class TrialReport:
    name: str
    repetition: int
    seed: int
    workload: str
    """Fingerprint."""
    attempts: int
    is_valid: bool
    began_at: str
    seconds: float
    problems: tuple[str, ...]


@attrs.frozen
class StudyReport:
    schema_version: int
    name: str
    question: str
    venue: str
    plan_sha256: str
    plan: str
    """Its text."""
    baseline: str
    repetitions: int
    success: str | None
    """Of all rules of success together. None: the plan has none, as in the next."""
    go: str | None
    rules: tuple[RuleVerdict, ...]
    points: tuple[PointReport, ...]
    knees: tuple[Knee, ...]
    crossover: tuple[Crossed, ...]
    departures: tuple[str, ...]
    trials: tuple[TrialReport, ...]
    """In the order of the plan; those that have run."""
    planned: int
    needless: int
    """Trials that were left out, as a lower load had ended their search."""
    machines: tuple[MachineFacts, ...]


def study_report(folder: Folder) -> StudyReport:
    plan = folder.plan
    read = read_trials(folder)
    cells = cells_of(plan, read)
    needless = [one for one in read if one.facts is None and is_needless(plan, one.trial.point, cells)]
    shown = [cell for cell in cells if not is_needless(plan, cell.point, cells)]
    rules = tuple(judge(plan, rule, shown) for rule in plan.rule)
    return StudyReport(
        schema_version=SCHEMA_VERSION,
        name=plan.name,
        question=plan.question,
        venue=folder.frozen.venue.value,
        plan_sha256=folder.frozen.plan_sha256,
        plan=folder.plan_bytes.decode(),
        baseline=plan.baseline,
        repetitions=plan.repetitions,
        success=_overall(rules, Kind.SUCCESS),
        go=_overall(rules, Kind.GO),
        rules=rules,
        points=tuple(_point(plan, cell, read) for cell in shown),
        knees=knees(plan, plan.sweep, cells) if plan.sweep is not None else (),
        crossover=crossed(plan, plan.crossover, shown) if plan.crossover is not None else (),
        departures=tuple(_departures(folder, read, len(needless))),
        trials=tuple(_trial(folder, one, one.facts) for one in read if one.facts is not None),
        planned=len(read),
        needless=len(needless),
        machines=_machines(read),
    )


def _overall(rules: Sequence[RuleVerdict], kind: Kind) -> str | None:
    verdicts: list[Verdict] = [rule.verdict for rule in rules if rule.kind is kind]
    return together(verdicts).value if verdicts else None


def _point(plan: Plan, cell: Cell, read: Sequence[TrialRead]) -> PointReport:
    here = [one for one in read if one.trial.point == cell.point and one.is_valid]
    facts = [one.facts for one in here if one.facts is not None]
    blocks = [one.spec.kv_blocks for one in facts]
    return PointReport(
        workload=cell.point.workload,
        budget=cell.point.budget,
        rate=cell.point.rate,
        kv_blocks=(min(blocks), max(blocks)) if blocks else (),
        requests=max((one.workload.requests for one in facts), default=0),
        prompt_tokens=round(fmean([one.workload.prompt_tokens for one in facts])) if facts else 0,
        request_sharing=fmean([one.workload.sharing.requests for one in facts]) if facts else 0.0,
        token_sharing=fmean([one.workload.sharing.tokens for one in facts]) if facts else 0.0,
        complete=len(cell.complete(plan.arms)),
        arms=tuple(_arm(plan, cell, arm, [one for one in here if one.trial.arm == arm]) for arm in plan.arms),
    )


def _arm(plan: Plan, cell: Cell, arm: str, here: Sequence[TrialRead]) -> ArmReport:
    found = []
    for metric in plan.metrics:
        value = estimate_of(plan, cell, Statistic.VALUE, metric, arm, None)
        if value is not None:
            ratio, difference = _against(plan, cell, metric, arm)
            found.append(MetricReport(metric, value, ratio, difference))
    joins = [one.facts.join for one in here if one.facts is not None]
    return ArmReport(arm, len(here), tuple(found), decisions.together(joins))


def _against(plan: Plan, cell: Cell, metric: str, arm: str) -> tuple[Estimate | None, Estimate | None]:
    if arm == plan.baseline:
        return None, None
    return (
        estimate_of(plan, cell, Statistic.RATIO, metric, arm, plan.baseline),
        estimate_of(plan, cell, Statistic.DIFFERENCE, metric, arm, plan.baseline),
    )


def _trial(folder: Folder, one: TrialRead, facts: Facts) -> TrialReport:
    entry = last_entries(folder.ledger).get(one.trial.name)
    return TrialReport(
        name=one.trial.name,
        repetition=one.trial.repetition,
        seed=facts.spec.seed,
        workload=facts.workload.fingerprint,
        attempts=1 if entry is None else entry.attempt,
        is_valid=one.is_valid,
        began_at=facts.began_at,
        seconds=facts.wall_s,
        problems=(*facts.problems, *one.departures),
    )


def _departures(folder: Folder, read: Sequence[TrialRead], needless: int) -> Iterator[str]:
    """Where what was done differs from what was planned."""
    planned = folder.plan.venue
    if folder.frozen.venue is not planned:
        yield f"the plan is for the venue {planned.value}, and it ran in the venue {folder.frozen.venue.value}"
    absent = [one for one in read if one.facts is None and not one.departures]
    failed = sum(bool(folder.put_aside(one.trial, FAILED)) for one in absent)
    if len(absent) - failed - needless:
        yield f"{len(absent) - failed - needless} of {len(read)} trials have not run"
    if failed:
        yield f"{failed} of {len(read)} trials have failed"
    for one in read:
        for said in (*one.departures, *(one.facts.problems if one.facts is not None else ())):
            yield f"{one.trial.name}: {said}"
        for word, about in ((FAILED, "failed"), (TORN, "was torn by an interruption")):
            times = len(folder.put_aside(one.trial, word))
            if times:
                yield f"{one.trial.name}: {about} {'once' if times == 1 else f'{times} times'}{_why(folder, one, word)}"
    yield from _strangers(folder, read)
    yield from _mixed(read)


def _why(folder: Folder, one: TrialRead, word: str) -> str:
    failed = [entry for entry in folder.ledger if entry.trial == one.trial.name and not entry.is_valid]
    return f" ({'; '.join(failed[-1].problems)})" if word == FAILED and failed else ""


def _strangers(folder: Folder, read: Sequence[TrialRead]) -> Iterator[str]:
    planned = {one.trial.name for one in read}
    extra = sorted({entry.trial for entry in folder.ledger if entry.trial not in planned})
    if extra:
        yield f"the ledger has trials that the plan does not: {', '.join(extra)}"
    foreign = folder.foreign(planned)
    if foreign:
        yield f"among the trials lies what is of none: {', '.join(foreign)}"


def _mixed(read: Sequence[TrialRead]) -> Iterator[str]:
    """Trials are to differ in nothing but what the plan says."""
    machines = [one.facts.machine for one in read if one.facts is not None]
    kinds = Counter((one.lmpool, str(one.git)) for one in machines)
    if len(kinds) > 1:
        yield f"trials are of {len(kinds)} versions of the code"
    if any(one.git is not None and one.git.is_changed for one in machines):
        yield "the code differed from its commit in some trials"
    if len({(one.system, one.processor, one.cores) for one in machines}) > 1:
        yield "trials are of several machines"
    for point in dict.fromkeys(one.trial.point for one in read):
        yield from _unpaired(point, read)


def _unpaired(point: Point, read: Sequence[TrialRead]) -> Iterator[str]:
    here = [one for one in read if one.trial.point == point and one.facts is not None]
    for repetition in sorted({one.trial.repetition for one in here}):
        facts = [one.facts for one in here if one.trial.repetition == repetition and one.facts is not None]
        if len({one.workload.fingerprint for one in facts}) > 1:
            yield f"{point.name}: the arms of repetition {repetition} had different workloads"
        if len({one.spec.kv_blocks for one in facts}) > 1:
            yield f"{point.name}: the arms of repetition {repetition} had different numbers of blocks"


def _machines(read: Sequence[TrialRead]) -> tuple[MachineFacts, ...]:
    return tuple({str(one.facts.machine): one.facts.machine for one in read if one.facts is not None}.values())


def report_text(report: StudyReport) -> str:
    return json.dumps(strict_converter().unstructure(report), indent=1, allow_nan=False) + "\n"


def read_report(text: str) -> StudyReport:
    """Strict. Raises ReportError."""
    try:
        report = strict_converter().structure(json.loads(text), StudyReport)
    except BaseValidationError as error:
        raise ReportError(f"this is no report of a study: {explain(error)}") from error
    except ValueError as error:
        raise ReportError(f"this is no JSON: {error}") from error
    if report.schema_version != SCHEMA_VERSION:
        raise ReportError(f"schema {report.schema_version}: this version reads {SCHEMA_VERSION}")
    return report
