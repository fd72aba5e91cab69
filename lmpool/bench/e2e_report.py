"""What trials of several arms come to, as a record, and in which figures an arm helps against another."""

from collections.abc import Mapping, Sequence

import attrs

import lmpool
from lmpool.bench.e2e_trials import E2ESettings, Ran
from lmpool.bench.interval import Interval, interval
from lmpool.bench.trial.evidence import Evidence, MachineFacts
from lmpool.bench.trial.metrics import METRICS, Better, metrics

SCHEMA_VERSION = 2
JUDGED = ("throughput", "ttft_mean_s", "tpot_mean_s", "e2e_mean_s", "e2e_p90_s", "uncached_tokens")
"""In which arms are held against the baseline."""
HELPS, HARMS, NOT_SHOWN, SAME = "helps", "harms", "not shown", "same"

Values = Mapping[str, Mapping[int, Mapping[str, float]]]
"""Of one workload: by arm, repetition and metric."""


@attrs.frozen
class Figure:
    mean: float
    half: float | None
    """Half of the two-sided 95 % interval over repetitions. None: one alone."""
    values: tuple[float, ...]
    """One a repetition."""


@attrs.frozen
class ArmFigures:
    workload: str
    arm: str
    figures: dict[str, Figure]
    """By metric (specs/trials.md)."""


@attrs.frozen
class Comparison:
    """The paired difference to the baseline: of repetitions in which both are valid."""

    workload: str
    arm: str
    metric: str
    repetitions: int
    difference: float
    half: float | None
    baseline: float
    """Mean of the baseline in those repetitions."""
    verdict: str
    """helps, harms, not shown (the interval includes 0, or there is none), or same (no difference at all)."""


@attrs.frozen
class WorkloadShown:
    name: str
    requests: int
    prompt_tokens: int
    in_flight_max: int | None
    kv_blocks: int
    request_sharing: float
    """What the trace itself allows, in blocks of the replicas, as the next; of the first repetition."""
    token_sharing: float
    fingerprints: tuple[str, ...]
    """By repetition."""


@attrs.frozen
class E2EReport:
    schema_version: int
    lmpool: str
    venue: str
    model: str
    """Empty in the simulator."""
    rates: str
    """Empty live."""
    scale: float
    replicas: int
    block_size: int
    step_tokens: int
    e2e_max_s: float
    seed: int
    repetitions: int
    baseline: str
    """The arm that comparisons are with."""
    machine: MachineFacts | None
    """None: no trial was whole."""
    workloads: tuple[WorkloadShown, ...]
    figures: tuple[ArmFigures, ...]
    comparisons: tuple[Comparison, ...]
    invalid: tuple[str, ...]
    """Trials without figures, and why."""


def report(settings: E2ESettings, ran: Sequence[Ran]) -> E2EReport:
    valid = [one.evidence for one in ran if one.evidence is not None and not one.problems]
    by_workload = {name: [one for one in valid if one.spec.workload == name] for name in settings.workloads}
    figures: list[ArmFigures] = []
    comparisons: list[Comparison] = []
    for workload, found in by_workload.items():
        values = _values(found, settings.arms)
        figures += [ArmFigures(workload, arm, _figures(each)) for arm, each in values.items() if each]
        comparisons += _comparisons(workload, values, settings.baseline)
    return E2EReport(
        schema_version=SCHEMA_VERSION,
        lmpool=lmpool.__version__,
        venue=settings.venue.value,
        model=settings.model or "",
        rates=settings.rates or "",
        scale=settings.scale,
        replicas=settings.replicas,
        block_size=settings.block_size,
        step_tokens=settings.step_tokens,
        e2e_max_s=settings.e2e_max_s,
        seed=settings.seed,
        repetitions=settings.repetitions,
        baseline=settings.baseline,
        machine=valid[0].machine if valid else None,
        workloads=tuple(_shown(name, found) for name, found in by_workload.items() if found),
        figures=tuple(figures),
        comparisons=tuple(comparisons),
        invalid=tuple(f"{one.trial.name}: {'; '.join(one.problems)}" for one in ran if one.problems),
    )


def _values(found: Sequence[Evidence], arms: Sequence[str]) -> Values:
    """Arms and repetitions in order, whatever the order of the trials was."""
    ordered = sorted(found, key=lambda one: one.spec.repetition)
    return {arm: {one.spec.repetition: metrics(one) for one in ordered if one.spec.arm == arm} for arm in arms}


def _figures(by_repetition: Mapping[int, Mapping[str, float]]) -> dict[str, Figure]:
    each = list(by_repetition.values())
    named = [name for name in each[0] if all(name in one for one in each)]
    return {name: _figure([one[name] for one in each]) for name in named}


def _figure(values: Sequence[float]) -> Figure:
    found = interval(values)
    return Figure(found.mean, found.half, tuple(values))


def _comparisons(workload: str, values: Values, against: str) -> list[Comparison]:
    baseline = values.get(against, {})
    return [
        _comparison(workload, arm, metric, by_repetition, baseline)
        for arm, by_repetition in values.items()
        if arm != against
        for metric in JUDGED
        if any(metric in by_repetition[each] and metric in baseline[each] for each in by_repetition if each in baseline)
    ]


def _comparison(
    workload: str,
    arm: str,
    metric: str,
    by_repetition: Mapping[int, Mapping[str, float]],
    baseline: Mapping[int, Mapping[str, float]],
) -> Comparison:
    both = [each for each in by_repetition if metric in by_repetition[each] and metric in baseline.get(each, {})]
    against = [baseline[each][metric] for each in both]
    difference = interval([by_repetition[each][metric] - base for each, base in zip(both, against, strict=True)])
    verdict = _verdict(METRICS[metric].better, difference)
    mean = sum(against) / len(against)
    return Comparison(workload, arm, metric, len(both), difference.mean, difference.half, mean, verdict)


def _verdict(better: Better, difference: Interval) -> str:
    if difference.mean == 0 and not difference.half:
        return SAME
    if difference.low <= 0 <= difference.high:
        return NOT_SHOWN
    return HELPS if (difference.mean > 0) == (better is Better.MORE) else HARMS


def _shown(name: str, found: Sequence[Evidence]) -> WorkloadShown:
    first = min(found, key=lambda one: one.spec.repetition)
    facts = first.workload
    prints = {one.spec.repetition: one.workload.fingerprint for one in found}
    return WorkloadShown(
        name=name,
        requests=facts.requests,
        prompt_tokens=facts.prompt_tokens,
        in_flight_max=facts.in_flight_max,
        kv_blocks=first.spec.kv_blocks,
        request_sharing=facts.sharing.requests,
        token_sharing=facts.sharing.tokens,
        fingerprints=tuple(prints[each] for each in sorted(prints)),
    )
