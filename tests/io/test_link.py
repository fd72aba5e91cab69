"""Links over real sockets: handshake, order, bounds, and who is kept out."""

import asyncio
import gc
import os
import socket
import stat
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import attrs
import pytest

from lmpool.core.events import PeerJoined, PeerLost, Received
from lmpool.core.ids import Epoch, Peer, Rank, Role
from lmpool.core.messages.ingress_control import StateAsked
from lmpool.io.link import LINK_BOUNDS, Identity, LinkBounds, LinkEvent, Links, socket_address, socket_path
from lmpool.io.wire import PREFIX, PROTOCOL_VERSION, Framed, FrameSplitter, Hello, HelloRefused, decode, encode
from tests.io.loops import Run, on_both_loops

CONTROL = Peer(Role.CONTROL, Rank(0), Epoch(1))
WORKER = Peer(Role.WORKER, Rank(2), Epoch(5))
HELLO = Hello(PROTOCOL_VERSION, "run-1", *WORKER)
BOUNDS = attrs.evolve(LINK_BOUNDS, redial_s_min=0.005, redial_s_max=0.02)


class Ear:
    """What one side heard, in order, and a way to wait for the next of it."""

    def __init__(self) -> None:
        self.heard: list[LinkEvent] = []
        self._fresh: asyncio.Queue[LinkEvent] = asyncio.Queue()

    def hear(self, event: LinkEvent) -> None:
        self.heard.append(event)
        self._fresh.put_nowait(event)

    async def next(self) -> LinkEvent:
        return await asyncio.wait_for(self._fresh.get(), 20)


def links(peer: Peer, ear: Ear, bounds: LinkBounds = BOUNDS, run: str = "run-1", uid: int | None = None) -> Links:
    return Links(Identity(run, peer, os.getuid() if uid is None else uid), bounds, ear.hear)


@asynccontextmanager
async def pair(folder: Path, bounds: LinkBounds = BOUNDS) -> AsyncIterator[tuple[Links, Ear, Links, Ear]]:
    """A worker linked to a control."""
    address = socket_address(folder / "control.sock")
    control_ear, worker_ear = Ear(), Ear()
    control, worker = links(CONTROL, control_ear, bounds), links(WORKER, worker_ear, bounds)
    await control.listen(address, (Role.WORKER,))
    worker.dial(address, Role.CONTROL, Rank(0))
    assert await control_ear.next() == PeerJoined(WORKER)
    assert await worker_ear.next() == PeerJoined(CONTROL)
    try:
        yield control, control_ear, worker, worker_ear
    finally:
        await worker.close()
        await control.close()


class Stranger:
    """Speaks and hears raw frames."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    @classmethod
    async def to(cls, path: Path) -> "Stranger":
        return cls(*await asyncio.open_unix_connection(path))

    def say(self, *records: Framed) -> None:
        self.write(b"".join(map(encode, records)))

    def write(self, data: bytes) -> None:
        self._writer.write(data)

    async def heard(self) -> list[Framed]:
        """Everything until the other side ends the stream."""
        data = b""
        try:
            while part := await asyncio.wait_for(self._reader.read(1 << 16), 20):
                data += part
        except ConnectionError:
            pass
        self._writer.close()
        return list(map(decode, FrameSplitter(1 << 20).split(data)))


@on_both_loops
def test_messages_arrive_in_order_between_join_and_loss(run: Run, tmp_path: Path) -> None:
    async def body() -> None:
        async with pair(tmp_path) as (control, _, worker, worker_ear):
            for number in range(200):
                control.send(WORKER, StateAsked(number))
            for number in range(200):
                assert await worker_ear.next() == Received(CONTROL, StateAsked(number))
            worker.send(CONTROL, StateAsked(1))
            await control.close()
            assert await worker_ear.next() == PeerLost(CONTROL)
        assert [event for event in worker_ear.heard if isinstance(event, PeerLost)] == [PeerLost(CONTROL)]
        assert worker_ear.heard[-1] == PeerLost(CONTROL)

    run(body())


@on_both_loops
def test_what_was_sent_before_the_end_arrives(run: Run, tmp_path: Path) -> None:
    async def body() -> None:
        async with pair(tmp_path) as (control, control_ear, worker, _):
            for number in range(50):
                worker.send(CONTROL, StateAsked(number))
            await worker.close()
            for number in range(50):
                assert await control_ear.next() == Received(WORKER, StateAsked(number))
            assert await control_ear.next() == PeerLost(WORKER)
            control.send(WORKER, StateAsked(0))  # nobody is there: dropped

    run(body())


@on_both_loops
def test_a_listener_that_comes_back_is_found_again(run: Run, tmp_path: Path) -> None:
    async def body() -> None:
        async with pair(tmp_path) as (control, _, _, worker_ear):
            await control.close()
            assert await worker_ear.next() == PeerLost(CONTROL)
            later = Peer(Role.CONTROL, Rank(0), Epoch(2))
            again, ear = links(later, Ear()), worker_ear
            await again.listen(socket_address(tmp_path / "control.sock"), (Role.WORKER,))
            assert await ear.next() == PeerJoined(later)
            await again.close()

    run(body())


@on_both_loops
def test_dialling_begins_before_anybody_listens(run: Run, tmp_path: Path) -> None:
    async def body() -> None:
        address = socket_address(tmp_path / "control.sock")
        ear = Ear()
        worker, control = links(WORKER, ear), links(CONTROL, Ear())
        worker.dial(address, Role.CONTROL, Rank(0))
        await asyncio.sleep(0)
        await control.listen(address, (Role.WORKER,))
        assert await ear.next() == PeerJoined(CONTROL)
        await worker.close()
        await control.close()

    run(body())


@on_both_loops
@pytest.mark.parametrize(
    ("hello", "reason"),
    [
        (attrs.evolve(HELLO, run="run-2"), "another run"),
        (attrs.evolve(HELLO, version=99), "protocol version"),
        (attrs.evolve(HELLO, role=Role.INGRESS), "no ingress is awaited"),
        (attrs.evolve(HELLO, rank=Rank(64)), "rank 64"),
        (attrs.evolve(HELLO, rank=Rank(-1)), "rank -1"),
    ],
)
def test_a_wrong_peer_is_told_why(run: Run, tmp_path: Path, hello: Hello, reason: str) -> None:
    async def body() -> None:
        ear = Ear()
        control = links(CONTROL, ear)
        await control.listen(socket_address(tmp_path / "control.sock"), (Role.WORKER,))
        stranger = await Stranger.to(tmp_path / "control.sock")
        stranger.say(hello, StateAsked(1))
        (answer,) = await stranger.heard()
        assert isinstance(answer, HelloRefused)
        assert reason in answer.reason
        assert ear.heard == []
        await control.close()

    run(body())


@on_both_loops
def test_another_user_is_kept_out(run: Run, tmp_path: Path) -> None:
    async def body() -> None:
        ear = Ear()
        control = links(CONTROL, ear, uid=os.getuid() + 1)
        await control.listen(socket_address(tmp_path / "control.sock"), (Role.WORKER,))
        stranger = await Stranger.to(tmp_path / "control.sock")
        stranger.say(HELLO)
        (answer,) = await stranger.heard()
        assert answer == HelloRefused(f"processes of user {os.getuid()} are not welcome")
        assert ear.heard == []
        await control.close()

    run(body())


@on_both_loops
def test_one_life_has_one_link(run: Run, tmp_path: Path) -> None:
    async def body() -> None:
        async with pair(tmp_path) as (_, control_ear, _, _):
            stranger = await Stranger.to(tmp_path / "control.sock")
            stranger.say(HELLO)
            (answer,) = await stranger.heard()
            assert answer == HelloRefused("it is linked already")
            assert control_ear.heard == [PeerJoined(WORKER)]

    run(body())


@on_both_loops
def test_a_dialler_refuses_whom_it_did_not_dial(run: Run, tmp_path: Path) -> None:
    async def body() -> None:
        address = socket_address(tmp_path / "worker-3.sock")
        worker_ear, ingress_ear = Ear(), Ear()
        worker = links(WORKER, worker_ear)
        ingress = links(Peer(Role.INGRESS, Rank(0), Epoch(1)), ingress_ear)
        await worker.listen(address, (Role.INGRESS,))
        ingress.dial(address, Role.WORKER, Rank(3))
        assert isinstance(await worker_ear.next(), PeerJoined)
        assert isinstance(await worker_ear.next(), PeerLost)
        assert ingress_ear.heard == []
        await ingress.close()
        await worker.close()

    run(body())


@on_both_loops
def test_a_stranger_that_says_nothing_is_not_awaited_for_ever(run: Run, tmp_path: Path) -> None:
    async def body() -> None:
        ear = Ear()
        control = links(CONTROL, ear, attrs.evolve(BOUNDS, handshake_s=0.01))
        await control.listen(socket_address(tmp_path / "control.sock"), (Role.WORKER,))
        stranger = await Stranger.to(tmp_path / "control.sock")
        assert await stranger.heard() == []
        assert ear.heard == []
        await control.close()

    run(body())


@on_both_loops
@pytest.mark.parametrize("turns", range(5))
def test_a_stream_accepted_just_before_the_end_is_ended(run: Run, tmp_path: Path, turns: int) -> None:
    async def body() -> None:
        ear = Ear()
        control = links(CONTROL, ear)
        await control.listen(socket_address(tmp_path / "control.sock"), (Role.WORKER,))
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as late:
            late.connect(os.fspath(tmp_path / "control.sock"))
            for _ in range(turns):
                await asyncio.sleep(0)
            await control.close()
            assert control.open == []
            late.settimeout(20)
            with suppress(ConnectionResetError):
                assert late.recv(1) == b""
        assert ear.heard == []

    run(body())
    gc.collect()  # and with it what nobody has closed would be told of


@on_both_loops
@pytest.mark.parametrize(
    "data",
    [
        b"GET / HTTP/1.1\r\n\r\n",
        PREFIX.pack(1 << 20, 5),
        PREFIX.pack(2, 2) + b"{}",
        encode(StateAsked(1)),
    ],
)
def test_nonsense_instead_of_a_hello_ends_the_link(run: Run, tmp_path: Path, data: bytes) -> None:
    async def body() -> None:
        ear = Ear()
        control = links(CONTROL, ear)
        await control.listen(socket_address(tmp_path / "control.sock"), (Role.WORKER,))
        stranger = await Stranger.to(tmp_path / "control.sock")
        stranger.write(data)
        assert await stranger.heard() == []
        assert ear.heard == []
        await control.close()

    run(body())


@on_both_loops
@pytest.mark.parametrize("data", [PREFIX.pack(2, 2) + b"{}", PREFIX.pack((64 << 20) + 1, 5), encode(HELLO)])
def test_nonsense_after_the_hello_is_the_loss_of_the_peer(run: Run, tmp_path: Path, data: bytes) -> None:
    async def body() -> None:
        ear = Ear()
        control = links(CONTROL, ear)
        await control.listen(socket_address(tmp_path / "control.sock"), (Role.WORKER,))
        stranger = await Stranger.to(tmp_path / "control.sock")
        stranger.say(HELLO, StateAsked(1))
        stranger.write(data)
        await stranger.heard()
        assert await ear.next() == PeerJoined(WORKER)
        assert await ear.next() == Received(WORKER, StateAsked(1))
        assert await ear.next() == PeerLost(WORKER)
        await control.close()

    run(body())


@on_both_loops
def test_a_slow_reader_loses_its_link_and_nobody_waits_for_it(run: Run, tmp_path: Path) -> None:
    async def body() -> None:
        ear = Ear()
        control = links(CONTROL, ear, attrs.evolve(BOUNDS, outbox_bytes_max=1 << 20))
        await control.listen(socket_address(tmp_path / "control.sock"), (Role.WORKER,))
        stranger = await Stranger.to(tmp_path / "control.sock")
        stranger.say(HELLO)
        assert await ear.next() == PeerJoined(WORKER)
        # Not a byte is read meanwhile: this coroutine never yields to the stranger's reader.
        for number in range(40_000):
            control.send(WORKER, StateAsked(number))
        assert await ear.next() == PeerLost(WORKER)
        await stranger.heard()
        await control.close()

    run(body())


@on_both_loops
def test_all_sent_in_one_turn_goes_out_in_one_write(run: Run, tmp_path: Path) -> None:
    async def body() -> None:
        ear = Ear()
        control = links(CONTROL, ear)
        await control.listen(socket_address(tmp_path / "control.sock"), (Role.WORKER,))
        raw = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        raw.setblocking(False)
        loop = asyncio.get_running_loop()
        await loop.sock_connect(raw, str(tmp_path / "control.sock"))
        await loop.sock_sendall(raw, encode(HELLO))
        assert await ear.next() == PeerJoined(WORKER)
        first = await loop.sock_recv(raw, 1 << 16)
        assert isinstance(decode(first), Hello)
        for number in range(30):
            control.send(WORKER, StateAsked(number))
        together = await loop.sock_recv(raw, 1 << 16)
        assert len(list(FrameSplitter(1 << 20).split(together))) == 30
        raw.close()
        assert await ear.next() == PeerLost(WORKER)
        await control.close()

    run(body())


@on_both_loops
def test_the_socket_of_a_dead_owner_is_replaced_and_of_a_living_one_is_not(run: Run, tmp_path: Path) -> None:
    async def body() -> None:
        path = tmp_path / "control.sock"
        dead = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        dead.bind(str(path))
        dead.close()
        first, second = links(CONTROL, Ear()), links(CONTROL, Ear())
        await first.listen(socket_address(path), (Role.WORKER,))
        assert stat.S_IMODE(os.stat(path).st_mode) == 0o600
        with pytest.raises(OSError, match="in use"):
            await second.listen(socket_address(path), (Role.WORKER,))
        await first.close()
        assert not path.exists()
        await second.close()

    run(body())


def test_addresses_are_urls() -> None:
    assert socket_address("/run/x/control.sock") == "unix:///run/x/control.sock"
    assert socket_path("unix:///run/x/control.sock") == "/run/x/control.sock"
    with pytest.raises(ValueError, match="only unix:"):
        socket_path("tcp://localhost:1")
    with pytest.raises(ValueError, match="at most 107 bytes"):
        socket_address("/" + "x" * 107)
