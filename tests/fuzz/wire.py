"""Hostile peers on every socket of a run, while good streams run beside them and must notice nothing.

Control's and the workers' sockets are dialled; the ingress dials, and so is met at the socket of a rank that has no
process. Workers have a second socket, where their pool's memory is given to other workers. An input is one frame, or
one piece of garbage.
"""

import asyncio
import os
import re
import time
from collections import Counter
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager, suppress
from itertools import count
from pathlib import Path
from random import Random
from typing import Any, get_args

import attrs
import httpx

from lmpool.core.ids import BlockHash, Epoch, Rank, RequestId, Role, Version
from lmpool.core.messages import IngressToControl, Message, WorkerToControl
from lmpool.core.messages.ingress_worker import Submit
from lmpool.core.messages.worker_control import FullReport, Report, WorkerJoined
from lmpool.core.prefix import extend_chain, namespace_digest, pack_tokens
from lmpool.io.block_links import blocks_address
from lmpool.io.clock import monotonic_now
from lmpool.io.link import control_address, links_accepted, socket_path, worker_address
from lmpool.io.wire import PROTOCOL_VERSION, Framed, FrameSplitter, Hello, HelloRefused, WireError, decode, encode
from tests.fuzz.frames import FrameSource
from tests.fuzz.rig import REPLICAS, RUN, STRANGER, Rig
from tests.io.wire_records import EXAMPLES, SAMPLING, STOP

ANSWER_S = 30.0
"""Within which a process has to say or end something."""
INPUTS_PER_LINK = 60
STREAMS = 3
"""Good ones at a time."""

FROM_INGRESS = get_args(IngressToControl)
FROM_WORKER = get_args(WorkerToControl)
"""What control awaits; anything else comes too, more rarely."""
FROM_ANY = get_args(Message)

FAULT_LINES = re.compile(r"Traceback|AssertionError|the process ends|Error:")
_epochs = count(100)


@attrs.define
class Figures:
    """What has happened."""

    inputs: Counter[str] = attrs.field(factory=Counter)
    links: int = 0
    refused: int = 0
    """Links that the other side ended."""
    streams: int = 0
    stream_s: list[float] = attrs.field(factory=list)
    """How long each good stream took."""
    memory_before: dict[str, int] = attrs.field(factory=dict)
    memory_after: dict[str, int] = attrs.field(factory=dict)


def hello_of(random: Random, good: Hello) -> Hello:
    """Mostly good; else of another version, run, role, rank or life."""
    match random.randrange(14):
        case 0:
            return attrs.evolve(good, version=random.choice((0, 2, -1, 1 << 40)))
        case 1:
            return attrs.evolve(good, run=random.choice(("", "another", "x" * 5000)))
        case 2:
            return attrs.evolve(good, role=random.choice(tuple(Role)))
        case 3:
            return attrs.evolve(good, rank=Rank(random.choice((-1, 2, 63, 64, 1 << 40))))
        case 4:
            return attrs.evolve(good, epoch=Epoch(random.choice((-1, 0, 1, 2, 3, 1 << 60))))
        case _:
            return good


class Attack:
    """Against one rig, with one seed."""

    def __init__(self, rig: Rig, random: Random, figures: Figures) -> None:
        self._rig = rig
        self._random = random
        self._figures = figures
        folder = str(rig.run_folder)
        self._control = socket_path(control_address(folder))
        self._workers = [socket_path(worker_address(folder, Rank(rank))) for rank in range(REPLICAS)]
        self._doors = [socket_path(blocks_address(folder, Rank(rank))) for rank in range(REPLICAS)]
        self._stranger = socket_path(worker_address(folder, Rank(STRANGER)))
        self._known_facts: WorkerJoined | None = None
        self._visitors: asyncio.Queue[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = asyncio.Queue()

    async def run(self, inputs: int) -> None:
        """So many inputs, a quarter of them to each kind of socket."""

        is_over = False

        def visit(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            if is_over:
                writer.close()
            else:
                self._visitors.put_nowait((reader, writer))

        server = await asyncio.start_unix_server(visit, self._stranger)
        try:
            share = inputs // 4
            await asyncio.gather(
                self._until("control", share, self._attack_control),
                self._until("worker", share, self._attack_worker),
                self._until("blocks", share, self._attack_door),
                self._until("ingress", inputs - 3 * share, self._attack_ingress),
            )
        finally:
            is_over = True
            os.unlink(self._stranger)
            await links_accepted()
            server.close()
            while not self._visitors.empty():
                self._visitors.get_nowait()[1].close()

    async def _until(self, name: str, inputs: int, attack: Callable[[], Coroutine[Any, Any, None]]) -> None:
        while self._figures.inputs[name] < inputs:
            self._figures.links += 1
            try:
                async with asyncio.timeout(ANSWER_S):
                    await attack()
            except TimeoutError:
                raise AssertionError(f"{name} has neither answered nor ended a link for {ANSWER_S:g} s") from None
            self._rig.assert_alive()

    async def _attack_control(self) -> None:
        role = self._random.choice((Role.WORKER, Role.INGRESS))
        rank = Rank(STRANGER if role is Role.WORKER else 0)
        kinds = FROM_WORKER if role is Role.WORKER else FROM_INGRESS
        await self._dial("control", self._control, role, rank, self._examples(kinds))

    async def _attack_worker(self) -> None:
        path = self._random.choice(self._workers)
        await self._dial("worker", path, Role.INGRESS, Rank(0), self._examples(FROM_INGRESS))

    async def _attack_door(self) -> None:
        """Whoever is let in is given a descriptor and has nothing more to say."""
        reader, writer = await asyncio.open_unix_connection(self._random.choice(self._doors))
        good = Hello(PROTOCOL_VERSION, RUN, Role.WORKER, Rank(STRANGER), Epoch(next(_epochs)))
        with self._closing(writer):
            if self._random.random() < 0.9:
                self._say("blocks", writer, encode(hello_of(self._random, good)))
            await self._talk("blocks", reader, writer, FrameSource(self._random, self._examples(FROM_ANY)))

    def _examples(self, kinds: tuple[Any, ...]) -> tuple[Framed, ...]:
        random = self._random
        likely = tuple(record for record in EXAMPLES if isinstance(record, kinds) or random.random() < 0.2)
        return (
            likely
            if random.random() < 0.1
            else tuple(one for one in likely if not isinstance(one, Hello | HelloRefused))
        )

    async def _dial(self, name: str, path: str, role: Role, rank: Rank, examples: tuple[Framed, ...]) -> None:
        reader, writer = await asyncio.open_unix_connection(path)
        epoch = Epoch(next(_epochs))
        hello = hello_of(self._random, Hello(PROTOCOL_VERSION, RUN, role, rank, epoch))
        opening = encode(hello)
        if role is Role.WORKER and self._random.random() < 0.8:
            reports = self._reports()
            opening += encode(await self._facts(self._workers[0])) + encode(reports[0])
            examples = (*examples, *reports)
        if name == "worker":
            examples = (*examples, *self._submits(epoch, (await self._facts(path)).namespace_base))
        with self._closing(writer):
            if self._random.random() < 0.95:
                self._say(name, writer, opening)
            await self._talk(name, reader, writer, FrameSource(self._random, examples or EXAMPLES))

    async def _attack_ingress(self) -> None:
        reader, writer = await self._visitors.get()
        epoch = Epoch(next(_epochs))
        joined = await self._facts(self._workers[0])
        hello = hello_of(self._random, Hello(PROTOCOL_VERSION, RUN, Role.WORKER, Rank(STRANGER), epoch))
        with self._closing(writer):
            self._say("ingress", writer, encode(hello))
            if self._random.random() < 0.7:
                self._say("ingress", writer, encode(joined))
            await self._talk("ingress", reader, writer, FrameSource(self._random, self._examples(FROM_ANY)))

    async def _talk(
        self, name: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, source: FrameSource
    ) -> None:
        """Until the other side has had enough, or we have."""
        listening = asyncio.create_task(_ended(reader))
        with suppress(ConnectionError):
            for _ in range(self._random.randrange(1, INPUTS_PER_LINK)):
                self._say(name, writer, source.next())
                await writer.drain()
                if self._random.random() < 0.2:
                    await asyncio.sleep(0)
                if listening.done():
                    break
            if self._random.random() < 0.3:
                writer.write_eof()
                await listening
        self._figures.refused += listening.done()
        listening.cancel()
        await asyncio.wait((listening,))
        if not listening.cancelled():
            listening.result()

    def _say(self, name: str, writer: asyncio.StreamWriter, data: bytes) -> None:
        self._figures.inputs[name] += 1
        writer.write(data)

    @contextmanager
    def _closing(self, writer: asyncio.StreamWriter) -> Iterator[None]:
        """With all that was said written, or without."""
        try:
            yield
        finally:
            if self._random.random() < 0.5:
                writer.transport.abort()
            else:
                writer.close()

    async def _facts(self, path: str) -> WorkerJoined:
        """Of the run's replicas, as any ingress learns them."""
        while self._known_facts is None:
            reader, writer = await asyncio.open_unix_connection(path)
            writer.write(encode(Hello(PROTOCOL_VERSION, RUN, Role.INGRESS, Rank(0), Epoch(next(_epochs)))))
            splitter = FrameSplitter(1 << 20)
            while self._known_facts is None and (data := await reader.read(1 << 16)):
                for record in map(decode, splitter.split(data)):
                    if isinstance(record, WorkerJoined):
                        self._known_facts = record
            writer.close()
        return self._known_facts

    def _reports(self) -> tuple[Framed, ...]:
        """As a replica that has joined goes on; the first makes it one that may be routed to."""
        full = next(record for record in EXAMPLES if isinstance(record, FullReport))
        news = next(record for record in EXAMPLES if isinstance(record, Report))
        changes = [attrs.evolve(news, version=Version(version), accepted=()) for version in range(2, 8)]
        return attrs.evolve(full, version=Version(1)), *changes

    def _submits(self, epoch: Epoch, base: bytes) -> Iterator[Framed]:
        """Requests that a worker would take, and that go wrong in one place each."""
        for number in range(6):
            prompt = pack_tokens(tuple(self._random.randrange(300) for _ in range(self._random.randrange(1, 60))))
            namespace = namespace_digest(base, None, "hostile", None)
            choices = self._random.choice(((0,), (0, 1), (0, 0), (127, 3)))
            yield Submit(
                request=RequestId(epoch, number),
                attempt=self._random.randrange(3),
                namespace=namespace,
                prompt=prompt,
                chain=extend_chain(BlockHash(namespace), prompt, 16),
                choices=choices,
                outputs=(b"",) * len(choices),
                sampling=attrs.evolve(SAMPLING, logit_bias=(), seed=number),
                stop=attrs.evolve(STOP, output_tokens_max=self._random.choice((0, 1, 30))),
                prompt_logprobs=self._random.choice((None, None, 0, 3)),
                priority=0,
                arrived_ns=monotonic_now(),
                deadline_ns=None,
                awaits=None,
            )


async def _ended(reader: asyncio.StreamReader) -> None:
    """Reads until the stream ends; what comes must be frames."""
    splitter = FrameSplitter(1 << 26)
    with suppress(ConnectionError):
        while data := await reader.read(1 << 16):
            for frame in splitter.split(data):
                try:
                    decode(frame)
                except WireError as error:
                    raise AssertionError(f"a process of ours wrote {error}") from error


async def good_streams(rig: Rig, reference: str, stop: asyncio.Event, figures: Figures) -> None:
    async with httpx.AsyncClient() as client:
        while not stop.is_set():
            began = time.monotonic()
            assert await rig.stream(client) == reference
            figures.stream_s.append(time.monotonic() - began)
            figures.streams += 1


async def fuzz(rig: Rig, seed: int, inputs: int, figures: Figures) -> None:
    """Raises AssertionError for whatever must not be."""
    reference = await rig.reference()
    figures.memory_before = rig.memory()
    stop = asyncio.Event()
    streams = [asyncio.create_task(good_streams(rig, reference, stop, figures)) for _ in range(STREAMS)]
    attack = asyncio.create_task(Attack(rig, Random(seed), figures).run(inputs))
    try:
        await asyncio.wait((attack, *streams), return_when=asyncio.FIRST_COMPLETED)
        stop.set()
        if attack.done():
            await attack
        await asyncio.gather(*streams)
        await attack
    finally:
        for task in (attack, *streams):
            task.cancel()
        await asyncio.gather(attack, *streams, return_exceptions=True)
    assert await rig.reference() == reference
    rig.assert_alive()
    faults = [line for line in rig.lines if FAULT_LINES.search(line)]
    assert not faults, "\n".join(faults[:20])
    figures.memory_after = rig.memory()


def short_folder(parent: Path) -> Path:
    """A run folder in it, private as the supervisor makes it."""
    folder = parent / "run"
    folder.mkdir(mode=0o700)
    return folder
