"""The plan of a study: what is run, what is asked, and what would count as an answer. Written before any run."""

from enum import Enum

import attrs

from lmpool.bench.load.counters import CacheCondition
from lmpool.bench.trial.spec import BASELINE, Venue
from lmpool.sim.step_time import ACCELERATOR_DEFAULT


@attrs.frozen
class WorkloadPlan:
    name: str
    """A made workload, or the path of a trace."""
    requests: int
    rates: tuple[float, ...] = (1.0,)
    """Loads: arrivals a second, of what the workload counts."""
    scale: float = 1.0
    """Of all token counts."""
    pauses: float = 1.0
    turns: int | None = None
    """Of each session. None: all."""
    in_flight: int | None = None
    """None: as the workload has it."""
    budget_factor: float = 1.0
    """Times every KV budget of the plan."""


@attrs.frozen
class Budgets:
    """KV blocks of a replica: either numbers, or shares of the different blocks that the workload has at its end."""

    shares: tuple[float, ...] = ()
    blocks: tuple[int, ...] = ()

    @property
    def values(self) -> tuple[float, ...]:
        return self.shares or tuple(map(float, self.blocks))


@attrs.frozen
class System:
    """What is the same in every trial."""

    replicas: int
    block_size: int = 16
    model: str | None = None
    """Of live trials. None: the bundled one; `tiny`: a random one, made for the trial."""
    step_tokens: int = 2_048
    sequences: int = 64
    threads: int | None = None
    dtype: str = "auto"
    calibration: str | None = None
    """Of live arms that copy blocks."""
    rates: str = ACCELERATOR_DEFAULT
    """Of the simulator: an accelerator's name, or the path of a profile."""
    e2e_max_s: float | None = None
    """What counts for goodput."""
    late_max_s: float = 0.05
    """How late a live client may be."""


class Kind(Enum):
    SUCCESS = "success"
    """The question is answered with yes if all of these are met."""
    GO = "go"
    """What follows from the study is only done if all of these are met."""


class Statistic(Enum):
    VALUE = "value"
    RATIO = "ratio"
    DIFFERENCE = "difference"


class Bound(Enum):
    MEAN = "mean"
    LOWER = "lower 95"
    UPPER = "upper 95"


@attrs.frozen
class Rule:
    """A statistic of one arm's metric against a number, at every point that it names. Empty: at all."""

    name: str
    kind: Kind
    metric: str
    arm: str
    statistic: Statistic
    bound: Bound
    against: str | None = None
    """The other arm, paired by repetition."""
    at_most: float | None = None
    at_least: float | None = None
    workloads: tuple[str, ...] = ()
    budgets: tuple[float, ...] = ()
    rates: tuple[float, ...] = ()


@attrs.frozen
class Sweep:
    """Of budgets: asks for each arm's knee."""

    metric: str = "computed_tokens"
    within: float = 0.05


@attrs.frozen
class Crossover:
    """Of loads, and of workloads in order of skew: each load is tried until none of `arms` wins over `against`."""

    arms: tuple[str, ...]
    against: str
    metric: str


@attrs.frozen
class Expected:
    """Seconds of a trial, for the first estimate of what a study takes."""

    live_s: float | None = None
    simulator_s: float | None = None


@attrs.frozen
class Plan:
    schema: int
    name: str
    question: str
    venue: Venue
    seed: int
    repetitions: int
    arms: tuple[str, ...]
    metrics: tuple[str, ...]
    workload: tuple[WorkloadPlan, ...]
    budget: Budgets
    system: System
    baseline: str = BASELINE
    cache: CacheCondition = CacheCondition.COLD
    rule: tuple[Rule, ...] = ()
    sweep: Sweep | None = None
    crossover: Crossover | None = None
    expected: Expected = Expected()
