"""Figures of a run over what was measured of each request. Times cover requests that succeeded, and say how many."""

from collections import Counter
from collections.abc import Sequence
from statistics import fmean

import attrs

from lmpool.bench.load.measured import Measured, token_gaps_ns
from lmpool.core.ids import SECOND


@attrs.frozen
class Spread:
    """Percentiles by linear interpolation."""

    count: int
    mean: float
    p50: float
    p90: float
    p95: float
    p99: float
    most: float


@attrs.frozen
class Figures:
    """Times are seconds. None: there is nothing to count it from."""

    requests: int
    successes: int
    errors: dict[str, int]
    """By kind."""
    window_s: float
    """From when the first request was to be sent to the last content."""
    ttft_s: Spread | None
    tpot_s: Spread | None
    """Of requests with more than one output token."""
    itl_s: Spread | None
    """Gaps, one a token where `itl_per` says so, else one an event."""
    itl_per: str
    e2e_s: Spread | None
    resumed_ttft_s: Spread | None
    """Of requests that continue a session."""
    prompt_tokens: int
    cached_tokens: int | None
    """By the answers' own counts."""
    output_tokens: int
    """Of successes."""
    throughput: float
    """Output tokens of successes per second of the window."""
    goodput: float
    """Of those within the bounds asked for."""
    planned_rate: float
    """Requests per second, from the first to the last that was to be sent."""
    reached_rate: float
    """The same of when they were sent."""
    in_flight_mean: float
    in_flight_most: int
    lateness_s: Spread | None
    """Of sending: real time less planned time."""
    stall_s: Spread | None
    """How late the client came to an event of its own."""


@attrs.frozen
class Bounds:
    """What a request must keep to count for goodput, in seconds. None: anything."""

    ttft_s: float | None
    e2e_s: float | None

    def holds(self, one: Measured) -> bool:
        return (self.ttft_s is None or one.ttft_ns <= self.ttft_s * SECOND) and (
            self.e2e_s is None or one.e2e_ns <= self.e2e_s * SECOND
        )


def figures(measured: Sequence[Measured], resumed: Sequence[bool], stalls_ns: Sequence[int], bounds: Bounds) -> Figures:
    """`resumed`: of each request of the trace, whether it continues another."""
    whole = [one for one in measured if one.is_success]
    sent = [one for one in measured if one.sent_ns is not None]
    planned = sorted(one.planned_ns for one in sent)
    window_s = (max(one.pieces[-1].at_ns for one in whole) - planned[0]) / SECOND if whole else 0.0
    gaps, gaps_per = _gaps(whole)
    cached = [one.cached_tokens for one in whole if one.cached_tokens is not None]
    good = sum(one.output_tokens or 0 for one in whole if bounds.holds(one))
    output = sum(one.output_tokens or 0 for one in whole)
    mean, most = _in_flight(sent)
    return Figures(
        requests=len(measured),
        successes=len(whole),
        errors=dict(sorted(Counter(one.fault for one in measured if one.fault).items())),
        window_s=window_s,
        ttft_s=spread([one.ttft_ns / SECOND for one in whole]),
        tpot_s=spread([one.tpot_ns / SECOND for one in whole if one.tpot_ns is not None]),
        itl_s=spread([gap / SECOND for gap in gaps]),
        itl_per=gaps_per,
        e2e_s=spread([one.e2e_ns / SECOND for one in whole]),
        resumed_ttft_s=spread([one.ttft_ns / SECOND for one in whole if resumed[one.number]]),
        prompt_tokens=sum(one.prompt_tokens or 0 for one in whole),
        cached_tokens=sum(cached) if cached else None,
        output_tokens=output,
        throughput=output / window_s if window_s else 0.0,
        goodput=good / window_s if window_s else 0.0,
        planned_rate=_rate(planned),
        reached_rate=_rate(sorted(one.sent_ns for one in sent if one.sent_ns is not None)),
        in_flight_mean=mean,
        in_flight_most=most,
        lateness_s=spread([one.lateness_ns / SECOND for one in sent if one.lateness_ns is not None]),
        stall_s=spread([stall / SECOND for stall in stalls_ns]),
    )


def _gaps(whole: Sequence[Measured]) -> tuple[list[float], str]:
    by_token = [token_gaps_ns(one.gaps) for one in whole]
    if None not in by_token:
        return [gap for found in by_token if found is not None for gap in found], "token"
    return [float(gap.duration_ns) for one in whole for gap in one.gaps], "event"


def _rate(moments: Sequence[int]) -> float:
    span = moments[-1] - moments[0] if moments else 0
    return (len(moments) - 1) * SECOND / span if span else 0.0


def _in_flight(sent: Sequence[Measured]) -> tuple[float, int]:
    """Under way between being sent and being read whole: mean over that span, and most."""
    changes = sorted(
        change for one in sent if one.sent_ns is not None for change in ((one.sent_ns, 1), (one.closed_ns, -1))
    )
    busy = now = most = 0
    for (at, change), (later, _) in zip(changes, [*changes[1:], changes[-1]] if changes else [], strict=True):
        now += change
        most = max(most, now)
        busy += now * (later - at)
    span = changes[-1][0] - changes[0][0] if changes else 0
    return (busy / span if span else 0.0), most


def spread(values: Sequence[float]) -> Spread | None:
    if not values:
        return None
    ranked = sorted(values)
    p50, p90, p95, p99 = (percentile(ranked, percent) for percent in (50, 90, 95, 99))
    return Spread(len(ranked), fmean(ranked), p50, p90, p95, p99, ranked[-1])


def percentile(ranked: Sequence[float], percent: float) -> float:
    place = (len(ranked) - 1) * percent / 100
    low = int(place)
    high = min(low + 1, len(ranked) - 1)
    return ranked[low] + (ranked[high] - ranked[low]) * (place - low)
