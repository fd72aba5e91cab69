"""All invariants of a cluster, checked as it goes: cheap ones after every event, sums and tables now and then."""

from collections import Counter
from collections.abc import Callable
from typing import assert_never

from lmpool.core.control import ControlPlane
from lmpool.core.ids import Nanos, Peer, Rank, RequestId, Role
from lmpool.core.ingress import Ingress
from lmpool.core.plan import BatchPlan
from lmpool.core.worker import Worker
from lmpool.sim.swarm.client import Client
from lmpool.sim.swarm.cluster import AnyMachine
from lmpool.sim.swarm.control_checks import ControlChecks
from lmpool.sim.swarm.exchange_checks import TransferWords
from lmpool.sim.swarm.ingress_checks import IngressChecks
from lmpool.sim.swarm.worker_checks import WorkerChecks

AUDIT_EVERY = 8
"""Events from one audit, of the machine that handled the last of them, to the next. What an audit sees does not mend
itself, so it is seen a little later."""


class Checks:
    """A `cluster.Observer`."""

    def __init__(self, clients: dict[RequestId, Client], lineage: dict[bytes, bytes | None]) -> None:
        self._clients = clients
        self._lineage = lineage
        self.counts: Counter[str] = Counter()
        """What came of transfers."""
        self._words = TransferWords({}, {}, {}, self.counts)
        self._of: dict[Peer, WorkerChecks | ControlChecks | IngressChecks] = {}
        self.events = 0
        self._last: Peer | None = None
        """Who handled the last event."""

    def lived(self, now: Nanos, peer: Peer, machine: AnyMachine) -> None:
        match machine:
            case Worker():
                self._of[peer] = WorkerChecks(machine, self._clients, self._lineage, self._words)
            case ControlPlane():
                self._of[peer] = ControlChecks(machine, self._words)
            case Ingress():
                self._of[peer] = IngressChecks(machine, self._clients)
            case _:
                assert_never(machine)

    def died(self, now: Nanos, peer: Peer) -> None:
        del self._of[peer]

    def begins(self, now: Nanos, peer: Peer, event: object) -> None:
        checks = self._of[peer]
        if isinstance(checks, ControlChecks):
            checks.before(now, event)

    def handled(self, now: Nanos, peer: Peer, event: object, effects: list[object]) -> None:
        self.events += 1
        self._last = peer
        checks = self._of[peer]
        match checks:
            case WorkerChecks():
                checks.after(now, event, effects)
            case ControlChecks() | IngressChecks():
                checks.after(now, effects)
            case _:
                assert_never(checks)

    def settled(self) -> None:
        """The effects of the last event are performed."""
        checks = None if self._last is None else self._of.get(self._last)
        if checks is not None and self.events % AUDIT_EVERY == 0:
            checks.audit()

    def agree(self, control: Peer, quiet: Callable[[Peer, Peer], bool]) -> None:
        """Every booking is of a request that is where control has it, and no transfer goes on without it. `quiet`
        says whether two processes have heard from each other all that was said; of others nothing can be known."""
        plane = self._of[control]
        assert isinstance(plane, ControlChecks)
        for request, worker, is_seen in plane.booked:
            there = self._of.get(worker)
            if not isinstance(there, WorkerChecks) or not quiet(control, worker) or there.has(request):
                continue
            assert not is_seen, f"{request} is booked at {worker}, which has it no more"
            ingress = Peer(Role.INGRESS, Rank(0), request.ingress)
            asked = self._of.get(ingress)
            if isinstance(asked, IngressChecks) and quiet(control, ingress) and quiet(worker, ingress):
                assert asked.is_at(request, worker), f"{request} is booked at {worker}, and nobody has it there"

        for worker, there in self._of.items():
            if isinstance(there, WorkerChecks) and quiet(control, worker):
                for transfer in there.exchange.going_on():
                    assert plane.transfers.is_wanted(transfer), f"{transfer} goes on at {worker}, and control is done"

    def audit(self) -> None:
        for checks in self._of.values():
            checks.audit()

    def went_wrong(self, now: Nanos, peer: Peer, plan: BatchPlan) -> None:
        """Its requests may fail."""
        checks = self._of[peer]
        assert isinstance(checks, WorkerChecks)
        for request in checks.requests_in(plan):
            self._clients[request].is_tainted = True

    @property
    def is_at_rest(self) -> bool:
        """Whether nothing is left of any request. Asked often: it looks at what comes last."""
        return all(checks.is_at_rest for checks in self._of.values())

    def check_rest(self) -> None:
        """When all has ended and healed."""
        residents: dict[int, bytes] = {}
        for peer, checks in self._of.items():
            if isinstance(checks, WorkerChecks):
                checks.check_rest()
                residents[peer.rank] = checks.residents
            elif isinstance(checks, IngressChecks):
                checks.check_rest()
        for peer, checks in self._of.items():
            if peer.role is Role.CONTROL and isinstance(checks, ControlChecks):
                checks.check_rest(residents)
