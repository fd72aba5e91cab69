"""The cluster of a trace: the control plane and the workers of production, on one timeline, without faults."""

from functools import partial
from itertools import permutations

import attrs

from lmpool.core.batch import PrefillOrder
from lmpool.core.carrier import PlacementRules
from lmpool.core.control import ControlPlane, ControlSettings
from lmpool.core.effects import Send
from lmpool.core.events import Received, Tick
from lmpool.core.ids import MILLISECOND, SECOND, BlockHash, Epoch, Nanos, Peer, Rank, Role
from lmpool.core.messages.ingress_control import Decision, DecisionsAsked, DecisionsReported
from lmpool.core.messages.transfer import TransferAsked, TransferDecided
from lmpool.core.placement.price import Pair
from lmpool.core.placement.proposal import PlacementSettings
from lmpool.core.prefix import ModelIdentity, namespace_base, namespace_digest
from lmpool.core.rates import Rates
from lmpool.core.worker import Worker, WorkerSettings
from lmpool.sim.copy_time import CopyRates, transfer_profile
from lmpool.sim.node import End, Node, connect
from lmpool.sim.paced_worker import PacedWorker
from lmpool.sim.step_time import slowed
from lmpool.sim.timeline import Timeline

LATENCY_NS = 50_000
"""Of every message on every link, a loaded Unix stream with both ends' work on a message; so a route takes 0.1 ms."""
BEGIN_NS = SECOND
"""When a trace begins: all ranks that do not join later have joined by then."""
MODEL_TOKENS_MAX = 1 << 20
EPOCH = Epoch(1)
INGRESS = Peer(Role.INGRESS, Rank(0), EPOCH)
CONTROL = Peer(Role.CONTROL, Rank(0), EPOCH)


@attrs.frozen
class RackSettings:
    replicas: int
    kv_blocks: int
    """Of each rank."""
    block_size: int
    step_tokens: int
    sequences: int
    prefill_order: PrefillOrder
    rates: Rates
    copies: CopyRates
    slow: tuple[tuple[Rank, float], ...]
    """Ranks that take so many times as long for every step, and know it."""
    cold: tuple[tuple[Rank, Nanos], ...]
    """Ranks that join only so long after the trace has begun."""
    streak_max: int
    """Steps that one event may stand for; 1 for single steps. Results are the same."""
    decisions_kept: int
    placement: PlacementSettings | None
    """With it control begins transfers of its own accord."""


def namespace(block_size: int) -> tuple[bytes, BlockHash]:
    """What workers announce, and where the chains of all requests begin."""
    base = namespace_base(ModelIdentity("simulated", "none", "none", block_size))
    return base, namespace_digest(base, None, "trace", None)


class Rack:
    def __init__(self, settings: RackSettings, policy: str, outputs: list[int], timeline: Timeline) -> None:
        """`outputs`: tokens of each request's answer, by its number."""
        self.timeline = timeline
        self.control = ControlPlane(_control_settings(settings, policy), CONTROL.epoch, timeline.now)
        self.workers: list[PacedWorker] = []
        self._settings = settings
        self._outputs = outputs
        self._control = Node(timeline, CONTROL, self.control, _nothing_else)
        self._nodes: list[End] = []

    def open(self, ingress: End) -> None:
        """Links everything. Ranks that join later are linked then."""
        connect(self.timeline, ingress, self._control, _latency)
        joins = dict(self._settings.cold)
        for rank in map(Rank, range(self._settings.replicas)):
            if rank in joins:
                at_ns = Nanos(BEGIN_NS + joins[rank])
                self.timeline.at(at_ns, partial(self._start, rank, ingress))
            else:
                self._start(rank, ingress)

    def join(self, ingress: End) -> None:
        """A further ingress, of an epoch of its own, links to what is there."""
        for node in (self._control, *self._nodes):
            connect(self.timeline, node, ingress, _latency)

    def _start(self, rank: Rank, ingress: End) -> None:
        settings = self._settings
        rates = slowed(settings.rates, dict(settings.slow).get(rank, 1.0))
        machine = Worker(_worker_settings(settings, rank, rates), self.timeline.now)
        worker = PacedWorker(machine, rates, settings.copies, self._outputs, settings.streak_max)
        node = Node(self.timeline, Peer(Role.WORKER, rank, EPOCH), worker, _nothing_else)
        self.workers.append(worker)
        self._nodes.append(node)
        connect(self.timeline, node, self._control, _latency)
        connect(self.timeline, node, ingress, _latency)

    def order(self, asked: TransferAsked) -> TransferDecided:
        """As an operator would, who is answered at once."""
        answers: list[TransferDecided] = []
        for effect in self.control.handle(self.timeline.now, Received(INGRESS, asked)):
            if isinstance(effect.message, TransferDecided):
                answers.append(effect.message)
            else:
                self._control.send(effect.peer, effect.message)
        self._control.feed(Tick())  # which also sets its alarm
        (answer,) = answers
        return answer

    def decisions(self, limit: int) -> tuple[Decision, ...]:
        """The newest, newest first."""
        asked = Received(INGRESS, DecisionsAsked(0, None, limit))
        answers = [effect.message for effect in self.control.handle(self.timeline.now, asked)]
        return next(answer.decisions for answer in answers if isinstance(answer, DecisionsReported))


def _latency() -> int:
    return LATENCY_NS


def _nothing_else(effect: Send) -> None:
    raise AssertionError(effect)


def _control_settings(settings: RackSettings, policy: str) -> ControlSettings:
    """As a server with default settings has it, but with room for every request of a burst."""
    return ControlSettings(
        policy=policy,
        replicas=settings.replicas,
        wait_max_ns=Nanos(60 * SECOND),
        suspect_after_ns=Nanos(3 * SECOND),
        settle_ns=Nanos(300 * MILLISECOND),
        report_wait_ns=SECOND,
        booking_ns=Nanos(30 * SECOND),
        bookings_max=65_536,
        waiting_routes_max=4_096,
        sweep_hashes=4_096,
        decisions_kept=settings.decisions_kept,
        transfer_answer_ns=SECOND,
        placement=None if settings.placement is None else _placement_rules(settings, settings.placement),
    )


def _placement_rules(settings: RackSettings, placement: PlacementSettings) -> PlacementRules:
    ranks = map(Rank, range(settings.replicas))
    pairs = tuple(Pair(source, target) for source, target in permutations(ranks, 2))
    return PlacementRules(placement, transfer_profile(settings.copies, LATENCY_NS), pairs)


def _worker_settings(settings: RackSettings, rank: Rank, rates: Rates) -> WorkerSettings:
    return WorkerSettings(
        rank=rank,
        epoch=EPOCH,
        namespace_base=namespace(settings.block_size)[0],
        block_size=settings.block_size,
        blocks=settings.kv_blocks,
        model_tokens_max=MODEL_TOKENS_MAX,
        step_tokens_max=settings.step_tokens,
        sequences_max=settings.sequences,
        prefill_order=settings.prefill_order,
        steps_in_flight_max=1,
        waiting_requests_max=256,
        waiting_tokens_max=1 << 20,
        report_interval_ns=Nanos(250 * MILLISECOND),
        class_ns=Nanos(10 * SECOND),
        rates=rates,
    )
