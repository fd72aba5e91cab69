"""Answers that are decoded on every rank for as long as they are wanted, and the gaps between their pieces."""

import asyncio
import random
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from types import TracebackType

import attrs

from lmpool.bench.transactions import TOKENS, TransactionError, rank_of
from lmpool.core.ids import SECOND, Nanos
from lmpool.io.clock import monotonic_now
from lmpool.io.engine import AsyncEngine
from lmpool.io.generation import Chunk, SamplingParams

PROMPT_TOKENS = 33
OUTPUT_TOKENS = 256
"""Then another answer begins in its place."""
TRIES = 32
"""For an answer on the wanted rank: others may have its turn."""


@attrs.frozen
class Gap:
    rank: int
    began_ns: Nanos
    ended_ns: Nanos


def stream_blocks(each: int, block_size: int) -> int:
    """Of a pool, for so many streams on its rank."""
    return each * (-(-(PROMPT_TOKENS + OUTPUT_TOKENS) // block_size) + 1)


def gap_times(gaps: Sequence[Gap], windows: Sequence[tuple[Nanos, Nanos]]) -> list[float]:
    """Seconds, of those that lie inside one of the windows."""
    return [
        (gap.ended_ns - gap.began_ns) / SECOND
        for gap in gaps
        if any(began <= gap.began_ns and gap.ended_ns <= ended for began, ended in windows)
    ]


class Streams:
    """`async with`: on entering, every stream has begun. Raises TransactionError, LMPoolError, also on leaving."""

    def __init__(self, engine: AsyncEngine, replicas: int, each: int, seed: int) -> None:
        """`each`: on every rank. `engine` routes by round robin."""
        self._engine = engine
        self._ranks = [rank for rank in range(replicas) for _ in range(each)]
        self._chance = random.Random(f"streams {seed}")
        self._turn = asyncio.Lock()
        """One looks for its rank at a time, or two could take each other's turn again and again."""
        self._tasks: list[asyncio.Task[None]] = []
        self.gaps: list[Gap] = []

    async def __aenter__(self) -> "Streams":
        begun = [asyncio.Event() for _ in self._ranks]
        self._tasks = [asyncio.create_task(self._keep(rank, one)) for rank, one in zip(self._ranks, begun, strict=True)]
        waiting = asyncio.create_task(_all_set(begun))
        await asyncio.wait([waiting, *self._tasks], return_when=asyncio.FIRST_COMPLETED)
        if not waiting.done():
            waiting.cancel()
            await self._end()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._end()

    async def _end(self) -> None:
        """Raises what ended a stream before its time."""
        for task in self._tasks:
            task.cancel()
        for outcome in await asyncio.gather(*self._tasks, return_exceptions=True):
            if isinstance(outcome, Exception):
                raise outcome

    async def _keep(self, rank: int, begun: asyncio.Event) -> None:
        while True:
            async with aclosing(await self._placed(rank)) as chunks:
                begun.set()
                last: Nanos | None = None
                async for chunk in chunks:
                    if chunk.tokens:
                        now = monotonic_now()
                        if last is not None:
                            self.gaps.append(Gap(rank, last, now))
                        last = now

    async def _placed(self, rank: int) -> AsyncGenerator[Chunk, None]:
        """An answer that has begun there."""
        async with self._turn:
            for _ in range(TRIES):
                prompt = [self._chance.randrange(TOKENS) for _ in range(PROMPT_TOKENS)]
                sampling = SamplingParams(temperature=0.0, max_tokens=OUTPUT_TOKENS, ignores_eos=True)
                chunks = self._engine.generate(prompt, sampling)
                first = await anext(chunks)
                if await rank_of(self._engine, first.request) == rank:
                    return chunks
                await chunks.aclose()
        raise TransactionError(f"no stream of {TRIES} went to rank {rank}")


async def _all_set(events: Sequence[asyncio.Event]) -> None:
    for event in events:
        await event.wait()
