"""Links between the processes of one run: Unix streams that carry frames, behind a handshake.

`Links` holds all links of one process. It listens and dials, greets, and tells one listener in order what happened:
`PeerJoined`, then `Received` for each message, then `PeerLost`, exactly once and last. It never calls that listener
from within `send`.
"""

import asyncio
import errno
import os
import socket
import struct
from collections.abc import Callable
from contextlib import suppress
from typing import TypeAlias, cast

import attrs
from typing_extensions import override

from lmpool.core.events import PeerJoined, PeerLost, Received
from lmpool.core.ids import Peer, Rank, Role
from lmpool.core.limits import FRAME_BYTES_MAX, RANKS_MAX
from lmpool.core.messages import Message
from lmpool.io.log import get_log
from lmpool.io.wire import PROTOCOL_VERSION, Framed, FrameSplitter, Hello, HelloRefused, WireError, decode, encode

LinkEvent: TypeAlias = PeerJoined | Received | PeerLost
Refusal: TypeAlias = str | None
"""Why a peer is refused; None: it is welcome."""

SCHEME = "unix://"
PATH_BYTES_MAX = 107
"""What fits into `sockaddr_un` on Linux."""
HELLO_BYTES_MAX = 4096
"""A stranger cannot make us hold more than this."""
CLOSE_S = 1.0
"""For what is still to be written when a process ends by itself."""

_log = get_log("link")


@attrs.frozen
class LinkBounds:
    handshake_s: float
    outbox_bytes_max: int
    """A peer that reads so slowly that more waits for it loses its link."""
    redial_s_min: float
    redial_s_max: float


LINK_BOUNDS = LinkBounds(handshake_s=5.0, outbox_bytes_max=2 * FRAME_BYTES_MAX, redial_s_min=0.02, redial_s_max=0.5)
"""Two largest frames may wait. A peer that restarts is found within half a second."""


@attrs.frozen
class Identity:
    """Who we are, and whom we let in."""

    run: str
    peer: Peer
    uid: int
    """Processes of other users are refused."""

    def hello(self) -> Hello:
        return Hello(PROTOCOL_VERSION, self.run, self.peer.role, self.peer.rank, self.peer.epoch)

    def refusal(self, hello: Hello, uid: int) -> Refusal:
        """What is wrong with a peer wherever it comes from."""
        if uid != self.uid:
            return f"processes of user {uid} are not welcome"
        if hello.version != PROTOCOL_VERSION:
            return f"protocol version {PROTOCOL_VERSION} is spoken here, not {hello.version}"
        if hello.run != self.run:
            return "it belongs to another run"
        return None if 0 <= hello.rank < RANKS_MAX else f"rank {hello.rank} does not exist"


def socket_address(path: str | os.PathLike[str]) -> str:
    """`unix://` and the absolute path. Raises ValueError for a path that no socket can have."""
    absolute = os.path.abspath(path)
    if len(os.fsencode(absolute)) > PATH_BYTES_MAX:
        raise ValueError(f"{absolute}: a socket's path has at most {PATH_BYTES_MAX} bytes")
    return SCHEME + absolute


def socket_path(address: str) -> str:
    """Raises ValueError for an address of another kind."""
    if not address.startswith(SCHEME + "/"):
        raise ValueError(f"{address}: only {SCHEME}/... addresses can be reached")
    return address[len(SCHEME) :]


def control_address(run_folder: str) -> str:
    return socket_address(os.path.join(run_folder, "control.sock"))


def worker_address(run_folder: str, rank: Rank) -> str:
    return socket_address(os.path.join(run_folder, f"worker-{rank}.sock"))


class _Link(asyncio.Protocol):
    """One stream, from the handshake to its end."""

    def __init__(self, links: "Links", judge: Callable[[Hello], Refusal], *, dialled: bool) -> None:
        self._links = links
        self._judge = judge
        self._dialled = dialled
        self._splitter = FrameSplitter(HELLO_BYTES_MAX)
        self._stream: asyncio.Transport | None = None
        self._outbox: list[bytes] = []
        self._outbox_bytes = 0
        self._patience: asyncio.TimerHandle | None = None
        self.peer: Peer | None = None
        """Set while the link is joined."""
        self.joined = False
        """Whether it has ever been."""
        self.lost = links.loop.create_future()

    @property
    def _transport(self) -> asyncio.Transport:
        assert self._stream is not None
        return self._stream

    @override
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._stream = cast(asyncio.Transport, transport)  # which uvloop's transports are in all but name
        self._links.open.append(self)
        if self._links.is_closed:
            self._links.loop.call_soon(self.cut)  # it was accepted just before the end
        self._patience = self._links.loop.call_later(self._links.bounds.handshake_s, self._lose_patience)
        if self._dialled:
            self._write(self._links.identity.hello())

    @override
    def data_received(self, data: bytes) -> None:
        try:
            for frame in self._splitter.split(data):
                self._take(decode(frame))
        except WireError as error:
            self.abort(f"it sent {error}")

    @override
    def connection_lost(self, exc: Exception | None) -> None:
        assert self._patience is not None
        self._patience.cancel()
        self._links.open.remove(self)
        self._outbox.clear()
        peer, self.peer = self.peer, None
        if peer is not None:
            self._links.leave(peer)
        self.lost.set_result(None)

    def send(self, message: Message) -> None:
        """Goes out with everything else of this turn of the loop."""
        transport = self._transport
        if transport.is_closing():
            return
        frame = encode(message)
        if not self._outbox:
            self._links.loop.call_soon(self._flush)
        self._outbox.append(frame)
        self._outbox_bytes += len(frame)
        waiting = self._outbox_bytes + transport.get_write_buffer_size()
        if waiting > self._links.bounds.outbox_bytes_max:
            self.abort(f"it reads too slowly: {waiting} bytes wait for it")

    def close(self) -> None:
        """After what has been sent is written."""
        self._flush()
        self._transport.close()

    def abort(self, cause: str) -> None:
        if not self._transport.is_closing():
            _log.warning("link ended", peer=self._peer_name(), cause=cause)
            self.cut()

    def cut(self) -> None:
        """Without writing anything more."""
        self._transport.abort()

    def _flush(self) -> None:
        if self._outbox and not self._transport.is_closing():
            self._transport.write(b"".join(self._outbox))
        self._outbox.clear()
        self._outbox_bytes = 0

    def _take(self, record: Framed) -> None:
        match record:
            case Hello():
                self._greeted(record)
            case HelloRefused(reason=reason):
                self.abort(f"it refuses us: {reason}")
            case _ if self.peer is None:
                raise WireError(f"{type(record).__name__} before its Hello")
            case _:
                self._links.emit(Received(self.peer, record))

    def _greeted(self, hello: Hello) -> None:
        if self.joined:
            raise WireError("a second Hello")
        refusal = self._links.refusal(hello, _uid_behind(self._transport)) or self._judge(hello)
        if refusal is not None:
            self._refuse(refusal)
            return
        assert self._patience is not None
        self._patience.cancel()
        if not self._dialled:
            self._write(self._links.identity.hello())
        self._splitter.frame_bytes_max = FRAME_BYTES_MAX
        self.peer = Peer(hello.role, hello.rank, hello.epoch)
        self.joined = True
        self._links.join(self.peer, self)

    def _refuse(self, reason: str) -> None:
        _log.warning("peer refused", reason=reason)
        self._write(HelloRefused(reason))
        self._transport.close()

    def _write(self, record: Framed) -> None:
        self._transport.write(encode(record))

    def _lose_patience(self) -> None:
        self.abort("it did not greet in time")

    def _peer_name(self) -> str:
        return "stranger" if self.peer is None else f"{self.peer.role.value} {self.peer.rank}"


class Links:
    """All links of one process. Must be made on a running event loop."""

    def __init__(self, identity: Identity, bounds: LinkBounds, emit: Callable[[LinkEvent], None]) -> None:
        self.identity = identity
        self.bounds = bounds
        self.emit = emit
        self.loop = asyncio.get_running_loop()
        self.open: list[_Link] = []
        """Every stream, also those that have not joined."""
        self.is_closed = False
        self._joined: dict[Peer, _Link] = {}
        self._dials: list[asyncio.Task[None]] = []
        self._servers: list[tuple[asyncio.Server, str, int]] = []

    async def listen(self, address: str, accepts: tuple[Role, ...]) -> None:
        """Raises OSError where a living process listens already; the socket of a dead one is replaced."""

        def judge(hello: Hello) -> Refusal:
            return None if hello.role in accepts else f"no {hello.role.value} is awaited here"

        path = socket_path(address)
        listening = bind_socket(path)
        inode = os.stat(path).st_ino
        server = await self.loop.create_unix_server(lambda: _Link(self, judge, dialled=False), sock=listening)
        self._servers.append((server, path, inode))

    def dial(self, address: str, role: Role, rank: Rank) -> None:
        """Links to whoever listens there, now and each time that the link is lost, until `close`."""

        def judge(hello: Hello) -> Refusal:
            if (hello.role, hello.rank) == (role, rank):
                return None
            return f"{role.value} {rank} is awaited at this address, not {hello.role.value} {hello.rank}"

        self._dials.append(self.loop.create_task(self._keep_dialling(socket_path(address), judge)))

    def send(self, peer: Peer, message: Message) -> None:
        """To a peer whose link is down: dropped. Its `PeerLost` has come, or comes."""
        link = self._joined.get(peer)
        if link is not None:
            link.send(message)

    async def close(self) -> None:
        """Writes what was sent, ends every link (their `PeerLost` come) and every dial, removes the sockets."""
        self.is_closed = True
        for _, path, inode in self._servers:
            with suppress(FileNotFoundError):
                if os.stat(path).st_ino == inode:
                    os.unlink(path)
        await links_accepted()
        for server, _, _ in self._servers:
            server.close()
        for dial in self._dials:
            dial.cancel()
        await asyncio.gather(*self._dials, return_exceptions=True)
        ends = [link.lost for link in self.open]
        for link in list(self.open):
            link.close()
        if ends:
            await asyncio.wait(ends, timeout=CLOSE_S)
        for link in list(self.open):
            link.cut()
        await asyncio.gather(*ends)

    def refusal(self, hello: Hello, uid: int) -> Refusal:
        refusal = self.identity.refusal(hello, uid)
        if refusal is None and Peer(hello.role, hello.rank, hello.epoch) in self._joined:
            return "it is linked already"
        return refusal

    def join(self, peer: Peer, link: _Link) -> None:
        self._joined[peer] = link
        self.emit(PeerJoined(peer))

    def leave(self, peer: Peer) -> None:
        del self._joined[peer]
        self.emit(PeerLost(peer))

    async def _keep_dialling(self, path: str, judge: Callable[[Hello], Refusal]) -> None:
        pause_s = self.bounds.redial_s_min
        while True:
            link = _Link(self, judge, dialled=True)
            with suppress(OSError):
                await self.loop.create_unix_connection(lambda made=link: made, path)  # type: ignore[misc]
                await asyncio.shield(link.lost)
            if link.joined:
                pause_s = self.bounds.redial_s_min
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, self.bounds.redial_s_max)


async def links_accepted() -> None:
    """Until whoever reached a socket before its path went is connected.

    A server of asyncio that closes between accepting a stream and making its transport leaves the stream open, held by
    nobody. That takes three turns of the loop: the socket is readable, accepted, and the transport made.
    """
    for _ in range(4):
        await asyncio.sleep(0)


def _uid_behind(transport: asyncio.Transport) -> int:
    return peer_uid(transport.get_extra_info("socket"))


def peer_uid(stream: socket.socket) -> int:
    """Of the user whose process is at the other end."""
    credentials = struct.Struct("3i")
    _, uid, _ = credentials.unpack(stream.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, credentials.size))
    return int(uid)


def bind_socket(path: str) -> socket.socket:
    """Raises OSError where a living process listens already; the socket of a dead one is replaced."""
    listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        try:
            listening.bind(path)
        except OSError as error:
            if error.errno != errno.EADDRINUSE or _is_alive(path):
                raise
            os.unlink(path)
            listening.bind(path)
        os.chmod(path, 0o600)
    except OSError:
        listening.close()
        raise
    return listening


def _is_alive(path: str) -> bool:
    """Whether a process listens on this socket."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        try:
            probe.connect(path)
        except ConnectionRefusedError:
            return False
        return True
