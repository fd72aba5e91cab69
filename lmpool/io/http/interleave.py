"""Several streams at once, as one stream."""

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from typing import TypeVar

T = TypeVar("T")


async def interleave(sources: Sequence[AsyncGenerator[T, None]]) -> AsyncGenerator[tuple[int, T], None]:
    """Items with the number of their source, as they come. Of several sources one item each is read ahead.

    The first failure of any source is raised. All sources are closed at the end, whatever ended it.
    """
    if len(sources) == 1:
        async with aclosing(sources[0]) as source:
            async for only in source:
                yield 0, only
        return
    pending = {_next_of(source): number for number, source in enumerate(sources)}
    try:
        while pending:
            await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
            for task in [task for task in pending if task.done()]:
                item = task.result()
                number = pending.pop(task)
                if item is not None:
                    pending[_next_of(sources[number])] = number
                    yield number, item
    finally:
        for task in pending:
            task.cancel()
        await asyncio.gather(*pending, return_exceptions=True)
        for source in sources:
            await source.aclose()


def _next_of(source: AsyncGenerator[T, None]) -> "asyncio.Task[T | None]":
    """None once the source has ended."""

    async def advance() -> T | None:
        return await anext(source, None)

    return asyncio.create_task(advance())
