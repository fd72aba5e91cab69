"""Sockets between workers over which one is given the memory of another's pool: greeted like links, then silent.

The end of such a stream is the end of the process behind it, so both ends keep it for as long as they live.
"""

import asyncio
import os
import socket
from contextlib import suppress

from lmpool.core.data_path import CopyFaultError, SharedPool
from lmpool.core.ids import Peer, Rank, Role
from lmpool.core.limits import RANKS_MAX
from lmpool.io.link import (
    HELLO_BYTES_MAX,
    LINK_BOUNDS,
    Identity,
    bind_socket,
    peer_uid,
    socket_address,
    socket_path,
)
from lmpool.io.log import get_log
from lmpool.io.wire import PREFIX, Hello, HelloRefused, WireError, decode, encode

BACKLOG = 2 * RANKS_MAX
GREETED_MAX = 4 * RANKS_MAX
"""Streams at a door, those that have not greeted yet among them. A rank has one, or some while it reconnects."""

_log = get_log("blocks")


def blocks_address(run_folder: str, rank: Rank) -> str:
    return socket_address(os.path.join(run_folder, f"blocks-{rank}.sock"))


class BlockDoor:
    """Offers this worker's pool to other workers of the run."""

    def __init__(self, identity: Identity, pool: SharedPool, address: str) -> None:
        """Listens from here on. Raises OSError."""
        self._identity = identity
        self._pool = pool
        self._path = socket_path(address)
        self._listening = bind_socket(self._path)
        self._listening.listen(BACKLOG)
        self._listening.setblocking(False)
        self._inode = os.stat(self._path).st_ino
        self._loop = asyncio.get_running_loop()
        self._guests: dict[asyncio.Task[None], None] = {}
        self._accepting = self._loop.create_task(self._accept())

    async def _accept(self) -> None:
        while True:
            try:
                stream, _ = await self._loop.sock_accept(self._listening)
            except OSError as error:  # out of descriptors, say
                _log.warning("no stream accepted", cause=str(error))
                await asyncio.sleep(LINK_BOUNDS.redial_s_max)
                continue
            if len(self._guests) >= GREETED_MAX:
                stream.close()
                continue
            guest = self._loop.create_task(self._serve(stream))
            self._guests[guest] = None
            guest.add_done_callback(self._guests.pop)

    async def _serve(self, stream: socket.socket) -> None:
        """Until the other end is gone."""
        with stream:
            try:
                async with asyncio.timeout(LINK_BOUNDS.handshake_s):
                    refusal = self._refusal(await _receive_hello(stream), stream)
                    answer = self._identity.hello() if refusal is None else HelloRefused(refusal)
                    await self._loop.sock_sendall(stream, encode(answer))
                if refusal is not None:
                    _log.warning("peer refused", reason=refusal)
                    return
                # a few hundred bytes into a socket that is empty: nobody is waited for
                self._pool.offer(os.dup(stream.fileno()))
                await self._loop.sock_recv(stream, 1)
            except (OSError, WireError, CopyFaultError, TimeoutError) as error:
                _log.debug("stream of blocks ended", cause=str(error))

    def _refusal(self, hello: Hello | HelloRefused, stream: socket.socket) -> str | None:
        if isinstance(hello, HelloRefused):
            return hello.reason
        if hello.role is not Role.WORKER:
            return f"no {hello.role.value} is awaited here"
        return self._identity.refusal(hello, peer_uid(stream))

    async def close(self) -> None:
        tasks = [self._accepting, *self._guests]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._listening.close()
        with suppress(FileNotFoundError):
            if os.stat(self._path).st_ino == self._inode:
                os.unlink(self._path)


async def dial_blocks(identity: Identity, address: str, worker: Peer) -> socket.socket:
    """A stream to that life of that worker, on which its offer waits. Raises OSError, WireError, CopyFaultError."""
    loop = asyncio.get_running_loop()
    stream = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        stream.setblocking(False)
        await loop.sock_connect(stream, socket_path(address))
        uid = peer_uid(stream)
        await loop.sock_sendall(stream, encode(identity.hello()))
        hello = await _receive_hello(stream)
        if isinstance(hello, HelloRefused):
            raise CopyFaultError(f"it refuses us: {hello.reason}")
        refusal = identity.refusal(hello, uid)
        if refusal is None and Peer(hello.role, hello.rank, hello.epoch) != worker:
            refusal = f"another life of {worker.role.value} {worker.rank} is there"
        if refusal is not None:
            raise CopyFaultError(refusal)
        await _readable(stream)
    except BaseException:
        stream.close()
        raise
    return stream


async def _readable(stream: socket.socket) -> None:
    loop = asyncio.get_running_loop()
    readable = loop.create_future()
    loop.add_reader(stream.fileno(), _succeed, readable)
    try:
        await readable
    finally:
        loop.remove_reader(stream.fileno())


def _succeed(future: "asyncio.Future[None]") -> None:
    if not future.done():
        future.set_result(None)


async def _receive_hello(stream: socket.socket) -> Hello | HelloRefused:
    """And not one byte more: an offer follows, with a descriptor. Raises OSError, WireError."""
    head = await _exactly(stream, PREFIX.size)
    length, _ = PREFIX.unpack(head)
    if length > HELLO_BYTES_MAX:
        raise WireError(f"a frame of {length} bytes")
    record = decode(head + await _exactly(stream, length))
    if not isinstance(record, Hello | HelloRefused):
        raise WireError(f"{type(record).__name__} before its Hello")
    return record


async def _exactly(stream: socket.socket, size: int) -> bytes:
    found = b""
    while len(found) < size:
        part = await asyncio.get_running_loop().sock_recv(stream, size - len(found))
        if not part:
            raise ConnectionError("the other end is gone")
        found += part
    return found
