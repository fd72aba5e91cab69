"""Requests that come in thousands at a moment are let in a few at a time, so that the event loop turns in between.

What a turn of the loop reads, it would otherwise also parse and begin in that turn, with nobody else served meanwhile.
Here a turn takes what it can within `SLICE_S`; the rest waits in order of arrival, its connections unread. What begins
with GET goes through at once: probes and scrapes cost little, and come from those who watch a busy server.
"""

import asyncio
import time
from collections import deque
from collections.abc import Callable
from typing import Protocol

SLICE_S = 0.005
"""Of a turn. What was let in does as much work again in the next, so a probe waits for about two of them."""

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
    __slots__ = ("_clock", "_is_turning", "_left_s", "_loop", "_waiting")

    def __init__(self, loop: asyncio.AbstractEventLoop, clock: Callable[[], float] = time.perf_counter) -> None:
        """`clock` in seconds."""
        self._loop = loop
        self._clock = clock
        self._left_s = SLICE_S
        self._is_turning = False
        self._waiting: deque[tuple[Connection, bytes]] = deque()

    @property
    def waiting(self) -> int:
        return len(self._waiting)

    def come(self, connection: Connection, data: bytes) -> None:
        """Bytes of a connection that is not held."""
        if data.startswith(AT_ONCE):
            connection.let_in(data)
        elif self._left_s > 0 and not self._waiting:
            self._let_in(connection, data)
        else:
            connection.hold()
            self._waiting.append((connection, data))
        if not self._is_turning:
            self._is_turning = True
            self._loop.call_soon(self._turn)

    def _turn(self) -> None:
        self._left_s = SLICE_S
        while self._waiting and self._left_s > 0:
            self._let_in(*self._waiting.popleft())
        self._is_turning = bool(self._waiting)
        if self._is_turning:
            self._loop.call_soon(self._turn)

    def _let_in(self, connection: Connection, data: bytes) -> None:
        """Who has left meanwhile is past."""
        if connection.is_open:
            began = self._clock()
            connection.let_in(data)
            self._left_s -= self._clock() - began
