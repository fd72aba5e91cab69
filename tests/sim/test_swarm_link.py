"""Links keep order and lose nothing while both ends live; each end learns by itself that the other is gone."""

import attrs

from lmpool.core.ids import Epoch, Nanos, Peer, Rank, Role
from lmpool.core.messages import Message
from lmpool.core.messages.ingress_control import StateAsked
from lmpool.sim.node import Way
from lmpool.sim.swarm.link import Link
from lmpool.sim.timeline import Timeline

NOW = Nanos(0)


@attrs.define
class Recorder:
    """An end that notes what it hears."""

    peer: Peer
    heard: list[str]
    ways: dict[Peer, Way]
    is_alive: bool
    asleep_until: Nanos

    def has(self, peer: Peer) -> bool:
        return peer in self.ways

    def join(self, peer: Peer, line: Way) -> None:
        self.ways[peer] = line
        self.heard.append(f"joined {peer.epoch}")

    def part(self, peer: Peer) -> None:
        del self.ways[peer]
        self.heard.append(f"lost {peer.epoch}")

    def receive(self, peer: Peer, message: Message) -> None:
        assert isinstance(message, StateAsked)
        self.heard.append(f"{peer.epoch} says {message.number}")


class Pair:
    """A dialler (epoch 1) and a listener (epoch 2), linked."""

    def __init__(self, *latencies: int) -> None:
        """The last goes on."""
        self.latencies = list(latencies)
        self.timeline = Timeline(Nanos(0))
        self.dialler = Recorder(Peer(Role.WORKER, Rank(0), Epoch(1)), [], {}, True, NOW)
        self.listener = Recorder(Peer(Role.CONTROL, Rank(0), Epoch(2)), [], {}, True, NOW)
        self.parted = 0
        self.link = self.dial()
        self.run()
        assert (self.dialler.heard, self.listener.heard) == (["joined 2"], ["joined 1"])

    def dial(self) -> Link:
        def part() -> None:
            self.parted += 1

        return Link(self.timeline, self.dialler, self.listener, self.latency, part)

    def latency(self) -> int:
        return self.latencies.pop(0) if len(self.latencies) > 1 else self.latencies[0]

    def run(self) -> None:
        while self.timeline.advance():
            pass

    def say(self, *numbers: int) -> None:
        """The dialler does."""
        for number in numbers:
            self.dialler.ways[self.listener.peer].carry(StateAsked(number))


def test_messages_arrive_in_order_whatever_their_latencies() -> None:
    pair = Pair(5, 5, 90, 10, 40, 1)
    pair.say(1, 2, 3)
    pair.run()
    assert pair.listener.heard[1:] == ["1 says 1", "1 says 2", "1 says 3"]
    assert pair.timeline.now == 100


def test_what_a_dead_process_had_written_is_read_before_the_end_of_file() -> None:
    pair = Pair(5)
    pair.say(1, 2, 3)
    pair.dialler.is_alive = False
    pair.link.there.break_off(kept=2)
    pair.run()
    assert pair.listener.heard[1:] == ["1 says 1", "1 says 2", "lost 1"]
    assert pair.parted == 0


def test_after_a_cut_both_ends_lose_the_link_once_and_the_dialler_may_dial_again() -> None:
    pair = Pair(5)
    pair.say(1)
    way = pair.dialler.ways[pair.listener.peer]
    pair.link.cut(kept_there=0, kept_back=0)
    way.carry(StateAsked(2))
    pair.run()
    assert (pair.dialler.heard[1:], pair.listener.heard[1:]) == (["lost 2"], ["lost 1"])
    assert pair.parted == 1
    assert pair.link.is_over
    pair.dial()
    pair.run()
    assert (pair.dialler.heard[2:], pair.listener.heard[2:]) == (["joined 2"], ["joined 1"])


def test_a_listener_that_has_this_very_peer_refuses_it() -> None:
    pair = Pair(5)
    second = pair.dial()
    pair.run()
    assert pair.parted == 1
    assert not second.is_up
    assert pair.link.is_up
    assert (pair.dialler.heard, pair.listener.heard) == (["joined 2"], ["joined 1"])


def test_a_new_life_may_join_before_the_end_of_the_old_is_read() -> None:
    pair = Pair(5)
    pair.say(1)
    pair.link.there.hold(Nanos(1_000))
    pair.dialler.is_alive = False
    pair.link.there.break_off(kept=1)
    pair.dialler = Recorder(Peer(Role.WORKER, Rank(0), Epoch(3)), [], {}, True, NOW)
    pair.dial()
    pair.run()
    assert pair.listener.heard[1:] == ["joined 3", "1 says 1", "lost 1"]


def test_a_process_that_stalls_reads_everything_afterwards_in_order() -> None:
    pair = Pair(5)
    pair.listener.asleep_until = Nanos(500)
    pair.say(1, 2)
    pair.run()
    assert pair.listener.heard[1:] == ["1 says 1", "1 says 2"]
    assert pair.timeline.now == 500
