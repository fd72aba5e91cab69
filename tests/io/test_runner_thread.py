"""The runner's thread: order, launching ahead, failures that come in their turn, and ends."""

import asyncio
import threading
from queue import SimpleQueue

import pytest

from lmpool.core.events import StepCompleted, StepFailed
from lmpool.core.ids import StepNumber
from lmpool.core.plan import BatchPlan, Replica, ReplicaError, StepResult
from lmpool.core.prefix import ModelIdentity
from lmpool.io.runner_thread import RunnerThread, StepEvent
from lmpool.sim.integer_model import RATES_DEFAULT
from tests.io.loops import Run, on_both_loops

WAIT_S = 20


def plan(number: int) -> BatchPlan:
    return BatchPlan(StepNumber(number), (), (), ())


class GatedRunner:
    """A step completes when the test lets it. Notes what was called, and on which threads."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.threads: set[int] = set()
        self.gate: SimpleQueue[Exception | None] = SimpleQueue()
        self.fail_launch_of = 0
        self._running: list[StepNumber] = []

    def launch(self, plan: BatchPlan) -> None:
        self.calls.append(f"launch {plan.step}")
        self.threads.add(threading.get_ident())
        if plan.step == self.fail_launch_of:
            raise RuntimeError("no memory")
        self._running.append(plan.step)

    def collect(self) -> StepResult:
        step = self._running.pop(0)
        self.calls.append(f"collect {step}")
        self.threads.add(threading.get_ident())
        fault = self.gate.get(timeout=WAIT_S)
        if fault is not None:
            raise fault
        return StepResult(step, (), (), (), ())

    def replica(self, steps_in_flight_max: int) -> Replica:
        return Replica(
            runner=self,
            pool=None,
            identity=ModelIdentity("r", "d", "l", 16),
            blocks=1,
            model_tokens_max=1,
            vocabulary=1,
            steps_in_flight_max=steps_in_flight_max,
            rates=RATES_DEFAULT,
            description="",
        )


class Desk:
    """Stands for the machine: answers each result with further plans before it returns."""

    def __init__(self, runner: GatedRunner, steps_in_flight_max: int) -> None:
        self.events: asyncio.Queue[StepEvent] = asyncio.Queue()
        self.answers: list[int] = []
        self.thread = RunnerThread(lambda: runner.replica(steps_in_flight_max))
        self.thread.on_step_end(self._ended)

    def _ended(self, event: StepEvent) -> None:
        if self.answers:
            self.thread.run(plan(self.answers.pop(0)))
        self.events.put_nowait(event)

    async def next(self) -> StepEvent:
        return await asyncio.wait_for(self.events.get(), WAIT_S)


@on_both_loops
def test_with_one_step_in_flight_each_is_collected_before_the_next(run: Run) -> None:
    async def body() -> None:
        runner = GatedRunner()
        desk = Desk(runner, 1)
        desk.answers = [2, 3]
        desk.thread.run(plan(1))
        for number in (1, 2, 3):
            runner.gate.put(None)
            event = await desk.next()
            assert isinstance(event, StepCompleted)
            assert event.result.step == number
        await desk.thread.end()
        assert runner.calls == [f"{call} {number}" for number in (1, 2, 3) for call in ("launch", "collect")]
        assert len(runner.threads) == 1
        assert threading.get_ident() not in runner.threads

    run(body())


@on_both_loops
def test_with_two_the_next_is_launched_before_the_thread_blocks_again(run: Run) -> None:
    async def body() -> None:
        runner = GatedRunner()
        desk = Desk(runner, 2)
        desk.answers = [3, 4]
        for number in (1, 2):
            desk.thread.run(plan(number))
        for _ in range(4):
            runner.gate.put(None)
        for number in (1, 2, 3, 4):
            event = await desk.next()
            assert isinstance(event, StepCompleted)
            assert event.result.step == number
        await desk.thread.end()
        assert runner.calls.index("launch 3") < runner.calls.index("collect 2")
        assert runner.calls.index("launch 4") < runner.calls.index("collect 3")

    run(body())


@on_both_loops
def test_a_step_that_fails_says_why_and_the_next_runs(run: Run) -> None:
    async def body() -> None:
        runner = GatedRunner()
        desk = Desk(runner, 1)
        desk.answers = [2]
        desk.thread.run(plan(1))
        runner.gate.put(ValueError("a bad day"))
        assert await desk.next() == StepFailed(StepNumber(1), "ValueError: a bad day")
        runner.gate.put(None)
        assert isinstance(await desk.next(), StepCompleted)
        await desk.thread.end()

    run(body())


@on_both_loops
def test_a_step_that_cannot_be_launched_fails_in_its_turn(run: Run) -> None:
    async def body() -> None:
        runner = GatedRunner()
        runner.fail_launch_of = 2
        desk = Desk(runner, 2)
        desk.thread.run(plan(1))
        desk.thread.run(plan(2))
        runner.gate.put(None)
        assert isinstance(await desk.next(), StepCompleted)
        assert await desk.next() == StepFailed(StepNumber(2), "RuntimeError: no memory")
        await desk.thread.end()

    run(body())


@on_both_loops
def test_what_a_load_raises_is_its_result(run: Run) -> None:
    async def body() -> None:
        def load() -> Replica:
            raise ReplicaError("no such device", "name another")

        thread = RunnerThread(load)
        with pytest.raises(ReplicaError, match="no such device"):
            await asyncio.wait_for(thread.replica, WAIT_S)
        await thread.end()

    run(body())


@on_both_loops
def test_the_end_does_not_wait_for_a_load(run: Run) -> None:
    loaded = threading.Event()

    def load() -> Replica:
        assert loaded.wait(WAIT_S)
        return GatedRunner().replica(1)

    async def body() -> None:
        thread = RunnerThread(load)
        await thread.end()
        assert thread.replica.cancelled()

    before = set(threading.enumerate())
    run(body())
    loaded.set()
    for thread in set(threading.enumerate()) - before:
        thread.join(WAIT_S)


@on_both_loops
def test_a_broken_law_of_the_thread_itself_is_a_fault(run: Run) -> None:
    async def body() -> None:
        planned = threading.Event()

        def load() -> Replica:
            assert planned.wait(WAIT_S)
            return GatedRunner().replica(1)

        thread = RunnerThread(load)
        thread.run(plan(1))
        thread.run(plan(2))  # more than may be in flight
        planned.set()
        with pytest.raises(AssertionError):
            await asyncio.wait_for(asyncio.shield(thread.fault), WAIT_S)
        await thread.end()

    run(body())
