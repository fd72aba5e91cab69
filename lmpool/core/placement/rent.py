"""What blocks of a rank earn until they are reclaimed: the rent that a transfer owes for those that it pushes out."""

from collections.abc import Mapping
from math import exp

import attrs

from lmpool.core.ids import Nanos, Rank
from lmpool.core.placement.demand import FADE_NS
from lmpool.core.prefix import HASH_BYTES
from lmpool.core.rates import Rates

UNTRIED_SHARE = 1 / 2
"""Of its tokens: what a block is taken to save where none was reclaimed yet. As of visits, half are expected again."""


@attrs.define
class Earnings:
    """Of one rank, faded until `at` as visits are: what is asked for and what is earned are of the same time."""

    told: int
    """Cached prompt tokens of its life, as reported last."""
    cached_tokens: float
    reclaimed: float
    """Blocks."""
    at: Nanos


class Rents:
    __slots__ = ("_earnings", "_tokens")

    def __init__(self) -> None:
        self._earnings: dict[Rank, Earnings] = {}
        self._tokens: dict[Rank, float] = {}

    @property
    def tokens(self) -> Mapping[Rank, float]:
        """Prompt tokens that one block saves until it is reclaimed; without ranks that have reclaimed nothing. Follows
        what is reported; read only."""
        return self._tokens

    def begin(self, now: Nanos, rank: Rank, cached_tokens: int) -> None:
        """A full report: what was before is of another time, or was counted already."""
        known = self._earnings.get(rank)
        if known is None:
            self._earnings[rank] = Earnings(cached_tokens, 0.0, 0.0, now)
        else:
            known.told = cached_tokens

    def count(self, now: Nanos, rank: Rank, cached_tokens: int, removed: bytes) -> None:
        """A report: cached prompt tokens of its life, and the hashes that it has no longer."""
        known = self._earnings.get(rank)
        if known is None:
            self.begin(now, rank, cached_tokens)
            return
        kept = exp((known.at - now) / FADE_NS)
        known.cached_tokens = known.cached_tokens * kept + max(cached_tokens - known.told, 0)
        known.reclaimed = known.reclaimed * kept + len(removed) // HASH_BYTES
        known.told, known.at = cached_tokens, now
        if known.reclaimed > 0:
            self._tokens[rank] = known.cached_tokens / known.reclaimed

    def lose(self, rank: Rank) -> None:
        self._earnings.pop(rank, None)
        self._tokens.pop(rank, None)

    def digest_state(self) -> str:
        return repr(self._earnings)


def rent_ns(tokens: float | None, rates: Rates, block_size: int, blocks: int, free: int) -> float:
    """Of a transfer of so many blocks to a rank with so many free ones, where a block earns so many `tokens`.
    None: nobody knows, as for a rank that has reclaimed nothing."""
    earned = UNTRIED_SHARE * block_size if tokens is None else tokens
    return earned * rates.prefill * max(blocks - max(free, 0), 0)
