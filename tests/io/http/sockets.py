"""The server on a real socket, in the test's own loop."""

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from lmpool.io.http.app import Application
from lmpool.io.http.server import serve


def listening() -> socket.socket:
    listener = socket.socket()
    listener.bind(("127.0.0.1", 0))
    listener.listen()
    listener.setblocking(False)
    return listener


def url_of(listener: socket.socket) -> str:
    return "http://{}:{}".format(*listener.getsockname())


@asynccontextmanager
async def serving(app: Application, connections_max: int = 10_000) -> AsyncIterator[str]:
    """Yields the URL; ends at once."""
    listener, stop = listening(), asyncio.Event()
    url = url_of(listener)
    server = asyncio.create_task(serve(app, listener, stop, drain_s=0, connections_max=connections_max))
    try:
        yield url
    finally:
        stop.set()
        await server
