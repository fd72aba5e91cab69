"""Control and two workers in processes of their own, with integers for a model, and an ingress that a test scripts.

Nothing supervises them: a test stops, kills and replaces processes as it likes, and sees what is left.
"""

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import attrs

from lmpool.core.events import PeerJoined, PeerLost, Received
from lmpool.core.ids import SECOND, Nanos, Rank, Role
from lmpool.core.messages.ingress_control import StateReported
from lmpool.core.messages.ingress_worker import Ended, EndReason
from lmpool.core.messages.transfer import CopyMeans, TransferAsked, TransferDecided, TransferMode, TransferShown
from lmpool.io.clock import monotonic_now
from lmpool.io.orders import ControlOrder, Notice, Order, Ready
from lmpool.io.supervision.child_process import PROGRAM, ChildProcess, Launch
from tests.io.cluster import BLOCK, GREEDY, STOP, WAIT_S, Asked, ScriptedIngress, model_folder, worker_order

KV_BLOCKS = 200
COPY_BLOCK_S = 0.02
RANKS = (0, 1)
SHORT = attrs.evolve(STOP, output_tokens_max=6)


class TransferRig:
    def __init__(self, folder: Path, model: Path) -> None:
        self.children: dict[str, ChildProcess] = {}
        self.lines: list[str] = []
        self._folder = folder
        self._model = model
        self._epoch = 1
        self._numbers = 0
        self._ready: dict[str, asyncio.Future[None]] = {}
        self.ingress = ScriptedIngress(folder, len(RANKS))

    # Processes

    async def start(self, *names: str) -> None:
        """Another life of each, and all links to the ingress."""
        for name in names:
            self._epoch += 1
            self._launch(name, self._order(name))
        await asyncio.wait_for(asyncio.gather(*(self._ready[name] for name in names)), WAIT_S)
        await self.until(lambda: {*self.ingress.peers} == {(Role.CONTROL, 0), (Role.WORKER, 0), (Role.WORKER, 1)})

    def _order(self, name: str) -> Order:
        if name == "control":
            folder = str(self._folder)
            return ControlOrder("run-1", folder, self._epoch, "default", 2, 60.0, None, None, 1 << 20, "info")
        return worker_order(self._folder, self._model, int(name[-1]), self._epoch, KV_BLOCKS)

    def _launch(self, name: str, order: Order) -> None:
        ready = self._ready[name] = asyncio.get_running_loop().create_future()

        def hear(notice: Notice) -> None:
            if isinstance(notice, Ready) and not ready.done():
                ready.set_result(None)

        launch = Launch(name, order, dict(os.environ), (), PROGRAM)
        self.children[name] = ChildProcess(launch, hear, lambda line: self.lines.append(f"{name}: {line}"))

    def stop(self, name: str) -> None:
        os.kill(self.children[name].pid, signal.SIGSTOP)

    def go_on(self, name: str) -> None:
        os.kill(self.children[name].pid, signal.SIGCONT)

    async def kill(self, name: str) -> None:
        """Gone when this returns, for the ingress too."""
        peer = (Role.CONTROL, Rank(0)) if name == "control" else (Role.WORKER, Rank(int(name[-1])))
        before = self.ingress.peers.get(peer)
        os.kill(self.children[name].pid, signal.SIGKILL)
        await self.children[name].ended
        await self.until(lambda: before is None or self.ingress.peers.get(peer) != before)

    async def close(self) -> None:
        await self.ingress.links.close()
        for child in self.children.values():
            child.kill()
        await asyncio.gather(*(child.ended for child in self.children.values()))

    async def none_of_the_dead(self) -> None:
        """Until each worker has mapped at most the pool of the other in its present life. Raises TimeoutError."""
        async with asyncio.timeout(WAIT_S):
            while True:
                own = [self._mapped(rank, "rw-s") for rank in RANKS]
                borrowed = [self._mapped(rank, "r--s") for rank in RANKS]
                if all(borrowed[rank] in ([], own[1 - rank]) for rank in RANKS):
                    return
                await asyncio.sleep(0.05)

    def _mapped(self, rank: int, rights: str) -> list[str]:
        """Pools that a worker has mapped with these rights, by their numbers as files."""
        maps = Path(f"/proc/{self.children[f'worker {rank}'].pid}/maps").read_text().splitlines()
        return [line.split()[4] for line in maps if "memfd:lmpool-integers" in line and line.split()[1] == rights]

    # Requests

    def prompt(self, number: int, blocks: int) -> tuple[int, ...]:
        """So many complete blocks and a few tokens more, with nothing in common with other numbers'."""
        return tuple((number * 37 + 11 * place) % 490 + 3 for place in range(blocks * BLOCK + 5))

    async def run(self, prompt: tuple[int, ...], rank: int) -> int:
        """At that rank, with the right tokens; how many of the prompt were cached."""
        asked = self.ask(prompt)
        asked.submit(rank)
        ended = await asked.finish()
        assert ended == Ended(asked.answer.request, 0, EndReason.COMPLETE), ended
        assert asked.is_right(), asked.answer.tokens
        return asked.answer.cached_tokens

    def ask(self, prompt: tuple[int, ...]) -> Asked:
        return self.ingress.ask(prompt, GREEDY, SHORT, 1)

    # Transfers

    async def order(
        self, prompt: tuple[int, ...], source: int, target: int, mode: TransferMode, copy_s: float = 3.0
    ) -> TransferDecided:
        self._numbers += 1
        number, chain = self._numbers, self.ask(prompt).chain
        ranks = Rank(source), Rank(target)
        copy_ns = Nanos(round(copy_s * SECOND))
        asked = TransferAsked(number, *ranks, mode, CopyMeans.READ, chain, 0, copy_ns, Nanos(0))
        self.ingress.send(Role.CONTROL, 0, asked)
        while True:
            event = await self.ingress.event(Received)
            message = event.message if isinstance(event, Received) else None
            if isinstance(message, TransferDecided) and message.number == number:
                return message

    async def state(self) -> StateReported:
        self._numbers += 1
        return await self.ingress.state(self._numbers)

    async def phase(self, phase: str) -> None:
        """Until the one transfer is there. Raises AssertionError if it never is."""
        await self.until_state(lambda state: [shown.phase for shown in state.transfers.under_way] == [phase])

    async def over(self) -> TransferShown:
        """The last transfer, once it is."""
        await self.until_state(lambda state: not state.transfers.under_way)
        return (await self.state()).transfers.over[-1]

    async def at_rest(self) -> None:
        """Until nothing is pinned, reserved or under way anywhere. Raises AssertionError if that never is."""
        await self.until_state(is_at_rest)

    async def until_state(self, holds: Callable[[StateReported], bool]) -> None:
        end = monotonic_now() + 20 * SECOND
        while not holds(state := await self.state()):
            assert monotonic_now() < end, (state, self.lines[-20:])
            await asyncio.sleep(0.05)

    async def until(self, holds: Callable[[], bool]) -> None:
        """Of what the ingress hears."""
        async with asyncio.timeout(WAIT_S):
            while not holds():
                await self.ingress.event(PeerJoined, PeerLost, Received)


def is_at_rest(state: StateReported) -> bool:
    return not state.transfers.under_way and all(
        rank.membership == "live" and rank.blocks_free + rank.blocks_cached == rank.blocks for rank in state.ranks
    )


@asynccontextmanager
async def transfer_rig(folder: Path, copy_block_s: float = COPY_BLOCK_S) -> AsyncIterator[TransferRig]:
    """Serving. `folder` is to be empty, with a short path."""
    model = model_folder(folder / "model", copy_block_ns=round(copy_block_s * SECOND))
    made = TransferRig(folder, model)
    try:
        await made.start("control", "worker 0", "worker 1")
        await made.at_rest()
        yield made
    finally:
        await made.close()
