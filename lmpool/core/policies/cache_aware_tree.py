"""The cache-aware rule of the SGLang router with the defaults of its 0.3.2 command line.

The tree is its own routing history, never told what a rank has evicted. Ours is over block hashes instead of
characters: a chained hash is a path, so the tree is a table. Its bound of 2^26 characters becomes 2^20 blocks, at 4
characters a token and 16 tokens a block, and holds for all ranks together; it is kept with every request, not once a
minute. A node that several ranks were sent to stands for the last of them, where the original takes any.
"""

from lmpool.core.fleet import Choice, RouteView
from lmpool.core.ids import Rank
from lmpool.core.messages.ingress_control import RouteAsked
from lmpool.core.policies.session import index_of
from lmpool.core.prefix import HASH_BYTES, split_chain

MATCH_SHARE = 0.3
"""A prompt goes to the deepest match if more than this share of it matches."""
GAP_REQUESTS = 64
GAP_RATIO = 1.5
"""Ranks are out of balance if most and fewest requests are apart by more than both."""
BLOCKS_MAX = 1 << 20
"""About 90 MB when full."""

ABSENT = "match not eligible: fewest requests in flight"


class RoutingHistory:
    """Which rank a block was last sent to; the least recently sent go first."""

    __slots__ = ("_blocks", "_blocks_max")

    def __init__(self, blocks_max: int) -> None:
        self._blocks: dict[bytes, Rank] = {}
        self._blocks_max = blocks_max

    def __len__(self) -> int:
        return len(self._blocks)

    def match(self, chain: bytes) -> tuple[int, Rank | None]:
        """Leading blocks known, and where the last of them was sent."""
        matched, rank = 0, None
        for start in range(0, len(chain), HASH_BYTES):
            known = self._blocks.get(chain[start : start + HASH_BYTES])
            if known is None:
                break
            matched, rank = matched + 1, known
        return matched, rank

    def insert(self, chain: bytes, rank: Rank) -> None:
        # Leaf first: a beginning is always more recent than its end, so that what goes first is a leaf.
        for block in reversed(split_chain(chain)[: self._blocks_max]):
            self._blocks.pop(block, None)
            self._blocks[block] = rank
        while len(self._blocks) > self._blocks_max:
            del self._blocks[next(iter(self._blocks))]

    def digest_state(self) -> str:
        return repr(self._blocks)


class CacheAwareTree:
    __slots__ = ("_history",)
    name = "cache-aware-tree"
    term_names = ("requests", "matched_blocks")

    def __init__(self) -> None:
        self._history = RoutingHistory(BLOCKS_MAX)

    def choose(self, view: RouteView) -> Choice:
        matched, tenant = self._history.match(view.asked.chain)
        loads = [rank.requests for rank in view.ranks]
        fewest, most = min(loads), max(loads)
        index, reason = loads.index(fewest), "too little matches: fewest requests in flight"
        if most - fewest > GAP_REQUESTS and most > GAP_RATIO * fewest:
            reason = "out of balance: fewest requests in flight"
        elif matched * view.ranks[0].block_size > MATCH_SHARE * view.asked.prompt_tokens:
            home = index_of(tenant, view)
            index, reason = (index, ABSENT) if home is None else (home, "deepest match")
        terms = [float(term) for rank in view.ranks for term in (rank.requests, matched if rank.rank == tenant else 0)]
        return Choice(index, reason, terms, [float(load) for load in loads])

    def remember(self, asked: RouteAsked, rank: Rank) -> None:
        self._history.insert(asked.chain, rank)

    def digest_state(self) -> str:
        return self._history.digest_state()
