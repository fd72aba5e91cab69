"""The one thread on which a replica is loaded and its steps run, beside the event loop that plans them."""

import asyncio
import threading
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from enum import Enum
from queue import Empty, SimpleQueue
from typing import Any, TypeAlias

from lmpool.core.events import StepCompleted, StepFailed
from lmpool.core.ids import StepNumber
from lmpool.core.plan import BatchPlan, Replica, Runner
from lmpool.io.log import get_log

StepEvent: TypeAlias = StepCompleted | StepFailed

END_S = 5.0
"""How long the end waits for a step that runs; what it would bring nobody wants any more."""

_log = get_log("runner")


class _Mark(Enum):
    ANSWERED = "answered"
    """The machine has made of the last result what it makes of it: its plans stand before this mark."""
    END = "end"


class RunnerThread:
    """A daemon, so that a step or a load that hangs keeps no process alive."""

    def __init__(self, load: Callable[[], Replica]) -> None:
        """Must be made on a running event loop. Begins to load at once."""
        self._load = load
        self._completed: Callable[[StepEvent], None] | None = None
        self._loop = asyncio.get_running_loop()
        self._inbox: SimpleQueue[BatchPlan | _Mark] = SimpleQueue()
        self.replica: asyncio.Future[Replica] = self._loop.create_future()
        """Done when it is loaded, or with what its load has raised."""
        self.fault: asyncio.Future[None] = self._loop.create_future()
        """Fails if this thread ends by an exception that is no runner's."""
        self._thread = threading.Thread(target=self._main, name="runner", daemon=True)
        self._thread.start()

    def on_step_end(self, completed: Callable[[StepEvent], None]) -> None:
        """`completed` is called on the event loop, in the order of the steps. To be said before the first plan."""
        self._completed = completed

    def run(self, plan: BatchPlan) -> None:
        self._inbox.put(plan)

    async def end(self) -> None:
        """A step that runs is awaited for a while; a load is not."""
        self._inbox.put(_Mark.END)
        if self.replica.done():
            await asyncio.to_thread(self._thread.join, END_S)
        self.replica.cancel()
        self.fault.cancel()

    def _main(self) -> None:
        try:
            replica = self._load()
        except Exception as error:
            self._post(_fail, self.replica, error)
            return
        self._post(_succeed, self.replica, replica)
        try:
            self._serve(replica.runner, replica.steps_in_flight_max)
        except Exception as error:
            self._post(_fail, self.fault, error)

    def _serve(self, runner: Runner, steps_in_flight_max: int) -> None:
        """Plans are launched as they come; a result is collected only when the machine has answered the one before,
        so that the next step is launched, where two may run, before this thread blocks for the one that runs."""
        running: deque[StepNumber | StepFailed] = deque()
        is_answered = True
        while True:
            try:
                item = self._inbox.get(block=not (running and is_answered))
            except Empty:
                self._post(self._answer, _collect(runner, running.popleft()))
                is_answered = False
                continue
            match item:
                case BatchPlan():
                    assert len(running) < steps_in_flight_max
                    running.append(_launch(runner, item))
                case _Mark.ANSWERED:
                    is_answered = True
                case _Mark.END:
                    return

    def _answer(self, event: StepEvent) -> None:
        assert self._completed is not None
        self._completed(event)
        self._inbox.put(_Mark.ANSWERED)

    def _post(self, call: Callable[..., None], *arguments: Any) -> None:
        with suppress(RuntimeError):  # the loop has ended meanwhile
            self._loop.call_soon_threadsafe(call, *arguments)


def _launch(runner: Runner, plan: BatchPlan) -> StepNumber | StepFailed:
    try:
        runner.launch(plan)
    except Exception as error:
        return _failure(plan.step, error)
    return plan.step


def _collect(runner: Runner, begun: StepNumber | StepFailed) -> StepEvent:
    """A step that failed to launch fails in its turn."""
    if isinstance(begun, StepFailed):
        return begun
    try:
        return StepCompleted(runner.collect())
    except Exception as error:
        return _failure(begun, error)


def _failure(step: StepNumber, error: Exception) -> StepFailed:
    _log.error("step failed", step=step, exc_info=error)
    return StepFailed(step, f"{type(error).__name__}: {error}")


def _succeed(future: "asyncio.Future[Replica]", replica: Replica) -> None:
    if not future.done():
        future.set_result(replica)


def _fail(future: "asyncio.Future[Any]", error: Exception) -> None:
    if not future.done():
        future.set_exception(error)
