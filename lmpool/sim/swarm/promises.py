"""Pulls on route beside those of control: what another rank has more of a request's chain is fetched, and the request
waits for it.

Stands between control and its driver, and leaves alone what control has promised by itself.
"""

from collections.abc import Callable, Mapping
from random import Random

import attrs

from lmpool.core.control import ControlPlane
from lmpool.core.effects import ControlEffect, Send
from lmpool.core.events import ControlEvent, Tick
from lmpool.core.ids import Nanos, Peer, Rank, Role, TransferId
from lmpool.core.messages.ingress_control import RouteDecided
from lmpool.core.messages.transfer import Awaited, CopyMeans, TransferMode
from lmpool.core.prefix import HASH_BYTES, split_chain
from lmpool.core.transfer.outbound import COPY_SHARE
from lmpool.core.transfer.transfers import TransferTerms
from lmpool.core.worker import Worker
from lmpool.sim.swarm.knobs import TransferKnobs

NEVER = 1 << 40
"""The counter of a transfer that does not exist."""


class Promises:
    """Of one life of control. A `core.machine.Machine`."""

    def __init__(
        self, plane: ControlPlane, chance: Random, knobs: TransferKnobs, workers: Callable[[], Mapping[Rank, Worker]]
    ) -> None:
        """`workers`: those that live."""
        self._plane = plane
        self._chance = chance
        self._knobs = knobs
        self._workers = workers

    def next_deadline(self) -> Nanos | None:
        return self._plane.next_deadline()

    def handle(self, now: Nanos, event: ControlEvent | Tick) -> list[ControlEffect]:
        effects: list[ControlEffect] = []
        for effect in self._plane.handle(now, event):
            match effect:
                case Send(peer=peer, message=RouteDecided(awaits=None) as decided):
                    awaits = self._promise(now, decided)
                    effects += self._plane._transfers.take_sends()
                    effects.append(Send(peer, attrs.evolve(decided, awaits=awaits)))
                case _:
                    effects.append(effect)
        return effects

    def _promise(self, now: Nanos, decided: RouteDecided) -> Awaited | None:
        chance, knobs = self._chance, self._knobs
        until = Nanos(now + 1 + chance.randrange(knobs.await_ns))
        share = chance.random()
        if share < knobs.pulls:
            booking = self._plane._ledger.booking(decided.request)
            chain = b"" if booking is None else booking.placement.chain
            return self._pull(now, Peer(Role.WORKER, decided.rank, decided.epoch), chain, until)
        if share < knobs.pulls + knobs.promises:
            return Awaited(TransferId(self._plane._transfers._epoch, NEVER), 1 + chance.randrange(4), until)
        return None

    def _pull(self, now: Nanos, target: Peer, chain: bytes, until: Nanos) -> Awaited | None:
        """What is on its way already, or a new transfer."""
        transfers = self._plane._transfers
        for transfer in transfers.under_way():
            shared = _common(chain, transfer.terms.chain)
            if transfer.terms.target == target and shared:
                return Awaited(transfer.id, shared, until)
        pools = {rank: worker._execution.pool for rank, worker in self._workers().items()}
        known = pools[target.rank].resident_depth(chain) if target.rank in pools else 0
        depths = {
            rank: min(pool.resident_depth(chain), pool.size // COPY_SHARE)
            for rank, pool in pools.items()
            if rank != target.rank
        }
        most = max(depths.values(), default=0)
        source = next((rank for rank, depth in depths.items() if depth == most), None)
        peer = None if source is None else self._plane._roster.peer(source)
        if peer is None or most <= known:
            return None
        begun = transfers.begin(now, self._terms(peer, target, chain[: HASH_BYTES * most]))
        return Awaited(begun, most, until) if isinstance(begun, TransferId) else None

    def _terms(self, source: Peer, target: Peer, chain: bytes) -> TransferTerms:
        chance, knobs = self._chance, self._knobs
        means = CopyMeans.SEND if chance.random() < knobs.sends else CopyMeans.READ
        lease_ns = knobs.lease_ns if chance.random() < knobs.leases else 0
        copy_ns = Nanos(1 + chance.randrange(knobs.copy_ns))
        return TransferTerms(source, target, TransferMode.COPY, means, chain, 0, copy_ns, Nanos(lease_ns))


def _common(one: bytes, other: bytes) -> int:
    """Leading blocks."""
    count = 0
    for mine, theirs in zip(split_chain(one), split_chain(other), strict=False):
        if mine != theirs:
            break
        count += 1
    return count
