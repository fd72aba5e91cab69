"""What whole transfers take between idle replicas of the model, and what of it remains beside the copy.

The remainder is what a price adds to the copy as the data path alone takes it: so both together give what was seen.
"""

import asyncio
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median

import attrs

from lmpool.bench.streams import Streams, stream_blocks
from lmpool.bench.transactions import POLICY, SERVED, Transaction, Transactions, foreseen, pool_blocks
from lmpool.io.calibration import CalibratedPair
from lmpool.io.engine import AsyncEngine
from lmpool.io.topology import RankPair

STREAMS = 1
"""On every rank, where transfers are to be measured beside steps."""


@attrs.frozen
class SessionOrder:
    path: str
    """Of `SERVED`."""
    model: str | None
    cache_folder: Path | None
    dtype: str
    replicas: int
    threads: int
    block_size: int
    pairs: tuple[RankPair, ...]
    sizes: tuple[int, ...]
    """In blocks, as are the next."""
    held_out: tuple[int, ...]
    """For a check of what is predicted: idle, in turn with `sizes`, so that both meet the same machine; then beside
    steps. Empty: no check."""
    rounds: int
    """Of each size on each pair."""
    seed: int
    cold_bytes: int

    @property
    def transfers(self) -> int:
        return len(self.pairs) * (len(self.sizes) + 2 * len(self.held_out)) * self.rounds


@attrs.frozen
class Session:
    calibrating: tuple[Transaction, ...]
    idle: tuple[Transaction, ...]
    """Of the held-out sizes, as the next."""
    loaded: tuple[Transaction, ...]


def measured_session(order: SessionOrder, done: Callable[[Transaction], object]) -> Session:
    """Raises TransactionError, LMPoolError."""
    return asyncio.run(_measured(order, done))


async def _measured(order: SessionOrder, done: Callable[[Transaction], object]) -> Session:
    async with AsyncEngine(
        order.model,
        order.replicas,
        cache_folder=order.cache_folder,
        **SERVED[order.path],
        dtype=order.dtype,
        threads=order.threads,
        block_size=order.block_size,
        kv_blocks=pool_blocks(max(order.sizes + order.held_out)) + stream_blocks(STREAMS, order.block_size),
        policy=POLICY,
        placement="off",
    ) as engine:
        transactions = Transactions(engine, order.block_size, order.seed, order.cold_bytes)

        async def measure(sizes: Sequence[int]) -> tuple[Transaction, ...]:
            return tuple(await transactions.measure(order.pairs, sizes, order.rounds, done))

        found = await measure(order.sizes + order.held_out)
        calibrating = tuple(one for one in found if one.blocks in order.sizes)
        idle = tuple(one for one in found if one.blocks in order.held_out)
        loaded: tuple[Transaction, ...] = ()
        if order.held_out:
            async with Streams(engine, order.replicas, STREAMS, order.seed):
                loaded = await measure(order.held_out)
        return Session(calibrating, idle, loaded)


def with_residuals(pair: CalibratedPair, found: Sequence[Transaction], interference: float) -> CalibratedPair:
    """Of every size, some of `found` are of the pair. How far the P95 is above the median is told by each size and its
    two neighbours together: the tail of one alone hangs on two or three moments of the machine."""
    by_size = [
        [one.took_s for one in found if (one.pair, one.blocks) == ((pair.source, pair.target), point.blocks)]
        for point in pair.points
    ]
    medians = [median(took) for took in by_size]
    excesses = [[one - usual for one in took] for took, usual in zip(by_size, medians, strict=True)]
    points = [
        attrs.evolve(
            point,
            residual_p50_s=usual - interference * point.copy_p50_s,
            residual_p95_s=usual + foreseen(_near(excesses, number), 0.95) - interference * point.copy_p95_s,
        )
        for number, (point, usual) in enumerate(zip(pair.points, medians, strict=True))
    ]
    return attrs.evolve(pair, points=tuple(points))


def _near(excesses: Sequence[Sequence[float]], number: int) -> list[float]:
    """Rising."""
    return sorted(one for each in excesses[max(0, number - 1) : number + 2] for one in each)
