"""Who waits, who runs, in which slot, and who writes which block next, on one rank.

A hash has at most one writer: the running sequence that will make it resident. Who needs that block next waits for it
in the queue (`awaiting`), and the writer inherits the best place and class among those who wait for it. When the writer
leaves, the first of them is the next to begin and writes on.
"""

from bisect import bisect_left, insort
from collections.abc import Iterable, Mapping

from lmpool.core.batch import BatchView, Decodable, Prefillable, PrefillOrder, Queued
from lmpool.core.block_pool import BlockPool
from lmpool.core.ids import BlockHash, BlockId, SequenceId, Slot
from lmpool.core.prefix import HASH_BYTES, chain_length, hash_at, split_chain
from lmpool.core.sequence import Place, Sequence, SequenceEvent

QUEUE_WINDOW = 64
"""Queued sequences that a plan looks at, those that wait for a writer not counted: as many as usually run."""
MARGIN_DOUBLINGS_MAX = 8
"""A preempted sequence comes back to twice the room of the time before, up to 256 times: by then alone."""


def _place(sequence: Sequence) -> Place:
    return sequence.place


class Schedule:
    __slots__ = (
        "_block_size",
        "_decoding",
        "_departures",
        "_pool",
        "_prefill_order",
        "_queue",
        "_running",
        "_slots",
        "_step_tokens_max",
        "_waiting_tokens",
        "_writers",
    )

    def __init__(
        self,
        pool: BlockPool,
        block_size: int,
        step_tokens_max: int,
        sequences_max: int,
        prefill_order: PrefillOrder,
    ) -> None:
        self._pool = pool
        self._block_size = block_size
        self._step_tokens_max = step_tokens_max
        self._prefill_order = prefill_order
        self._queue: list[Sequence] = []
        self._running: list[Sequence] = []
        self._decoding: list[Sequence] = []
        self._slots = [Slot(slot) for slot in range(sequences_max - 1, -1, -1)]
        self._departures: list[Slot] = []
        self._writers: dict[BlockHash, Sequence] = {}
        self._waiting_tokens = 0

    @property
    def queue(self) -> tuple[Sequence, ...]:
        return tuple(self._queue)

    @property
    def running(self) -> tuple[Sequence, ...]:
        return tuple(self._running)

    @property
    def decoding(self) -> tuple[Sequence, ...]:
        """Those that the last view counted as such."""
        return tuple(self._decoding)

    @property
    def is_idle(self) -> bool:
        """Nobody runs or waits."""
        return not self._running and not self._queue

    @property
    def waiting(self) -> int:
        return len(self._queue)

    @property
    def waiting_tokens(self) -> int:
        """Sum of what the queued sequences will probably have to compute."""
        return self._waiting_tokens

    @property
    def writers(self) -> Mapping[BlockHash, Sequence]:
        return self._writers

    # Queue

    def enqueue(self, sequence: Sequence, coming: int) -> None:
        """`coming`: leading blocks of its chain that will probably be resident when it begins."""
        assert not sequence.is_running
        insort(self._queue, sequence, key=_place)
        sequence.prefill_left = self._left(sequence, coming)
        self._waiting_tokens += sequence.prefill_left

    def dequeue(self, sequence: Sequence) -> None:
        position = bisect_left(self._queue, sequence.place, key=_place)
        assert self._queue[position] is sequence
        del self._queue[position]
        sequence.awaited = None
        sequence.is_arriving = False
        self._waiting_tokens -= sequence.prefill_left

    def expect(self, sequence: Sequence) -> None:
        """Estimates anew what a queued sequence will have to compute."""
        self._estimate(sequence, self.reach(sequence))

    def _estimate(self, sequence: Sequence, coming: int) -> None:
        left = self._left(sequence, coming)
        self._waiting_tokens += left - sequence.prefill_left
        sequence.prefill_left = left

    def begin_arrival(self, sequence: Sequence, coming: int) -> None:
        """A transfer brings a queued sequence its blocks: it keeps its place, and plans pass it over meanwhile."""
        sequence.is_arriving = True
        sequence.move(SequenceEvent.WRITER_FOUND)
        self._estimate(sequence, coming)

    def end_arrival(self, sequence: Sequence) -> None:
        """The blocks are there, or will not come."""
        sequence.is_arriving = False
        sequence.move(SequenceEvent.WRITER_GONE)
        self.expect(sequence)

    def reach(self, sequence: Sequence) -> int:
        """Leading blocks of its chain that are resident or have a writer."""
        chain = sequence.chain
        low, high = 0, chain_length(chain)
        while low < high:
            middle = (low + high + 1) // 2
            digest = hash_at(chain, middle - 1)
            if digest in self._writers or self._pool.find(digest) is not None:
                low = middle
            else:
                high = middle - 1
        return low

    def _left(self, sequence: Sequence, blocks: int) -> int:
        known = 0 if sequence.is_scoring else blocks * self._block_size
        return max(len(sequence.history) - known, 1)

    # Slots and blocks

    def begin(self, sequence: Sequence) -> int:
        """Gives a queued sequence its slot and all blocks of its prefill. Answers its cached tokens."""
        pool, size = self._pool, self._block_size
        self.dequeue(sequence)
        sequence.move(SequenceEvent.BEGUN)
        end = len(sequence.history)
        resident = pool.resident_depth(sequence.chain)
        depth = 0 if sequence.is_scoring else resident
        table = pool.pin(sequence.chain, depth)
        table += pool.allocate(-(-end // size) - depth)
        sequence.slot = self._slots.pop()
        sequence.table = tuple(table)
        sequence.prefill_end = end
        sequence.planned = sequence.computed = min(depth * size, end - 1)
        sequence.published = depth
        for position in range(resident, chain_length(sequence.chain)):
            self._writers.setdefault(hash_at(sequence.chain, position), sequence)
        insort(self._running, sequence, key=_place)
        return depth * size

    def leave(self, sequence: Sequence) -> None:
        """Takes slot and blocks from a running sequence. Blocks that running steps complete keep their writer."""
        position = bisect_left(self._running, sequence.place, key=_place)
        assert self._running[position] is sequence
        del self._running[position]
        self._pool.release(sequence.table, sequence.last_step)
        self._departures.append(sequence.slot)
        self._slots.append(sequence.slot)
        coming = sequence.planned // self._block_size if sequence.in_flight else sequence.published
        self.disown(sequence, coming)

    def disown(self, sequence: Sequence, first: int) -> None:
        """The sequence will not write its blocks from `first` on."""
        for position in range(first, chain_length(sequence.chain)):
            digest = hash_at(sequence.chain, position)
            if self._writers.get(digest) is sequence:
                del self._writers[digest]

    def relieve(self, chain: bytes) -> None:
        """These blocks are resident: nobody has to wait for their writers, who will find that out."""
        for digest in split_chain(chain):
            self._writers.pop(digest, None)

    def publish(self, sequence: Sequence) -> None:
        """Makes resident what the completed steps have completed.

        A sequence that has left does not adopt: its blocks are on their way back already.
        """
        size = self._block_size
        complete = min(sequence.computed, len(sequence.history)) // size
        if complete <= sequence.published:
            return
        sequence.extend_chain(size)
        for position in range(sequence.published, complete):
            digest = hash_at(sequence.chain, position)
            if not sequence.is_running and self._pool.find(digest) is not None:
                return
            table = sequence.table
            parent, own = table[position - 1] if position else None, table[position]
            kept = self._pool.publish(own, digest, parent, sequence.last_step)
            if kept != own:
                sequence.table = (*table[:position], kept, *table[position + 1 :])
            sequence.published = position + 1
            self._writers.pop(digest, None)

    def take_departures(self) -> tuple[Slot, ...]:
        """Slots that were left since the last plan."""
        departures = tuple(self._departures)
        self._departures.clear()
        return departures

    # What a plan is chosen from

    def view(self) -> BatchView:
        """What can be planned now. Notes on the way who of the queue waits for a writer."""
        queued = self._look_at_queue() if self._slots else []
        inherited = self._inherited()
        decodable: list[Decodable] = []
        prefillable: list[Prefillable] = []
        ending, size = False, self._block_size
        decoding = self._decoding
        decoding.clear()
        for sequence in self._running:
            left = sequence.prefill_end - sequence.planned
            if left > 0:
                place, priority = inherited.get(sequence.id, (sequence.place, sequence.priority))
                prefillable.append(Prefillable(sequence.id, place, priority, left))
            elif len(sequence.history) + sequence.sampling < sequence.tokens_max:
                if sequence.planned < len(sequence.table) * size:
                    decoding.append(sequence)
                else:
                    decodable.append(Decodable(sequence.id, sequence.place))
            else:
                ending = True
        return BatchView(
            self._prefill_order,
            self._step_tokens_max,
            len(self._slots),
            self._pool.available,
            self._pool.is_releasing or ending,
            len(decoding),
            Decodable(decoding[-1].id, decoding[-1].place) if decoding else None,
            tuple(decodable),
            tuple(prefillable),
            tuple(queued),
        )

    def _look_at_queue(self) -> list[Queued]:
        found: list[Queued] = []
        for sequence in self._queue:
            if len(found) == QUEUE_WINDOW:
                break
            if sequence.is_arriving:
                continue
            if sequence.in_flight:
                found.append(self._queued(sequence, 0))
                continue
            if sequence.awaited is not None:
                if sequence.awaited in self._writers:
                    continue
                sequence.awaited = None
                sequence.move(SequenceEvent.WRITER_GONE)
            depth = 0 if sequence.is_scoring else self._pool.resident_depth(sequence.chain)
            next_hash = hash_at(sequence.chain, depth)
            if next_hash in self._writers and not sequence.is_scoring:
                sequence.awaited = next_hash
                sequence.move(SequenceEvent.WRITER_FOUND)
                self.expect(sequence)
            else:
                found.append(self._queued(sequence, depth))
        return found

    def _queued(self, sequence: Sequence, depth: int) -> Queued:
        length, size = len(sequence.history), self._block_size
        return Queued(
            sequence.id,
            sequence.place,
            sequence.priority,
            max(length - depth * size, 1),
            -(-length // size) - depth + self._pool.unpinned(sequence.chain, depth),
            len(self._running) << min(sequence.preemptions, MARGIN_DOUBLINGS_MAX),
            sequence.in_flight > 0,
            not sequence.is_scoring,
            sequence.chain[depth * HASH_BYTES :],
        )

    def _inherited(self) -> dict[SequenceId, tuple[Place, int]]:
        """Best place and class among those who wait, by their writer."""
        best: dict[SequenceId, tuple[Place, int]] = {}
        for sequence in self._queue:
            if sequence.awaited is not None:
                writer = self._writers.get(sequence.awaited)
                if writer is not None:
                    place, priority = best.get(writer.id, (writer.place, writer.priority))
                    best[writer.id] = min(place, sequence.place), min(priority, sequence.priority)
        return best

    def digest_parts(self) -> tuple[object, ...]:
        return (
            [sequence.id for sequence in self._queue],
            [sequence.id for sequence in self._running],
            self._slots,
            self._departures,
            [(digest, writer.id) for digest, writer in self._writers.items()],
            self._waiting_tokens,
        )

    def audit(self, pinned: Iterable[list[BlockId]]) -> None:
        """Asserts the laws of queue, slots and writers, and those of the pool. O(blocks): for tests.

        `pinned`: paths that somebody else holds.
        """
        self._pool.audit([*(sequence.table for sequence in self._running), *pinned])
        assert self._queue == sorted(self._queue, key=_place)
        assert self._running == sorted(self._running, key=_place)
        assert all(sequence.is_running for sequence in self._running)
        assert not any(sequence.is_running for sequence in self._queue)
        assert self._waiting_tokens == sum(sequence.prefill_left for sequence in self._queue)
        slots = [*self._slots, *(sequence.slot for sequence in self._running)]
        assert len(slots) == len(dict.fromkeys(slots))
        for digest, writer in self._writers.items():
            assert writer.is_running or writer.in_flight
            assert self._pool.find(digest) is None
