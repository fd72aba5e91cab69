"""Which cached block goes next: least frequent with ageing, then least recent.

The key of a block is the clock at its last use plus its uses; the clock is the key of the last victim. So what was
popular long ago falls behind what is used now. A heap that keeps stale entries makes a victim O(log n).
"""

from collections.abc import Sequence
from heapq import heapify, heappop, heappush

from lmpool.core.ids import BlockId

HEAP_SLACK = 4
"""Entries per block before the stale ones are swept out: a sweep is O(n) and comes at most every 3 n offers."""


class ReclaimOrder:
    __slots__ = ("_clock", "_heap", "_keys", "_last_uses", "_offered", "_uses", "_uses_ended")

    def __init__(self, blocks: int) -> None:
        self._uses = [0] * blocks
        self._keys = [0] * blocks
        self._last_uses = [0] * blocks
        """When the last use of a block ended, in calls of `end_use`."""
        self._offered = bytearray(blocks)
        self._heap: list[tuple[int, int, BlockId]] = []
        self._clock = 0
        self._uses_ended = 0

    def begin_life(self, block: BlockId) -> None:
        """The block has become resident; its writer was its first user."""
        self._last_uses[block] = self._uses_ended
        self._uses[block] = 1
        self._keys[block] = self._clock + 1

    def use(self, blocks: list[BlockId]) -> None:
        for block in blocks:
            self._uses[block] += 1
            self._keys[block] = self._clock + self._uses[block]

    def end_use(self, blocks: Sequence[BlockId]) -> None:
        """Blocks that end together are equally recent."""
        self._uses_ended += 1
        for block in blocks:
            self._last_uses[block] = self._uses_ended

    def offer(self, block: BlockId) -> None:
        """The block may be taken: cached, and no resident block stands on it."""
        if len(self._heap) >= HEAP_SLACK * len(self._keys):
            self._heap = [entry for entry in dict.fromkeys(self._heap) if self._is_current(entry)]
            heapify(self._heap)
        self._offered[block] = True
        heappush(self._heap, (self._keys[block], self._last_uses[block], block))

    def withdraw(self, block: BlockId) -> None:
        self._offered[block] = False

    def is_offered(self, block: BlockId) -> bool:
        return bool(self._offered[block])

    def take(self) -> BlockId:
        """The next victim; at least one block is offered."""
        entry = heappop(self._heap)
        while not self._is_current(entry):
            entry = heappop(self._heap)
        self._clock, _, block = entry
        self._offered[block] = False
        return block

    def digest_parts(self) -> tuple[object, ...]:
        return (
            self._uses,
            self._keys,
            self._last_uses,
            bytes(self._offered),
            sorted(self._heap),
            self._clock,
            self._uses_ended,
        )

    def _is_current(self, entry: tuple[int, int, BlockId]) -> bool:
        key, last_use, block = entry
        return bool(self._offered[block]) and self._last_uses[block] == last_use and self._keys[block] == key
