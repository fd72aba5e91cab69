"""The requests of a trial, the same in both venues, and what is told of them."""

from pathlib import Path

import attrs

from lmpool.bench.trial.evidence import WorkloadFacts
from lmpool.bench.trial.spec import TrialSpec
from lmpool.sim.bounds import sharing
from lmpool.sim.replay import make_prompts
from lmpool.sim.trace import Trace, at_speed, part_of, prompt_lengths, scaled, window, with_pauses
from lmpool.sim.trace_formats import read_trace
from lmpool.sim.workload import WORKLOADS, make_workload


def trial_trace(spec: TrialSpec) -> Trace:
    """Made, cut to first turns, bounded, scaled and paced. Raises TraceError."""
    if spec.workload in WORKLOADS:
        trace = make_workload(spec.workload, spec.requests, spec.rate, spec.seed)
    else:
        trace = read_trace(Path(spec.workload), None)
        trace = at_speed(window(trace, 0, spec.requests or len(trace.requests)), spec.rate)
    if spec.turns is not None:
        trace = first_turns(trace, spec.turns)
    if spec.in_flight is not None:
        trace = attrs.evolve(trace, in_flight_max=spec.in_flight)
    return with_pauses(scaled(trace, spec.scale), spec.pauses)


def first_turns(trace: Trace, turns: int) -> Trace:
    """Of each session."""
    places: list[int] = []
    for request in trace.requests:
        places.append(0 if request.continues is None else places[request.continues] + 1)
    cut, _ = part_of(trace, lambda number: places[number] < turns)
    return cut


def workload_facts(trace: Trace, block_size: int, contents: str) -> WorkloadFacts:
    """`contents`: fingerprint of its tokens."""
    return WorkloadFacts(
        fingerprint=trace.fingerprint,
        contents=contents,
        requests=len(trace.requests),
        prompt_tokens=sum(prompt_lengths(trace)),
        output_tokens=sum(request.output_tokens for request in trace.requests),
        in_flight_max=trace.in_flight_max,
        continues=tuple([request.continues for request in trace.requests]),
        sharing=sharing(trace, make_prompts(trace, block_size), block_size),
    )
