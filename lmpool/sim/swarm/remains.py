"""What is left of a run's machines: one digest of all, and what they came to do. An observer."""

from collections import Counter
from hashlib import blake2b
from typing import assert_never

from lmpool.core.control import ControlPlane
from lmpool.core.ids import Peer
from lmpool.core.ingress import Ingress
from lmpool.core.worker import Worker
from lmpool.sim.swarm.cluster import AnyMachine


class Remains:
    """Of the dead at their death, of the others at the end."""

    def __init__(self) -> None:
        self._digest = blake2b(digest_size=16)
        self._machines: dict[Peer, AnyMachine] = {}
        self.counts: Counter[str] = Counter()

    def lived(self, peer: Peer, machine: AnyMachine) -> None:
        self._machines[peer] = machine
        self.counts[f"lives of {peer.role.value}"] += 1

    def died(self, peer: Peer) -> None:
        machine = self._machines.pop(peer)
        self._digest.update(machine.digest())
        match machine:
            case Worker():
                self._count_worker(machine)
            case ControlPlane():
                control = machine.snapshot()
                self._add(
                    routed=control.routed,
                    busy=control.busy,
                    unroutable=control.unroutable,
                    stale=control.state.stale_dropped,
                    blocks_transferred=control.transferred_blocks,
                )
                placer = machine._carrier._placer
                if placer is not None:
                    admitted = placer.log.admitted.items()
                    self.counts.update({f"transfers placed to {occasion.value}": count for occasion, count in admitted})
                self.counts.update({f"transfers {name}": count for name, count in control.transfer_outcomes})
                self.counts.update({f"transfers: {name}": count for name, count in control.state.transfers.refusals})
            case Ingress():
                ingress = machine.snapshot()
                self._add(routed_without_control=ingress.degraded, resumed=ingress.resumed, dropped=ingress.dropped)
            case _:
                assert_never(machine)

    def _count_worker(self, machine: Worker) -> None:
        worker = machine.snapshot()
        totals = worker.totals
        self._add(
            steps=totals.steps,
            steps_failed=totals.steps_failed,
            preempted=totals.preemptions,
            tokens_cached=totals.tokens_cached,
            reclaimed=worker.blocks_reclaimed,
            refused=worker.requests_refused,
            awaited_blocks_missed=worker.exchange.missed,
        )
        self.counts.update({f"sides {name}": count for name, count in worker.exchange.ends})

    def _add(self, **counts: int) -> None:
        for name, count in counts.items():
            self.counts[name.replace("_", " ")] += count

    def finish(self, happened: int) -> str:
        for peer in list(self._machines):
            self.died(peer)
        self._digest.update(happened.to_bytes(8, "little"))
        return self._digest.hexdigest()
