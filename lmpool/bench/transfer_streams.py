"""What transfers cost the streams that are decoded beside them: the gaps between pieces, undisturbed and disturbed.

Windows alternate in one run, so that both kinds meet the same machine.
"""

import asyncio
import json
from collections.abc import Sequence

import attrs
from tqdm import tqdm

from lmpool.bench.streams import Streams, gap_times, stream_blocks
from lmpool.bench.table import table_lines
from lmpool.bench.transactions import POLICY, SERVED, Transactions, pool_blocks, upper
from lmpool.core.ids import Nanos
from lmpool.io.clock import monotonic_now
from lmpool.io.engine import AsyncEngine
from lmpool.io.topology import RankPair

RATIO_MAX = 2.0
"""Of gaps beside transfers to gaps without, at the median and at p99, on an idle machine."""
COLUMNS = ("", "gaps", "p50 ms", "p99 ms")


@attrs.frozen
class StreamOrder:
    path: str
    """Of `SERVED`."""
    model: str | None
    replicas: int
    threads: int | None
    dtype: str
    block_size: int
    each: int
    """Streams on every rank."""
    blocks: int
    """Of each transfer."""
    pairs: tuple[RankPair, ...]
    windows: int
    """Of each kind."""
    window_s: float
    seed: int


@attrs.frozen
class Gaps:
    count: int
    p50_s: float
    p99_s: float


@attrs.frozen
class StreamFigures:
    replicas: int
    streams: int
    """On every rank."""
    blocks: int
    transfers: int
    """In all disturbed windows, one after the other."""
    disturbed_s: float
    undisturbed: Gaps
    disturbed: Gaps
    p50_ratio: float
    p99_ratio: float

    @property
    def is_within(self) -> bool:
        return max(self.p50_ratio, self.p99_ratio) <= RATIO_MAX


def measure_streams(order: StreamOrder) -> StreamFigures:
    """Raises TransactionError, LMPoolError."""
    return asyncio.run(_measured(order))


async def _measured(order: StreamOrder) -> StreamFigures:
    engine = AsyncEngine(
        order.model,
        order.replicas,
        **SERVED[order.path],
        dtype=order.dtype,
        threads=order.threads,
        block_size=order.block_size,
        kv_blocks=pool_blocks(order.blocks) + stream_blocks(order.each, order.block_size),
        policy=POLICY,
        placement="off",
    )
    windows: dict[bool, list[tuple[Nanos, Nanos]]] = {False: [], True: []}
    transfers = 0
    async with engine, Streams(engine, order.replicas, order.each, order.seed) as streams:
        transactions = Transactions(engine, order.block_size, order.seed, 0)
        for number in tqdm(range(2 * order.windows), desc="windows", unit="window"):
            is_disturbed = number % 2 == 1
            chain = await transactions.chain(order.blocks)
            began = monotonic_now()
            if is_disturbed:
                transfers += await transactions.move_on(chain, order.pairs, order.window_s)
            else:
                await asyncio.sleep(order.window_s)
            windows[is_disturbed].append((began, monotonic_now()))
    disturbed_s = sum(ended - began for began, ended in windows[True]) / 1e9
    return stream_figures(
        order, transfers, disturbed_s, *(gap_times(streams.gaps, windows[kind]) for kind in (False, True))
    )


def stream_figures(
    order: StreamOrder, transfers: int, disturbed_s: float, without: Sequence[float], beside: Sequence[float]
) -> StreamFigures:
    """Of gaps in seconds, some of each kind."""
    undisturbed, disturbed = gaps_of(without), gaps_of(beside)
    return StreamFigures(
        replicas=order.replicas,
        streams=order.each,
        blocks=order.blocks,
        transfers=transfers,
        disturbed_s=disturbed_s,
        undisturbed=undisturbed,
        disturbed=disturbed,
        p50_ratio=disturbed.p50_s / undisturbed.p50_s,
        p99_ratio=disturbed.p99_s / undisturbed.p99_s,
    )


def gaps_of(seconds: Sequence[float]) -> Gaps:
    ordered = sorted(seconds)
    return Gaps(len(ordered), upper(ordered, 0.5), upper(ordered, 0.99))


def stream_json(figures: StreamFigures) -> str:
    return json.dumps(attrs.asdict(figures) | {"is_within": figures.is_within}, indent=1)


def stream_lines(figures: StreamFigures) -> list[str]:
    rows = [
        [name, str(gaps.count), f"{gaps.p50_s * 1e3:.2f}", f"{gaps.p99_s * 1e3:.2f}"]
        for name, gaps in (("undisturbed", figures.undisturbed), ("beside transfers", figures.disturbed))
    ]
    rows.append(["ratio", "", f"{figures.p50_ratio:.2f}", f"{figures.p99_ratio:.2f}"])
    rate = figures.transfers / figures.disturbed_s
    verdict = "within" if figures.is_within else "ABOVE"
    return [
        *table_lines(COLUMNS, rows),
        f"{figures.streams} streams on each of {figures.replicas} replicas; {figures.transfers} transfers of "
        f"{figures.blocks} blocks, {rate:.1f} a second. {verdict} the bound of {RATIO_MAX:g} on an idle machine.",
    ]
