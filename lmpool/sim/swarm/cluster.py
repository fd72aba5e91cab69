"""The processes of one seed in virtual time: their lives and deaths, and the links between them."""

from collections.abc import Callable
from random import Random
from typing import Generic, Protocol, TypeAlias, TypeVar

from lmpool.core.batch import PrefillOrder
from lmpool.core.control import ControlPlane
from lmpool.core.effects import ControlEffect, IngressEffect, RunStep, Send, WorkerEffect
from lmpool.core.events import ControlEvent, IngressEvent, Tick, WorkerEvent
from lmpool.core.ids import Epoch, Nanos, Peer, Rank, Role
from lmpool.core.ingress import Ingress, IngressSettings
from lmpool.core.machine import Machine
from lmpool.core.plan import BatchPlan
from lmpool.core.prefix import ModelIdentity, namespace_base
from lmpool.core.worker import Worker, WorkerSettings
from lmpool.sim.integer_model import SLOT_BYTES, IntegerRunner, fresh_slots
from lmpool.sim.node import Node
from lmpool.sim.swarm.copies import Copies
from lmpool.sim.swarm.device import Device
from lmpool.sim.swarm.knobs import Knobs
from lmpool.sim.swarm.link import Link
from lmpool.sim.swarm.promises import Promises
from lmpool.sim.timeline import Timeline

Event = TypeVar("Event")
Effect = TypeVar("Effect")

CONTROL = (Role.CONTROL, Rank(0))
INGRESS = (Role.INGRESS, Rank(0))
Place: TypeAlias = tuple[Role, Rank]
"""Where a process listens or would: each has one life at a time."""

WorkerNode: TypeAlias = Node[WorkerEvent, WorkerEffect]
ControlNode: TypeAlias = Node[ControlEvent, ControlEffect]
IngressNode: TypeAlias = Node[IngressEvent, IngressEffect]
AnyNode: TypeAlias = WorkerNode | ControlNode | IngressNode
AnyMachine: TypeAlias = Worker | ControlPlane | Ingress


class Observer(Protocol):
    """Sees everything that happens, in order."""

    def lived(self, now: Nanos, peer: Peer, machine: AnyMachine) -> None: ...

    def died(self, now: Nanos, peer: Peer) -> None: ...

    def begins(self, now: Nanos, peer: Peer, event: object) -> None: ...

    def handled(self, now: Nanos, peer: Peer, event: object, effects: list[object]) -> None: ...

    def went_wrong(self, now: Nanos, peer: Peer, plan: BatchPlan) -> None: ...


class Watched(Generic[Event, Effect]):
    """A machine whose every event is observed."""

    def __init__(self, peer: Peer, machine: Machine[Event, Effect], observer: Observer) -> None:
        self._peer = peer
        self._machine = machine
        self._observer = observer

    def handle(self, now: Nanos, event: Event | Tick) -> list[Effect]:
        self._observer.begins(now, self._peer, event)
        effects = self._machine.handle(now, event)
        self._observer.handled(now, self._peer, event, effects)  # type: ignore[arg-type]
        return effects

    def next_deadline(self) -> Nanos | None:
        return self._machine.next_deadline()


class Cluster:
    def __init__(
        self, timeline: Timeline, knobs: Knobs, observer: Observer, perform: Callable[[IngressEffect], None]
    ) -> None:
        """`perform` gets what the ingress does for clients."""
        self.timeline = timeline
        self.knobs = knobs
        self.faults = knobs.faults
        """Of this moment."""
        self.nodes: dict[Place, AnyNode] = {}
        """Those that live."""
        self.machines: dict[Place, AnyMachine] = {}
        self.links: list[Link] = []
        """On which something may still arrive."""
        self.base = namespace_base(
            ModelIdentity(f"integer-{knobs.load.vocabulary}", "uint64", "slots", knobs.block_size)
        )
        self._observer = observer
        self._perform = perform
        self._chance = Random(f"{knobs.seed} cluster")
        self._transfer_chance = Random(f"{knobs.seed} promises")
        self.copies = Copies(timeline, Random(f"{knobs.seed} copies"), knobs.transfers, knobs.block_size * SLOT_BYTES)
        self._epoch = 0
        self.ranks = tuple(Rank(rank) for rank in range(len(knobs.workers)))

    @property
    def places(self) -> tuple[Place, ...]:
        return (CONTROL, INGRESS, *((Role.WORKER, rank) for rank in self.ranks))

    def start_all(self) -> None:
        for place in self.places:
            self.start(place)

    # Lives

    def start(self, place: Place) -> None:
        """Harmless where one lives."""
        if place in self.nodes:
            return
        self._epoch += 1
        peer = Peer(place[0], place[1], Epoch(self._epoch))
        if peer.role is Role.WORKER:
            self._start_worker(peer)
            self.dial(peer, CONTROL)
        elif peer.role is Role.CONTROL:
            self._start_control(peer)
        else:
            self._start_ingress(peer)
            self.dial(peer, CONTROL)
            for rank in self.ranks:
                self.dial(peer, (Role.WORKER, rank))

    def _start_control(self, peer: Peer) -> None:
        transfers = self.knobs.transfers
        plane = ControlPlane(self.knobs.control, peer.epoch, self.timeline.now)
        promises = Promises(plane, self._transfer_chance, transfers, self._workers)
        watched = Watched[ControlEvent, ControlEffect](peer, promises, self._observer)
        self._live(peer, plane, Node(self.timeline, peer, watched, _nothing))

    def _workers(self) -> dict[Rank, Worker]:
        return {place[1]: machine for place, machine in self.machines.items() if isinstance(machine, Worker)}

    def _start_worker(self, peer: Peer) -> None:
        knobs = self.knobs
        settings = WorkerSettings(
            rank=peer.rank,
            epoch=peer.epoch,
            namespace_base=self.base,
            block_size=knobs.block_size,
            blocks=knobs.workers[peer.rank].blocks,
            model_tokens_max=knobs.model_tokens_max,
            step_tokens_max=knobs.step_tokens_max,
            sequences_max=knobs.sequences_max,
            prefill_order=PrefillOrder.SHORT_BETWEEN,
            steps_in_flight_max=knobs.steps_in_flight_max,
            waiting_requests_max=knobs.waiting_requests_max,
            waiting_tokens_max=knobs.waiting_tokens_max,
            report_interval_ns=knobs.report_interval_ns,
            class_ns=knobs.class_ns,
            rates=knobs.workers[peer.rank].rates,
        )
        worker = Worker(settings, self.timeline.now)
        slots = fresh_slots(knobs.block_size, settings.blocks)
        runner = IntegerRunner(knobs.block_size, slots, knobs.load.vocabulary, settings.rates, pause=lambda _: None)
        node: WorkerNode
        device = Device(self.timeline, self._chance, runner, settings.rates, lambda: self._end_step(node, device))

        def perform(effect: WorkerEffect) -> None:
            assert not isinstance(effect, Send)
            if not isinstance(effect, RunStep):
                self.copies.perform(peer, effect)
            elif device.run(effect.plan, self.faults):
                self._observer.went_wrong(self.timeline.now, peer, effect.plan)

        watched = Watched[WorkerEvent, WorkerEffect](peer, worker, self._observer)
        node = Node(self.timeline, peer, watched, perform)
        self.copies.begin_life(peer, slots, lambda event: self.when_awake(node, lambda: node.feed(event)))
        self._live(peer, worker, node)

    def _start_ingress(self, peer: Peer) -> None:
        knobs = self.knobs
        settings = IngressSettings(peer.epoch, knobs.requests_max, knobs.abort_wait_ns, knobs.search)
        ingress = Ingress(settings, self.timeline.now)

        def perform(effect: IngressEffect) -> None:
            self._perform(effect)

        watched = Watched[IngressEvent, IngressEffect](peer, ingress, self._observer)
        node: IngressNode = Node(self.timeline, peer, watched, perform)
        self._live(peer, ingress, node)

    def _live(self, peer: Peer, machine: AnyMachine, node: AnyNode) -> None:
        self.nodes[peer.role, peer.rank] = node
        self.machines[peer.role, peer.rank] = machine
        self._observer.lived(self.timeline.now, peer, machine)

    def _end_step(self, node: WorkerNode, device: Device) -> None:
        self.when_awake(node, lambda: node.feed(device.collect()))

    def when_awake(self, node: AnyNode, action: Callable[[], None]) -> None:
        """Now, or when a process that stalls does something again."""
        if node.asleep_until > self.timeline.now:
            self.timeline.at(node.asleep_until, lambda: self.when_awake(node, action))
        else:
            action()

    def kill(self, place: Place) -> None:
        """Without a word. Of what it has written, the others still read some or all."""
        self._die(place, self._head)

    def end(self, place: Place) -> None:
        """By itself: what it has written arrives."""
        self._die(place, lambda items: items)

    def _die(self, place: Place, kept: Callable[[int], int]) -> None:
        """`kept`: how many of so many items on their way arrive."""
        node = self.nodes.pop(place)
        del self.machines[place]
        node.is_alive = False
        self.copies.end_life(node.peer)
        for link in self.links:
            if node in link.ends:
                stream = link.there if node is link.ends[0] else link.back
                stream.break_off(kept(stream.waiting))
        self._observer.died(self.timeline.now, node.peer)

    # Links

    def dial(self, peer: Peer, place: Place) -> None:
        """Now and each time that the link is lost."""
        dialler, listener = self.nodes.get((peer.role, peer.rank)), self.nodes.get(place)
        if dialler is None or dialler.peer != peer:
            return

        def again() -> None:
            pause = self._chance.randint(1, self.knobs.redial_ns)
            self.timeline.after(pause, lambda: self.dial(peer, place))

        if listener is None:
            again()
        else:
            self.links = [link for link in self.links if not link.is_over]
            self.links.append(Link(self.timeline, dialler, listener, self.latency, again))

    def latency(self) -> int:
        chance, faults = self._chance, self.faults
        nanos = chance.randint(1, 2 * self.knobs.latency_ns)
        return nanos + chance.randint(1, faults.delay_ns) if chance.random() < faults.delay else nanos

    @property
    def has_mail(self) -> bool:
        """Whether anything is on its way."""
        streams = [stream for link in self.links for stream in (link.there, link.back)]
        return any(stream.waiting and not stream.is_over for stream in streams)

    def cut(self, link: Link) -> None:
        link.cut(self._head(link.there.waiting), self._head(link.back.waiting))

    def _head(self, items: int) -> int:
        return items if self._chance.random() < 0.3 else self._chance.randint(0, items)


def _nothing(effect: Send) -> None:
    """Control does nothing but send."""
