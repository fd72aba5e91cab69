"""Which body a child process runs: its order says."""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TypeAlias, assert_never

import attrs

from lmpool.core.plan import Replica
from lmpool.io.child import ChildEnd, open_channel, run_child
from lmpool.io.log import set_up_log
from lmpool.io.orders import ControlOrder, IngressOrder, Order, Prepared, PrepareOrder, Progress, WorkerOrder

Say: TypeAlias = Callable[[str], None]


@attrs.frozen
class Ports:
    """What the program above io provides: models and the files they are made of."""

    load_replica: Callable[[WorkerOrder, Say], Replica]
    """Raises ReplicaError."""
    prepare: Callable[[PrepareOrder, Say], Path]
    """Raises ReplicaError."""


def run_body(descriptor: int, ports: Ports) -> int:
    """The whole life of a child; its exit status."""
    channel = open_channel(descriptor)
    order = channel.order()
    return run_child(channel, lambda: _body(order, channel, ports))


def _body(order: Order, channel: ChildEnd, ports: Ports) -> Awaitable[None]:
    """Imports only what this child needs."""
    match order:
        case PrepareOrder():
            return _prepare(order, channel, ports)
        case WorkerOrder():
            from lmpool.io.worker import run_worker

            set_up_log(f"worker-{order.rank}", order.epoch, order.log_level)
            return run_worker(order, channel, ports.load_replica)
        case ControlOrder():
            from lmpool.io.control import run_control

            set_up_log("control", order.epoch, order.log_level)
            return run_control(order, channel)
        case IngressOrder():
            from lmpool.io.ingress_process import run_ingress

            set_up_log("ingress", order.epoch, order.log_level)
            return run_ingress(order, channel)
        case _:
            assert_never(order)


async def _prepare(order: PrepareOrder, channel: ChildEnd, ports: Ports) -> None:
    def progress(text: str) -> None:
        channel.note(Progress(text))

    folder = await asyncio.to_thread(ports.prepare, order, progress)
    channel.note(Prepared(str(folder)))
