"""What a trial is to do: read from JSON strictly, and the same in both venues. `specs/trials.md` says what arms are."""

import json
from enum import Enum
from hashlib import sha256

import attrs
from cattrs import BaseValidationError

from lmpool.bench.load.counters import CacheCondition
from lmpool.core.limits import BLOCK_SIZE_MAX, BLOCK_SIZE_MIN, RANKS_MAX
from lmpool.core.route import POLICIES
from lmpool.io.records import explain, strict_converter

CONVERTER = strict_converter()
KV_BLOCKS_MIN = 2
"""As of a server."""
TINY = "tiny"
"""A model made for the trial: a Llama of random weights, so small that steps are mostly overhead."""
PACED = "paced"
"""Another: integers, and steps that last as those of a slow accelerator (`paced.py`)."""


class SpecError(Exception):
    """One line: what is wrong with a spec."""


class Venue(Enum):
    LIVE = "live"
    """Replicas of this machine, in real time."""
    SIMULATOR = "simulator"
    """The same control and workers in virtual time, without a model."""


class Placement(Enum):
    """As the setting of a server."""

    AUTO = "auto"
    OFF = "off"


@attrs.frozen
class Arm:
    name: str
    replicas: int | None
    """None: as the spec says."""
    policy: str
    placement: Placement


ARMS = (
    Arm("single", 1, "round-robin", Placement.OFF),
    Arm("round-robin", None, "round-robin", Placement.OFF),
    Arm("routing", None, "default", Placement.OFF),
    Arm("transfer", None, "round-robin", Placement.AUTO),
    Arm("full", None, "default", Placement.AUTO),
)
BASELINE = "round-robin"


def arm_named(name: str) -> Arm:
    """Of `ARMS`, or a policy by its own name, without placement. Raises SpecError."""
    for arm in ARMS:
        if arm.name == name:
            return arm
    if name in POLICIES:
        return Arm(name, None, name, Placement.OFF)
    known = dict.fromkeys([*(arm.name for arm in ARMS), *POLICIES])
    raise SpecError(f"there is no arm {name!r}; there is {', '.join(known)}")


@attrs.frozen
class TrialSpec:
    venue: Venue
    workload: str
    """A name of `specs/workloads.md`, or the path of a trace."""
    requests: int | None
    """At most. None: as many as are usual, or all of a trace."""
    rate: float
    """Arrivals a second, of what a workload counts; a trace is played so many times as dense."""
    scale: float
    """Of all token counts."""
    pauses: float
    """Of all pauses."""
    in_flight: int | None
    """None: the bound of the workload, if it has one."""
    turns: int | None
    """Only so many first turns of each session. None: all."""
    arm: str
    replicas: int
    kv_blocks: int
    """Of each replica."""
    block_size: int
    model: str | None
    """A folder, a file or a hub id; None: the bundled one; `tiny`; `paced`. Heeded live only, as are threads, dtype and
    calibration, so that one spec goes to both venues."""
    step_tokens: int
    sequences: int
    threads: int | None
    """Of each replica. None: the cores shared by `replicas`, also in an arm that has fewer, so that a replica is the
    same in all arms."""
    dtype: str
    calibration: str | None
    """A file of `lmpool calibrate`, by which placement prices copies."""
    rates: str | None
    """A name of `specs/step_time.md`, a profile, or a file of `lmpool calibrate`; None: the usual name. Heeded in the
    simulator only."""
    e2e_max_s: float | None
    """What counts for goodput ends within so long. None: there is no goodput."""
    late_max_s: float
    """How late the client may be (p99) before the run is not valid. Live only."""
    seed: int
    """Of workload, texts and chance: the arms of one repetition have the same."""
    repetition: int
    cache: CacheCondition

    @property
    def placed(self) -> Arm:
        """Its arm, with the number of replicas that it really has."""
        arm = arm_named(self.arm)
        return attrs.evolve(arm, replicas=arm.replicas or self.replicas)

    @property
    def fingerprint(self) -> str:
        return sha256(canonical(self).encode()).hexdigest()


def canonical(spec: TrialSpec) -> str:
    """The same text for equal specs."""
    return json.dumps(CONVERTER.unstructure(spec), sort_keys=True, separators=(",", ":"), allow_nan=False)


def spec_text(spec: TrialSpec) -> str:
    return json.dumps(CONVERTER.unstructure(spec), indent=1, allow_nan=False) + "\n"


def read_spec(text: str) -> TrialSpec:
    """Raises SpecError."""
    try:
        spec = CONVERTER.structure(json.loads(text), TrialSpec)
    except BaseValidationError as error:
        raise SpecError(f"this is no spec of a trial: {explain(error)}") from error
    except json.JSONDecodeError as error:
        raise SpecError(f"this is no JSON: {error}") from error
    except TypeError as error:
        raise SpecError(f"this is no spec of a trial: {error}") from error
    check_spec(spec)
    return spec


def check_spec(spec: TrialSpec) -> None:
    """Raises SpecError for what no trial can be."""
    arm_named(spec.arm)
    for name, value in (
        ("requests", spec.requests),
        ("in_flight", spec.in_flight),
        ("turns", spec.turns),
        ("replicas", spec.replicas),
        ("step_tokens", spec.step_tokens),
        ("sequences", spec.sequences),
        ("threads", spec.threads),
    ):
        if value is not None and value < 1:
            raise SpecError(f"{name} is {value}: at least 1")
    if spec.kv_blocks < KV_BLOCKS_MIN:
        raise SpecError(
            f"kv_blocks is {spec.kv_blocks}: at least {KV_BLOCKS_MIN} (a scale of lengths scales it as well)"
        )
    for name, amount in (("rate", spec.rate), ("scale", spec.scale), ("e2e_max_s", spec.e2e_max_s)):
        if amount is not None and not 0 < amount < float("inf"):
            raise SpecError(f"{name} is {amount:g}: more than 0, and finite")
    if not 0 <= spec.pauses < float("inf"):
        raise SpecError(f"pauses is {spec.pauses:g}: at least 0, and finite")
    if not BLOCK_SIZE_MIN <= spec.block_size <= BLOCK_SIZE_MAX or spec.block_size & (spec.block_size - 1):
        raise SpecError(f"block_size is {spec.block_size}: a power of two from {BLOCK_SIZE_MIN} to {BLOCK_SIZE_MAX}")
    if spec.replicas > RANKS_MAX:
        raise SpecError(f"replicas is {spec.replicas}: at most {RANKS_MAX}")
    if spec.sequences > spec.step_tokens:
        raise SpecError("sequences is more than step_tokens: no place would be left for prompts")
