"""One run of the load client as a record, and what speaks against it."""

import attrs

from lmpool.bench.load.client import Played
from lmpool.bench.load.counters import Proof
from lmpool.bench.load.figures import Bounds, Figures, figures
from lmpool.sim.bounds import Sharing
from lmpool.sim.trace import Trace

SCHEMA_VERSION = 1
LATE_SHARE = 0.1
"""Of the median time to first token: a client that is late by less changes figures by less. That time begins when a
request was to be sent, so lateness cannot hide in it."""


@attrs.frozen
class Allowed:
    """Above these a run is not valid."""

    errors: float
    """Share of requests."""
    lateness_s: float
    """P99 of sending and of the client's own looks at its clock; more is allowed where answers take long."""


@attrs.frozen
class LoadInput:
    """All that it takes to play the same again."""

    workload: str
    seed: int
    rate: float
    """Arrivals a second, of what the workload counts."""
    burst: int
    """Arrivals at a time."""
    scale: float
    """Of all lengths."""
    pauses: float
    """Of all pauses."""
    requests: int
    in_flight_max: int | None
    fingerprint: str
    """Of the trace."""
    contents_seed: int
    contents_fingerprint: str
    """Of its texts."""
    are_lengths_exact: bool
    """Whether a tokenizer was at hand; if not, lengths are those of usual vocabularies."""
    is_closed_loop: bool
    """Whether any request waits for an answer before it is sent."""
    processes: int


@attrs.frozen
class LoadRun:
    input: LoadInput
    sharing: tuple[Sharing, ...]
    """What the trace itself allows, by block size."""
    cache: Proof
    figures: Figures
    faults: tuple[str, ...]
    """Why the run is not valid. Empty: it is."""
    warnings: tuple[str, ...]


@attrs.frozen
class LoadReport:
    schema_version: int
    lmpool: str
    python: str
    machine: str
    cores: int
    began_at: str
    """UTC, ISO 8601."""
    url: str
    model: str
    dialect: str
    runs: tuple[LoadRun, ...]


def is_closed_loop(trace: Trace) -> bool:
    return trace.in_flight_max is not None or any(request.continues is not None for request in trace.requests)


def run_figures(trace: Trace, played: Played, bounds: Bounds) -> Figures:
    resumed = [request.continues is not None for request in trace.requests]
    return figures(played.measured, resumed, played.stalls_ns, bounds)


def faults(found: Figures, allowed: Allowed) -> tuple[str, ...]:
    told = []
    failed = found.requests - found.successes
    if failed > allowed.errors * found.requests:
        told.append(f"{failed} of {found.requests} requests failed, more than {allowed.errors:.1%}")
    late_s = max(allowed.lateness_s, LATE_SHARE * found.ttft_s.p50) if found.ttft_s is not None else allowed.lateness_s
    if found.lateness_s is not None and found.lateness_s.p99 > late_s:
        rates = f"{found.reached_rate:.1f} requests a second were reached of {found.planned_rate:.1f}"
        told.append(f"the client could not keep up: it sent {found.lateness_s.p99 * 1e3:.0f} ms late (p99); {rates}")
    if found.stall_s is not None and found.stall_s.p99 > late_s:
        told.append(f"the client could not keep up: it read {found.stall_s.p99 * 1e3:.0f} ms late (p99)")
    return tuple(told)


def warnings(found: Figures, cache: Proof, played: Played) -> tuple[str, ...]:
    told = list(cache.doubts)
    silent = sum(one.is_success and one.output_tokens is None for one in played.measured)
    if silent:
        told.append(f"{silent} answers came without counts: their lengths are not checked, and count as nothing")
    if found.itl_per == "event" and found.itl_s is not None:
        told.append("the server does not say how many tokens an event brings: gaps are per event")
    return tuple(told)
