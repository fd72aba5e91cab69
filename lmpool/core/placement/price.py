"""What a transfer takes, from its preparation until it is published: as calibrated, and as observed since.

Prices are nanoseconds, a median and a P95; sizes are blocks. `specs/placement.md` has the formulas.
"""

from collections import deque
from collections.abc import Sequence
from itertools import accumulate
from statistics import median
from typing import NamedTuple

import attrs

from lmpool.core.ids import MILLISECOND, SECOND, Nanos, Rank
from lmpool.core.limits import TRANSFER_BLOCKS_MAX

BUCKETS = (TRANSFER_BLOCKS_MAX - 1).bit_length() + 1
"""A bucket ends at each power of two: corrections of neighbouring sizes are alike."""
WINDOW = 20
"""Observations of a pair and bucket that count: with 20 the P95 is the second largest, which one outlier is not."""
PRIOR = 3
"""Calibrated medians in a window, until as many observations have taken their place."""
FACTOR_MAX = 4.0
"""One observation counts at most as so many times what is predicted, and at least as that part of it."""
CORRECTION_MAX = 64.0
"""No correction exceeds it, whatever is observed: beyond it the link is broken, not slow."""
FORGET_NS = Nanos(600 * SECOND)
"""After that an observation counts no more. A price that closed its own gate is tried again."""
INTERFERENCE = 1.2
"""Copies beside steps take longer than alone, where they are calibrated; what it really is, observations tell."""
COPY_BYTES_PER_S = 1 << 30
"""Without calibration: half of what the slowest path that was measured (gloo) carries."""
RESIDUAL_P50_NS = float(5 * MILLISECOND)
RESIDUAL_P95_NS = float(25 * MILLISECOND)
"""Without calibration: four answers, each of which may wait for a turn of a busy worker's loop."""


class Pair(NamedTuple):
    """A path from one rank to another. The way back is another pair."""

    source: Rank
    target: Rank


@attrs.frozen
class CurvePoint:
    """A calibrated size."""

    blocks: int
    copy_p50_ns: float
    copy_p95_ns: float
    residual_p50_ns: float
    """Of the whole transaction, without its copy."""
    residual_p95_ns: float


@attrs.frozen
class PairCurve:
    pair: Pair
    points: tuple[CurvePoint, ...]
    """At least one; sizes rise."""


@attrs.frozen
class TransferProfile:
    interference: float
    curves: tuple[PairCurve, ...]
    """At least one. A pair without has their median."""


@attrs.define
class Price:
    """Read only. The P95 is never below the median."""

    median_ns: float
    p95_ns: float


@attrs.define
class PriceErrors:
    """Of all predictions so far, each against what was then observed."""

    observed: int
    observed_ns: float
    """Sum."""
    error_ns: float
    """Sum of the distances from the median."""
    over_median: int
    """Took longer than the median."""
    over_p95: int


@attrs.frozen
class _Seen:
    at: Nanos
    of_median: float
    """What it took, as a share of the calibrated median."""
    of_p95: float


class _Table(NamedTuple):
    """Of one pair: prices at the ends of all buckets."""

    medians: tuple[float, ...]
    p95s: tuple[float, ...]


def assumed_profile(block_bytes: int) -> TransferProfile:
    """Where nothing was calibrated."""
    copy = block_bytes * SECOND / COPY_BYTES_PER_S
    point = CurvePoint(1, copy, 2 * copy, RESIDUAL_P50_NS, RESIDUAL_P95_NS)
    return TransferProfile(INTERFERENCE, (PairCurve(Pair(Rank(0), Rank(1)), (point,)),))


def bucket_of(blocks: int) -> int:
    """Bucket b has the sizes above 2^(b-1), up to 2^b."""
    return (blocks - 1).bit_length()


def median_correction(shares: Sequence[float]) -> float:
    """Of the calibrated median, by what was observed as shares of it, oldest first."""
    prior = max(min(PRIOR, WINDOW - len(shares)), 0)
    return sorted([*shares, *[1.0] * prior])[(len(shares) + prior - 1) // 2]


def p95_correction(shares: Sequence[float]) -> float:
    """Of the calibrated P95: the second largest of a whole window, in which the calibrated one stands for the rest."""
    return sorted([*shares, *[1.0] * (WINDOW - len(shares))])[-2]


def _clamped(value: float, least: float, most: float) -> float:
    return min(max(value, least), most)


def _between(prices: Sequence[float], blocks: int) -> float:
    """Prices at the ends of the buckets; straight lines between them."""
    bucket = bucket_of(blocks)
    end = 1 << bucket
    if blocks == end:
        return prices[bucket]
    share = (end - blocks) / (end >> 1)
    return prices[bucket] + (prices[bucket - 1] - prices[bucket]) * share


def _curve_table(points: Sequence[CurvePoint], interference: float) -> _Table:
    """Neither price falls with the size, whatever noise was calibrated."""
    sizes = [point.blocks for point in points]
    medians = _totals(
        list(zip(sizes, [point.copy_p50_ns for point in points], strict=True)),
        list(zip(sizes, [point.residual_p50_ns for point in points], strict=True)),
        interference,
    )
    p95s = _totals(
        list(zip(sizes, [point.copy_p95_ns for point in points], strict=True)),
        list(zip(sizes, [point.residual_p95_ns for point in points], strict=True)),
        interference,
    )
    return _Table(tuple(accumulate(medians, max)), tuple(accumulate(map(max, medians, p95s), max)))


def _totals(
    copies: Sequence[tuple[int, float]], residuals: Sequence[tuple[int, float]], interference: float
) -> list[float]:
    """At the ends of all buckets. A copy longer than the longest that was calibrated has its rate."""
    last, longest = copies[-1]
    totals: list[float] = []
    for bucket in range(BUCKETS):
        blocks = 1 << bucket
        copy = longest * blocks / last if blocks > last else _on_line(copies, blocks)
        totals.append(_on_line(residuals, blocks) + interference * copy)
    return totals


def _on_line(points: Sequence[tuple[int, float]], blocks: int) -> float:
    """Straight lines between the points; before the first and after the last their own value."""
    before = points[0]
    for point in points:
        if point[0] >= blocks:
            if point[0] == before[0]:
                return point[1]
            share = (blocks - before[0]) / (point[0] - before[0])
            return before[1] + (point[1] - before[1]) * share
        before = point
    return before[1]


def _median_table(tables: Sequence[_Table]) -> _Table:
    return _Table(
        tuple(map(median, zip(*[table.medians for table in tables], strict=True))),
        tuple(map(median, zip(*[table.p95s for table in tables], strict=True))),
    )


def _spread(known: Sequence[int], factors: Sequence[float]) -> list[float]:
    """Factors of all buckets from those of some, in ascending order: on straight lines, and beyond them the nearest."""
    points = list(zip(known, factors, strict=True))
    return [_on_line(points, bucket) for bucket in range(BUCKETS)]


class TransferPrices:
    """Calibrated prices, each corrected by the latest observations of its pair and bucket."""

    __slots__ = ("_calibrated", "_curves", "_forget_at", "_interference", "_tables", "_windows", "errors")

    def __init__(self, profile: TransferProfile) -> None:
        assert profile.curves
        self._interference = profile.interference
        self._curves = {curve.pair: curve.points for curve in profile.curves}
        self._calibrated: dict[Pair | None, _Table] = {}
        self._tables: dict[Pair, _Table] = {}
        """Corrected; kept until something is observed or forgotten. No part of the state, as those above."""
        self._windows: dict[Pair | None, dict[int, deque[_Seen]]] = {None: {}}
        """Under None: of all pairs together, for those that have none of their own."""
        self._forget_at = Nanos(0)
        """When the oldest observation ends, or earlier. No part of the state."""
        self.errors = PriceErrors(0, 0.0, 0.0, 0, 0)

    def price(self, pair: Pair, blocks: int) -> Price:
        """Of at least one block."""
        table = self._tables.get(pair)
        if table is None:
            table = self._tables[pair] = self._corrected(pair)
        usual = _between(table.medians, blocks)
        return Price(usual, max(_between(table.p95s, blocks), usual))

    def observe(self, now: Nanos, pair: Pair, blocks: int, expected: Price, took: Nanos) -> None:
        """A transfer was published. `expected` is what was predicted when it began."""
        self._count(expected, took)
        table = self._calibrated_table(pair)
        usual, p95 = _between(table.medians, blocks), _between(table.p95s, blocks)
        present = self.price(pair, blocks)
        counted = _clamped(took, present.median_ns / FACTOR_MAX, present.p95_ns * FACTOR_MAX)
        counted = _clamped(counted, usual / CORRECTION_MAX, usual * CORRECTION_MAX)
        seen = _Seen(now, counted / usual, counted / p95)
        for key in (pair, None):
            windows = self._windows.setdefault(key, {})
            windows.setdefault(bucket_of(blocks), deque(maxlen=WINDOW)).append(seen)
        self._tables.clear()

    def _count(self, expected: Price, took: Nanos) -> None:
        errors = self.errors
        errors.observed += 1
        errors.observed_ns += took
        errors.error_ns += abs(took - expected.median_ns)
        errors.over_median += took > expected.median_ns
        errors.over_p95 += took > expected.p95_ns

    def forget(self, now: Nanos) -> None:
        """Drops what is too old to count."""
        if now < self._forget_at:
            return
        for key, windows in list(self._windows.items()):
            for bucket, window in list(windows.items()):
                while window and window[0].at <= now - FORGET_NS:
                    window.popleft()
                    self._tables.clear()
                if not window:
                    del windows[bucket]
            if not windows and key is not None:
                del self._windows[key]
        oldest = [window[0].at for windows in self._windows.values() for window in windows.values()]
        self._forget_at = Nanos(min(oldest, default=now) + FORGET_NS)

    # Tables

    def _calibrated_table(self, pair: Pair) -> _Table:
        key = pair if pair in self._curves else None
        table = self._calibrated.get(key)
        if table is None:
            if key is None:
                table = _median_table([_curve_table(points, self._interference) for points in self._curves.values()])
            else:
                table = _curve_table(self._curves[key], self._interference)
            self._calibrated[key] = table
        return table

    def _corrected(self, pair: Pair) -> _Table:
        calibrated = self._calibrated_table(pair)
        windows = self._windows.get(pair) or self._windows[None]
        if not windows:
            return calibrated
        known = sorted(windows)
        columns = [windows[bucket] for bucket in known]
        medians = _spread(known, [median_correction([seen.of_median for seen in column]) for column in columns])
        p95s = _spread(known, [p95_correction([seen.of_p95 for seen in column]) for column in columns])
        return _Table(
            tuple([time * factor for time, factor in zip(calibrated.medians, medians, strict=True)]),
            tuple([time * factor for time, factor in zip(calibrated.p95s, p95s, strict=True)]),
        )

    # What is told

    def audit(self) -> None:
        """Asserts that the kept tables are those that would be made now, and that windows are bounded."""
        for pair, table in self._tables.items():
            assert table == self._corrected(pair)
        for windows in self._windows.values():
            assert all(0 <= bucket < BUCKETS and len(window) <= WINDOW for bucket, window in windows.items())

    def digest_state(self) -> str:
        windows = [
            (pair, [(bucket, list(window)) for bucket, window in sorted(windows.items())])
            for pair, windows in self._windows.items()
        ]
        return repr((windows, self.errors))
