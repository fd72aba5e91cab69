"""The trials of `lmpool bench e2e`: their specs, their order, and their folders, in which the same command goes on."""

import math
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random

import attrs

from lmpool.bench.load.counters import CacheCondition
from lmpool.bench.trial.evidence import Evidence
from lmpool.bench.trial.kept import put_aside, read_kept
from lmpool.bench.trial.process import perform_trial
from lmpool.bench.trial.spec import TrialSpec, Venue

BLOCKS_OF_256 = {
    "shared-prefix-x1": 384,
    "shared-prefix-x3": 384,
    "shared-prefix-x5": 384,
    "load-skew": 192,
    "memory-skew": 128,
}
"""KV budget of a replica by workload, as the paper has it; lengths and budget are scaled by one factor."""
BUDGET_TOKENS = 256
LATE_MAX_S = 0.25


class FolderError(Exception):
    """One line: why trials cannot go where they should."""


class HopelessError(Exception):
    """One line: why no trial will leave anything."""


@attrs.frozen
class E2ESettings:
    venue: Venue
    workloads: tuple[str, ...]
    arms: tuple[str, ...]
    baseline: str
    """The arm that the others are held against, if it is among them."""
    repetitions: int
    requests: int | None
    """Of each workload. None: all of the paper's."""
    scale: float
    replicas: int
    block_size: int
    step_tokens: int
    model: str | None
    threads: int | None
    rates: str | None
    e2e_max_s: float
    seed: int


@attrs.frozen
class Trial:
    workload: str
    arm: str
    repetition: int
    """From 1 on."""

    @property
    def name(self) -> str:
        """Of its folder."""
        return f"{self.workload}_{self.arm}_r{self.repetition}"


@attrs.frozen
class Ran:
    trial: Trial
    evidence: Evidence | None
    """None: it left none."""
    problems: tuple[str, ...]


def trials(settings: E2ESettings) -> list[Trial]:
    """Shuffled inside each repetition: what drifts with time meets all arms alike."""
    return [trial for repetition in range(1, settings.repetitions + 1) for trial in _repetition(settings, repetition)]


def _repetition(settings: E2ESettings, repetition: int) -> Iterator[Trial]:
    found = [Trial(workload, arm, repetition) for workload in settings.workloads for arm in settings.arms]
    Random(f"{settings.seed} {repetition}").shuffle(found)
    yield from found


def trial_spec(settings: E2ESettings, trial: Trial) -> TrialSpec:
    """All arms of a repetition have one seed."""
    tokens = BLOCKS_OF_256[trial.workload] * BUDGET_TOKENS * settings.scale
    return TrialSpec(
        venue=settings.venue,
        workload=trial.workload,
        requests=settings.requests,
        rate=1.0,
        scale=settings.scale,
        pauses=1.0,
        in_flight=None,
        turns=None,
        arm=trial.arm,
        replicas=settings.replicas,
        kv_blocks=math.ceil(tokens / settings.block_size),
        block_size=settings.block_size,
        model=settings.model,
        step_tokens=settings.step_tokens,
        sequences=64,
        threads=settings.threads,
        dtype="auto",
        calibration=None,
        rates=settings.rates,
        e2e_max_s=settings.e2e_max_s,
        late_max_s=LATE_MAX_S,
        seed=settings.seed + trial.repetition - 1,
        repetition=trial.repetition,
        cache=CacheCondition.COLD,
    )


def run_trials(settings: E2ESettings, folder: Path, tell: Callable[[str], None]) -> list[Ran]:
    """What is whole and valid in the folder is not run again. Raises FolderError and HopelessError."""
    try:
        folder.mkdir(exist_ok=True)
    except OSError as error:
        raise FolderError(f"--out {folder}: {error.strerror}") from error
    order = trials(settings)
    ran = {trial: found for trial in order if (found := _found(settings, folder, trial)) is not None}
    if ran:
        tell(f"{len(ran)} of {len(order)} trials are there already")
    left = [trial for trial in order if trial not in ran]
    began_s = time.monotonic()
    for done, trial in enumerate(left):
        spent_s = time.monotonic() - began_s
        time_left = f", about {spent_s / done * (len(left) - done):.0f} s left" if done else ""
        tell(f"trial {len(ran) + 1} of {len(order)}: {trial.name}{time_left}")
        ran[trial] = _run(trial_spec(settings, trial), folder, trial, tell)
        if not done and ran[trial].evidence is None:
            raise HopelessError(f"the first trial left nothing, so none would: {'; '.join(ran[trial].problems)}")
    return [ran[trial] for trial in order]


def _found(settings: E2ESettings, folder: Path, trial: Trial) -> Ran | None:
    """Raises FolderError for a trial of another run."""
    if not (folder / trial.name).exists():
        return None
    read = _read(folder, trial)
    if read.evidence is not None and read.evidence.spec != trial_spec(settings, trial):
        raise FolderError(f"{folder / trial.name} is of another run: give the same flags, or another --out")
    return None if read.problems else read


def _run(spec: TrialSpec, folder: Path, trial: Trial, tell: Callable[[str], None]) -> Ran:
    """Once more, if it is not valid at first."""
    ran = _run_once(spec, folder, trial, tell)
    return _run_once(spec, folder, trial, tell) if ran.problems else ran


def _run_once(spec: TrialSpec, folder: Path, trial: Trial, tell: Callable[[str], None]) -> Ran:
    if (folder / trial.name).exists():
        put_aside(folder / trial.name, "failed")
    perform_trial(spec, folder / trial.name, folder / f"{trial.name}.log")
    ran = _read(folder, trial)
    if ran.problems:
        tell(f"  not valid: {'; '.join(ran.problems)}")
    return ran


def _read(folder: Path, trial: Trial) -> Ran:
    kept = read_kept(folder / trial.name, folder / f"{trial.name}.log")
    return Ran(trial, kept.evidence, kept.problems)
