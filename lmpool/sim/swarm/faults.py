"""What goes wrong between events: held streams, stalls, cut links, deaths, and what operators do."""

from collections import Counter
from collections.abc import Callable
from random import Random

from lmpool.core.events import DrainOrdered
from lmpool.core.ids import Nanos, Role
from lmpool.core.worker import Worker
from lmpool.sim.node import Node
from lmpool.sim.swarm.clientele import Clientele
from lmpool.sim.swarm.cluster import CONTROL, INGRESS, Cluster, Place
from lmpool.sim.swarm.narrative import short

DRAIN_LOOK_NS = 5_000_000
"""How often a draining worker looks whether it has nothing left."""


class Faults:
    """Random by its own seed. Faults fall evenly on events, so that busy moments get most."""

    def __init__(self, cluster: Cluster, clientele: Clientele, tell: Callable[[str], None]) -> None:
        knobs = cluster.knobs.faults
        self._cluster = cluster
        self._clientele = clientele
        self._tell = tell
        self._knobs = knobs
        self._chance = Random(f"{cluster.knobs.seed} faults")
        self._kinds: tuple[tuple[float, Callable[[], None]], ...] = (
            (knobs.hold, self._hold),
            (knobs.stall, self._stall),
            (knobs.cut, self._cut),
            (knobs.worker_crash, self._crash_worker),
            (knobs.control_crash, self._crash_control),
            (knobs.ingress_crash, self._crash_ingress),
            (knobs.drain, self._drain),
            (knobs.clear, clientele.clear_caches),
            (knobs.query, clientele.ask_state),
        )
        self.struck: Counter[str] = Counter()
        self._any = sum(share for share, _ in self._kinds)

    def strike(self) -> None:
        """Once an event: mostly nothing."""
        share = self._chance.random()
        if share >= self._any:
            return
        for odds, happen in self._kinds:
            if share < odds:
                self.struck[f"struck by {happen.__name__.strip('_')}"] += 1
                happen()
                return
            share -= odds

    def end(self) -> None:
        """Everything is healed: streams flow, processes wake, and the dead are started."""
        cluster = self._cluster
        cluster.faults = cluster.knobs.healed
        cluster.copies.knobs = cluster.knobs.transfers.healed
        for link in cluster.links:
            link.there.release()
            link.back.release()
        for node in cluster.nodes.values():
            node.asleep_until = Nanos(0)
        cluster.start_all()

    def _hold(self) -> None:
        links = self._cluster.links
        if links:
            link = self._chance.choice(links)
            stream = self._chance.choice((link.there, link.back))
            span = self._chance.randrange(self._knobs.hold_ns)
            one, other = (end.peer for end in link.ends)
            self._tell(f"a stream between {short(one)} and {short(other)} is not read for {span / 1e6:.3f} ms")
            stream.hold(Nanos(self._cluster.timeline.now + span))

    def _stall(self) -> None:
        nodes = list(self._cluster.nodes.values())
        if nodes:
            node = self._chance.choice(nodes)
            span = self._chance.randrange(self._knobs.stall_ns)
            self._tell(f"{short(node.peer)} does nothing for {span / 1e6:.3f} ms")
            node.asleep_until = max(node.asleep_until, Nanos(self._cluster.timeline.now + span))

    def _cut(self) -> None:
        links = [link for link in self._cluster.links if link.is_up]
        if links:
            link = self._chance.choice(links)
            one, other = (end.peer for end in link.ends)
            self._tell(f"the link between {short(one)} and {short(other)} is cut")
            self._cluster.cut(link)

    def _crash_control(self) -> None:
        self._crash(CONTROL)

    def _crash_ingress(self) -> None:
        self._crash(INGRESS)

    def _crash_worker(self) -> None:
        self._crash((Role.WORKER, self._chance.choice(self._cluster.ranks)))

    def _crash(self, place: Place) -> None:
        node = self._cluster.nodes.get(place)
        if node is None:
            return
        self._tell(f"{short(node.peer)} dies")
        if place == INGRESS:
            self._clientele.lose(node.peer.epoch)
        self._cluster.kill(place)
        self._start_later(place)

    def _start_later(self, place: Place) -> None:
        pause = self._chance.randrange(self._knobs.restart_ns)
        self._cluster.timeline.after(pause, lambda: self._cluster.start(place))

    def _drain(self) -> None:
        """A worker, or now and then the ingress, which ends a while later."""
        place: Place = (Role.WORKER, self._chance.choice(self._cluster.ranks))
        if self._chance.random() < 0.1:
            place = INGRESS
        node = self._cluster.nodes.get(place)
        if node is None:
            return
        assert isinstance(node, Node)
        self._tell(f"{short(node.peer)} is to drain")
        self._cluster.when_awake(node, lambda: node.feed(DrainOrdered()))  # type: ignore[arg-type]
        self._cluster.timeline.after(
            DRAIN_LOOK_NS, lambda: self._end_when_drained(place, node.peer.epoch, self._chance.randrange(40))
        )

    def _end_when_drained(self, place: Place, epoch: int, looks: int) -> None:
        node = self._cluster.nodes.get(place)
        if node is None or node.peer.epoch != epoch:
            return
        machine = self._cluster.machines[place]
        has_work = isinstance(machine, Worker) and machine.snapshot().requests > 0
        if looks and (has_work or place == INGRESS):
            self._cluster.timeline.after(DRAIN_LOOK_NS, lambda: self._end_when_drained(place, epoch, looks - 1))
            return
        self._tell(f"{short(node.peer)} ends")
        if place == INGRESS:
            self._clientele.lose(epoch)
        self._cluster.end(place)
        self._start_later(place)
