"""The trials of a plan in the order in which they run.

Shuffled inside each repetition, and the repetitions one after the other: what drifts with time (heat, other load) hits
all arms of a repetition alike, and a study that is interrupted has whole repetitions.
"""

import math
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from random import Random

import attrs

from lmpool.bench.locality import blocks_at_end
from lmpool.bench.study.plan import Plan, WorkloadPlan
from lmpool.bench.trial.spec import KV_BLOCKS_MIN, Placement, TrialSpec, Venue, arm_named
from lmpool.bench.trial.workload import trial_trace
from lmpool.sim.trace import Trace, prompt_lengths


@attrs.frozen
class Point:
    """What a comparison of arms holds fixed."""

    workload: str
    budget: float
    rate: float

    @property
    def name(self) -> str:
        return f"{Path(self.workload).stem}_kv{self.budget:g}_load{self.rate:g}"


@attrs.frozen
class Trial:
    point: Point
    arm: str
    repetition: int
    """From 1 on."""

    @property
    def name(self) -> str:
        """Of its folder."""
        return f"{self.point.name}_{self.arm}_r{self.repetition}"


def points(plan: Plan) -> list[Point]:
    return [
        Point(workload.name, budget, rate)
        for workload in plan.workload
        for rate in workload.rates
        for budget in plan.budget.values
    ]


def rungs(plan: Plan) -> list[list[Trial]]:
    """Trials that stand or fall together, in order: a crossover's points one by one, else all at once."""
    if plan.crossover is None:
        return [_shuffled(plan, points(plan))]
    return [_shuffled(plan, [point]) for point in points(plan)]


def matrix(plan: Plan) -> list[Trial]:
    return [trial for rung in rungs(plan) for trial in rung]


def _shuffled(plan: Plan, held: list[Point]) -> list[Trial]:
    return [trial for repetition in range(1, plan.repetitions + 1) for trial in _repetition(plan, held, repetition)]


def _repetition(plan: Plan, held: list[Point], repetition: int) -> Iterator[Trial]:
    trials = [Trial(point, arm, repetition) for point in held for arm in plan.arms]
    Random(f"{plan.seed} {repetition} {held[0].name}").shuffle(trials)
    yield from trials


def trial_spec(plan: Plan, trial: Trial, venue: Venue) -> TrialSpec:
    """All arms of a repetition have the same seed. Raises TraceError."""
    workload = next(one for one in plan.workload if one.name == trial.point.workload)
    spec = bare_spec(plan, workload, trial.point.rate, trial.arm, trial.repetition, venue)
    return attrs.evolve(spec, kv_blocks=_kv_blocks(plan, workload, trial.point.budget, spec))


def bare_spec(plan: Plan, workload: WorkloadPlan, rate: float, arm: str, repetition: int, venue: Venue) -> TrialSpec:
    """Without its KV blocks. What a venue or arm cannot heed is left out."""
    system = plan.system
    is_live = venue is Venue.LIVE
    copies = is_live and arm_named(arm).placement is not Placement.OFF
    return TrialSpec(
        venue=venue,
        workload=workload.name,
        requests=workload.requests,
        rate=rate,
        scale=workload.scale,
        pauses=workload.pauses,
        in_flight=workload.in_flight,
        turns=workload.turns,
        arm=arm,
        replicas=system.replicas,
        kv_blocks=KV_BLOCKS_MIN,
        block_size=system.block_size,
        model=system.model if is_live else None,
        step_tokens=system.step_tokens,
        sequences=system.sequences,
        threads=system.threads if is_live else None,
        dtype=system.dtype,
        calibration=system.calibration if copies else None,
        rates=None if is_live else system.rates,
        e2e_max_s=system.e2e_max_s,
        late_max_s=system.late_max_s,
        seed=plan.seed + repetition - 1,
        repetition=repetition,
        cache=plan.cache,
    )


def is_planned(plan: Plan, trial: Trial, venue: Venue, spec: TrialSpec) -> bool:
    """From the plan alone: how many blocks a share comes to is not asked of the workload again."""
    workload = next(one for one in plan.workload if one.name == trial.point.workload)
    blocks = spec.kv_blocks if plan.budget.shares else _kv_blocks(plan, workload, trial.point.budget, spec)
    bare = bare_spec(plan, workload, trial.point.rate, trial.arm, trial.repetition, venue)
    return spec == attrs.evolve(bare, kv_blocks=blocks)


def misfit(plan: Plan, venue: Venue) -> str | None:
    """Which budget is too small for the longest request of its workload. Raises TraceError."""
    for trial in dict.fromkeys(attrs.evolve(trial, arm=plan.baseline) for trial in matrix(plan)):
        spec = trial_spec(plan, trial, venue)
        longest = _longest(_sizes(attrs.evolve(spec, kv_blocks=KV_BLOCKS_MIN)))
        if longest > spec.kv_blocks * spec.block_size:
            return (
                f"budget {trial.point.budget:g}: {spec.kv_blocks:,} blocks of {spec.block_size} tokens do not hold the "
                f"longest request of {trial.point.workload}, which has {longest:,} with its answer"
            )
    return None


def _kv_blocks(plan: Plan, workload: WorkloadPlan, budget: float, spec: TrialSpec) -> int:
    own = budget * workload.budget_factor
    return math.ceil(own * _blocks_at_end(_sizes(spec))) if plan.budget.shares else round(own)


def _sizes(spec: TrialSpec) -> TrialSpec:
    """The same for all specs whose workloads have the same blocks."""
    return attrs.evolve(spec, arm="round-robin", repetition=1, calibration=None, rate=1.0)


@lru_cache(maxsize=256)
def _blocks_at_end(spec: TrialSpec) -> int:
    return blocks_at_end(_trace(spec), spec.block_size)


@lru_cache(maxsize=256)
def _longest(spec: TrialSpec) -> int:
    """Tokens of a prompt and all of its answer but the last token, whose keys and values nobody needs."""
    trace = _trace(spec)
    lengths = prompt_lengths(trace)
    return max(length + one.output_tokens - 1 for length, one in zip(lengths, trace.requests, strict=True))


@lru_cache(maxsize=1)
def _trace(spec: TrialSpec) -> Trace:
    """Its blocks and its longest request are asked for one after the other."""
    return trial_trace(spec)
