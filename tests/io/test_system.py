"""Control and two workers over real sockets: every token that comes back is the reference's."""

import asyncio
from pathlib import Path

import attrs
import pytest

from lmpool.core.events import PeerJoined, PeerLost
from lmpool.core.ids import Rank, Role
from lmpool.core.messages.ingress_control import RouteDecided
from lmpool.core.messages.ingress_worker import Abort, Ended, EndReason, RefusalReason, Refused
from tests.io.cluster import GREEDY, STOP, WAIT_S, Cluster, cluster
from tests.io.loops import Run, on_both_loops

SYSTEM = tuple(range(64))
WARM = attrs.evolve(GREEDY, temperature=0.9, top_p=0.95)


def turns(count: int) -> list[tuple[int, ...]]:
    """Prompts with a common beginning, each of its own length and end."""
    return [SYSTEM + tuple((7 * turn + i) % 400 for i in range(5 + 3 * turn)) for turn in range(count)]


@on_both_loops
@pytest.mark.parametrize("steps_in_flight", [1, 2])
@pytest.mark.parametrize("kv_blocks", [400, 40], ids=["ample", "scarce"])
def test_many_requests_at_once_get_the_tokens_of_the_reference(
    run: Run, tmp_path: Path, steps_in_flight: int, kv_blocks: int
) -> None:
    async def body() -> None:
        async with cluster(tmp_path, kv_blocks, steps_in_flight_max=steps_in_flight) as (made, _, _):
            asked = [
                made.ingress.ask(prompt, attrs.evolve(WARM, seed=number), STOP, 1 + number % 3)
                for number, prompt in enumerate(turns(30))
            ]
            ranks = await asyncio.gather(*(one.run() for one in asked))
            assert all(one.is_right() for one in asked)
            assert set(ranks) == {0, 1}
            again = [made.ingress.ask(prompt, GREEDY, STOP, 1) for prompt in turns(4)]
            for one in again:
                await one.run()
                assert one.is_right()
            if kv_blocks == 400:
                assert all(one.answer.cached_tokens >= len(SYSTEM) for one in again)

    run(body())


async def settled(made: Cluster) -> None:
    """Until control knows that nothing is open."""
    number = 0
    while True:
        number += 1
        state = await made.ingress.state(number)
        if state.bookings == 0 and all(rank.decoding == 0 for rank in state.ranks):
            return


@on_both_loops
def test_bookings_end_with_their_requests(run: Run, tmp_path: Path) -> None:
    async def body() -> None:
        async with cluster(tmp_path, 100) as (made, _, _):
            asked = [made.ingress.ask(prompt, GREEDY, STOP, 1) for prompt in turns(6)]
            await asyncio.gather(*(one.run() for one in asked))
            await asyncio.wait_for(settled(made), WAIT_S)

    run(body())


@on_both_loops
def test_an_abort_ends_a_request_in_the_middle(run: Run, tmp_path: Path) -> None:
    async def body() -> None:
        async with cluster(tmp_path, 100) as (made, _, _):
            long = made.ingress.ask(SYSTEM, GREEDY, attrs.evolve(STOP, output_tokens_max=1500), 1)
            decided = await long.route()
            assert isinstance(decided, RouteDecided)
            long.submit(decided.rank)
            await long.answer.next()
            made.ingress.send(Role.WORKER, decided.rank, Abort(long.answer.request))
            assert await long.finish() == Ended(long.answer.request, 0, EndReason.ABORTED)
            await asyncio.wait_for(settled(made), WAIT_S)

    run(body())


@on_both_loops
def test_a_draining_worker_finishes_what_it_has_and_ends(run: Run, tmp_path: Path) -> None:
    async def body() -> None:
        async with cluster(tmp_path, 100) as (made, _, workers):
            last = made.ingress.ask(SYSTEM, GREEDY, attrs.evolve(STOP, output_tokens_max=400), 1)
            last.submit(0)
            await last.answer.next()
            workers[0].drain(20.0)
            assert await last.finish() == Ended(last.answer.request, 0, EndReason.COMPLETE)
            assert last.is_right()
            await asyncio.wait_for(workers[0].ended, WAIT_S)
            await made.ingress.event(PeerLost)
            assert await made.ingress.ask(SYSTEM, GREEDY, STOP, 1).run() == 1

    run(body())


@on_both_loops
def test_a_draining_worker_takes_nothing_new(run: Run, tmp_path: Path) -> None:
    async def body() -> None:
        async with cluster(tmp_path, 200) as (made, _, workers):
            running = made.ingress.ask(SYSTEM, GREEDY, attrs.evolve(STOP, output_tokens_max=1900), 1)
            running.submit(0)
            await running.answer.next()
            workers[0].drain(20.0)
            while True:
                late = made.ingress.ask(SYSTEM, GREEDY, attrs.evolve(STOP, output_tokens_max=1), 1)
                late.submit(0)
                end = await late.finish()
                if isinstance(end, Refused):
                    break
            assert end.reason is RefusalReason.DRAINING
            assert await running.finish() == Ended(running.answer.request, 0, EndReason.COMPLETE)
            await asyncio.wait_for(workers[0].ended, WAIT_S)

    run(body())


@on_both_loops
def test_a_drain_does_not_wait_longer_than_it_was_told(run: Run, tmp_path: Path) -> None:
    async def body() -> None:
        async with cluster(tmp_path, 200) as (made, _, workers):
            running = made.ingress.ask(SYSTEM, GREEDY, attrs.evolve(STOP, output_tokens_max=1900), 8)
            running.submit(0)
            await running.answer.next()
            workers[0].drain(0.0)
            await asyncio.wait_for(workers[0].ended, WAIT_S)

    run(body())


@on_both_loops
def test_a_worker_that_comes_back_is_routed_to_again(run: Run, tmp_path: Path) -> None:
    async def body() -> None:
        async with cluster(tmp_path, 100) as (made, _, workers):
            await workers[0].end()
            await workers[1].end()
            await made.ingress.event(PeerLost)
            await made.ingress.event(PeerLost)
            made.start_worker(0, epoch=9)
            await made.ingress.joined(2)
            assert made.ingress.peers[Role.WORKER, Rank(0)].epoch == 9
            while not isinstance(await made.ingress.ask(SYSTEM, GREEDY, STOP, 1).route(), RouteDecided):
                pass
            one = made.ingress.ask(SYSTEM, GREEDY, STOP, 1)
            assert await one.run() == 0
            assert one.is_right()

    run(body())


@on_both_loops
def test_a_new_control_takes_over(run: Run, tmp_path: Path) -> None:
    async def body() -> None:
        async with cluster(tmp_path, 100) as (made, control, _):
            first = made.ingress.ask(SYSTEM, GREEDY, STOP, 1)
            rank = await first.run()
            control.drain(1.0)
            await asyncio.wait_for(control.ended, WAIT_S)
            await made.ingress.event(PeerLost)
            made.start_control(epoch=7)
            await made.ingress.event(PeerJoined)
            second = made.ingress.ask((*SYSTEM, 3, 4, 5), GREEDY, STOP, 1)
            assert await second.run() == rank  # where its prefix is, as the full reports say
            assert second.answer.cached_tokens == len(SYSTEM)
            assert second.is_right()

    run(body())
