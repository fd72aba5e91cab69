"""The workers that an ingress has links to."""

import attrs

from lmpool.core.ids import Peer, Rank
from lmpool.core.messages.worker_control import WorkerJoined
from lmpool.core.open_request import OpenRequest


@attrs.define
class LinkedWorker:
    peer: Peer
    facts: WorkerJoined | None
    """None until its first message."""
    is_draining: bool


class LinkedWorkers:
    """One link a rank at most. Owned by the ingress machine."""

    __slots__ = ("_by_rank", "_replicas")

    def __init__(self, replicas: int) -> None:
        self._by_rank: dict[Rank, LinkedWorker] = {}
        self._replicas = replicas

    @property
    def ranks(self) -> tuple[Rank, ...]:
        return tuple(sorted(self._by_rank))

    @property
    def tokens_most(self) -> int:
        """Longest context that any of them can hold; 0 where none has told."""
        return max((worker.facts.model_tokens_max for worker in self._by_rank.values() if worker.facts), default=0)

    def link(self, peer: Peer) -> Peer | None:
        """Returns the former life of the rank, if that was linked still."""
        assert 0 <= peer.rank < self._replicas
        former = self._by_rank.get(peer.rank)
        assert former is None or former.peer.epoch < peer.epoch
        self._by_rank[peer.rank] = LinkedWorker(peer, None, is_draining=False)
        return None if former is None else former.peer

    def unlink(self, peer: Peer) -> bool:
        """False: it was not linked."""
        if not self.knows(peer):
            return False
        del self._by_rank[peer.rank]
        return True

    def knows(self, peer: Peer) -> bool:
        worker = self._by_rank.get(peer.rank)
        return worker is not None and worker.peer == peer

    def learn(self, peer: Peer, facts: WorkerJoined) -> None:
        self._by_rank[peer.rank].facts = facts

    def drain(self, peer: Peer) -> None:
        """It takes nothing new in this life."""
        self._by_rank[peer.rank].is_draining = True

    def takers(self, request: OpenRequest) -> list[Peer]:
        """Who may be asked to take it, by rank."""
        return [worker.peer for _, worker in sorted(self._by_rank.items()) if _takes(worker, request)]

    def excluded(self, takers: list[Peer]) -> tuple[Rank, ...]:
        """All ranks but those of `takers`."""
        takes = [peer.rank for peer in takers]
        return tuple(rank for rank in map(Rank, range(self._replicas)) if rank not in takes)

    def digest_state(self) -> str:
        return repr(sorted(self._by_rank.items()))


def _takes(worker: LinkedWorker, request: OpenRequest) -> bool:
    if worker.facts is None or worker.is_draining:
        return False
    return worker.peer.rank not in request.unreachable and worker.peer not in request.refused
