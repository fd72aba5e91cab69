"""The body of control: it serves, beats, answers for its state, and ends when told to."""

import asyncio
from pathlib import Path

from lmpool.core.messages.ingress_control import Unroutable, UnroutableReason
from lmpool.io.control import run_control
from lmpool.io.orders import Beat, ControlOrder, Ready
from tests.io.cluster import GREEDY, STOP, WAIT_S, Life, ScriptedIngress
from tests.io.loops import Run, on_both_loops


def start(folder: Path) -> Life:
    order = ControlOrder("run-1", str(folder), 1, "default", 2, 60.0, None, None, 1 << 20, "info")
    return Life(lambda channel: run_control(order, channel))


@on_both_loops
def test_it_is_ready_and_beats(run: Run, tmp_path: Path) -> None:
    async def body() -> None:
        life = start(tmp_path)
        assert await life.notice(Ready) == Ready(())
        for _ in range(2):
            assert await life.notice(Beat) == Beat(working=False, steps=0)
        await life.end()

    run(body())


@on_both_loops
def test_without_workers_it_says_so(run: Run, tmp_path: Path) -> None:
    async def body() -> None:
        life = start(tmp_path)
        await life.notice(Ready)
        ingress = ScriptedIngress(tmp_path, 0)
        ingress.base = b"base of no worker"[:16]
        await ingress.joined(1)
        one = ingress.ask(range(40), GREEDY, STOP, 1)
        assert await one.route() == Unroutable(one.answer.request, 0, UnroutableReason.NO_REPLICA, 0)
        assert (await ingress.state(5)).number == 5
        await ingress.links.close()
        await life.end()

    run(body())


@on_both_loops
def test_a_drain_is_its_end_and_takes_its_socket_with_it(run: Run, tmp_path: Path) -> None:
    async def body() -> None:
        life = start(tmp_path)
        await life.notice(Ready)
        assert (tmp_path / "control.sock").exists()
        life.drain(20.0)
        await asyncio.wait_for(life.ended, WAIT_S)
        assert not (tmp_path / "control.sock").exists()
        await life.end()

    run(body())
