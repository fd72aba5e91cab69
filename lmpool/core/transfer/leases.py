"""Chains that were placed here and are kept from reclaim until somebody has used them, or a deadline."""

import attrs

from lmpool.core.block_pool import BlockPool
from lmpool.core.ids import BlockHash, BlockId, Nanos, SequenceId, StepNumber, TransferId
from lmpool.core.prefix import chain_length, hash_at

LEASE_SHARE = 4
"""At most one in so many blocks of the pool is leased, not counting chains that somebody here waits for."""


@attrs.define
class Lease:
    transfer: TransferId
    """That brought it."""
    blocks: list[BlockId]
    last: BlockHash
    """Of the chain: who reads it uses the lease."""
    until_ns: Nanos
    waiters: dict[SequenceId, None]
    """Who waits to read it. The lease ends with the last of them; without any, with its first use."""


class Leases:
    __slots__ = ("_leases", "_pool")

    def __init__(self, pool: BlockPool) -> None:
        self._pool = pool
        self._leases: list[Lease] = []

    def __len__(self) -> int:
        return len(self._leases)

    @property
    def blocks(self) -> int:
        return sum(len(lease.blocks) for lease in self._leases)

    @property
    def pinned(self) -> list[list[BlockId]]:
        return [lease.blocks for lease in self._leases]

    def grant(self, transfer: TransferId, chain: bytes, until_ns: Nanos, waiters: dict[SequenceId, None]) -> bool:
        """Of a resident chain. False: too much is leased already."""
        depth = chain_length(chain)
        if not waiters and LEASE_SHARE * (self.blocks + depth) > self._pool.size:
            return False
        blocks, last = self._pool.hold(chain, depth), hash_at(chain, depth - 1)
        self._leases.append(Lease(transfer, blocks, last, until_ns, waiters))
        return True

    def join(self, transfer: TransferId, sequence: SequenceId) -> None:
        """It will read what the transfer has brought. Harmless if that is not leased."""
        for lease in self._leases:
            if lease.transfer == transfer:
                lease.waiters[sequence] = None

    def use(self, sequence: SequenceId, chain: bytes) -> None:
        """A sequence has pinned what is resident of its own chain."""
        for lease in list(self._leases):
            depth = len(lease.blocks)
            is_whole = chain_length(chain) >= depth and hash_at(chain, depth - 1) == lease.last
            if is_whole or sequence in lease.waiters:  # who waits may share only the beginning
                self._drop_waiter(lease, sequence)

    def leave(self, sequence: SequenceId) -> None:
        """A sequence will not begin. Harmless if it waits for nothing."""
        for lease in list(self._leases):
            if sequence in lease.waiters:
                self._drop_waiter(lease, sequence)

    def _drop_waiter(self, lease: Lease, sequence: SequenceId) -> None:
        lease.waiters.pop(sequence, None)
        if not lease.waiters:
            self._end(lease)

    def expire(self, now: Nanos) -> None:
        for lease in [lease for lease in self._leases if lease.until_ns <= now]:
            self._end(lease)

    def give_up(self) -> bool:
        """The oldest of them. False: there is none."""
        if not self._leases:
            return False
        self._end(self._leases[0])
        return True

    def next_deadline(self) -> Nanos | None:
        return min((lease.until_ns for lease in self._leases), default=None)

    def _end(self, lease: Lease) -> None:
        self._leases = [other for other in self._leases if other is not lease]
        self._pool.release(lease.blocks, StepNumber(0))

    def digest_parts(self) -> tuple[object, ...]:
        return tuple(attrs.astuple(lease) for lease in self._leases)
