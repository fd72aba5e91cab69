"""Transfers that somebody wants: an operator through control's door, or control by itself; and some taken back."""

from collections import Counter
from collections.abc import Callable
from random import Random

from lmpool.core.control import ControlPlane
from lmpool.core.events import Tick
from lmpool.core.ids import BlockHash, Nanos, Rank, Role
from lmpool.core.messages.transfer import CopyMeans, TransferAsked, TransferMode
from lmpool.core.prefix import HASH_BYTES, split_chain
from lmpool.core.transfer.transfers import TransferTerms
from lmpool.core.worker import Worker
from lmpool.sim.swarm.cluster import CONTROL, INGRESS, Cluster

NOBODYS = BlockHash(b"a hash of nobody")


class Orders:
    """Random by its own seed. Orders fall evenly on events, as faults do."""

    def __init__(self, cluster: Cluster, lineage: dict[bytes, bytes | None], tell: Callable[[str], None]) -> None:
        self._cluster = cluster
        self._lineage = lineage
        """Every block that may ever be, and its parent."""
        self._tell = tell
        self._chance = Random(f"{cluster.knobs.seed} orders")
        self._number = 0
        self.given: Counter[str] = Counter()

    def strike(self) -> None:
        """Once an event: mostly nothing."""
        knobs = self._cluster.knobs.transfers
        share = self._chance.random()
        if share < knobs.ordered:
            self._order()
        elif share < knobs.ordered + knobs.cancelled:
            self._cancel()

    def _order(self) -> None:
        asked = self._draw()
        if asked is None:
            return
        if self._chance.random() < self._cluster.knobs.transfers.asked:
            ingress, control = self._cluster.nodes.get(INGRESS), self._cluster.nodes.get(CONTROL)
            if ingress is not None and control is not None:
                self.given["transfers asked for"] += 1
                ingress.send(control.peer, asked)
        else:
            self._with_control(lambda plane: self._begin(plane, asked))

    def _draw(self) -> TransferAsked | None:
        """None: nobody has anything."""
        chance, knobs, ranks = self._chance, self._cluster.knobs.transfers, self._cluster.ranks
        source, target = chance.sample(ranks, 2)
        chain = self._chain_at(source)
        if not chain:
            return None
        if chance.random() < knobs.absurd:
            source, chain = chance.choice(((target, chain), (source, chain + NOBODYS), (target, chain), (source, b"")))
        blocks = len(chain) // HASH_BYTES
        self._number += 1
        return TransferAsked(
            number=self._number,
            source=source,
            target=target,
            mode=TransferMode.MOVE if chance.random() < knobs.moves else TransferMode.COPY,
            means=CopyMeans.SEND if chance.random() < knobs.sends else CopyMeans.READ,
            chain=chain,
            first=chance.randrange(blocks) if blocks and chance.random() < knobs.partial else 0,
            copy_ns=Nanos(1 + chance.randrange(knobs.copy_ns)),
            lease_ns=Nanos(knobs.lease_ns if chance.random() < knobs.leases else 0),
        )

    def _chain_at(self, rank: Rank) -> bytes:
        """Up to some block that the rank has, from its root on."""
        machine = self._cluster.machines.get((Role.WORKER, rank))
        if not isinstance(machine, Worker):
            return b""
        residents = split_chain(machine._execution.pool.residents())
        chain: list[bytes] = []
        digest: bytes | None = self._chance.choice(residents) if residents else None
        while digest is not None:
            chain.append(digest)
            digest = self._lineage[digest]
        return b"".join(reversed(chain))

    def _begin(self, plane: ControlPlane, asked: TransferAsked) -> None:
        """Whatever state the ranks are in, if only they are linked."""
        source, target = plane._linked(asked.source), plane._linked(asked.target)
        if source is not None and target is not None:
            terms = TransferTerms(
                source, target, asked.mode, asked.means, asked.chain, asked.first, asked.copy_ns, asked.lease_ns
            )
            begun = plane._transfers.begin(self._cluster.timeline.now, terms)
            self.given["transfers ordered"] += 1
            self._tell(f"control wants blocks of rank {asked.source} at rank {asked.target}: {begun}")

    def _cancel(self) -> None:
        def cancel(plane: ControlPlane) -> None:
            under_way = plane._transfers.under_way()
            if under_way:
                transfer = self._chance.choice(under_way)
                self._tell(f"control wants {transfer.id} no more")
                plane._transfers.cancel(self._cluster.timeline.now, transfer.id)

        self._with_control(cancel)

    def _with_control(self, action: Callable[[ControlPlane], None]) -> None:
        """As if it had come to that by itself: at its next event, which is at once."""
        node, plane = self._cluster.nodes.get(CONTROL), self._cluster.machines.get(CONTROL)
        if node is None:
            return
        assert isinstance(plane, ControlPlane)

        def act() -> None:
            if node.is_alive:
                action(plane)
                node.feed(Tick())

        self._cluster.when_awake(node, act)
