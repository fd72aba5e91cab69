"""Whole transfers between real workers under a real control process, one at a time, timed by control's own record.

A chain of fresh tokens is computed where round robin puts it, and then moved from rank to rank: a move is published
as a copy is, and leaves its source without the chain, so that it can come back.
"""

import asyncio
import random
from collections.abc import Callable, Mapping, Sequence
from math import ceil
from statistics import median
from typing import Any

import attrs
import numpy as np

from lmpool.core.ids import SECOND, RequestId, TransferId
from lmpool.core.messages.transfer import TransferMode, TransferShown
from lmpool.io.clock import monotonic_now
from lmpool.io.engine import AsyncEngine
from lmpool.io.generation import SamplingParams
from lmpool.io.topology import RankPair
from lmpool.io.transfer_order import TransferWish

POLICY = "round-robin"
"""Under which an engine must run, so that every rank gets chains."""
SERVED: Mapping[str, Mapping[str, Any]] = {
    "shm": {"device": "cpu"},
    "cuda-ipc": {"device": "cuda", "transfer_path": "cuda-ipc"},
}
"""The paths by which workers read each other's blocks, with the settings of such a server."""
TOKENS = 256
"""Chains are of ids below; every vocabulary has them."""
MOVES = 8
"""Of one chain, at most."""
COPY_S = 30.0
PUBLISHED = "published"


class TransactionError(Exception):
    """One line: why a transfer has not come to its end."""


@attrs.frozen
class Pace:
    """Seconds. Each question whether a transfer is over takes time of control, which may have no core of its own."""

    idle_s: float
    """Before a transfer."""
    first_s: float
    """From its order to the first question."""
    again_s: float
    """To the next one."""


QUIET = Pace(0.02, 0.02, 0.02)
"""Of a transfer that is timed."""
BUSY_S = 0.002
"""Between questions where one transfer is to follow the other."""


@attrs.frozen
class Transaction:
    pair: RankPair
    blocks: int
    took_s: float
    """From the orders to prepare until control heard that it is published."""
    copy_s: float
    """Of its data path, as the target has told: from the order to copy to the last byte."""


@attrs.frozen
class Times:
    """Of the transactions of one size on one pair."""

    p50_s: float
    p95_s: float
    adds_p50_s: float
    """What each took beside its own copy."""


@attrs.frozen
class Chain:
    tokens: tuple[int, ...]
    rank: int
    blocks: int


def times(found: Sequence[Transaction]) -> Times:
    took = sorted(one.took_s for one in found)
    return Times(median(took), upper(took, 0.95), median(one.took_s - one.copy_s for one in found))


def upper(ordered: Sequence[float], share: float) -> float:
    """The least value that this share does not exceed."""
    return ordered[ceil(share * len(ordered)) - 1]


def foreseen(ordered: Sequence[float], share: float) -> float:
    """What one more of the kind does not exceed with this probability: a prediction bound without any distribution,
    mostly one value above `upper` (Hahn and Meeker, "Statistical Intervals"). Of too few: the largest."""
    return ordered[min(len(ordered), ceil(share * (len(ordered) + 1))) - 1]


def pool_blocks(largest: int) -> int:
    """A worker pins at most a quarter of its pool for copies."""
    return 4 * largest + 64


async def rank_of(engine: AsyncEngine, request: RequestId) -> int:
    """Where it went. Raises TransactionError, LMPoolError."""
    decisions = await engine.decisions(request, 1)
    if not decisions or decisions[0].rank is None:
        raise TransactionError("control does not tell where a request went")
    return decisions[0].rank


class Transactions:
    def __init__(self, engine: AsyncEngine, block_size: int, seed: int, cold_bytes: int) -> None:
        """`engine` is open and routes by `POLICY`; before each transfer so many bytes are read, so that its source is
        in no cache. 0: none."""
        self._engine = engine
        self._block_size = block_size
        self._chance = random.Random(f"transactions {seed}")
        self._memory = np.ones(cold_bytes // 8 or 1, dtype=np.int64)

    async def measure(
        self,
        pairs: Sequence[RankPair],
        sizes: Sequence[int],
        rounds: int,
        done: Callable[[Transaction], object],
    ) -> list[Transaction]:
        """So many of each size on each pair, after one that warms up; sizes in turn, so that none has a moment of the
        machine for itself. Raises TransactionError, LMPoolError."""
        left = {(pair, blocks): rounds + 1 for pair in pairs for blocks in sizes}
        found: list[Transaction] = []
        while any(left.values()):
            for blocks in sizes:
                if not any(left[pair, blocks] for pair in pairs):
                    continue
                chain = await self.chain(blocks)
                for _ in range(MOVES):
                    ways = [pair for pair in pairs if pair[0] == chain.rank and left[pair, blocks]]
                    if not ways:
                        break
                    pair = max(ways, key=lambda way: left[way, blocks])
                    one, chain = await self.move(chain, pair[1], QUIET)
                    if left[pair, blocks] <= rounds:
                        found.append(one)
                        done(one)
                    left[pair, blocks] -= 1
        return found

    async def chain(self, blocks: int) -> Chain:
        """Computed, wherever that was. Raises TransactionError, LMPoolError."""
        tokens = tuple(self._chance.randrange(TOKENS) for _ in range(blocks * self._block_size + 1))
        request = None
        async for chunk in self._engine.generate(tokens, SamplingParams(max_tokens=1, ignores_eos=True)):
            request = chunk.request
        assert request is not None
        return Chain(tokens, await rank_of(self._engine, request), blocks)

    async def move(self, chain: Chain, target: int, pace: Pace) -> tuple[Transaction, Chain]:
        """Also where it is then. Raises TransactionError, LMPoolError."""
        wish = TransferWish(chain.tokens, b"", "default", None, chain.rank, target, TransferMode.MOVE, COPY_S)
        self._memory.max()
        await asyncio.sleep(pace.idle_s)
        shown = await self._over(await self._engine.transfer(wish), pace)
        if shown.outcome != PUBLISHED or shown.took_ns is None or shown.copy_ns is None:
            how = f"{shown.outcome}, {shown.cause or 'without a cause'}"
            raise TransactionError(f"a transfer of {chain.blocks} blocks was not published: {how}")
        pair = (chain.rank, target)
        one = Transaction(pair, chain.blocks, shown.took_ns / SECOND, shown.copy_ns / SECOND)
        return one, attrs.evolve(chain, rank=target)

    async def move_on(self, chain: Chain, pairs: Sequence[RankPair], seconds: float) -> int:
        """One move after the other, for so long; how many. Each is asked for when it should be over by the time that
        the last one took. Raises TransactionError, LMPoolError."""
        until, moves, pace = monotonic_now() + round(seconds * SECOND), 0, Pace(0.0, BUSY_S, BUSY_S)
        while monotonic_now() < until:
            ways = [pair for pair in pairs if pair[0] == chain.rank]
            if not ways:
                raise TransactionError(f"no pair leads on from rank {chain.rank}")
            one, chain = await self.move(chain, ways[moves % len(ways)][1], pace)
            pace = attrs.evolve(pace, first_s=one.took_s)
            moves += 1
        return moves

    async def _over(self, transfer: TransferId, pace: Pace) -> TransferShown:
        await asyncio.sleep(pace.first_s)
        while True:
            state = await self._engine.pool_state()
            for shown in reversed(state.transfers.over):
                if shown.transfer == transfer:
                    return shown
            await asyncio.sleep(pace.again_s)
