"""The trials by which the simulator is held against live replicas: the same spec in both venues."""

import json
from collections.abc import Callable
from pathlib import Path

import attrs

from lmpool.bench.load.counters import CacheCondition
from lmpool.bench.locality import different_blocks
from lmpool.bench.trial.kept import Kept, put_aside, read_kept
from lmpool.bench.trial.process import perform_trial
from lmpool.bench.trial.spec import KV_BLOCKS_MIN, TrialSpec, Venue
from lmpool.bench.trial.workload import trial_trace
from lmpool.core.rates import Rates
from lmpool.sim.step_time import RATE_NAMES
from lmpool.sim.trace import Trace, prompt_lengths

ROUND_ROBIN = "round-robin"
LATE_MAX_S = 0.25
UNTIMED_LATE_S = 3600.0
"""Where only counts are compared, a client that is late changes nothing."""


@attrs.frozen
class FidelitySettings:
    model: str | None
    workload: str
    requests: int
    scale: float
    replicas: int
    block_size: int
    step_tokens: int
    threads: int
    dtype: str
    arm: str
    repetitions: int
    seed: int


@attrs.frozen
class Load:
    """How much of the workload is asked at a time, of how many blocks."""

    name: str
    in_flight: int
    """Of each replica."""
    pool: str
    """A key of `pools`."""


EXACT = (Load("one at a time", 0, "scarce"), Load("one a replica", 1, "roomy"))
"""0: one in all, so that the order in which blocks fall free is one as well."""
LOADS = (Load("low", 1, "roomy"), Load("medium", 4, "half"), Load("thrashing", 16, "scarce"))
SCARCE_REQUESTS = 3


def pools(trace: Trace, block_size: int) -> dict[str, int]:
    """Blocks of a replica: for all that is ever asked and answered, for half of that, for a few of the longest."""
    lengths = zip(trace.requests, prompt_lengths(trace), strict=True)
    longest = max(-(-(length + request.output_tokens) // block_size) for request, length in lengths)
    scarce = SCARCE_REQUESTS * longest + 2
    roomy = max(different_blocks(trace, range(len(trace.requests)), block_size) + longest, scarce)
    return {"roomy": roomy, "half": max(roomy // 2, scarce), "scarce": scarce}


def base_spec(settings: FidelitySettings) -> TrialSpec:
    """Live, and without bounds of its own yet."""
    return TrialSpec(
        venue=Venue.LIVE,
        workload=settings.workload,
        requests=settings.requests,
        rate=1.0,
        scale=settings.scale,
        pauses=0.0,
        in_flight=None,
        turns=None,
        arm=settings.arm,
        replicas=settings.replicas,
        kv_blocks=KV_BLOCKS_MIN,
        block_size=settings.block_size,
        model=settings.model,
        step_tokens=settings.step_tokens,
        sequences=64,
        threads=settings.threads,
        dtype=settings.dtype,
        calibration=None,
        rates=None,
        e2e_max_s=None,
        late_max_s=LATE_MAX_S,
        seed=settings.seed,
        repetition=1,
        cache=CacheCondition.COLD,
    )


def loaded_spec(settings: FidelitySettings, load: Load) -> TrialSpec:
    base = base_spec(settings)
    blocks = pools(trial_trace(base), settings.block_size)[load.pool]
    return attrs.evolve(base, in_flight=load.in_flight * settings.replicas or 1, kv_blocks=blocks)


def exact_spec(settings: FidelitySettings, load: Load) -> TrialSpec:
    spec = loaded_spec(settings, load)
    return attrs.evolve(spec, arm=ROUND_ROBIN, late_max_s=UNTIMED_LATE_S)


def simulated(spec: TrialSpec, profile: str | None) -> TrialSpec:
    """The same in virtual time; `profile`: a file with step times, None: assumed ones, where times do not count."""
    return attrs.evolve(spec, venue=Venue.SIMULATOR, rates=profile, repetition=1)


def write_profile(path: Path, rates: Rates) -> None:
    path.write_text(json.dumps({f"{name}_ns": getattr(rates, name) for name in RATE_NAMES}, indent=1))


def ran(spec: TrialSpec, folder: Path, name: str, tell: Callable[[str], None]) -> Kept:
    """In a fresh process. What is in the folder already, valid and of the same spec, is not run again."""
    place, log = folder / name, folder / f"{name}.log"
    found = read_kept(place, log)
    if found.evidence is not None and not found.problems and found.evidence.spec == spec:
        return found
    if place.exists():
        put_aside(place, "old")
    tell(name)
    perform_trial(spec, place, log)
    return read_kept(place, log)
