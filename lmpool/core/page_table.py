"""Who holds which block: hash -> bit mask of holders.

A holder is one bit, granted for one life of a rank (or for one full report of it) and never reused before every
mark of it is swept. Callers ask for the bits that live, so a retired holder is out at once; its marks are cleared
later, one shard after the other.
"""

from hashlib import blake2b

from lmpool.core.prefix import HASH_BYTES

SHARDS = 256
"""By the first byte of a hash: neither a sweep nor the growth of a dict ever touches more than one of them."""
MASKS_SHARED_MAX = 4096
"""Distinct masks kept for sharing. A mask above 256 is an object of 32 bytes; few different ones exist."""


class PageTable:
    __slots__ = ("_clearing", "_masks", "_retired", "_shard", "_shards", "_sizes", "_used")

    def __init__(self) -> None:
        self._shards: list[dict[bytes, int]] = [{} for _ in range(SHARDS)]
        self._masks: dict[int, int] = {}
        self._sizes: dict[int, int] = {}
        """Granted holder bit -> its number of hashes."""
        self._used = 0
        """Bits that may have marks."""
        self._clearing = 0
        """Bits that the present pass over the shards clears."""
        self._retired = 0
        """Bits for the next pass."""
        self._shard = 0

    def __len__(self) -> int:
        """Distinct hashes, those of retired holders included until they are swept."""
        return sum(map(len, self._shards))

    def grant(self) -> int:
        """A new holder: its bit, as a mask."""
        holder = ~self._used & (self._used + 1)
        self._used |= holder
        self._sizes[holder] = 0
        return holder

    def retire(self, holder: int) -> None:
        """Nothing may be added or asked for it any more."""
        del self._sizes[holder]
        if self._clearing:
            self._retired |= holder
        else:
            self._clearing = holder

    def size(self, holder: int) -> int:
        return self._sizes[holder]

    def add(self, holder: int, hashes: bytes) -> None:
        """Packed hashes; those already there count once."""
        shards, masks = self._shards, self._masks
        if len(masks) > MASKS_SHARED_MAX:
            masks.clear()
        added = 0
        for start in range(0, len(hashes), HASH_BYTES):
            block = hashes[start : start + HASH_BYTES]
            shard = shards[block[0]]
            held = shard.get(block, 0)
            if not held & holder:
                mask = held | holder
                shard[block] = masks.setdefault(mask, mask)
                added += 1
        self._sizes[holder] += added

    def remove(self, holder: int, hashes: bytes) -> None:
        """Packed hashes; those not there are ignored."""
        shards, masks = self._shards, self._masks
        removed = 0
        for start in range(0, len(hashes), HASH_BYTES):
            block = hashes[start : start + HASH_BYTES]
            shard = shards[block[0]]
            held = shard.get(block, 0)
            if held & holder:
                removed += 1
                mask = held ^ holder
                if mask:
                    shard[block] = masks.setdefault(mask, mask)
                else:
                    del shard[block]
        self._sizes[holder] -= removed

    def depths(self, chain: bytes, holders: int) -> dict[int, int]:
        """How many leading blocks of a packed chain each of the holders (a mask of bits) has; bit -> blocks.

        Bisection for all holders at once, right because residency is prefix-closed.
        """
        shards = self._shards
        found: dict[int, int] = {}
        pending = [(0, len(chain) // HASH_BYTES, holders)]
        while pending:
            low, high, mask = pending.pop()  # all of `mask` hold the blocks before low, none holds block high
            while low < high:
                middle = (low + high) >> 1
                start = middle * HASH_BYTES
                held = shards[chain[start]].get(chain[start : start + HASH_BYTES], 0) & mask
                if held:
                    if held != mask:
                        pending.append((low, middle, mask ^ held))
                        mask = held
                    low = middle + 1
                else:
                    high = middle
            while mask:
                rest = mask & (mask - 1)
                found[mask ^ rest] = low
                mask = rest
        return found

    @property
    def is_clean(self) -> bool:
        """No marks of retired holders are left."""
        return not self._clearing

    def sweep(self, hashes_max: int) -> None:
        """Clears marks of retired holders: whole shards until `hashes_max` hashes were looked at, at least one."""
        seen = 0
        while self._clearing and seen < hashes_max:
            seen += self._sweep_shard() + 1
            self._shard += 1
            if self._shard == SHARDS:
                self._shard = 0
                self._used &= ~self._clearing
                self._clearing, self._retired = self._retired, 0

    def _sweep_shard(self) -> int:
        shard, clearing, masks = self._shards[self._shard], self._clearing, self._masks
        size = len(shard)
        for block in [block for block, held in shard.items() if held & clearing]:
            mask = shard[block] & ~clearing
            if mask:
                shard[block] = masks.setdefault(mask, mask)
            else:
                del shard[block]
        return size

    def digest(self) -> bytes:
        state = blake2b(digest_size=16)
        state.update(repr((self._sizes, self._used, self._clearing, self._retired, self._shard)).encode())
        for shard in self._shards:
            for block, held in shard.items():
                state.update(block + held.to_bytes((held.bit_length() + 7) // 8, "little"))
        return state.digest()
