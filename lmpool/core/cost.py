"""What prefill costs, how measurements are smoothed, and how much comes per second. Durations are nanoseconds."""

from math import exp

import attrs

from lmpool.core.ids import SECOND, Nanos
from lmpool.core.rates import Rates

DECAY_NS = 30 * SECOND
"""Memory of the decayed sums: long against one prefill, short against the change of a day's traffic."""
RATES_WEIGHT = 0.25
"""Of a new report against all before it. Workers smooth too; this only damps what a single report can do."""
OUTPUT_TOKENS_PRIOR = 128.0
"""Expected output of a request before any has ended."""
OUTPUT_WEIGHT = 1 / 64
"""Of one ended choice in the running mean output length."""


def prefill_pairs(uncached: int, context: int) -> int:
    """Pairs of a prefilled token and a token before it: `uncached` tokens after `context` others."""
    return uncached * context + uncached * (uncached - 1) // 2


def prefill_ns(rates: Rates, tokens: int, pairs: int) -> float:
    return rates.prefill * tokens + rates.prefill_context * pairs


def step_ns(rates: Rates, decoding: int, decoding_context: int) -> float:
    """A step that decodes these sequences, without its prefill."""
    return rates.step + rates.decode * decoding + rates.decode_context * decoding_context


def smooth_rates(known: Rates, reported: Rates) -> Rates:
    keep = 1 - RATES_WEIGHT
    return Rates(
        known.step * keep + reported.step * RATES_WEIGHT,
        known.prefill * keep + reported.prefill * RATES_WEIGHT,
        known.prefill_context * keep + reported.prefill_context * RATES_WEIGHT,
        known.decode * keep + reported.decode * RATES_WEIGHT,
        known.decode_context * keep + reported.decode_context * RATES_WEIGHT,
    )


def smooth_output(mean: float, outputs: int, output_tokens: int) -> float:
    """Running mean output length after `outputs` more choices ended with `output_tokens` between them."""
    if outputs == 0:
        return mean
    return mean + (output_tokens / outputs - mean) * (1 - (1 - OUTPUT_WEIGHT) ** outputs)


@attrs.define
class Traffic:
    """What was routed: sums that fade by a factor e in `DECAY_NS`. Read only."""

    requests: float
    prefill_ns: float
    at_ns: Nanos


def traffic_after(traffic: Traffic, now: Nanos, prefill: float) -> Traffic:
    """One more request, with so many nanoseconds of prefill."""
    kept = exp((traffic.at_ns - now) / DECAY_NS)
    return Traffic(traffic.requests * kept + 1.0, traffic.prefill_ns * kept + prefill, now)


def traffic_rates(traffic: Traffic, now: Nanos) -> tuple[float, float]:
    """Requests per nanosecond, and prefill time per time."""
    share = exp((traffic.at_ns - now) / DECAY_NS) / DECAY_NS
    return traffic.requests * share, traffic.prefill_ns * share
