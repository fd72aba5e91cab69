"""What a step should cost, and how observed steps correct a rank's rates. Durations are nanoseconds."""

import attrs

from lmpool.core.rates import Rates

CORRECTION = 0.1
"""Share of a step's error that one step corrects: about twenty steps follow a change, one odd step hardly shows."""
RATIO_MAX = 4.0
"""Observed over predicted, at most (and its inverse at least): a stalled machine must not spoil the rates."""


@attrs.frozen
class StepWork:
    """The terms of `Rates`."""

    prefill: int
    """Prefill tokens."""
    prefill_context: int
    """Sum over them of the tokens before each."""
    decode: int
    """Decoding sequences."""
    decode_context: int
    """Sum of their context tokens."""


def predict(rates: Rates, work: StepWork) -> float:
    return (
        rates.step
        + rates.prefill * work.prefill
        + rates.prefill_context * work.prefill_context
        + rates.decode * work.decode
        + rates.decode_context * work.decode_context
    )


def correct(rates: Rates, work: StepWork, observed: int) -> Rates:
    """Moves each rate by its share of the step's cost, so that what a step did not do is not blamed for its time."""
    predicted = predict(rates, work)
    if abs(observed - predicted) < 1:
        return rates
    ratio = min(max(observed / predicted, 1 / RATIO_MAX), RATIO_MAX)
    gain = CORRECTION * (ratio - 1) / predicted

    def moved(rate: float, amount: int) -> float:
        return rate * (1 + gain * rate * amount)

    return Rates(
        moved(rates.step, 1),
        moved(rates.prefill, work.prefill),
        moved(rates.prefill_context, work.prefill_context),
        moved(rates.decode, work.decode),
        moved(rates.decode_context, work.decode_context),
    )
