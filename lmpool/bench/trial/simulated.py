"""A trial in virtual time: control and workers of production on the clock of the timeline, so that equal specs leave
equal evidence."""

from collections.abc import Callable

from lmpool.bench.load.counters import CacheCondition
from lmpool.bench.load.measured import Measured, Piece
from lmpool.bench.step_rates import rates_named
from lmpool.bench.trial.drain import is_drained
from lmpool.bench.trial.evidence import CountersRead, Evidence, MachineFacts, Outcome
from lmpool.bench.trial.spec import CONVERTER, Placement, TrialSpec
from lmpool.bench.trial.workload import trial_trace, workload_facts
from lmpool.core.batch import PrefillOrder
from lmpool.core.explanation import request_word
from lmpool.core.ids import MILLISECOND, SECOND, Epoch, Nanos, Peer, Rank, RequestId, Role
from lmpool.core.messages.ingress_control import Decision, StateReported
from lmpool.core.placement.proposal import USUAL
from lmpool.sim.copy_time import assumed_copies
from lmpool.sim.front import Front, RequestTimes
from lmpool.sim.rack import BEGIN_NS, Rack, RackSettings, namespace
from lmpool.sim.replay import make_prompts
from lmpool.sim.timeline import Timeline
from lmpool.sim.trace import Trace, prompt_lengths, with_pauses

STREAK_MAX = 10_000
ATTEMPTS_KEPT = 4
"""Decisions a request for which there is room in the log."""
LOOK_NS = Nanos(250 * MILLISECOND)
"""How often a rank reports."""
DRAIN_NS = Nanos(60 * SECOND)
"""A pool that holds something for longer is faulty."""


def simulate(spec: TrialSpec, machine: MachineFacts, on_ended: Callable[[int], None]) -> Evidence:
    """`on_ended` hears how many of the measured requests have ended. The outcome is left to who has a clock.

    Raises TraceError, StepTimeError.
    """
    trace = trial_trace(spec)
    world = _World(spec, trace)
    if spec.cache is CacheCondition.PRIMED:
        world.run(world.ingress(with_pauses(trace, 0)), lambda _: None)
    front = world.ingress(trace)
    before = world.drain()
    world.run(front, on_ended)
    after = world.drain()
    return Evidence(
        spec=spec,
        workload=workload_facts(trace, spec.block_size, ""),
        requests=tuple(
            _measured(front, trace, number, length, world.begun_ns)
            for number, length in enumerate(prompt_lengths(trace))
        ),
        decisions=world.decisions_from(before.decisions),
        counters=CountersRead(before, after),
        settings={"policy": world.policy, "rack": CONVERTER.unstructure(world.settings)},
        machine=machine,
        outcome=Outcome("", 0.0, 0.0, ()),
    )


class _World:
    """A rack, and one ingress after the other that plays a trace on it."""

    def __init__(self, spec: TrialSpec, trace: Trace) -> None:
        self.settings = _rack_settings(spec, len(trace.requests))
        self.policy = spec.placed.policy
        self.begun_ns = BEGIN_NS
        """When the last trace began."""
        self._timeline = Timeline(Nanos(0))
        self._rack = Rack(
            self.settings, self.policy, [request.output_tokens for request in trace.requests], self._timeline
        )
        self._prompts = make_prompts(trace, spec.block_size)
        self._seed = spec.seed
        self._ingresses = 0

    def ingress(self, trace: Trace) -> Front:
        """A new one that is to play the trace."""
        settings, timeline = self.settings, self._timeline
        self._ingresses += 1
        peer = Peer(Role.INGRESS, Rank(0), Epoch(self._ingresses))
        base = namespace(settings.block_size)[1]
        front = Front(timeline, peer, trace, self._prompts, base, settings.replicas, self._seed)
        if self._ingresses == 1:
            self._rack.open(front)
        else:
            self._rack.join(front)
        return front

    def run(self, front: Front, on_ended: Callable[[int], None]) -> None:
        """Until every request has ended, or is known to be never served."""
        timeline, total = self._timeline, len(front.times)
        self.begun_ns = Nanos(timeline.now + BEGIN_NS)
        front.begin(self.begun_ns)
        closed = 0
        while closed < total:
            advanced = timeline.advance()
            assert advanced, "requests are open and nothing will happen"
            if front.closed != closed:
                closed = front.closed
                on_ended(closed)

    def drain(self) -> StateReported:
        """Until everything is given back, or long after: then the counters tell what is held."""
        timeline = self._timeline
        until_ns = timeline.now + DRAIN_NS
        while True:
            look_ns = timeline.now + LOOK_NS
            while timeline.next_at is not None and timeline.next_at <= look_ns:
                timeline.advance()
            state = self._rack.control.snapshot().state
            if is_drained(state) or timeline.now >= until_ns:
                return state

    def decisions_from(self, number: int) -> tuple[Decision, ...]:
        """In the order of control, after so many. The log has room for usual runs; a gap shows in the checks."""
        taken = self._rack.control.snapshot().state.decisions - number
        return tuple(reversed(self._rack.decisions(taken)))


def _rack_settings(spec: TrialSpec, requests: int) -> RackSettings:
    """Raises StepTimeError."""
    arm = spec.placed
    assert arm.replicas is not None
    return RackSettings(
        replicas=arm.replicas,
        kv_blocks=spec.kv_blocks,
        block_size=spec.block_size,
        step_tokens=spec.step_tokens,
        sequences=spec.sequences,
        prefill_order=PrefillOrder.SHORT_BETWEEN,
        rates=rates_named(spec.rates),
        copies=assumed_copies(spec.block_size),
        slow=(),
        cold=(),
        streak_max=STREAK_MAX,
        decisions_kept=ATTEMPTS_KEPT * requests,
        placement=USUAL if arm.placement is Placement.AUTO else None,
    )


def _measured(front: Front, trace: Trace, number: int, length: int, begun_ns: Nanos) -> Measured:
    """Of an answer, the moments of its first and its last token are known."""
    times, request = front.times[number], trace.requests[number]
    is_whole = times.ended_ns >= 0
    planned_ns = Nanos(times.arrived_ns - begun_ns)
    return Measured(
        number=number,
        session=request.session,
        planned_ns=planned_ns,
        sent_ns=planned_ns,
        pieces=_pieces(times, request.output_tokens, begun_ns) if is_whole else (),
        closed_ns=Nanos(times.ended_ns - begun_ns) if is_whole else planned_ns,
        prompt_tokens=length,
        cached_tokens=times.cached_tokens if is_whole else None,
        output_tokens=request.output_tokens if is_whole else None,
        wanted_tokens=request.output_tokens,
        fault=front.unserved.get(number, ""),
        detail="",
        request=request_word(RequestId(front.peer.epoch, number)),
        queued_ns=times.waited_ns if is_whole else None,
    )


def _pieces(times: RequestTimes, tokens: int, begun_ns: Nanos) -> tuple[Piece, ...]:
    first = Piece(Nanos(times.first_ns - begun_ns), 1)
    return (first, Piece(Nanos(times.ended_ns - begun_ns), tokens - 1)) if tokens > 1 else (first,)
