"""What is known of one request, and the definitions of its times.

All moments are readings of one monotonic clock, one reading an event. Times count from when a request was to be sent,
so that a late client does not make a server look fast.
"""

from collections.abc import Sequence

import attrs

from lmpool.core.ids import Nanos


@attrs.frozen
class Piece:
    """An event that brought content: text, or tokens where the endpoint counts them itself."""

    at_ns: Nanos
    tokens: int | None
    """None: the endpoint did not say."""


@attrs.frozen
class Gap:
    """Between two pieces, one after the other."""

    duration_ns: Nanos
    tokens: int | None
    """Of the later piece."""


@attrs.frozen
class Measured:
    number: int
    """Of the request in its trace."""
    session: str
    planned_ns: Nanos
    sent_ns: Nanos | None
    """None: never sent, because what it continues has failed."""
    pieces: tuple[Piece, ...]
    closed_ns: Nanos
    """When all was read, counts and all: of no figure but how many were under way."""
    prompt_tokens: int | None
    """By the endpoint's own counts, as all that follow."""
    cached_tokens: int | None
    output_tokens: int | None
    wanted_tokens: int
    fault: str
    """A kind of failure (`http 429 server_busy`, `output length`, ...). Empty: it succeeded."""
    detail: str
    request: str = ""
    """The endpoint's own id of it, by which its decisions are found. Empty: not told."""
    queued_ns: int | None = None
    """By the endpoint: from its arrival there until a replica began it. None: not told."""

    @property
    def is_success(self) -> bool:
        return not self.fault

    @property
    def lateness_ns(self) -> int | None:
        """The client's own."""
        return None if self.sent_ns is None else self.sent_ns - self.planned_ns

    @property
    def ttft_ns(self) -> int:
        """To the first event with content. There is one in every success."""
        return self.pieces[0].at_ns - self.planned_ns

    @property
    def e2e_ns(self) -> int:
        """To the last event with content."""
        return self.pieces[-1].at_ns - self.planned_ns

    @property
    def tpot_ns(self) -> float | None:
        """Per token after the first event, which counts as one token where its number is not told.

        None where no event is later, or the tokens of all are not known.
        """
        if self.output_tokens is None or len(self.pieces) == 1:
            return None
        later = self.output_tokens - (1 if self.pieces[0].tokens is None else self.pieces[0].tokens)
        return (self.pieces[-1].at_ns - self.pieces[0].at_ns) / later if later > 0 else None

    @property
    def gaps(self) -> tuple[Gap, ...]:
        """Their sum is the time from the first to the last content, exactly."""
        return tuple(
            Gap(Nanos(later.at_ns - earlier.at_ns), later.tokens)
            for earlier, later in zip(self.pieces, self.pieces[1:], strict=False)
        )


def token_gaps_ns(gaps: Sequence[Gap]) -> list[float] | None:
    """One a token: a piece of k tokens counts as k equal gaps, one without any lengthens the next. None: not told."""
    found: list[float] = []
    waited = 0
    for gap in gaps:
        if gap.tokens is None:
            return None
        waited += gap.duration_ns
        if gap.tokens:
            found += [waited / gap.tokens] * gap.tokens
            waited = 0
    return found
