"""Requests that come in thousands at a moment are let in a few at a time, so that the event loop turns in between.

What a turn of the loop reads, it would otherwise also parse and begin in that turn, with nobody else served meanwhile.
Here a turn takes `TURN_MAX` pieces of data; the rest waits in order of arrival, its connections unread. What begins
with GET goes through at once: probes and scrapes cost little, and come from those who watch a busy server.
"""

import asyncio
from collections import deque
from typing import Protocol

TURN_MAX = 8
"""A piece may complete a request, which costs about a millisecond to begin."""

AT_ONCE = b"GET "


class Connection(Protocol):
    """A client's, as the turnstile sees it."""

    @property
    def is_open(self) -> bool: ...

    def hold(self) -> None:
        """Data waits: read no more of it."""
        ...

    def let_in(self, data: bytes) -> None:
        """Take these bytes, and read on."""
        ...


class Turnstile:
    __slots__ = ("_is_turning", "_left", "_loop", "_waiting")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._left = TURN_MAX
        self._is_turning = False
        self._waiting: deque[tuple[Connection, bytes]] = deque()

    @property
    def waiting(self) -> int:
        return len(self._waiting)

    def come(self, connection: Connection, data: bytes) -> None:
        """Bytes of a connection that is not held."""
        if data.startswith(AT_ONCE):
            connection.let_in(data)
            return
        if self._left and not self._waiting:
            self._left -= 1
            connection.let_in(data)
        else:
            connection.hold()
            self._waiting.append((connection, data))
        if not self._is_turning:
            self._is_turning = True
            self._loop.call_soon(self._turn)

    def _turn(self) -> None:
        self._left = TURN_MAX
        while self._waiting and self._left:
            connection, data = self._waiting.popleft()
            if connection.is_open:
                self._left -= 1
                connection.let_in(data)
        self._is_turning = bool(self._waiting)
        if self._is_turning:
            self._loop.call_soon(self._turn)
