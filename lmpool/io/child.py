"""A child's end of its channel to the supervisor, and the frame in which its body runs.

Light to import: a child watches for its parent's end from before it loads anything heavy.
"""

import asyncio
import os
import signal
import socket
import threading
from collections.abc import Awaitable, Callable
from contextlib import suppress
from queue import SimpleQueue

import uvloop

from lmpool.core.plan import ReplicaError
from lmpool.io.channel import ChannelError, Lines, decode_order, encode_line
from lmpool.io.log import get_log
from lmpool.io.orders import Drain, Failed, Notice, Order

ORPHANED = 3
"""Exit status of a child whose parent is gone."""
TERM_DRAIN_S = 30.0
"""How long a child goes on that is told to end by a signal, not by the supervisor."""
READ_BYTES = 64 << 10
LINE_BYTES_MAX = 1 << 20

_log = get_log("child")


class ChildEnd:
    """Orders in, notices out. A daemon thread reads the channel, so that a busy interpreter notices its end too."""

    def __init__(self, channel: socket.socket, orphaned: Callable[[], None]) -> None:
        """`orphaned` is called on that thread when the parent is gone, or speaks another version's language."""
        channel.set_inheritable(False)
        self._channel = channel
        self._orphaned = orphaned
        self._orders: SimpleQueue[Order] = SimpleQueue()
        self._lock = threading.Lock()
        self._drain: Drain | None = None
        self._on_drain: Callable[[Drain], None] | None = None
        threading.Thread(target=self._watch, name="channel", daemon=True).start()

    def order(self) -> Order:
        """The one order of this life. Blocks until it has come."""
        return self._orders.get()

    def note(self, notice: Notice) -> None:
        """From any thread."""
        # If this fails the parent is gone, and the watching thread ends this process.
        with self._lock, suppress(OSError):
            self._channel.sendall(encode_line(notice))

    def on_drain(self, ordered: Callable[[Drain], None]) -> None:
        """`ordered` is called for each drain, from any thread; at once for one that has come already."""
        with self._lock:
            self._on_drain = ordered
            missed = self._drain
        if missed is not None:
            ordered(missed)

    def drain(self, drain: Drain) -> None:
        """Ordered by the supervisor, or by a signal."""
        with self._lock:
            self._drain = drain
            ordered = self._on_drain
        if ordered is not None:
            ordered(drain)

    def _watch(self) -> None:
        lines = Lines(LINE_BYTES_MAX)
        try:
            while data := self._channel.recv(READ_BYTES):
                for line in lines.feed(data):
                    self._told(decode_order(line))
        except ConnectionError:
            pass
        except ChannelError as error:
            _log.error("unknown order", fault=str(error))
        self._orphaned()

    def _told(self, record: Order | Drain) -> None:
        if isinstance(record, Drain):
            self.drain(record)
        else:
            self._orders.put(record)


def drain_ordered(channel: ChildEnd) -> "asyncio.Future[Drain]":
    """Done once the supervisor, or TERM, wants nothing new taken."""
    loop = asyncio.get_running_loop()
    first: asyncio.Future[Drain] = loop.create_future()

    def keep(drain: Drain) -> None:
        if not first.done():
            first.set_result(drain)

    def ordered(drain: Drain) -> None:
        with suppress(RuntimeError):  # the loop has ended meanwhile, as is wanted
            loop.call_soon_threadsafe(keep, drain)

    channel.on_drain(ordered)
    return first


def open_channel(descriptor: int) -> ChildEnd:
    """Of a child process: its end is the end of the process."""
    return ChildEnd(socket.socket(fileno=descriptor), lambda: os._exit(ORPHANED))


def run_child(channel: ChildEnd, body: Callable[[], Awaitable[None]]) -> int:
    """Runs the body of a child process to its end, on the main thread; returns the exit status.

    TERM asks for a drain, a second TERM ends the process at once. INT is for the supervisor, which drains its children.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(_under_signals(channel, body))
    except ReplicaError as error:
        channel.note(Failed(error.what, error.hint))
        return 1
    except Exception as error:
        _log.exception("the process ends by a fault of its own")
        channel.note(Failed(f"{type(error).__name__}: {error}", "a fault of LMPool: its trace is in the log"))
        return 1
    return 0


async def _under_signals(channel: ChildEnd, body: Callable[[], Awaitable[None]]) -> None:
    loop = asyncio.get_running_loop()

    def terminate() -> None:
        loop.remove_signal_handler(signal.SIGTERM)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        channel.drain(Drain(TERM_DRAIN_S))

    loop.add_signal_handler(signal.SIGTERM, terminate)
    await body()
