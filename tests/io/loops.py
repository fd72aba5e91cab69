"""Runs a test's coroutine on each of the event loops that io supports."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, TypeAlias

import pytest
import uvloop

Run: TypeAlias = Callable[[Coroutine[Any, Any, None]], None]


def _run_on(new_loop: Callable[[], asyncio.AbstractEventLoop]) -> Run:
    def run(coroutine: Coroutine[Any, Any, None]) -> None:
        with asyncio.Runner(loop_factory=new_loop) as runner:
            runner.run(coroutine)

    return run


on_both_loops = pytest.mark.parametrize(
    "run", [_run_on(asyncio.new_event_loop), _run_on(uvloop.new_event_loop)], ids=["asyncio", "uvloop"]
)
