"""The physical blocks of one rank: who holds them, which are resident, and which goes next.

Laws (`audit` checks them): a resident block's parent is resident, and pinned if the block is; a hash names at most
one block, and that block carries it; every block is in exactly one state. So a chain's resident part is a head of it,
and the pinned part a head of that: both are found by bisection. Reclaim takes leaves only (`reclaim_order.py`).

Blocks that a step in flight may touch are released *after* that step: until `complete` they keep their pins.
"""

from collections import Counter
from collections.abc import Iterable, Sequence

import attrs

from lmpool.core.block import TRANSITIONS, BlockEvent, BlockState
from lmpool.core.ids import BlockHash, BlockId, Generation, StepNumber
from lmpool.core.prefix import HASH_BYTES, chain_length, hash_at
from lmpool.core.reclaim_order import ReclaimOrder
from lmpool.core.reservation import Reservation, ReserveRefusal

_FREE = BlockState.FREE
_WRITING = BlockState.WRITING
_RESERVED = BlockState.RESERVED
_ABORTING = BlockState.ABORTING
_PINNED = BlockState.PINNED
_CACHED = BlockState.CACHED


@attrs.frozen
class BlockCounts:
    free: int
    writing: int
    reserved: int
    aborting: int
    pinned: int
    cached: int


class BlockPool:
    __slots__ = (
        "_added",
        "_children",
        "_completed",
        "_fenced",
        "_free",
        "_generations",
        "_hashes",
        "_index",
        "_order",
        "_parents",
        "_pins",
        "_reclaimed",
        "_removed",
        "_states",
        "_tally",
    )

    def __init__(self, blocks: int) -> None:
        assert blocks >= 1
        self._states = [_FREE] * blocks
        self._generations = [0] * blocks
        self._pins = [0] * blocks
        self._hashes: list[BlockHash | None] = [None] * blocks
        self._parents: list[BlockId | None] = [None] * blocks
        self._children = [0] * blocks
        self._free = [BlockId(block) for block in range(blocks - 1, -1, -1)]
        self._index: dict[BlockHash, BlockId] = {}
        self._order = ReclaimOrder(blocks)
        self._fenced: dict[StepNumber, list[BlockId]] = {}
        self._tally = dict.fromkeys(BlockState, 0)
        self._tally[_FREE] = blocks
        self._completed = StepNumber(0)
        self._reclaimed = 0
        self._added: dict[BlockHash, None] = {}
        self._removed: dict[BlockHash, None] = {}

    # What there is

    @property
    def size(self) -> int:
        return len(self._states)

    @property
    def available(self) -> int:
        """Blocks that `allocate` and `reserve` can give now, reclaim included."""
        return len(self._free) + self._tally[_CACHED]

    @property
    def is_releasing(self) -> bool:
        """Whether a step in flight keeps released blocks from being free."""
        return bool(self._fenced)

    @property
    def reclaimed(self) -> int:
        """Blocks ever reclaimed."""
        return self._reclaimed

    def counts(self) -> BlockCounts:
        tally = self._tally
        return BlockCounts(
            tally[_FREE], tally[_WRITING], tally[_RESERVED], tally[_ABORTING], tally[_PINNED], tally[_CACHED]
        )

    def state(self, block: BlockId) -> BlockState:
        return self._states[block]

    def pins(self, block: BlockId) -> int:
        return self._pins[block]

    def generation(self, block: BlockId) -> Generation:
        return Generation(self._generations[block])

    def find(self, digest: BlockHash) -> BlockId | None:
        return self._index.get(digest)

    def resident_depth(self, chain: bytes) -> int:
        """How many leading blocks of the packed chain are resident: O(log n)."""
        index = self._index
        low, high = 0, chain_length(chain)
        while low < high:
            middle = (low + high + 1) // 2
            if chain[(middle - 1) * HASH_BYTES : middle * HASH_BYTES] in index:
                low = middle
            else:
                high = middle - 1
        return low

    def unpinned(self, chain: bytes, depth: int) -> int:
        """How many of the chain's first `depth` blocks, all resident, are cached: O(log n)."""
        low, high = 0, depth
        while low < high:
            middle = (low + high + 1) // 2
            if self._pins[self._index[hash_at(chain, middle - 1)]]:
                low = middle
            else:
                high = middle - 1
        return depth - low

    def residents(self) -> bytes:
        """Packed hashes of all resident blocks, ancestors first."""
        return b"".join(self._index)

    # Blocks of sequences

    def allocate(self, count: int) -> list[BlockId]:
        """Blocks to write, each owned by the caller. At most `available`."""
        blocks = self._take(count, _WRITING)
        for block in blocks:
            self._pins[block] = 1
        return blocks

    def pin(self, chain: bytes, depth: int) -> list[BlockId]:
        """The chain's first `depth` blocks, all resident, as the head of a block table."""
        blocks = self.hold(chain, depth)
        self._order.use(blocks)
        return blocks

    def publish(self, block: BlockId, digest: BlockHash, parent: BlockId | None, after: StepNumber) -> BlockId:
        """Makes a complete block findable and answers which block its owner goes on with.

        That is another one if the hash is resident already; then `block` is given up after step `after`, the last
        that may touch it. `parent` is the block before it in the owner's table.
        """
        resident = self._index.get(digest)
        if resident is None:
            self._enter(block, digest, parent)
            return block
        assert self._states[block] is _WRITING
        assert self._hashes[resident] == digest
        self._hold([resident])
        self.release([block], after)
        return resident

    def release(self, blocks: Sequence[BlockId], after: StepNumber) -> None:
        """Ends one pin of each block, once step `after` has completed."""
        if after > self._completed:
            self._fenced.setdefault(after, []).extend(blocks)
        else:
            self._let_go(blocks)

    def complete(self, step: StepNumber) -> None:
        """A step is over, well or not; steps complete in order."""
        assert step > self._completed
        self._completed = step
        for fence in [fence for fence in self._fenced if fence <= step]:
            self._let_go(self._fenced.pop(fence))

    def clear(self) -> int:
        """Reclaims every cached block and answers how many there were."""
        count = self._tally[_CACHED]
        for _ in range(count):
            self._free.append(self._reclaim())
        return count

    # Blocks that arrive or leave

    def hold(self, chain: bytes, depth: int) -> list[BlockId]:
        """Pins the chain's first `depth` blocks, all resident, without using them."""
        blocks = [self._index[hash_at(chain, position)] for position in range(depth)]
        self._hold(blocks)
        return blocks

    def shed(self, blocks: Sequence[BlockId]) -> int:
        """Reclaims from the end of a path the blocks that nobody needs, and answers how many there were."""
        for count, block in enumerate(reversed(blocks)):
            if self._states[block] is not _CACHED or self._children[block]:
                return count
            self._order.withdraw(block)
            self._vacate(block)
            self._free.append(block)
        return len(blocks)

    def reserve(self, chain: bytes, first: int) -> Reservation | ReserveRefusal:
        """Blocks for the chain from block `first` on; pins what is before it until the reservation ends."""
        if self.resident_depth(chain) < first:
            return ReserveRefusal.ANCHOR_MISSING
        count = chain_length(chain) - first
        if count > self.available - self.unpinned(chain, first):
            return ReserveRefusal.NO_BLOCKS
        path = self.hold(chain, first)
        blocks = self._take(count, _RESERVED)
        generations = tuple(Generation(self._generations[block]) for block in blocks)
        return Reservation(chain, first, tuple(path), tuple(blocks), generations)

    def publish_reserved(self, reservation: Reservation) -> None:
        """Makes the arrived blocks resident, in order and all at once. Duplicates of resident ones become free."""
        parent = reservation.path[-1] if reservation.path else None
        for position, block in enumerate(reservation.blocks, reservation.first):
            digest = hash_at(reservation.chain, position)
            resident = self._index.get(digest)
            if resident is None:
                self._enter(block, digest, parent)
                self._order.offer(block)
                resident = block
            else:
                self._move(block, BlockEvent.RELEASED)
                self._free.append(block)
            parent = resident
        self._let_go(reservation.path)

    def release_reserved(self, reservation: Reservation) -> None:
        """The arrival is off, and nothing writes its blocks."""
        self._let_go(reservation.path)
        for block in reservation.blocks:
            self._move(block, BlockEvent.RELEASED)
            self._free.append(block)

    def abort_reserved(self, reservation: Reservation) -> None:
        """The arrival is off, but its blocks may be written until `end_abort`."""
        self._let_go(reservation.path)
        for block in reservation.blocks:
            self._move(block, BlockEvent.ABORTED)

    def end_abort(self, reservation: Reservation) -> None:
        for block in reservation.blocks:
            self._move(block, BlockEvent.ABORT_ENDED)
            self._free.append(block)

    # What is told

    @property
    def has_changes(self) -> bool:
        return bool(self._added or self._removed)

    def take_changes(self) -> tuple[bytes, bytes]:
        """Packed hashes added (ancestors first) and removed since the last call; no hash is in both."""
        changes = b"".join(self._added), b"".join(self._removed)
        self._added.clear()
        self._removed.clear()
        return changes

    def digest_parts(self) -> tuple[object, ...]:
        """Everything that later answers depend on, in a form with one `repr`."""
        return (
            [state.value for state in self._states],
            self._generations,
            self._pins,
            self._hashes,
            self._parents,
            self._free,
            self._order.digest_parts(),
            sorted(self._fenced.items()),
            list(self._added),
            list(self._removed),
            (self._completed, self._reclaimed),
        )

    def audit(self, tables: Iterable[Sequence[BlockId]]) -> None:
        """Asserts the laws, given all block tables and reserved paths. O(blocks): for tests."""
        pins = Counter(block for table in (*tables, *self._fenced.values()) for block in table)
        children = Counter(self._parents[block] for block in self._index.values())
        assert all(self._hashes[block] == digest for digest, block in self._index.items())
        assert len(self._index) == self._tally[_PINNED] + self._tally[_CACHED]
        assert sorted(self._free) == [block for block, state in enumerate(self._states) if state is _FREE]
        assert not any(digest in self._removed for digest in self._added)
        for state in BlockState:
            assert self._tally[state] == self._states.count(state)
        for number, state in enumerate(self._states):
            block = BlockId(number)
            is_resident = state is _PINNED or state is _CACHED
            assert (self._hashes[block] is not None) == is_resident
            assert self._pins[block] == pins[block]
            assert (pins[block] > 0) == (state is _PINNED or state is _WRITING)
            assert pins[block] <= 1 or state is _PINNED
            assert self._children[block] == children[block]
            assert self._order.is_offered(block) == (state is _CACHED and not children[block])
            parent = self._parents[block]
            assert parent is None or (self._pins[parent] or not pins[block])
            assert parent is None or self._hashes[parent] is not None

    # Inside

    def _move(self, block: BlockId, event: BlockEvent) -> None:
        before = self._states[block]
        after = TRANSITIONS[before][event]
        self._states[block] = after
        self._tally[before] -= 1
        self._tally[after] += 1

    def _take(self, count: int, state: BlockState) -> list[BlockId]:
        assert count <= self.available
        for _ in range(count - len(self._free)):
            self._free.append(self._reclaim())
        kept = len(self._free) - count
        blocks = self._free[kept:]
        del self._free[kept:]
        blocks.reverse()
        for block in blocks:
            assert self._states[block] is _FREE
            self._states[block] = state
            self._generations[block] += 1
        self._tally[_FREE] -= count
        self._tally[state] += count
        return blocks

    def _hold(self, blocks: list[BlockId]) -> None:
        pins, states = self._pins, self._states
        fresh = 0
        for block in blocks:
            if states[block] is _CACHED:
                states[block] = _PINNED
                fresh += 1
                self._order.withdraw(block)
            else:
                assert states[block] is _PINNED
            pins[block] += 1
        self._tally[_CACHED] -= fresh
        self._tally[_PINNED] += fresh

    def _let_go(self, blocks: Sequence[BlockId]) -> None:
        self._order.end_use(blocks)
        for block in blocks:
            self._pins[block] -= 1
            if self._pins[block]:
                assert self._states[block] is _PINNED
                continue
            self._move(block, BlockEvent.RELEASED)
            if self._states[block] is _FREE:
                self._free.append(block)
            elif not self._children[block]:
                self._order.offer(block)

    def _enter(self, block: BlockId, digest: BlockHash, parent: BlockId | None) -> None:
        self._move(block, BlockEvent.PUBLISHED)
        if parent is not None:
            assert self._hashes[parent] is not None
            assert self._pins[parent] or not self._pins[block]
            self._children[parent] += 1
            self._order.withdraw(parent)
        self._hashes[block] = digest
        self._parents[block] = parent
        self._index[digest] = block
        self._order.begin_life(block)
        if digest in self._removed:
            del self._removed[digest]
        else:
            self._added[digest] = None

    def _reclaim(self) -> BlockId:
        """Takes the next leaf out of the index; the caller owns the free block."""
        block = self._order.take()
        self._vacate(block)
        return block

    def _vacate(self, block: BlockId) -> None:
        self._move(block, BlockEvent.RECLAIMED)
        digest, parent = self._hashes[block], self._parents[block]
        assert digest is not None
        del self._index[digest]
        self._hashes[block] = None
        self._parents[block] = None
        if digest in self._added:
            del self._added[digest]
        else:
            self._removed[digest] = None
        self._reclaimed += 1
        if parent is not None:
            self._children[parent] -= 1
            if not self._children[parent] and self._states[parent] is _CACHED:
                self._order.offer(parent)
