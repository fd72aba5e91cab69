"""Blocks promised to what arrives, and not yet visible."""

from enum import Enum

import attrs

from lmpool.core.ids import BlockId, Generation


@attrs.frozen
class Reservation:
    """Blocks for the part of `chain` from block `first` on; the path before it is pinned."""

    chain: bytes
    first: int
    path: tuple[BlockId, ...]
    blocks: tuple[BlockId, ...]
    generations: tuple[Generation, ...]


class ReserveRefusal(Enum):
    ANCHOR_MISSING = "anchor missing"
    NO_BLOCKS = "no blocks"
