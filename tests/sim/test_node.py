"""A process in virtual time: its alarm, its links, its stalls and its death."""

from collections.abc import Callable

import attrs

from lmpool.core.effects import Send
from lmpool.core.events import PeerJoined, PeerLost, Received, Tick
from lmpool.core.ids import Epoch, Nanos, Peer, Rank, Role
from lmpool.core.messages.ingress_control import StateAsked
from lmpool.sim.node import Line, Node, connect
from lmpool.sim.timeline import Timeline

ONE, OTHER = Peer(Role.INGRESS, Rank(0), Epoch(1)), Peer(Role.CONTROL, Rank(0), Epoch(2))


@attrs.define
class Machine:
    """Notes what it is told; a tick takes its next deadline off."""

    heard: list[tuple[int, object]]
    deadlines: list[Nanos]
    answers: Callable[[object], list[Send]]

    def handle(self, now: Nanos, event: object) -> list[Send]:
        self.heard.append((now, event))
        if isinstance(event, Tick):
            del self.deadlines[0]
        return self.answers(event)

    def next_deadline(self) -> Nanos | None:
        return self.deadlines[0] if self.deadlines else None


def quiet(event: object) -> list[Send]:
    return []


def node(timeline: Timeline, peer: Peer, *deadlines: int) -> tuple[Node[object, Send], Machine]:
    machine = Machine([], [Nanos(deadline) for deadline in deadlines], quiet)
    return Node(timeline, peer, machine, lambda effect: None), machine


def run(timeline: Timeline) -> None:
    while timeline.advance():
        pass


def test_an_alarm_rings_at_each_deadline() -> None:
    timeline = Timeline(Nanos(0))
    _, machine = node(timeline, ONE, 5, 9)
    run(timeline)
    assert machine.heard == [(5, Tick()), (9, Tick())]


def test_a_deadline_that_moved_later_is_met_there() -> None:
    timeline = Timeline(Nanos(0))
    process, machine = node(timeline, ONE, 5)
    machine.deadlines = [Nanos(20)]
    process.feed("moved")
    run(timeline)
    assert machine.heard == [(0, "moved"), (20, Tick())]


def test_a_process_that_stalls_hears_its_alarm_late() -> None:
    timeline = Timeline(Nanos(0))
    process, machine = node(timeline, ONE, 5)
    process.asleep_until = Nanos(50)
    run(timeline)
    assert machine.heard == [(50, Tick())]


def test_a_dead_process_hears_nothing() -> None:
    timeline = Timeline(Nanos(0))
    process, machine = node(timeline, ONE, 5)
    process.is_alive = False
    process.feed("late")
    run(timeline)
    assert machine.heard == []


def test_both_ends_of_a_link_hear_each_other_and_of_its_end() -> None:
    timeline = Timeline(Nanos(0))
    (one, first), (other, second) = node(timeline, ONE), node(timeline, OTHER)
    first.answers = lambda event: [Send(OTHER, StateAsked(1))] if event == "ask" else []
    connect(timeline, one, other, lambda: 7)
    one.feed("ask")
    run(timeline)
    one.part(OTHER)
    one.feed("ask")  # to nobody
    one.part(OTHER)
    run(timeline)
    assert not one.has(OTHER)
    assert first.heard == [(0, PeerJoined(OTHER)), (0, "ask"), (7, PeerLost(OTHER)), (7, "ask")]
    assert second.heard == [(0, PeerJoined(ONE)), (7, Received(ONE, StateAsked(1)))]


def test_a_line_keeps_order_and_loses_what_is_on_its_way_when_it_closes() -> None:
    timeline = Timeline(Nanos(0))
    arrived: list[object] = []
    latencies = iter((30, 1, 1))
    line = Line(timeline, lambda: next(latencies), arrived.append)
    line.carry(StateAsked(1))
    line.carry(StateAsked(2))
    run(timeline)
    assert arrived == [StateAsked(1), StateAsked(2)]
    line.carry(StateAsked(3))
    line.is_open = False
    run(timeline)
    assert len(arrived) == 2
