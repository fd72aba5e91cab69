"""Bounded session affinity: where a request goes while control does not answer."""

from collections.abc import Sequence

from lmpool.core.events import RequestArrived
from lmpool.core.ids import Rank
from lmpool.core.prefix import HASH_BYTES


class Affinity:
    """Remembers the rank of a session, or of a first block where none is named; the least recently used go first."""

    __slots__ = ("_cursor", "_homes", "_homes_max")

    def __init__(self, homes_max: int) -> None:
        self._homes: dict[str | bytes, Rank] = {}
        self._homes_max = homes_max
        self._cursor = 0
        """Ties rotate."""

    def __len__(self) -> int:
        return len(self._homes)

    def remember(self, arrived: RequestArrived, rank: Rank) -> None:
        key = _key(arrived)
        if not key:
            return
        self._homes.pop(key, None)
        self._homes[key] = rank
        if len(self._homes) > self._homes_max:
            del self._homes[next(iter(self._homes))]

    def choose(self, arrived: RequestArrived, ranks: Sequence[Rank], requests: Sequence[int]) -> int:
        """Index of its home, while that has no more than its share and a quarter of our `requests`, which are parallel
        to `ranks`; else of the rank with the fewest."""
        home = self._homes.get(_key(arrived))
        share = -(-5 * (sum(requests) + 1) // (4 * len(ranks)))
        if home is not None and home in ranks:
            index = ranks.index(home)
            if requests[index] < share:
                return index
        turn = self._cursor % len(ranks)
        self._cursor += 1
        _, _, index = min((requests[index], index < turn, index) for index in range(len(ranks)))
        return index

    def digest_state(self) -> str:
        return repr((self._homes, self._cursor))


def _key(arrived: RequestArrived) -> str | bytes:
    return arrived.session or arrived.chain[:HASH_BYTES]
