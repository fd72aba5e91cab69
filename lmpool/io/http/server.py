"""uvicorn inside somebody else's event loop: on a socket that is already bound, without signal handlers."""

import asyncio
import socket
from collections.abc import Iterator
from contextlib import contextmanager

import h11
import uvicorn
from typing_extensions import override
from uvicorn.protocols.http.h11_impl import H11Protocol

from lmpool.io.http.app import Application
from lmpool.io.http.door import BUSY_RETRY_S
from lmpool.io.http.errors import ApiError, Code, error_body
from lmpool.io.http.patience import LOOK_S, Patience
from lmpool.io.http.turnstile import Turnstile

KEEP_ALIVE_S = 75
"""Longer than the pools of usual clients keep a connection, so that none sends into one that is just closing."""

GRACE_S = 5
"""For answers that are written but not yet read, after every request has ended."""


class _Server(uvicorn.Server):
    @override
    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Signals are the process's affair."""
        yield


class _Protocol(H11Protocol):
    """A `turnstile.Connection` and a `patience.Connection`."""

    turnstile: Turnstile
    patience: Patience
    connections_max: int
    _is_held = False

    @property
    def is_open(self) -> bool:
        return not self.transport.is_closing()

    @property
    def owed(self) -> int | None:
        is_asked = self._is_held or not (self.cycle is None or self.cycle.response_complete)
        if is_asked and self.is_open and not self.flow.write_paused:
            return None
        return self.transport.get_write_buffer_size()

    @property
    def latest(self) -> object:
        return self.cycle

    def cut(self) -> None:
        self.transport.abort()

    def hold(self) -> None:
        self._is_held = True
        self._unset_keepalive_if_required()
        self.transport.pause_reading()

    def let_in(self, data: bytes) -> None:
        self._is_held = False
        super().data_received(data)
        if self.is_open and not self.flow.read_paused:
            self.transport.resume_reading()

    @override
    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        if len(self.patience) >= self.connections_max:
            text = f"The server already has {self.connections_max} connections."
            self._refuse(ApiError(Code.SERVER_BUSY, text, retry_after_s=BUSY_RETRY_S))
        self.patience.begin(self)

    @override
    def connection_lost(self, exc: Exception | None) -> None:
        self.patience.end(self)
        super().connection_lost(exc)

    @override
    def data_received(self, data: bytes) -> None:
        self.turnstile.come(self, data)

    @override
    def send_400_response(self, msg: str) -> None:
        """What is no HTTP is refused in the shape of every other error."""
        self._refuse(ApiError(Code.INVALID_HTTP, msg))

    def _refuse(self, error: ApiError) -> None:
        body = error_body(error)
        facts = {"content-type": "application/json", "connection": "close", "content-length": str(len(body))}
        response = h11.Response(status_code=error.code.status, headers=list({**facts, **error.headers}.items()))
        for event in (response, h11.Data(data=body), h11.EndOfMessage()):
            self.transport.write(self.conn.send(event) or b"")
        self.transport.close()


async def serve(
    app: Application, listener: socket.socket, stop: asyncio.Event, drain_s: float, connections_max: int
) -> None:
    """Serves until `stop`; then refuses new requests, lets running ones finish for `drain_s`, and ends.

    Takes the listening socket over.
    """
    loop = asyncio.get_running_loop()

    class Protocol(_Protocol):
        turnstile = Turnstile(loop)
        patience = Patience()

    Protocol.connections_max = connections_max

    async def look() -> None:
        while True:
            await asyncio.sleep(LOOK_S)
            Protocol.patience.look(loop.time())

    config = uvicorn.Config(
        app.asgi,
        http=Protocol,
        ws="none",
        lifespan="off",
        log_config=None,
        access_log=False,
        server_header=False,
        timeout_keep_alive=KEEP_ALIVE_S,
        timeout_graceful_shutdown=GRACE_S,
    )
    server = _Server(config)
    serving = asyncio.create_task(server.serve(sockets=[listener]))
    stopping = asyncio.create_task(stop.wait())
    looking = asyncio.create_task(look())
    try:
        await asyncio.wait((serving, stopping), return_when=asyncio.FIRST_COMPLETED)
        if not serving.done():
            await app.door.drain(drain_s)
    finally:
        stopping.cancel()
        looking.cancel()
        server.should_exit = True
        await serving
