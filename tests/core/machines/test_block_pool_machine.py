"""Random histories of a block pool against a naive model: every law after every event."""

import attrs
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from lmpool.core.block import BlockState
from lmpool.core.block_pool import BlockPool
from lmpool.core.ids import BlockHash, BlockId, StepNumber
from lmpool.core.prefix import chain_length, extend_chain, hash_at, pack_tokens, split_chain
from lmpool.core.reservation import Reservation, ReserveRefusal

ROOT = BlockHash(b"root of a chain.")
KINDS = st.lists(st.integers(1, 2), min_size=1, max_size=6)
BLOCKS = 12


def chain_of(kinds: list[int]) -> bytes:
    return extend_chain(ROOT, pack_tokens(kind for kind in kinds for _ in range(8)), 8)


@attrs.define
class Owner:
    """A sequence: what it reads and writes, and how much of that is resident."""

    chain: bytes
    table: list[BlockId]
    published: int
    last_step: StepNumber


class BlockPoolMachine(RuleBasedStateMachine):
    @initialize()
    def begin(self) -> None:
        self.pool = BlockPool(BLOCKS)
        self.step = StepNumber(0)
        self.owners: list[Owner] = []
        self.fenced: dict[StepNumber, list[BlockId]] = {}
        self.arriving: list[Reservation] = []
        self.aborting: list[Reservation] = []
        self.held: list[tuple[list[BlockId], int]] = []
        """Paths that leave, and how many of their first blocks stay."""
        self.known: dict[BlockHash, None] = {}
        """What a listener knows from the changes."""

    @rule(kinds=KINDS)
    def open(self, kinds: list[int]) -> None:
        chain = chain_of(kinds)
        depth = self.pool.resident_depth(chain)
        assert depth == len([digest for digest in split_chain(chain) if self.pool.find(digest) is not None])
        new = chain_length(chain) - depth
        if self.pool.available >= new + self.pool.unpinned(chain, depth):
            table = self.pool.pin(chain, depth)
            self.owners.append(Owner(chain, table + self.pool.allocate(new), depth, StepNumber(self.step + 2)))

    @precondition(lambda self: self.owners)
    @rule(data=st.data(), count=st.integers(1, 3))
    def publish(self, data: st.DataObject, count: int) -> None:
        owner = data.draw(st.sampled_from(self.owners))
        for position in range(owner.published, min(owner.published + count, len(owner.table))):
            own, digest = owner.table[position], hash_at(owner.chain, position)
            parent = owner.table[position - 1] if position else None
            used = self.pool.publish(own, digest, parent, owner.last_step)
            if used != own:
                self.release_in_model([own], owner.last_step)
            owner.table[position] = used
            owner.published += 1

    @precondition(lambda self: self.owners)
    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        owner = data.draw(st.sampled_from(self.owners))
        self.owners = [other for other in self.owners if other is not owner]
        self.pool.release(owner.table, owner.last_step)
        self.release_in_model(owner.table, owner.last_step)

    def release_in_model(self, blocks: list[BlockId], after: StepNumber) -> None:
        if after > self.step:
            self.fenced.setdefault(after, []).extend(blocks)

    @rule()
    def complete(self) -> None:
        self.step = StepNumber(self.step + 1)
        self.pool.complete(self.step)
        self.fenced.pop(self.step, None)

    @rule(kinds=KINDS, first=st.integers(0, 3))
    def reserve(self, kinds: list[int], first: int) -> None:
        chain = chain_of(kinds)
        first = min(first, chain_length(chain) - 1)
        depth = self.pool.resident_depth(chain)
        available = self.pool.available - self.pool.unpinned(chain, min(first, depth))
        match self.pool.reserve(chain, first):
            case Reservation() as reservation:
                self.arriving.append(reservation)
            case ReserveRefusal.ANCHOR_MISSING:
                assert depth < first
            case ReserveRefusal.NO_BLOCKS:
                assert available < chain_length(chain) - first

    @precondition(lambda self: self.arriving)
    @rule(how=st.sampled_from(["publish", "release", "abort"]))
    def end_arrival(self, how: str) -> None:
        reservation = self.arriving.pop(0)
        if how == "publish":
            self.pool.publish_reserved(reservation)
            assert self.pool.resident_depth(reservation.chain) == chain_length(reservation.chain)
        elif how == "release":
            self.pool.release_reserved(reservation)
        else:
            self.pool.abort_reserved(reservation)
            self.aborting.append(reservation)

    @precondition(lambda self: self.aborting)
    @rule()
    def end_abort(self) -> None:
        self.pool.end_abort(self.aborting.pop(0))

    @rule(kinds=KINDS, first=st.integers(0, 3))
    def hold(self, kinds: list[int], first: int) -> None:
        chain = chain_of(kinds)
        depth = self.pool.resident_depth(chain)
        if depth:
            self.held.append((self.pool.hold(chain, depth), min(first, depth)))

    @precondition(lambda self: self.held)
    @rule(is_moved=st.booleans())
    def end_hold(self, is_moved: bool) -> None:
        blocks, first = self.held.pop(0)
        self.pool.release(blocks, StepNumber(0))
        if is_moved:
            before = self.pool.counts().free
            hashes = self.pool.residents()
            count = self.pool.shed(blocks[first:])
            assert self.pool.counts().free == before + count
            assert len(self.pool.residents()) == len(hashes) - 16 * count
            assert all(self.pool.state(block) is BlockState.FREE for block in blocks[len(blocks) - count :])
            assert all(self.pool.state(block) is not BlockState.FREE for block in blocks[: len(blocks) - count])

    @rule()
    def clear(self) -> None:
        cached = self.pool.counts().cached
        assert self.pool.clear() == cached
        assert self.pool.counts().cached == 0

    @rule()
    def listen(self) -> None:
        added, removed = (split_chain(packed) for packed in self.pool.take_changes())
        for digest in removed:
            del self.known[digest]
        for digest in added:
            assert digest not in self.known
            self.known[digest] = None
        assert sorted(self.known) == sorted(split_chain(self.pool.residents()))

    @invariant()
    def laws(self) -> None:
        self.pool.audit(
            [
                *(owner.table for owner in self.owners),
                *(each.path for each in self.arriving),
                *(blocks for blocks, _ in self.held),
            ]
        )
        counts = self.pool.counts()
        assert sum(attrs.astuple(counts)) == BLOCKS
        assert counts.reserved == sum(len(each.blocks) for each in self.arriving)
        assert counts.aborting == sum(len(each.blocks) for each in self.aborting)
        assert self.pool.is_releasing == bool(self.fenced)
        for owner in self.owners:
            resident = [self.pool.find(hash_at(owner.chain, position)) for position in range(owner.published)]
            assert resident == owner.table[: owner.published]


TestBlockPoolMachine = BlockPoolMachine.TestCase
