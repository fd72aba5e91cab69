"""How long copies between ranks last where nothing is copied. `specs/step_time.md` has the arithmetic."""

import attrs

from lmpool.core.ids import SECOND, Nanos, Rank
from lmpool.core.placement.price import BUCKETS, CurvePoint, Pair, PairCurve, TransferProfile
from lmpool.sim.step_time import LLAMA_3_1_8B

MESSAGES = 8
"""One after the other, from the order to prepare until control hears that the blocks are published."""


@attrs.frozen
class CopyRates:
    """Of every pair of ranks, whatever else they copy or compute."""

    begin: float
    """Nanoseconds that a copy takes beside its bytes."""
    block: float
    """Nanoseconds."""
    block_bytes: int


@attrs.frozen
class CopyPath:
    bytes_per_s: float
    """One way."""
    reached: float
    """Of that, by copies of scattered blocks."""
    begin_ns: float
    """Until the first byte, and from the last to the machine: threads, launches, turns of a busy worker's loop."""


NVLINK_H200 = CopyPath(bytes_per_s=450e9, reached=0.6, begin_ns=5e6)
"""Bandwidth from the data sheet; the rest is assumed."""


def copy_rates(path: CopyPath, token_bytes: int, block_size: int) -> CopyRates:
    block_bytes = token_bytes * block_size
    return CopyRates(path.begin_ns, SECOND * block_bytes / (path.bytes_per_s * path.reached), block_bytes)


def assumed_copies(block_size: int) -> CopyRates:
    """Between the accelerators of `step_time`."""
    return copy_rates(NVLINK_H200, LLAMA_3_1_8B.kv_bytes, block_size)


def copy_ns(rates: CopyRates, blocks: int) -> Nanos:
    return Nanos(round(rates.begin + rates.block * blocks))


def transfer_profile(rates: CopyRates, latency_ns: int) -> TransferProfile:
    """What control knows of them: as calibrated exactly, beside messages that each take so long."""
    residual = float(MESSAGES * latency_ns)
    points = [CurvePoint(blocks, time, time, residual, 2 * residual) for blocks, time in _times(rates)]
    return TransferProfile(1.0, (PairCurve(Pair(Rank(0), Rank(1)), tuple(points)),))


def _times(rates: CopyRates) -> list[tuple[int, float]]:
    return [(1 << power, float(copy_ns(rates, 1 << power))) for power in range(BUCKETS)]
