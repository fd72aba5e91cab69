"""A process of the cluster in virtual time: one core machine, its links and its alarm.

The counterpart of `io/driver.py` and `io/link.py`. A link carries messages in order and loses none while it stands.
"""

from collections.abc import Callable
from typing import Generic, Protocol, TypeVar

from lmpool.core.effects import Send
from lmpool.core.events import PeerJoined, PeerLost, Received, Tick
from lmpool.core.ids import Nanos, Peer
from lmpool.core.machine import Machine
from lmpool.core.messages import Message
from lmpool.sim.timeline import Timeline

Event = TypeVar("Event")
Effect = TypeVar("Effect")


class Line:
    """One direction of a link."""

    __slots__ = ("_deliver", "_last", "_latency", "_timeline", "is_open")

    def __init__(self, timeline: Timeline, latency: Callable[[], int], deliver: Callable[[Message], None]) -> None:
        """`latency` is asked for each message, in nanoseconds; the order is kept whatever it says."""
        self._timeline = timeline
        self._latency = latency
        self._deliver = deliver
        self._last = Nanos(0)
        self.is_open = True
        """Once closed, what is on its way is lost."""

    def carry(self, message: Message) -> None:
        self._last = max(self._last, Nanos(self._timeline.now + self._latency()))
        self._timeline.at(self._last, lambda: self._arrive(message))

    def _arrive(self, message: Message) -> None:
        if self.is_open:
            self._deliver(message)


class Way(Protocol):
    """How an end of a link reaches the other."""

    is_open: bool

    def carry(self, message: Message) -> None: ...


class Node(Generic[Event, Effect]):
    """One life of a process."""

    def __init__(
        self,
        timeline: Timeline,
        peer: Peer,
        machine: Machine[Event | Received | PeerJoined | PeerLost, Effect | Send],
        perform: Callable[[Effect], None],
    ) -> None:
        """`perform` gets every effect but `Send`, and never feeds."""
        self._timeline = timeline
        self._machine = machine
        self._perform = perform
        self._alarm_at: Nanos | None = None
        self._lines: dict[Peer, Way] = {}
        self.peer = peer
        self.is_alive = True
        self.asleep_until = Nanos(0)
        """A process that stalls does nothing until then: its alarm rings late, and whoever feeds it has to wait."""
        self._set_alarm()

    def feed(self, event: Event | Received | PeerJoined | PeerLost | Tick) -> None:
        """What comes to a dead process is lost."""
        if not self.is_alive:
            return
        for effect in self._machine.handle(self._timeline.now, event):
            if isinstance(effect, Send):
                self.send(effect.peer, effect.message)
            else:
                self._perform(effect)
        self._set_alarm()

    def has(self, peer: Peer) -> bool:
        """Whether the link to `peer` stands."""
        return peer in self._lines

    def send(self, peer: Peer, message: Message) -> None:
        """What the process says beside its machine, if the link stands."""
        line = self._lines.get(peer)
        if line is not None:
            line.carry(message)

    def join(self, peer: Peer, line: Way) -> None:
        """The link to `peer` stands; `line` is this end's way to it."""
        self._lines[peer] = line
        self.feed(PeerJoined(peer))

    def part(self, peer: Peer) -> None:
        """The link to `peer` is gone."""
        line = self._lines.pop(peer, None)
        if line is not None:
            line.is_open = False
            self.feed(PeerLost(peer))

    def receive(self, peer: Peer, message: Message) -> None:
        self.feed(Received(peer, message))

    def _set_alarm(self) -> None:
        """An earlier alarm stays: it is set again when it rings."""
        deadline = self._machine.next_deadline()
        if deadline is None or (self._alarm_at is not None and self._alarm_at <= deadline):
            return
        alarm_at = max(deadline, Nanos(self._timeline.now + 1), self.asleep_until)
        self._alarm_at = alarm_at
        self._timeline.at(alarm_at, lambda: self._ring(alarm_at))

    def _ring(self, alarm_at: Nanos) -> None:
        if not self.is_alive or self._alarm_at != alarm_at:
            return
        self._alarm_at = None
        deadline = self._machine.next_deadline()
        if deadline is not None and deadline <= self._timeline.now and self.asleep_until <= self._timeline.now:
            self.feed(Tick())
        else:
            self._set_alarm()


class End(Protocol):
    """A process, as the other end of a link has it."""

    peer: Peer

    def join(self, peer: Peer, line: Way) -> None: ...

    def part(self, peer: Peer) -> None: ...

    def receive(self, peer: Peer, message: Message) -> None: ...


def connect(timeline: Timeline, one: End, other: End, latency: Callable[[], int]) -> None:
    """A link between two processes that both learn of at once."""
    there = Line(timeline, latency, lambda message: other.receive(one.peer, message))
    back = Line(timeline, latency, lambda message: one.receive(other.peer, message))
    one.join(other.peer, there)
    other.join(one.peer, back)
