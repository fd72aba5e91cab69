"""Two-sided 95 % intervals of Student's t over repetitions."""

import math
from collections.abc import Sequence
from statistics import fmean, stdev

import attrs

CONFIDENCE = 0.95
STEPS = 80
"""Halvings of a range until nothing of a float is left."""


@attrs.frozen
class Interval:
    mean: float
    half: float | None
    """Half the width. None: one value alone says nothing of its spread."""
    count: int

    @property
    def low(self) -> float:
        """Without end where there is one value."""
        return -math.inf if self.half is None else self.mean - self.half

    @property
    def high(self) -> float:
        return math.inf if self.half is None else self.mean + self.half


def interval(values: Sequence[float]) -> Interval:
    """`values`: one of each repetition, at least one."""
    mean, count = fmean(values), len(values)
    if count == 1:
        return Interval(mean, None, 1)
    return Interval(mean, t_quantile(count - 1) * stdev(values) / math.sqrt(count), count)


def t_quantile(freedom: int) -> float:
    """What |t| of so many degrees of freedom stays below with the confidence."""
    assert freedom >= 1
    low, high = 0.0, 1.0
    while t_within(high, freedom) < CONFIDENCE:
        high *= 2
    for _ in range(STEPS):
        middle = (low + high) / 2
        low, high = (middle, high) if t_within(middle, freedom) < CONFIDENCE else (low, middle)
    return high


def t_within(bound: float, freedom: int) -> float:
    """Probability that |t| is below `bound`: the finite sum for whole degrees (Abramowitz and Stegun, 26.7.3 and 4)."""
    angle = math.atan(bound / math.sqrt(freedom))
    cosine = math.cos(angle)
    is_odd = freedom % 2
    term, total = (cosine, 0.0) if is_odd else (1.0, 0.0)
    for place in range(1 + is_odd, freedom + is_odd, 2):
        total += term
        term *= cosine**2 * place / (place + 1)
    if not is_odd:
        return math.sin(angle) * total
    return 2 / math.pi * (angle + math.sin(angle) * total)
