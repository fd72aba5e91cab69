"""One seed of the swarm: load and faults under checks, then healing, after which everything must come to rest."""

import traceback
from collections.abc import Callable

import attrs

from lmpool.core.effects import IngressEffect
from lmpool.core.ids import SECOND, Nanos, Peer, RequestId
from lmpool.core.plan import BatchPlan
from lmpool.sim.swarm.checks import Checks
from lmpool.sim.swarm.client import Client
from lmpool.sim.swarm.clientele import Clientele
from lmpool.sim.swarm.cluster import CONTROL, AnyMachine, Cluster
from lmpool.sim.swarm.faults import Faults
from lmpool.sim.swarm.knobs import Knobs, draw_knobs
from lmpool.sim.swarm.narrative import Narrative
from lmpool.sim.swarm.orders import Orders
from lmpool.sim.swarm.remains import Remains
from lmpool.sim.timeline import Timeline

DRAIN_NS = 120 * SECOND
"""Longest time, once everything is healed, until all requests have ended."""
REST_NS = 10 * SECOND
"""And until nothing is left of them."""
AGREE_EVERY = 16
"""Events from one comparison of the ends of quiet links to the next."""
EVENTS_MAX = 60_000


@attrs.frozen
class Result:
    seed: int
    events: int
    """Handled by the machines."""
    happened: int
    """Actions of the timeline."""
    requests: int
    counts: tuple[tuple[str, int], ...]
    """What became of the requests, what struck, and what the machines came to do."""
    digest: str
    """Of all machines, the dead ones at their death."""
    violation: str
    """Empty: none. Otherwise what does not hold, and where that was noticed."""
    at_ns: Nanos


class Run:
    """The cluster of one seed with all that watches it. Also the observer that tells them."""

    def __init__(self, knobs: Knobs, narrative: Narrative | None) -> None:
        self.timeline = Timeline(Nanos(0))
        self.narrative = narrative
        clients: dict[RequestId, Client] = {}
        lineage: dict[bytes, bytes | None] = {}
        self.checks = Checks(clients, lineage)
        self.remains = Remains()
        self.cluster = Cluster(self.timeline, knobs, self, self._perform)
        self.clientele = Clientele(self.cluster, clients, lineage)
        self.faults = Faults(self.cluster, self.clientele, self.tell)
        self.orders = Orders(self.cluster, lineage, self.tell)

    def tell(self, text: str) -> None:
        if self.narrative is not None:
            self.narrative.tell(self.timeline.now, text)

    def _perform(self, effect: IngressEffect) -> None:
        self.clientele.perform(effect)

    # Observer

    def lived(self, now: Nanos, peer: Peer, machine: AnyMachine) -> None:
        self.checks.lived(now, peer, machine)
        self.remains.lived(peer, machine)
        if self.narrative is not None:
            self.narrative.lived(now, peer)

    def died(self, now: Nanos, peer: Peer) -> None:
        self.remains.died(peer)
        self.checks.died(now, peer)

    def begins(self, now: Nanos, peer: Peer, event: object) -> None:
        if self.narrative is not None:
            self.narrative.begins(now, peer, event)
        self.checks.begins(now, peer, event)

    def handled(self, now: Nanos, peer: Peer, event: object, effects: list[object]) -> None:
        if self.narrative is not None:
            self.narrative.handled(now, peer, effects)
        self.checks.handled(now, peer, event, effects)

    def went_wrong(self, now: Nanos, peer: Peer, plan: BatchPlan) -> None:
        self.tell(f"step {plan.step} of worker {peer.rank} goes wrong")
        self.checks.went_wrong(now, peer, plan)

    # Phases

    def run(self) -> None:
        """Raises AssertionError where something does not hold."""
        self.cluster.start_all()
        self.clientele.begin()
        while self.checks.events < self.cluster.knobs.events:
            self._advance()
            self.faults.strike()
            self.orders.strike()
        self.tell("faults end, and all is healed")
        self.clientele.stop()
        self.faults.end()
        self._until(DRAIN_NS, self._has_ended, "requests did not end")
        self.tell("all requests have ended")
        for _ in self.cluster.ranks:
            self.clientele.ask()
        self._until(DRAIN_NS, self._has_ended, "a healed cluster does not serve")
        self._until(REST_NS, self._is_at_rest, "")
        self.checks.audit()
        self.checks.check_rest()

    def _advance(self) -> None:
        assert self.timeline.advance(), "nothing will ever happen again"
        self.checks.settled()
        if self.checks.events % AGREE_EVERY == 0:
            self._compare()
        assert self.checks.events < EVENTS_MAX, "it does not come to rest"

    def _compare(self) -> None:
        control = self.cluster.nodes.get(CONTROL)
        if control is None:
            return
        quiet = [(link.ends[0].peer, link.ends[1].peer) for link in self.cluster.links if link.is_quiet]
        self.checks.agree(control.peer, lambda one, other: (one, other) in quiet or (other, one) in quiet)

    def _until(self, span: int, is_so: Callable[[], bool], complaint: str) -> None:
        end = self.timeline.now + span
        while not is_so():
            if self.timeline.now > end:
                assert not complaint, f"{complaint} within {span / SECOND:.0f} s"
                return
            self._advance()

    def _has_ended(self) -> bool:
        return self.clientele.waiting == 0

    def _is_at_rest(self) -> bool:
        return self.checks.is_at_rest and not self.cluster.has_mail


def run_seed(seed: int) -> Result:
    return run_knobs(draw_knobs(seed), None)


def run_knobs(knobs: Knobs, narrative: Narrative | None) -> Result:
    run = Run(knobs, narrative)
    violation = ""
    try:
        run.run()
    except (AssertionError, LookupError, ValueError, TypeError, AttributeError, ArithmeticError) as error:
        violation = describe(error)
    if narrative is not None:
        narrative.tell(run.timeline.now, f"VIOLATION {violation}" if violation else "everything is at rest")
    digest = run.remains.finish(run.timeline.happened)
    counts = sum((run.clientele.outcomes, run.faults.struck, run.orders.given, run.checks.counts), run.remains.counts)
    return Result(
        seed=knobs.seed,
        events=run.checks.events,
        happened=run.timeline.happened,
        requests=len(run.clientele.clients),
        counts=tuple(sorted(counts.items())),
        digest=digest,
        violation=violation,
        at_ns=run.timeline.now,
    )


def describe(error: BaseException) -> str:
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if "lmpool" in frame.filename]
    frame = frames[-1]
    what = str(error) or frame.line or ""
    return f"{type(error).__name__} at {frame.filename.rpartition('lmpool/')[2]}:{frame.lineno}: {what}"
