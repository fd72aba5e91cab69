"""What differs between a live trial and its simulation: counts one by one, times against an interval."""

from collections.abc import Iterator, Mapping, Sequence

import attrs

from lmpool.bench.interval import Interval, interval
from lmpool.bench.table import table_lines
from lmpool.bench.trial.evidence import Evidence
from lmpool.bench.trial.metrics import gained, metrics
from lmpool.core.explanation import request_word

COUNTS = ("routed", "tokens_computed", "tokens_cached", "preemptions")
"""Of each rank."""
TIMED: Mapping[str, float] = {"ttft_mean_s": 1e3, "throughput": 1.0}
"""Metrics of `specs/trials.md`, with what they are shown in (ms, tokens/s)."""
COLUMNS = ("load", "metric", "simulated", "live", "+-", "runs", "error", "")
SHOWN = 8
"""Differences that are printed."""


@attrs.frozen
class Difference:
    where: str
    what: str
    live: int | None
    simulated: int | None


@attrs.frozen
class Exactness:
    name: str
    requests: int
    computed_tokens: int
    cached_tokens: int
    preemptions: int
    """All three live."""
    differences: tuple[Difference, ...]


@attrs.frozen
class Timed:
    """One metric under one load."""

    load: str
    metric: str
    simulated: float
    live_mean: float
    live_half: float | None
    """Half of the 95 % interval. None: of one run."""
    runs: int
    error: float
    """Of the simulated value, as a share of the live mean."""
    is_inside: bool
    """Whether the simulated value lies in the interval."""


def exactness(name: str, live: Evidence, simulated: Evidence) -> Exactness:
    found = metrics(live)
    return Exactness(
        name=name,
        requests=len(live.requests),
        computed_tokens=round(found["computed_tokens"]),
        cached_tokens=round(found["cached_tokens"]),
        preemptions=round(found["preemptions"]),
        differences=(*_of_requests(live, simulated), *_of_ranks(live, simulated)),
    )


def _of_requests(live: Evidence, simulated: Evidence) -> Iterator[Difference]:
    """Where each went, and how much of it was cached there."""
    if len(live.requests) != len(simulated.requests):
        yield Difference("trial", "requests", len(live.requests), len(simulated.requests))
        return
    ranks = _ranks(live), _ranks(simulated)
    for one, other in zip(live.requests, simulated.requests, strict=True):
        where = f"request {one.number}"
        pair = ranks[0].get(one.request), ranks[1].get(other.request)
        if pair[0] != pair[1]:
            yield Difference(where, "rank", *pair)
        if one.cached_tokens != other.cached_tokens:
            yield Difference(where, "cached tokens", one.cached_tokens, other.cached_tokens)


def _ranks(evidence: Evidence) -> dict[str, int]:
    """By request; of several attempts the last."""
    decided = evidence.decisions
    return {request_word(one.request): one.rank for one in decided if one.rank is not None}


def _of_ranks(live: Evidence, simulated: Evidence) -> Iterator[Difference]:
    of_live, of_simulated = ({name: gained(each.counters, name) for name in COUNTS} for each in (live, simulated))
    for rank in range(len(live.counters.after.ranks)):
        for name in COUNTS:
            one, other = of_live[name][rank], of_simulated[name][rank]
            if one != other:
                yield Difference(f"rank {rank}", name.replace("_", " "), one, other)


def timed(load: str, live: Sequence[Evidence], simulated: Evidence) -> list[Timed]:
    """Of at least one live run."""
    runs, virtual = [metrics(evidence) for evidence in live], metrics(simulated)
    return [_timed(load, name, interval([run[name] for run in runs]), virtual[name]) for name in TIMED]


def _timed(load: str, name: str, live: Interval, simulated: float) -> Timed:
    return Timed(
        load=load,
        metric=name,
        simulated=simulated,
        live_mean=live.mean,
        live_half=live.half,
        runs=live.count,
        error=simulated / live.mean - 1,
        is_inside=live.half is not None and live.low <= simulated <= live.high,
    )


def exact_lines(found: Exactness) -> list[str]:
    told = f"{found.requests} requests, {found.computed_tokens} tokens computed, {found.cached_tokens} cached, "
    told += f"{found.preemptions} preempted"
    if not found.differences:
        return [f"{found.name}: equal ({told})"]
    shown = [
        f"  {each.where}: {each.what} {each.live} live, {each.simulated} simulated"
        for each in found.differences[:SHOWN]
    ]
    more = len(found.differences) - len(shown)
    return [
        f"{found.name}: {len(found.differences)} counts DIFFER ({told})",
        *shown,
        *([f"  and {more} others"] if more else []),
    ]


def timed_lines(found: Sequence[Timed]) -> list[str]:
    rows: list[list[str]] = []
    for each in found:
        unit = TIMED[each.metric]
        values = (each.simulated, each.live_mean, each.live_half)
        shown = ["" if value is None else f"{value * unit:.1f}" for value in values]
        inside = "inside" if each.is_inside else ("" if each.live_half is None else "outside")
        rows.append([each.load, each.metric, *shown, str(each.runs), f"{each.error:+.1%}", inside])
    return table_lines(COLUMNS, rows)
