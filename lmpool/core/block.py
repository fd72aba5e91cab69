"""The life of a physical block: one enum, one table. `specs/block.md` has the same table for people."""

from enum import Enum


class BlockState(Enum):
    FREE = "free"
    """No step, copy or load can touch it."""
    WRITING = "writing"
    """Owned by one sequence; not findable."""
    RESERVED = "reserved"
    """Owned by one arrival; not findable."""
    ABORTING = "aborting"
    """The arrival is off, but an operation that cannot be cancelled may still write it."""
    PINNED = "pinned"
    """Resident, and part of at least one block table or of an arrival's path."""
    CACHED = "cached"
    """Resident, and nobody's: may be reclaimed once no resident block stands on it."""

    __hash__ = object.__hash__
    """Enum's own is written in Python and costs more than all else that a block's change of state does."""


class BlockEvent(Enum):
    ALLOCATED = "allocated"
    RESERVED = "reserved"
    PUBLISHED = "published"
    """Complete, and the first block of its hash."""
    PINNED = "pinned"
    UNPINNED = "unpinned"
    """One of several pins is gone."""
    RELEASED = "released"
    """The last owner or pin is gone, and no step in flight touches it; or its hash was resident already."""
    ABORTED = "aborted"
    ABORT_ENDED = "abort ended"
    RECLAIMED = "reclaimed"

    __hash__ = object.__hash__


_S = BlockState
_E = BlockEvent
TRANSITIONS: dict[BlockState, dict[BlockEvent, BlockState]] = {
    _S.FREE: {_E.ALLOCATED: _S.WRITING, _E.RESERVED: _S.RESERVED},
    _S.WRITING: {_E.PUBLISHED: _S.PINNED, _E.RELEASED: _S.FREE},
    _S.RESERVED: {
        _E.PUBLISHED: _S.CACHED,
        _E.RELEASED: _S.FREE,
        _E.ABORTED: _S.ABORTING,
    },
    _S.ABORTING: {_E.ABORT_ENDED: _S.FREE},
    _S.PINNED: {_E.PINNED: _S.PINNED, _E.UNPINNED: _S.PINNED, _E.RELEASED: _S.CACHED},
    _S.CACHED: {_E.PINNED: _S.PINNED, _E.RECLAIMED: _S.FREE},
}
"""What is absent is a bug of the caller."""
