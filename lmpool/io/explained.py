"""What the pool can tell of a request, and by which names clients may ask for it."""

from collections import deque
from collections.abc import Iterable

import attrs

from lmpool.core.history import History
from lmpool.core.ids import Epoch, RequestId
from lmpool.core.limits import HISTORIES_KEPT
from lmpool.core.messages.ingress_control import Decision
from lmpool.io.message_bounds import COUNT_MAX

NAMES_KEPT = 4 * HISTORIES_KEPT
"""Prompts with the names of their request: open ones come on top of those with a history. About 2 MB at most."""


@attrs.frozen
class Explained:
    decisions: tuple[Decision, ...]
    """Newest first."""
    histories: tuple[History, ...]
    """Of the requests that were asked for, or that the decisions are of; unknown and forgotten ones are left out."""


@attrs.frozen
class _Named:
    request: RequestId
    names: tuple[str, ...]


class RequestNames:
    """Names that clients know, of the latest requests. Two requests may have the same name; then it means both."""

    __slots__ = ("_latest",)

    def __init__(self, kept: int) -> None:
        self._latest: deque[_Named] = deque(maxlen=kept)

    def add(self, request: RequestId, names: Iterable[str]) -> None:
        self._latest.append(_Named(request, tuple(name for name in names if name)))

    def find(self, word: str) -> tuple[RequestId, ...]:
        """A name, an inner id (`1-23`), or several inner ids with commas between; oldest first."""
        named = [entry.request for entry in self._latest if word in entry.names]
        inner = [parse_request_word(part) for part in word.split(",")]
        if None in inner:
            inner = []
        return tuple(dict.fromkeys([*named, *(request for request in inner if request is not None)]))


def parse_request_word(word: str) -> RequestId | None:
    ingress, dash, counter = word.partition("-")
    if not (dash and word.isascii() and ingress.isdecimal() and counter.isdecimal() and len(word) <= 40):
        return None
    request = RequestId(Epoch(int(ingress)), int(counter))
    return request if max(request) <= COUNT_MAX else None
