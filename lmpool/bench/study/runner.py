"""Runs the trials of a study one after the other, each in a fresh process, and goes on where it was interrupted."""

import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeAlias

import attrs

from lmpool.bench.study.crossover import is_needless
from lmpool.bench.study.folder import (
    FAILED,
    LOG,
    TORN,
    Entry,
    Folder,
    StudyError,
    append_entry,
    evidence_digest,
    last_entries,
)
from lmpool.bench.study.matrix import Trial, rungs, trial_spec
from lmpool.bench.study.reading import cells_of, read_trials
from lmpool.bench.trial.checks import problems
from lmpool.bench.trial.evidence import EvidenceError, read_evidence
from lmpool.bench.trial.kept import last_line, put_aside
from lmpool.bench.trial.spec import TrialSpec

ATTEMPTS = 2
"""Of a trial: what fails twice is told and left alone."""

Perform: TypeAlias = Callable[[TrialSpec, Path, Path], int]
"""A spec, the folder of its evidence and the file of its words: the exit code."""
Tell: TypeAlias = Callable[[str], None]


@attrs.frozen
class Progress:
    trials: int
    done: int
    left_s: float | None
    """From what trials took so far. None: none has run yet."""


def run_study(folder: Folder, perform: Perform, tell: Tell) -> tuple[Folder, list[str]]:
    """Trials that are not valid after all attempts are named. Raises StudyError, TraceError."""
    bad: list[str] = []
    left = [trial for rung in rungs(folder.plan) for trial in rung]
    total = len(left)
    for rung in rungs(folder.plan):
        cells = cells_of(folder.plan, read_trials(folder)) if folder.plan.crossover is not None else []
        for trial in rung:
            left.remove(trial)
            if is_needless(folder.plan, trial.point, cells):
                continue
            folder, is_valid = _settle(folder, trial, perform, _told(folder, total, len(left)), tell)
            if not is_valid:
                bad.append(trial.name)
    return folder, bad


def _told(folder: Folder, total: int, left: int) -> str:
    """Before a trial."""
    progress = estimate(folder, total, left + 1)
    time_left = "" if progress.left_s is None else f", about {duration(progress.left_s)} left"
    return f"trial {progress.done + 1} of {progress.trials}{time_left}"


def estimate(folder: Folder, total: int, left: int) -> Progress:
    took = [entry.seconds for entry in folder.ledger if entry.is_valid and entry.seconds]
    return Progress(total, total - left, sum(took) / len(took) * left if took else None)


def duration(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 100 else f"{seconds / 60:.0f} min"


def _settle(folder: Folder, trial: Trial, perform: Perform, about: str, tell: Tell) -> tuple[Folder, bool]:
    """Whole trials stay as they are; what is not is put aside and run again, while attempts are left."""
    spec = trial_spec(folder.plan, trial, folder.frozen.venue)
    if folder.trial(trial).exists():
        folder, is_valid = _found(folder, trial, spec, tell)
        if is_valid:
            return folder, True
    while (attempt := len(folder.put_aside(trial, FAILED)) + 1) <= ATTEMPTS:
        tell(f"{about}: {trial.name}" + (f", attempt {attempt}" if attempt > 1 else ""))
        folder, is_valid = _attempt(folder, trial, spec, perform, attempt)
        if is_valid:
            return folder, True
        tell(f"{trial.name}: {'; '.join(folder.ledger[-1].problems)}")
    return folder, False


def _found(folder: Folder, trial: Trial, spec: TrialSpec, tell: Tell) -> tuple[Folder, bool]:
    """A trial that is there already. Raises StudyError if it changed since it ended."""
    place = folder.trial(trial)
    entry = last_entries(folder.ledger).get(trial.name)
    faults = found_faults(place, spec)
    if entry is not None and entry.is_valid:
        if faults == () and evidence_digest(place) == entry.evidence:
            return folder, True
        raise StudyError(f"{trial.name} is not as it was when it ended: remove its folder to run it again")
    if faults is None:
        tell(f"{trial.name}: torn by an interruption, and run again")
        put_aside(place, TORN)
        return folder, False
    attempt = len(folder.put_aside(trial, FAILED)) + 1
    folder = append_entry(folder, Entry(trial.name, attempt, not faults, 0.0, evidence_digest(place), faults))
    if faults:
        put_aside(place, FAILED)
    return folder, not faults


def found_faults(place: Path, spec: TrialSpec) -> tuple[str, ...] | None:
    """What speaks against a trial that is there. None: it is not whole."""
    try:
        evidence = read_evidence(place)
    except EvidenceError:
        return None
    wrong = () if evidence.spec == spec else ("its spec is not that of the plan",)
    return (*wrong, *problems(evidence))


def _attempt(folder: Folder, trial: Trial, spec: TrialSpec, perform: Perform, attempt: int) -> tuple[Folder, bool]:
    place = folder.trial(trial)
    log = place.with_name(f"{place.name}.{LOG}")
    began = time.monotonic()
    code = perform(spec, place, log)
    seconds = time.monotonic() - began
    faults = found_faults(place, spec) if place.exists() else None
    if faults is None:
        faults = (f"it left no evidence (exit code {code}): {last_line(log)}",)
        place.mkdir(exist_ok=True)
    entry = Entry(trial.name, attempt, not faults, round(seconds, 3), evidence_digest(place), faults)
    if faults:
        log.rename(place / LOG)
        put_aside(place, FAILED)
    else:
        log.unlink()
    return append_entry(folder, entry), not faults
