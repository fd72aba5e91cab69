"""A link between two processes as a Unix stream makes it, with what goes wrong on streams.

In order, and without loss while both ends live. Each end learns by itself that the link is gone: it reads what was
still on its way, or a head of it, and then the end of file.
"""

from collections import deque
from collections.abc import Callable
from enum import Enum
from typing import Protocol, TypeAlias

from lmpool.core.ids import Nanos, Peer
from lmpool.core.messages import Message
from lmpool.sim.node import Way
from lmpool.sim.timeline import Timeline


class Mark(Enum):
    HELLO = "hello"
    """The handshake: whoever reads it has joined."""
    END = "end of file"


Item: TypeAlias = Message | Mark


class Process(Protocol):
    """An end of a link."""

    peer: Peer
    is_alive: bool
    asleep_until: Nanos

    def has(self, peer: Peer) -> bool: ...

    def join(self, peer: Peer, line: Way) -> None: ...

    def part(self, peer: Peer) -> None: ...

    def receive(self, peer: Peer, message: Message) -> None: ...


class Stream:
    """One direction. Latencies are asked for each item, in nanoseconds."""

    __slots__ = (
        "_held_until",
        "_is_ended",
        "_last",
        "_latency",
        "_reader",
        "_take",
        "_timeline",
        "_waiting",
        "is_open",
    )

    def __init__(
        self, timeline: Timeline, latency: Callable[[], int], reader: Process, take: Callable[[Item], None]
    ) -> None:
        self._timeline = timeline
        self._latency = latency
        self._reader = reader
        self._take = take
        self._waiting: deque[Item] = deque()
        self._last = Nanos(0)
        self._held_until = Nanos(0)
        self._is_ended = False
        self.is_open = True
        """Whether the sending end is still there."""

    @property
    def waiting(self) -> int:
        """Items on their way."""
        return len(self._waiting)

    @property
    def is_over(self) -> bool:
        """Whether nothing will arrive any more."""
        return not self._reader.is_alive or (self._is_ended and not self._waiting)

    def carry(self, message: Item) -> None:
        if self.is_open:
            self._put(message)

    def end(self) -> None:
        """The sending end is gone; what is on its way arrives."""
        self.is_open = False
        if not self._is_ended:
            self._is_ended = True
            self._put(Mark.END)

    def break_off(self, kept: int) -> None:
        """Likewise, but only the first `kept` of those on their way arrive."""
        if not self._is_ended:
            while len(self._waiting) > kept:
                self._waiting.pop()
        self.end()

    def hold(self, until: Nanos) -> None:
        """The reader reads nothing of this stream until then."""
        self._held_until = max(self._held_until, until)

    def release(self) -> None:
        self._held_until = Nanos(0)

    def _put(self, item: Item) -> None:
        self._waiting.append(item)
        self._last = max(self._last, Nanos(self._timeline.now + self._latency()))
        self._timeline.at(self._last, self._arrive)

    def _arrive(self) -> None:
        if not self._waiting or not self._reader.is_alive:
            return
        free = max(self._held_until, self._reader.asleep_until)
        if free > self._timeline.now:
            self._timeline.at(free, self._arrive)
        else:
            self._take(self._waiting.popleft())


class Link:
    """From the dial on. The dialler greets first; a listener that has this very peer already refuses."""

    def __init__(
        self,
        timeline: Timeline,
        dialler: Process,
        listener: Process,
        latency: Callable[[], int],
        parted: Callable[[], None],
    ) -> None:
        """`parted`: the dialler has lost it, or was refused."""
        self._dialler = dialler
        self._listener = listener
        self._parted = parted
        self.there = Stream(timeline, latency, listener, self._take_at_listener)
        self.back = Stream(timeline, latency, dialler, self._take_at_dialler)
        self._is_heard = False
        self._is_answered = False
        self.there.carry(Mark.HELLO)

    @property
    def ends(self) -> tuple[Process, Process]:
        return self._dialler, self._listener

    @property
    def is_quiet(self) -> bool:
        """Whether both ends have joined and have heard all that was said."""
        return self.is_up and self._is_answered and not self.there.waiting and not self.back.waiting

    @property
    def is_over(self) -> bool:
        return self.there.is_over and self.back.is_over

    @property
    def is_up(self) -> bool:
        """Whether both ends hold it."""
        return self.there.is_open and self.back.is_open

    def cut(self, kept_there: int, kept_back: int) -> None:
        self.there.break_off(kept_there)
        self.back.break_off(kept_back)

    def _take_at_listener(self, item: Item) -> None:
        peer = self._dialler.peer
        match item:
            case Mark.HELLO:
                if self._listener.has(peer):
                    self.back.end()
                else:
                    self._is_heard = True
                    self.back.carry(Mark.HELLO)
                    self._listener.join(peer, self.back)
            case Mark.END:
                if self._is_heard:
                    self._listener.part(peer)
                self.back.end()
            case _:
                if self._is_heard:
                    self._listener.receive(peer, item)

    def _take_at_dialler(self, item: Item) -> None:
        peer = self._listener.peer
        match item:
            case Mark.HELLO:
                self._is_answered = True
                self._dialler.join(peer, self.there)
            case Mark.END:
                if self._is_answered:
                    self._dialler.part(peer)
                self.there.end()
                self._parted()
            case _:
                self._dialler.receive(peer, item)
