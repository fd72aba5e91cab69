"""What the load client sends a request to: a server that speaks the OpenAI API, or an engine in this process."""

from typing import Protocol

import attrs

from lmpool.bench.load.measured import Piece
from lmpool.core.ids import Nanos
from lmpool.sim.trace import Part


@attrs.frozen
class Said:
    """An answer, as far as its endpoint tells it."""

    text: str
    tokens: tuple[int, ...]


@attrs.frozen
class Ask:
    """A request with all that went before it in its session."""

    session: str
    turns: tuple[tuple[Part, ...], ...]
    """The last one is this request's own."""
    answers: tuple[Said, ...]
    """To the turns before."""
    output_tokens: int


@attrs.frozen
class Told:
    """What came of it. Whatever goes wrong is a fault in here, never an exception."""

    sent_ns: Nanos
    pieces: tuple[Piece, ...]
    prompt_tokens: int | None
    cached_tokens: int | None
    output_tokens: int | None
    said: Said
    fault: str
    detail: str
    request: str = ""
    """The endpoint's own id of it. Empty: not told, as is None in the next."""
    queued_ns: int | None = None


class Endpoint(Protocol):
    async def ask(self, ask: Ask) -> Told: ...
