"""Where a session lives: the memory of the session policies."""

import attrs

from lmpool.core.ids import Rank
from lmpool.core.messages.ingress_control import RouteAsked
from lmpool.core.prefix import HASH_BYTES, split_chain

SESSIONS_MAX = 65_536
BLOCKS_MAX = 131_072
"""What a few hours of a busy server name, in about 10 and 25 MB. The least recently used go first."""
SUCCESSORS_MAX = 4
"""A block with so many different next blocks is no conversation but a shared beginning: nobody's home."""


@attrs.frozen
class ServedBlock:
    rank: Rank
    """That last served it."""
    successors: tuple[bytes, ...]
    """Different next blocks, at most `SUCCESSORS_MAX`."""


class Homes:
    __slots__ = ("_blocks", "_blocks_max", "_sessions", "_sessions_max")

    def __init__(self, sessions_max: int, blocks_max: int) -> None:
        self._sessions: dict[str, Rank] = {}
        self._blocks: dict[bytes, ServedBlock] = {}
        self._sessions_max = sessions_max
        self._blocks_max = blocks_max

    def home(self, asked: RouteAsked) -> Rank | None:
        """By the session's name; else the rank that last served the deepest known block of the chain."""
        if asked.session:
            return self._sessions.get(asked.session)
        deepest: ServedBlock | None = None
        for start in range(0, len(asked.chain), HASH_BYTES):
            block = self._blocks.get(asked.chain[start : start + HASH_BYTES])
            if block is None:
                break
            deepest = block
        if deepest is None or len(deepest.successors) >= SUCCESSORS_MAX:
            return None
        return deepest.rank

    def remember(self, asked: RouteAsked, rank: Rank) -> None:
        if asked.session:
            self._sessions.pop(asked.session, None)
            self._sessions[asked.session] = rank
            if len(self._sessions) > self._sessions_max:
                del self._sessions[next(iter(self._sessions))]
        # Leaf first, so that a chain's beginning is always more recent than its end and outlives it.
        successor: bytes | None = None
        for block in reversed(split_chain(asked.chain)[: self._blocks_max]):
            known = self._blocks.pop(block, None)
            successors = () if known is None else known.successors
            if successor is not None and successor not in successors and len(successors) < SUCCESSORS_MAX:
                successors = (*successors, successor)
            self._blocks[block] = ServedBlock(rank, successors)
            successor = block
        while len(self._blocks) > self._blocks_max:
            del self._blocks[next(iter(self._blocks))]

    def digest_state(self) -> str:
        return repr((self._sessions, self._blocks))
