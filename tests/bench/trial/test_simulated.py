from pathlib import Path

import attrs
import pytest

from lmpool.bench.load.counters import CacheCondition
from lmpool.bench.trial.checks import cache_proof, problems
from lmpool.bench.trial.evidence import DIGESTS, FILES, Evidence, write_evidence
from lmpool.bench.trial.metrics import METRICS, metrics
from lmpool.bench.trial.simulated import simulate
from lmpool.bench.trial.spec import ARMS, TrialSpec, Venue
from lmpool.bench.trial.workload import trial_trace
from lmpool.sim.trace import prompt_lengths
from tests.bench.trial.made import MACHINE, SPEC

SIMULATED = attrs.evolve(SPEC, venue=Venue.SIMULATOR, pauses=0.1, threads=None)
BOUNDED = attrs.evolve(SIMULATED, workload="memory-skew", requests=24, scale=0.02, turns=None, in_flight=5)


def _run(spec: TrialSpec) -> Evidence:
    return simulate(spec, MACHINE, lambda _: None)


@pytest.mark.parametrize("arm", [arm.name for arm in ARMS])
def test_every_arm_leaves_whole_evidence_with_all_figures(arm: str) -> None:
    evidence = _run(attrs.evolve(SIMULATED, arm=arm))
    assert problems(evidence) == ()
    assert [name for name in METRICS if name not in metrics(evidence)] == []


def test_equal_specs_leave_equal_bytes(tmp_path: Path) -> None:
    for name in ("one", "other"):
        write_evidence(tmp_path / name, _run(attrs.evolve(SIMULATED, arm="full")))
    for name in (*FILES, DIGESTS):
        assert (tmp_path / "one" / name).read_bytes() == (tmp_path / "other" / name).read_bytes()


def test_another_seed_is_another_workload() -> None:
    one, other = (_run(attrs.evolve(SIMULATED, seed=seed)) for seed in (1, 2))
    assert one.workload.fingerprint != other.workload.fingerprint


def test_lengths_history_and_pauses_are_those_of_the_trace() -> None:
    evidence, trace = _run(SIMULATED), trial_trace(SIMULATED)
    assert [one.prompt_tokens for one in evidence.requests] == prompt_lengths(trace)
    assert [one.output_tokens for one in evidence.requests] == [request.output_tokens for request in trace.requests]
    for one, request in zip(evidence.requests, trace.requests, strict=True):
        if request.continues is None:
            assert one.planned_ns == request.at_ns
        else:
            assert one.planned_ns == evidence.requests[request.continues].pieces[-1].at_ns + request.pause_ns


def test_a_window_and_stages_are_kept() -> None:
    evidence, trace = _run(BOUNDED), trial_trace(BOUNDED)
    spans = [(one.planned_ns, one.closed_ns) for one in evidence.requests]
    for begin, _ in spans:
        assert sum(planned <= begin < closed for planned, closed in spans) <= 5
    ends = [
        max(end for (_, end), request in zip(spans, trace.requests, strict=True) if request.stage == stage)
        for stage in range(2)
    ]
    for (begin, _), request in zip(spans, trace.requests, strict=True):
        assert request.stage == 0 or begin >= ends[request.stage - 1]


def test_a_primed_cache_is_full_of_what_is_asked_and_only_the_second_asking_counts() -> None:
    cold, primed = (_run(attrs.evolve(SIMULATED, arm="session", cache=cache)) for cache in CacheCondition)
    assert problems(primed) == ()
    assert len(primed.requests) == len(primed.decisions) == len(cold.requests)
    assert (cache_proof(primed).reuse or 0) > 0.9 > (cache_proof(cold).reuse or 1)
    assert metrics(primed)["ttft_mean_s"] < metrics(cold)["ttft_mean_s"]


def test_a_warm_cache_that_is_said_to_be_cold_is_told() -> None:
    primed = _run(attrs.evolve(SIMULATED, arm="session", cache=CacheCondition.PRIMED))
    said = attrs.evolve(primed, spec=attrs.evolve(primed.spec, cache=CacheCondition.COLD))
    (problem,) = problems(said)
    assert problem.endswith("not cold")


def test_each_request_finds_the_decision_that_sent_it() -> None:
    evidence = _run(attrs.evolve(SIMULATED, arm="full"))
    routed = [0, 0]
    by_request = {f"1-{decision.request.counter}": decision for decision in evidence.decisions}
    for one in evidence.requests:
        rank = by_request[one.request].rank
        assert rank is not None
        routed[rank] += 1
    found = metrics(evidence)
    assert routed == [found["routed_0"], found["routed_1"]]
