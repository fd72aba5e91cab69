"""The body of a worker process: its machine on the event loop, its replica on a thread beside it."""

import asyncio
import os
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import TypeAlias, assert_never

from lmpool.core.batch import PrefillOrder
from lmpool.core.effects import CancelCopy, CopyBlocks, RunStep, Send, SendBlocks, WorkerEffect
from lmpool.core.events import DrainOrdered, StepCompleted, StepFailed, WorkerEvent
from lmpool.core.execution import FAILURES_MAX
from lmpool.core.ids import MILLISECOND, SECOND, Epoch, Nanos, Peer, Rank, Role
from lmpool.core.plan import Replica, ReplicaError
from lmpool.core.prefix import namespace_base
from lmpool.core.worker import Worker, WorkerSettings
from lmpool.io.block_copies import BlockCopies
from lmpool.io.child import ChildEnd, drain_ordered
from lmpool.io.clock import monotonic_now
from lmpool.io.driver import Driver
from lmpool.io.link import LINK_BOUNDS, Identity, LinkEvent, Links, control_address, worker_address
from lmpool.io.log import get_log
from lmpool.io.orders import Beat, Drain, Progress, Ready, WorkerOrder
from lmpool.io.placement import check_calibration
from lmpool.io.runner_thread import RunnerThread, StepEvent

LoadReplica: TypeAlias = Callable[[WorkerOrder, Callable[[str], None]], Replica]

BEAT_S = 1.0
REPORT_INTERVAL_NS = Nanos(250 * MILLISECOND)
"""Of a worker without news; one that has some reports with each step. A twelfth of the silence that makes control
suspicious."""
CLASS_NS = Nanos(10 * SECOND)
"""What a priority class is worth in waiting: the worst class, 16 below the best, waits at most 160 s longer."""
STEP_FAILURES_MAX = 3 * FAILURES_MAX
"""In a row. A request that no step survives is given up after `FAILURES_MAX`; a device that is lost fails on."""
NICENESS = 5
"""Of computing threads on a CPU, so that event loops get their turn between them."""

_log = get_log("worker")


async def run_worker(order: WorkerOrder, channel: ChildEnd, load_replica: LoadReplica) -> None:
    """Ends when it has drained. Raises ReplicaError if the replica cannot be loaded, or fails step after step."""
    drain = drain_ordered(channel)

    def load() -> Replica:
        replica = load_replica(order, lambda text: channel.note(Progress(text)))
        check_calibration(order.calibration_file, replica.identity)
        if replica.steps_in_flight_max == 1:
            _yield_cores()
        return replica

    thread = RunnerThread(load)
    try:
        await asyncio.wait((drain, thread.replica), return_when=asyncio.FIRST_COMPLETED)
        if thread.replica.done():
            await _Body(order, channel, thread, thread.replica.result()).serve(drain)
    finally:
        await thread.end()


def _yield_cores() -> None:
    """Where computing and event loops share cores, computing gives way; threads that it starts later inherit that."""
    for thread in map(int, os.listdir("/proc/self/task")):
        if thread != threading.main_thread().native_id:
            with suppress(ProcessLookupError):  # it has ended meanwhile
                os.setpriority(os.PRIO_PROCESS, thread, NICENESS)


def _settings(order: WorkerOrder, replica: Replica) -> WorkerSettings:
    return WorkerSettings(
        rank=Rank(order.rank),
        epoch=Epoch(order.epoch),
        namespace_base=namespace_base(replica.identity),
        block_size=order.block_size,
        blocks=replica.blocks,
        model_tokens_max=replica.model_tokens_max,
        step_tokens_max=order.step_tokens_max,
        sequences_max=order.sequences_max,
        prefill_order=PrefillOrder.SHORT_BETWEEN,
        steps_in_flight_max=replica.steps_in_flight_max,
        waiting_requests_max=order.waiting_requests_max,
        waiting_tokens_max=order.waiting_tokens_max,
        report_interval_ns=REPORT_INTERVAL_NS,
        class_ns=CLASS_NS,
        rates=replica.rates,
    )


class _Body:
    """What one life of a worker holds together."""

    def __init__(self, order: WorkerOrder, channel: ChildEnd, thread: RunnerThread, replica: Replica) -> None:
        assert replica.identity.block_size == order.block_size
        self._order = order
        self._channel = channel
        self._replica = replica
        self._loop = asyncio.get_running_loop()
        peer = Peer(Role.WORKER, Rank(order.rank), Epoch(order.epoch))
        identity = Identity(order.run, peer, os.getuid())
        self._links = Links(identity, LINK_BOUNDS, self._hear)
        self._copies = BlockCopies(identity, order.run_folder, replica.pool, self._feed, is_summed=order.sums_transfers)
        self._machine = Worker(_settings(order, replica), monotonic_now())
        self._driver: Driver[WorkerEvent, WorkerEffect] = Driver(self._machine, monotonic_now, self._perform)
        self._thread = thread
        thread.on_step_end(self._step_ended)
        self._is_draining = False
        self._steps = 0
        self._failures = 0
        self._ended: asyncio.Future[None] = self._loop.create_future()
        """Done when it has drained; fails when the replica is of no use any more."""

    async def serve(self, drain: "asyncio.Future[Drain]") -> None:
        folder = self._order.run_folder
        await self._links.listen(worker_address(folder, Rank(self._order.rank)), (Role.INGRESS,))
        self._links.dial(control_address(folder), Role.CONTROL, Rank(0))
        self._channel.note(Ready((self._replica.description,)))
        beats = self._loop.create_task(self._beat())
        drain.add_done_callback(self._drain)
        try:
            ends = (self._ended, self._driver.fault, self._thread.fault)
            done, _ = await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
            for end in done:
                end.result()
        finally:
            drain.remove_done_callback(self._drain)
            beats.cancel()
            await self._links.close()
            await self._copies.close()
            self._driver.close()

    def _hear(self, event: LinkEvent) -> None:
        self._feed(event)

    def _feed(self, event: WorkerEvent) -> None:
        self._driver.feed(event)
        self._end_if_drained()

    def _perform(self, effect: WorkerEffect) -> None:
        match effect:
            case Send(peer=peer, message=message):
                self._links.send(peer, message)
            case RunStep(plan=plan):
                self._thread.run(plan)
            case CopyBlocks():
                self._copies.copy(effect)
            case SendBlocks():
                self._copies.send(effect)
            case CancelCopy(transfer=transfer):
                self._copies.cancel(transfer)
            case _:
                assert_never(effect)

    def _step_ended(self, event: StepEvent) -> None:
        match event:
            case StepCompleted():
                self._steps += 1
                self._failures = 0
            case StepFailed(cause=cause):
                self._failures += 1
                if self._failures == STEP_FAILURES_MAX and not self._ended.done():
                    what = f"{STEP_FAILURES_MAX} steps in a row failed, the last by {cause}"
                    hint = "the device or its memory is in trouble; the log has the traces"
                    self._ended.set_exception(ReplicaError(what, hint))
            case _:
                assert_never(event)
        self._feed(event)

    def _drain(self, drain: "asyncio.Future[Drain]") -> None:
        seconds = drain.result().seconds
        _log.debug("draining", seconds=seconds, requests=self._machine.snapshot().requests)
        self._is_draining = True
        self._loop.call_later(seconds, self._end)
        self._feed(DrainOrdered())

    def _end_if_drained(self) -> None:
        if self._is_draining and self._machine.snapshot().requests == 0:
            self._end()

    def _end(self) -> None:
        if not self._ended.done():
            self._ended.set_result(None)

    async def _beat(self) -> None:
        """From the event loop: a thread that hangs in a step shows as work without steps."""
        while True:
            now = self._machine.snapshot()
            is_working = now.waiting + now.running + now.steps_in_flight > 0
            self._channel.note(Beat(is_working, self._steps))
            self._end_if_drained()  # a request may have ended by a deadline
            await asyncio.sleep(BEAT_S)
