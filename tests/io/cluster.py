"""Control and worker bodies on one event loop, with integers for a model, and an ingress that a test scripts."""

import asyncio
import json
import os
import socket
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import attrs

from lmpool.core.events import PeerJoined, PeerLost, Received
from lmpool.core.ids import BlockHash, Epoch, Peer, Rank, RequestId, Role
from lmpool.core.messages import Message
from lmpool.core.messages.ingress_control import (
    Busy,
    RouteAsked,
    RouteDecided,
    StateAsked,
    StateReported,
    Unroutable,
)
from lmpool.core.messages.ingress_worker import Accepted, Ended, EndReason, Refused, Submit, TokensProduced
from lmpool.core.messages.worker_control import WorkerJoined
from lmpool.core.plan import Replica
from lmpool.core.prefix import extend_chain, namespace_digest, pack_tokens
from lmpool.core.sampling import SamplingSettings, StopSettings, greedy
from lmpool.io.channel import Lines, decode_notice, encode_line
from lmpool.io.child import ChildEnd
from lmpool.io.clock import monotonic_now
from lmpool.io.control import run_control
from lmpool.io.link import LINK_BOUNDS, Identity, LinkEvent, Links, control_address, worker_address
from lmpool.io.orders import ControlOrder, Drain, Notice, Ready, WorkerOrder
from lmpool.io.worker import run_worker
from lmpool.sim.integer_model import integer_replica, reference_tokens

WAIT_S = 30
VOCABULARY = 500
BLOCK = 16
GREEDY = greedy(1)
STOP = StopSettings(output_tokens_max=24, output_tokens_min=0, ends=(), hidden_ends=())


def model_folder(folder: Path, **config: object) -> Path:
    facts = {"architectures": ["LMPoolIntegerModel"], "vocab_size": VOCABULARY, "max_position_embeddings": 2048}
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(facts | config))
    return folder


def worker_order(run_folder: Path, model: Path, rank: int, epoch: int, kv_blocks: int) -> WorkerOrder:
    return WorkerOrder(
        run="run-1",
        run_folder=str(run_folder),
        rank=rank,
        epoch=epoch,
        model_folder=str(model),
        device="cpu",
        dtype="auto",
        threads=1,
        block_size=BLOCK,
        kv_blocks=kv_blocks,
        kv_bytes=None,
        replicas=2,
        model_tokens_max=None,
        step_tokens_max=128,
        sequences_max=16,
        waiting_requests_max=256,
        waiting_tokens_max=1 << 20,
        calibration_file=None,
        transfer_path="auto",
        sums_transfers=True,
        log_level="info",
    )


def load_integers(order: WorkerOrder, _: Callable[[str], None]) -> Replica:
    return integer_replica(order, lambda cost: None)


class Life:
    """One life of a child's body, in this process, and the supervisor's end of its channel."""

    def __init__(self, body: Callable[[ChildEnd], Coroutine[Any, Any, None]]) -> None:
        self._socket, theirs = socket.socketpair()
        self._socket.setblocking(False)
        self._lines = Lines(1 << 16)
        self._heard: list[Notice] = []
        self.ended = asyncio.get_running_loop().create_task(body(ChildEnd(theirs, theirs.close)))
        self.ended.add_done_callback(lambda _: theirs.shutdown(socket.SHUT_WR))  # as its process would

    async def notice(self, kind: type[Notice]) -> Notice:
        """The next notice of this kind; those before it are forgotten."""
        loop = asyncio.get_running_loop()
        while True:
            while self._heard:
                notice = self._heard.pop(0)
                if isinstance(notice, kind):
                    return notice
            data = await asyncio.wait_for(loop.sock_recv(self._socket, 1 << 16), WAIT_S)
            if not data:
                await self.ended  # with the error that ended it
                raise AssertionError("the channel has ended")
            self._heard += map(decode_notice, self._lines.feed(data))

    def drain(self, seconds: float) -> None:
        self._socket.sendall(encode_line(Drain(seconds)))

    async def end(self) -> None:
        self.ended.cancel()
        await asyncio.gather(self.ended, return_exceptions=True)
        self._socket.close()


@attrs.define
class Answer:
    """What an ingress has heard of one request."""

    request: RequestId
    heard: "asyncio.Queue[Message]" = attrs.field(factory=asyncio.Queue)
    tokens: dict[int, list[int]] = attrs.field(factory=dict)
    """By choice."""
    cached_tokens: int = 0

    async def next(self) -> Message:
        return await asyncio.wait_for(self.heard.get(), WAIT_S)


class ScriptedIngress:
    """Asks and submits what a test says; keeps what comes back by request."""

    def __init__(self, run_folder: Path, replicas: int) -> None:
        self._counter = 0
        self._answers: dict[int, Answer] = {}
        self._others: asyncio.Queue[LinkEvent] = asyncio.Queue()
        self.peers: dict[tuple[Role, Rank], Peer] = {}
        self.base = b""
        peer = Peer(Role.INGRESS, Rank(0), Epoch(1))
        self.links = Links(Identity("run-1", peer, os.getuid()), LINK_BOUNDS, self._hear)
        self.links.dial(control_address(str(run_folder)), Role.CONTROL, Rank(0))
        for rank in range(replicas):
            self.links.dial(worker_address(str(run_folder), Rank(rank)), Role.WORKER, Rank(rank))

    async def event(self, *kinds: type[LinkEvent]) -> LinkEvent:
        """The next event of these kinds that concerns no request."""
        while True:
            event = await asyncio.wait_for(self._others.get(), WAIT_S)
            if isinstance(event, kinds):
                return event

    async def joined(self, count: int) -> None:
        """Until so many peers are linked and the workers among them have said what they are."""
        while len(self.peers) < count or not self.base:
            await self.event(PeerJoined, Received)

    def ask(self, prompt: Sequence[int], sampling: SamplingSettings, stop: StopSettings, choices: int) -> "Asked":
        self._counter += 1
        answer = Answer(RequestId(Epoch(1), self._counter))
        self._answers[self._counter] = answer
        return Asked(self, answer, tuple(prompt), sampling, stop, choices)

    def send(self, role: Role, rank: int, message: Message) -> None:
        self.links.send(self.peers[role, Rank(rank)], message)

    async def state(self, number: int) -> StateReported:
        self.send(Role.CONTROL, 0, StateAsked(number))
        while True:
            event = await self.event(Received)
            if isinstance(event, Received) and isinstance(event.message, StateReported):
                return event.message

    def _hear(self, event: LinkEvent) -> None:
        match event:
            case Received(message=TokensProduced() as produced):
                for number, choice, token in zip(produced.requests, produced.choices, produced.tokens, strict=True):
                    self._answers[number].tokens.setdefault(choice, []).append(token)
                return
            case Received(message=RouteDecided() | Busy() | Unroutable() | Accepted() | Refused() | Ended() as answer):
                self._answers[answer.request.counter].heard.put_nowait(answer)
                return
            case Received(message=WorkerJoined(namespace_base=base)):
                self.base = base
            case PeerJoined(peer=peer):
                self.peers[peer.role, peer.rank] = peer
            case PeerLost(peer=peer):
                del self.peers[peer.role, peer.rank]
            case _:
                pass
        self._others.put_nowait(event)


@attrs.frozen
class Asked:
    """A request, step by step."""

    ingress: ScriptedIngress
    answer: Answer
    prompt: tuple[int, ...]
    sampling: SamplingSettings
    stop: StopSettings
    choices: int

    @property
    def namespace(self) -> bytes:
        return namespace_digest(self.ingress.base, None, "tenant", None)

    @property
    def chain(self) -> bytes:
        return extend_chain(BlockHash(self.namespace), pack_tokens(self.prompt), BLOCK)

    async def route(self) -> Message:
        asked = RouteAsked(
            request=self.answer.request,
            attempt=0,
            chain=self.chain,
            namespace=self.namespace,
            prompt_tokens=len(self.prompt),
            output_tokens_max=self.stop.output_tokens_max,
            choices=self.choices,
            session="",
            priority=0,
            arrived_ns=monotonic_now(),
            deadline_ns=None,
            excluded=(),
            draw=self.answer.request.counter,
        )
        self.ingress.send(Role.CONTROL, 0, asked)
        return await self.answer.next()

    def submit(self, rank: int) -> None:
        submit = Submit(
            request=self.answer.request,
            attempt=0,
            namespace=self.namespace,
            prompt=pack_tokens(self.prompt),
            chain=self.chain,
            choices=tuple(range(self.choices)),
            outputs=(b"",) * self.choices,
            sampling=self.sampling,
            stop=self.stop,
            prompt_logprobs=None,
            priority=0,
            arrived_ns=monotonic_now(),
            deadline_ns=None,
            awaits=None,
        )
        self.ingress.send(Role.WORKER, rank, submit)

    async def finish(self) -> Message:
        """Until it has ended or is refused."""
        while True:
            match await self.answer.next():
                case Accepted(cached_tokens=cached):
                    self.answer.cached_tokens = cached
                case Ended() | Refused() as last:
                    return last
                case other:
                    raise AssertionError(other)

    async def run(self) -> int:
        """Routes, submits and awaits its end; where it ran."""
        decided = await self.route()
        assert isinstance(decided, RouteDecided)
        self.submit(decided.rank)
        assert await self.finish() == Ended(self.answer.request, 0, EndReason.COMPLETE)
        return decided.rank

    def is_right(self) -> bool:
        """Whether every choice equals the reference."""
        return all(
            tuple(self.answer.tokens[choice])
            == reference_tokens(VOCABULARY, self.prompt, self.sampling, self.stop, choice)
            for choice in range(self.choices)
        )


class Cluster:
    """One control, two workers, one ingress."""

    def __init__(self, run_folder: Path, model: Path, kv_blocks: int) -> None:
        self.run_folder = run_folder
        self._model = model
        self._kv_blocks = kv_blocks
        self._lives: list[Life] = []
        self.ingress = ScriptedIngress(run_folder, 2)

    def start_control(self, epoch: int) -> Life:
        order = ControlOrder("run-1", str(self.run_folder), epoch, "default", 2, 60.0, None, None, 1 << 20, "info")
        return self._start(lambda channel: run_control(order, channel))

    def start_worker(self, rank: int, epoch: int) -> Life:
        order = worker_order(self.run_folder, self._model, rank, epoch, self._kv_blocks)
        return self._start(lambda channel: run_worker(order, channel, load_integers))

    def _start(self, body: Callable[[ChildEnd], Coroutine[Any, Any, None]]) -> Life:
        life = Life(body)
        self._lives.append(life)
        return life

    async def close(self) -> None:
        await self.ingress.links.close()
        for life in reversed(self._lives):
            await life.end()


@asynccontextmanager
async def cluster(folder: Path, kv_blocks: int, **config: object) -> AsyncIterator[tuple[Cluster, Life, list[Life]]]:
    """Everything linked; the model's configuration may be added to."""
    made = Cluster(folder, model_folder(folder / "model", **config), kv_blocks)
    try:
        control, workers = made.start_control(1), [made.start_worker(rank, 2 + rank) for rank in range(2)]
        for life in (control, *workers):
            await life.notice(Ready)
        await made.ingress.joined(3)
        yield made, control, workers
    finally:
        await made.close()
