"""Trials of a study read back: figures, what speaks against each, and the facts that a report tells."""

from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path

import attrs

from lmpool.bench.study.decisions import JoinSummary, join, summary
from lmpool.bench.study.folder import Folder, evidence_digest, last_entries
from lmpool.bench.study.matrix import Trial, is_planned, matrix, points
from lmpool.bench.study.plan import Plan
from lmpool.bench.study.statistic import Cell
from lmpool.bench.trial.checks import problems
from lmpool.bench.trial.evidence import EvidenceError, MachineFacts, WorkloadFacts, read_evidence
from lmpool.bench.trial.metrics import metrics
from lmpool.bench.trial.spec import TrialSpec


@attrs.frozen
class Facts:
    """Of the evidence of one trial."""

    spec: TrialSpec
    workload: WorkloadFacts
    machine: MachineFacts
    began_at: str
    wall_s: float
    problems: tuple[str, ...]
    metrics: dict[str, float]
    join: JoinSummary


@attrs.frozen
class TrialRead:
    trial: Trial
    facts: Facts | None
    """None: it has not run, or cannot be read."""
    departures: tuple[str, ...]
    """From the plan, in what is there."""

    @property
    def is_valid(self) -> bool:
        return self.facts is not None and not self.facts.problems and not self.departures


def read_trials(folder: Folder) -> list[TrialRead]:
    """Of all planned trials, in the order of the plan."""
    return [_read(folder, trial) for trial in matrix(folder.plan)]


def cells_of(plan: Plan, read: Sequence[TrialRead]) -> list[Cell]:
    """Every point of the plan, with its valid trials."""
    cells = []
    for point in points(plan):
        values: dict[str, dict[int, dict[str, float]]] = {arm: {} for arm in plan.arms}
        for one in read:
            if one.trial.point == point and one.is_valid:
                assert one.facts is not None
                values[one.trial.arm][one.trial.repetition] = one.facts.metrics
        cells.append(Cell(point, values))
    return cells


def _read(folder: Folder, trial: Trial) -> TrialRead:
    place = folder.trial(trial)
    if not place.exists():
        return TrialRead(trial, None, ())
    digest = evidence_digest(place)
    entry = last_entries(folder.ledger).get(trial.name)
    try:
        facts = _facts(place, _state(place))
    except EvidenceError as error:
        return TrialRead(trial, None, (_without_path(str(error), folder.path),))
    departures = []
    if entry is None:
        departures.append("its end is not in the ledger")
    elif entry.evidence != digest:
        departures.append("its evidence has changed since it ended")
    if not is_planned(folder.plan, trial, folder.frozen.venue, facts.spec):
        departures.append("its spec is not that of the plan")
    return TrialRead(trial, facts, tuple(departures))


@lru_cache(maxsize=4_096)
def _facts(place: Path, state: tuple[tuple[str, int, int], ...]) -> Facts:
    """`state`: so that what has changed is read again. Raises EvidenceError."""
    assert state is not None
    evidence = read_evidence(place)
    return Facts(
        spec=evidence.spec,
        workload=evidence.workload,
        machine=evidence.machine,
        began_at=evidence.outcome.began_at,
        wall_s=evidence.outcome.wall_s,
        problems=problems(evidence),
        metrics=metrics(evidence),
        join=summary(join(evidence), len(evidence.requests)),
    )


def _state(place: Path) -> tuple[tuple[str, int, int], ...]:
    files = [(file.name, file.stat()) for file in sorted(place.iterdir())]
    return tuple((name, stat.st_mtime_ns, stat.st_size) for name, stat in files)


def _without_path(text: str, path: Path) -> str:
    """A report says the same wherever the folder lies."""
    return text.replace(f"{path}/", "")
