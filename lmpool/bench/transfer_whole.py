"""Whole transfers of blocks of a given form: between idle replicas of a random model that has such blocks."""

import asyncio
import tempfile
from pathlib import Path

import attrs
from tqdm import tqdm

from lmpool.bench.random_llama import LlamaForm, write_random_llama
from lmpool.bench.transactions import POLICY, SERVED, Times, Transaction, Transactions, pool_blocks, times
from lmpool.io.engine import AsyncEngine
from lmpool.io.topology import RankPair


@attrs.frozen
class WholeOrder:
    path: str
    """Of `SERVED`."""
    form: LlamaForm
    dtype: str
    block_size: int
    replicas: int
    threads: int
    pairs: tuple[RankPair, ...]
    sizes: tuple[int, ...]
    """In blocks."""
    rounds: int
    """Of each size on each pair."""
    seed: int
    cold_bytes: int
    is_summed: bool


def whole_times(order: WholeOrder) -> dict[tuple[RankPair, int], Times]:
    """By pair and size. Raises TransactionError, LMPoolError."""
    found = asyncio.run(_measured(order))
    return {
        (pair, blocks): times([one for one in found if (one.pair, one.blocks) == (pair, blocks)])
        for pair in order.pairs
        for blocks in order.sizes
    }


async def _measured(order: WholeOrder) -> list[Transaction]:
    with tempfile.TemporaryDirectory(prefix="lmpool-bench-") as folder:
        model = write_random_llama(Path(folder) / "model", order.form, order.seed)
        count = len(order.pairs) * len(order.sizes) * order.rounds
        async with form_engine(order, model) as engine:
            transactions = Transactions(engine, order.block_size, order.seed, order.cold_bytes)
            with tqdm(total=count, desc="whole", unit="transfer") as bar:
                return await transactions.measure(order.pairs, order.sizes, order.rounds, lambda _: bar.update())


def form_engine(order: WholeOrder, model: Path) -> AsyncEngine:
    return AsyncEngine(
        model,
        order.replicas,
        **SERVED[order.path],
        dtype=order.dtype,
        threads=order.threads,
        block_size=order.block_size,
        kv_blocks=pool_blocks(max(order.sizes)),
        policy=POLICY,
        placement="off",
        transfer_checksum="on" if order.is_summed else "off",
    )
