"""The thread on which blocks are copied, beside the event loop and the thread of the steps."""

import asyncio
import os
import threading
from collections.abc import Callable
from contextlib import suppress
from queue import SimpleQueue
from typing import Any, TypeVar

import attrs

Result = TypeVar("Result")

NICENESS = 5
"""As of computing threads on a CPU: event loops get their turn first."""


@attrs.frozen
class _Call:
    call: Callable[[], Any]
    outcome: "asyncio.Future[Any]"


class CopyThread:
    """A daemon, so that a copy that hangs keeps no process alive. Must be made on a running event loop."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._inbox: SimpleQueue[_Call | None] = SimpleQueue()
        self._thread = threading.Thread(target=self._main, name="copies", daemon=True)
        self._thread.start()

    def run(self, call: Callable[[], Result]) -> "asyncio.Future[Result]":
        """One after the other, in order. What is begun runs to its end, whoever stops awaiting it."""
        outcome: asyncio.Future[Result] = self._loop.create_future()
        self._inbox.put(_Call(call, outcome))
        return outcome

    async def end(self, wait_s: float) -> None:
        """After what was ordered before, or without it."""
        self._inbox.put(None)
        await asyncio.to_thread(self._thread.join, wait_s)

    def _main(self) -> None:
        with suppress(PermissionError):
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), NICENESS)
        while (item := self._inbox.get()) is not None:
            try:
                result = item.call()
            except Exception as error:
                self._post(_fail, item.outcome, error)
            else:
                self._post(_succeed, item.outcome, result)

    def _post(self, tell: Callable[..., None], outcome: "asyncio.Future[Any]", value: Any) -> None:
        with suppress(RuntimeError):  # the loop has ended meanwhile
            self._loop.call_soon_threadsafe(tell, outcome, value)


def _succeed(outcome: "asyncio.Future[Any]", result: Any) -> None:
    if not outcome.done():
        outcome.set_result(result)


def _fail(outcome: "asyncio.Future[Any]", error: Exception) -> None:
    if not outcome.done():
        outcome.set_exception(error)
