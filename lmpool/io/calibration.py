"""The file that `lmpool calibrate` writes: what steps and transfers take on this machine, with this model.

JSON, strict: every field and no other (`records.py`). It holds for one model, KV form and set of pairs; for anything
else it is refused, and a server without one begins with assumptions (`core/placement/price.py`).
"""

import math
from collections.abc import Collection, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import attrs
import orjson
from cattrs import BaseValidationError

from lmpool.core.ids import SECOND, Rank
from lmpool.core.limits import TRANSFER_BLOCKS_MAX
from lmpool.core.placement.price import (
    INTERFERENCE,
    RESIDUAL_P50_NS,
    RESIDUAL_P95_NS,
    CurvePoint,
    Pair,
    PairCurve,
    TransferProfile,
)
from lmpool.core.prefix import ModelIdentity
from lmpool.core.rates import Rates
from lmpool.io.records import explain, strict_converter

SCHEMA = 1
"""Rises with every change of a field's meaning."""
ROUNDING = 1e-9
"""Relative, of a time that is the sum of two."""
AGAIN = "run lmpool calibrate again"


class CalibrationError(Exception):
    """One line: what is wrong with a file, and what helps."""


@attrs.frozen
class StepPoint:
    """A measured step: rows alike, each with so many tokens after so many others."""

    rows: int
    context: int
    tokens: int
    seconds: float
    """The best of a few."""


@attrs.frozen
class CopyPoint:
    blocks: int
    copy_p50_s: float
    copy_p95_s: float
    """Of scattered blocks from a cold source, from the order to the last byte, beside nothing else."""
    residual_p50_s: float | None
    """What is left of whole transfers beside interference x copy: negative where chains, which lie in runs, are copied
    faster than scattered blocks. Both None: not measured."""
    residual_p95_s: float | None


@attrs.frozen
class CalibratedPair:
    source: int
    target: int
    path: str
    """A name of a data path."""
    points: tuple[CopyPoint, ...]
    """Sizes rise."""


@attrs.frozen
class Calibration:
    schema: int
    lmpool: str
    """The version that wrote it."""
    identity: ModelIdentity
    block_bytes: int
    device: str
    threads: int
    """Of each replica, on CPU."""
    rates: Rates
    """Fitted to the steps; nanoseconds."""
    prefills: tuple[StepPoint, ...]
    decodes: tuple[StepPoint, ...]
    interference: float | None
    """How many times as long copies take beside steps. None: not measured."""
    pairs: tuple[CalibratedPair, ...]


_CONVERTER = strict_converter()


def calibration_text(calibration: Calibration) -> bytes:
    return orjson.dumps(_CONVERTER.unstructure(calibration), option=orjson.OPT_INDENT_2) + b"\n"


def read_calibration(path: Path) -> Calibration:
    """Raises CalibrationError."""
    try:
        fields: Any = orjson.loads(path.read_bytes())
    except OSError as error:
        raise CalibrationError(f"cannot read the calibration {path}: {error.strerror}") from error
    except orjson.JSONDecodeError as error:
        raise CalibrationError(f"{path} is no calibration: {error}") from error
    schema = fields.get("schema") if type(fields) is dict else None
    if schema != SCHEMA:
        raise CalibrationError(f"{path} is a calibration of schema {schema!r:.40}, and this is {SCHEMA}: {AGAIN}")
    try:
        calibration: Calibration = _CONVERTER.structure(fields, Calibration)
    except BaseValidationError as error:
        raise CalibrationError(f"{path} is no calibration: {explain(error)}") from error
    fault = _fault(calibration)
    if fault is not None:
        raise CalibrationError(f"{path} makes no sense: {fault}; {AGAIN}")
    return calibration


def _fault(calibration: Calibration) -> str | None:
    numbers = [*attrs.astuple(calibration.rates), calibration.interference or 0.0]
    steps = [*calibration.prefills, *calibration.decodes]
    if not all(math.isfinite(number) and number >= 0 for number in numbers):
        return "a rate is negative or no number"
    if not calibration.rates.step > 0 < calibration.rates.prefill:
        return "a step or a prefill token takes no time"
    if not all(math.isfinite(step.seconds) and step.seconds > 0 for step in steps):
        return "a step took no time"
    if calibration.interference is not None and calibration.interference < 1:
        return "copies beside steps took less time than alone"
    pairs = [(pair.source, pair.target) for pair in calibration.pairs]
    if not pairs or len(pairs) > len(dict.fromkeys(pairs)):
        return "it has no pair, or one twice"
    for pair in calibration.pairs:
        fault = _fault_of_points(pair.points, _interference(calibration))
        if fault is not None:
            return f"pair {pair.source}>{pair.target}: {fault}"
    return None


def _fault_of_points(points: Sequence[CopyPoint], interference: float) -> str | None:
    sizes = [0, *[point.blocks for point in points], TRANSFER_BLOCKS_MAX + 1]
    if len(points) == 0 or any(one >= other for one, other in pairwise(sizes)):
        return "sizes do not rise from 1"
    for point in points:
        if (point.residual_p50_s is None) != (point.residual_p95_s is None):
            return f"{point.blocks} blocks have one residual"
        columns = ((point.copy_p50_s, point.copy_p95_s), _whole(point, interference))
        if not all(0 < median <= p95 * (1 + ROUNDING) < math.inf for median, p95 in columns):
            return f"times of {point.blocks} blocks are negative, none, or their P95 is below their median"
    return None


def _whole(point: CopyPoint, interference: float) -> tuple[float, float]:
    """Of a whole transfer, in seconds, as it is priced."""
    usual, p95 = point.residual_p50_s or 0.0, point.residual_p95_s or 0.0
    return usual + interference * point.copy_p50_s, p95 + interference * point.copy_p95_s


def _interference(calibration: Calibration) -> float:
    return INTERFERENCE if calibration.interference is None else calibration.interference


def check_model(calibration: Calibration, identity: ModelIdentity, block_bytes: int) -> None:
    """Raises CalibrationError where it was made for another model or form of blocks."""
    made, found = attrs.asdict(calibration.identity), attrs.asdict(identity)
    made["block_bytes"], found["block_bytes"] = calibration.block_bytes, block_bytes
    for name, value in found.items():
        if made[name] != value:
            raise CalibrationError(
                f"the calibration was made for {name.replace('_', ' ')} {made[name]}, and this is {value}: {AGAIN}"
            )


def check_pairs(calibration: Calibration, pairs: Collection[tuple[int, int]]) -> None:
    """Raises CalibrationError where it was made for other pairs than these, which have a path here."""
    made = {(pair.source, pair.target) for pair in calibration.pairs}
    missing, foreign = sorted(set(pairs) - made), sorted(made - set(pairs))
    for wrong, what in ((missing, "lacks"), (foreign, "has")):
        if wrong:
            names = ", ".join(f"{source}>{target}" for source, target in wrong[:4])
            more = f" and {len(wrong) - 4} others" if len(wrong) > 4 else ""
            where = "which can transfer here" if what == "lacks" else "which cannot transfer here"
            raise CalibrationError(f"the calibration {what} the pairs {names}{more}, {where}: {AGAIN}")


def transfer_profile(calibration: Calibration) -> TransferProfile:
    """As control prices transfers by it."""
    return TransferProfile(_interference(calibration), tuple(_curve(pair) for pair in calibration.pairs))


def _curve(pair: CalibratedPair) -> PairCurve:
    return PairCurve(Pair(Rank(pair.source), Rank(pair.target)), tuple(_point(point) for point in pair.points))


def _point(point: CopyPoint) -> CurvePoint:
    median, p95 = point.residual_p50_s, point.residual_p95_s
    return CurvePoint(
        point.blocks,
        point.copy_p50_s * SECOND,
        point.copy_p95_s * SECOND,
        RESIDUAL_P50_NS if median is None else median * SECOND,
        RESIDUAL_P95_NS if p95 is None else p95 * SECOND,
    )
