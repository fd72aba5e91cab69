"""The body of a worker: loading, progress, beats, failing steps, drains, and whom it yields its cores to."""

import asyncio
import os
import threading
from collections.abc import Callable
from pathlib import Path

import attrs
import pytest

from lmpool.core.messages.ingress_worker import Ended, EndReason
from lmpool.core.plan import BatchPlan, Replica, ReplicaError, Runner, StepResult
from lmpool.io.orders import Beat, Progress, Ready, WorkerOrder
from lmpool.io.worker import NICENESS, LoadReplica, run_worker
from tests.io.cluster import GREEDY, STOP, WAIT_S, Life, ScriptedIngress, load_integers, model_folder, worker_order
from tests.io.loops import Run, on_both_loops

Say = Callable[[str], None]


def start(folder: Path, load: LoadReplica) -> Life:
    order = worker_order(folder, model_folder(folder / "model"), rank=0, epoch=2, kv_blocks=100)
    return Life(lambda channel: run_worker(order, channel, load))


@attrs.define
class FailingRunner:
    """Fails the steps whose numbers it is given."""

    inner: Runner
    failing: set[int]
    hold: threading.Event

    def launch(self, plan: BatchPlan) -> None:
        assert self.hold.wait(WAIT_S)
        if plan.step in self.failing:
            raise RuntimeError("the device is on fire")
        self.inner.launch(plan)

    def collect(self) -> StepResult:
        return self.inner.collect()


def failing(steps: set[int], hold: threading.Event) -> LoadReplica:
    def load(order: WorkerOrder, progress: Say) -> Replica:
        replica = load_integers(order, progress)
        return attrs.evolve(replica, runner=FailingRunner(replica.runner, steps, hold))

    return load


def opened() -> threading.Event:
    event = threading.Event()
    event.set()
    return event


@on_both_loops
def test_progress_passes_while_the_replica_loads(run: Run, tmp_path: Path) -> None:
    go_on = threading.Event()

    def load(order: WorkerOrder, progress: Say) -> Replica:
        progress("reading weights")
        assert go_on.wait(WAIT_S)
        return load_integers(order, progress)

    async def body() -> None:
        life = start(tmp_path, load)
        assert await life.notice(Progress) == Progress("reading weights")
        go_on.set()
        assert await life.notice(Ready) == Ready(("integers instead of a model: 100 blocks of 128 bytes",))
        await life.end()

    run(body())


@on_both_loops
def test_a_drain_during_the_load_is_the_end(run: Run, tmp_path: Path) -> None:
    go_on = threading.Event()

    def load(order: WorkerOrder, progress: Say) -> Replica:
        progress("reading weights")
        assert go_on.wait(WAIT_S)
        return load_integers(order, progress)

    async def body() -> None:
        life = start(tmp_path, load)
        await life.notice(Progress)
        life.drain(20.0)
        await asyncio.wait_for(life.ended, WAIT_S)
        go_on.set()
        await life.end()

    run(body())


@on_both_loops
def test_a_replica_that_cannot_be_loaded_ends_the_worker(run: Run, tmp_path: Path) -> None:
    def load(order: WorkerOrder, progress: Say) -> Replica:
        raise ReplicaError("no CUDA device 3", "there are 2")

    async def body() -> None:
        life = start(tmp_path, load)
        with pytest.raises(ReplicaError, match="no CUDA device 3"):
            await asyncio.wait_for(life.ended, WAIT_S)
        await life.end()

    run(body())


@on_both_loops
def test_beats_tell_work_and_steps(run: Run, tmp_path: Path) -> None:
    hold = threading.Event()

    async def body() -> None:
        life = start(tmp_path, failing(set(), hold))
        await life.notice(Ready)
        assert await life.notice(Beat) == Beat(working=False, steps=0)
        ingress = ScriptedIngress(tmp_path, 1)
        await ingress.joined(1)
        one = ingress.ask(range(20), GREEDY, STOP, 1)
        one.submit(0)
        while await life.notice(Beat) != Beat(working=True, steps=0):
            pass
        hold.set()
        assert await one.finish() == Ended(one.answer.request, 0, EndReason.COMPLETE)
        while await life.notice(Beat) != Beat(working=False, steps=STOP.output_tokens_max):
            pass
        await ingress.links.close()
        await life.end()

    run(body())


@on_both_loops
@pytest.mark.parametrize("step", [1, 2, 5])
def test_a_failed_step_is_computed_again(run: Run, tmp_path: Path, step: int) -> None:
    async def body() -> None:
        life = start(tmp_path, failing({step}, opened()))
        await life.notice(Ready)
        ingress = ScriptedIngress(tmp_path, 1)
        await ingress.joined(1)
        one = ingress.ask(range(20), GREEDY, STOP, 1)
        one.submit(0)
        assert await one.finish() == Ended(one.answer.request, 0, EndReason.COMPLETE)
        assert one.is_right()
        await ingress.links.close()
        await life.end()

    run(body())


@on_both_loops
def test_a_device_that_fails_every_step_ends_the_worker(run: Run, tmp_path: Path) -> None:
    async def body() -> None:
        life = start(tmp_path, failing(set(range(1, 100)), opened()))
        await life.notice(Ready)
        ingress = ScriptedIngress(tmp_path, 1)
        await ingress.joined(1)
        while not life.ended.done():
            one = ingress.ask(range(20), GREEDY, STOP, 1)
            one.submit(0)
            await asyncio.wait((life.ended, asyncio.ensure_future(one.finish())), return_when=asyncio.FIRST_COMPLETED)
        with pytest.raises(ReplicaError, match="steps in a row failed, the last by RuntimeError: the device"):
            await life.ended
        await ingress.links.close()
        await life.end()

    run(body())


@on_both_loops
def test_an_idle_worker_drains_at_once(run: Run, tmp_path: Path) -> None:
    async def body() -> None:
        life = start(tmp_path, load_integers)
        await life.notice(Ready)
        life.drain(20.0)
        await asyncio.wait_for(life.ended, WAIT_S)
        assert not (tmp_path / "worker-0.sock").exists()
        await life.end()

    run(body())


@on_both_loops
def test_computing_yields_its_cores_to_the_event_loop(run: Run, tmp_path: Path) -> None:
    computing: list[int] = []

    def load(order: WorkerOrder, progress: Say) -> Replica:
        computing.append(threading.get_native_id())
        return load_integers(order, progress)

    async def body() -> None:
        life = start(tmp_path, load)
        await life.notice(Ready)
        assert os.getpriority(os.PRIO_PROCESS, computing[0]) == NICENESS
        assert os.getpriority(os.PRIO_PROCESS, threading.get_native_id()) == 0
        await life.end()

    run(body())


@on_both_loops
def test_a_thread_that_ends_while_cores_are_yielded_harms_nobody(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ended: list[int] = []
    thread = threading.Thread(target=lambda: ended.append(threading.get_native_id()))
    thread.start()
    thread.join()
    listdir = os.listdir
    monkeypatch.setattr(
        os, "listdir", lambda path: [*map(str, ended), *listdir(path)] if "task" in str(path) else listdir(path)
    )

    async def body() -> None:
        life = start(tmp_path, load_integers)
        await life.notice(Ready)
        await life.end()

    run(body())
