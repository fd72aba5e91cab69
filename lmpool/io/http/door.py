"""Who may come in: bounds the generation requests inside, and empties the server when it ends."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager

from lmpool.core.ids import SECOND
from lmpool.io.http.errors import ApiError, Code
from lmpool.io.http.keys import Client

BUSY_RETRY_S = 1.0
"""A place is free as soon as any request ends."""

DRAINING_RETRY_S = 5.0
"""About what a restarted server needs until its listening socket is back."""

LOADING_RETRY_S = 2.0
"""Weights load in seconds to minutes; asking again costs little."""

LINKING_NS = SECOND
"""An ingress that was started again finds its replicas within half a second; until then requests wait."""


class Door:
    def __init__(self, requests_max: int) -> None:
        self._requests_max = requests_max
        self._inside = 0
        self._inside_of: dict[str, int] = {}
        """By the name of the key."""
        self._empty = asyncio.Event()
        self._empty.set()
        self.is_draining = False
        self.closing = asyncio.Event()
        """Set when those still inside must go."""

    @contextmanager
    def pass_through(self, client: Client) -> Iterator[None]:
        """Raises ApiError (429, 503) at the door."""
        if self.is_draining:
            raise ApiError(Code.DRAINING, "The server is ending.", retry_after_s=DRAINING_RETRY_S)
        if self._inside >= self._requests_max:
            text = f"The server already has {self._inside} requests."
            raise ApiError(Code.SERVER_BUSY, text, retry_after_s=BUSY_RETRY_S)
        if client.limit is not None and self._inside_of.get(client.name, 0) >= client.limit:
            text = f"This key already has {client.limit} requests under way, which is its limit."
            raise ApiError(Code.RATE_LIMIT_EXCEEDED, text, retry_after_s=BUSY_RETRY_S)
        self._inside += 1
        self._empty.clear()
        self._count(client, 1)
        try:
            yield
        finally:
            self._count(client, -1)
            self._inside -= 1
            if not self._inside:
                self._empty.set()

    def _count(self, client: Client, change: int) -> None:
        count = self._inside_of.get(client.name, 0) + change
        if count:
            self._inside_of[client.name] = count
        else:
            self._inside_of.pop(client.name, None)

    async def drain(self, seconds: float) -> None:
        """Takes nobody more; lets those inside finish for so long, then has them told that the server closes."""
        self.is_draining = True
        try:
            async with asyncio.timeout(seconds):
                await self._empty.wait()
        except TimeoutError:
            self.closing.set()
            await self._empty.wait()
