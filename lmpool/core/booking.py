"""A booking, and the sums over those of one rank.

`specs/booking.md` is the table of its states.
"""

from bisect import bisect_left, insort
from enum import Enum

import attrs

from lmpool.core.cost import prefill_pairs
from lmpool.core.ids import Epoch, Rank, RequestId


class BookingState(Enum):
    BOOKED = "booked"
    SEEN = "seen"
    """A report of its worker has named it."""
    ENDED = "ended"


class BookingEvent(Enum):
    ACCEPTED = "accepted"
    ENDED = "ended"
    LISTED = "listed"
    """A full report names it."""
    UNLISTED = "unlisted"
    """A full report does not."""
    ABANDONED = "abandoned"
    ASKED_AGAIN = "asked again"
    INGRESS_LOST = "ingress lost"
    RANK_LOST = "rank lost"
    LATE = "late"


NEXT: dict[BookingState, dict[BookingEvent, BookingState]] = {
    BookingState.BOOKED: {
        BookingEvent.ACCEPTED: BookingState.SEEN,
        BookingEvent.ENDED: BookingState.ENDED,
        BookingEvent.LISTED: BookingState.SEEN,
        BookingEvent.UNLISTED: BookingState.BOOKED,
        BookingEvent.ABANDONED: BookingState.ENDED,
        BookingEvent.ASKED_AGAIN: BookingState.ENDED,
        BookingEvent.INGRESS_LOST: BookingState.ENDED,
        BookingEvent.RANK_LOST: BookingState.ENDED,
        BookingEvent.LATE: BookingState.ENDED,
    },
    BookingState.SEEN: {
        BookingEvent.ACCEPTED: BookingState.SEEN,
        BookingEvent.ENDED: BookingState.ENDED,
        BookingEvent.LISTED: BookingState.SEEN,
        BookingEvent.UNLISTED: BookingState.ENDED,
        BookingEvent.ABANDONED: BookingState.ENDED,
        BookingEvent.ASKED_AGAIN: BookingState.ENDED,
        BookingEvent.INGRESS_LOST: BookingState.SEEN,
        BookingEvent.RANK_LOST: BookingState.ENDED,
        BookingEvent.LATE: BookingState.SEEN,
    },
}
"""A lost ingress ends only what no worker has seen: workers cancel the rest themselves and report its end."""


@attrs.define
class Placement:
    """What a booking is made of. Read only."""

    request: RequestId
    attempt: int
    rank: Rank
    epoch: Epoch
    chain: bytes
    prompt_tokens: int
    output_tokens_max: int
    choices: int
    ready_tokens: int
    """Tokens of complete blocks resident on the rank, or brought to it by a transfer that the request awaits."""
    arriving_tokens: int
    """Further tokens of blocks that `writer`, an earlier booking there, makes resident."""
    writer: RequestId | None
    block_size: int

    @property
    def uncached(self) -> int:
        """Prefill tokens that it leaves: at least the last of the prompt, which is always computed."""
        return max(self.prompt_tokens - self.ready_tokens - self.arriving_tokens, 1)


@attrs.define
class Booking:
    placement: Placement
    state: BookingState
    writer: RequestId | None
    """Whose arriving blocks the estimate counts on."""
    estimate: int | None
    """Prefill tokens by our own reckoning. None once the worker has begun it: then its reports are better."""
    reported: int | None


@attrs.define
class Account:
    """Sums over the open bookings of one rank."""

    requests: int
    prefilling: int
    """Choices of bookings with prefill left: booked, waiting and prefilling ones."""
    prefill_tokens: int
    prefill_pairs: int
    unseen_choices: int
    unseen_tokens: int
    """Prefill tokens of bookings that no report has named."""
    prefilling_prompts: int
    prefilling_outputs: int
    """Whole prompts, and outputs at most, of bookings with prefill left."""
    prefilling_missing: int
    """What of those prompts was not resident when they were booked."""
    decoding_lengths: int
    """Prompt and output at most of the others, in tokens."""
    prefills: list[int]
    """What each booking with prefill left has to compute, in tokens, least first."""


def no_bookings() -> Account:
    return Account(0, 0, 0, 0, 0, 0, 0, 0, 0, 0, [])


def remaining(booking: Booking) -> int:
    """Prefill tokens still to compute: the smaller of our own reckoning and the report.

    A worker reports the whole prompt of a request that waits for a sibling's blocks; our reckoning knows better.
    """
    if booking.estimate is None:
        assert booking.reported is not None
        return booking.reported
    return booking.estimate


def count_booking(account: Account, booking: Booking, sign: int) -> None:
    """Adds it (1) or takes it away again (-1), in the state that it was added in."""
    placement, tokens = booking.placement, remaining(booking)
    account.requests += sign
    outputs = placement.output_tokens_max * placement.choices
    if tokens:
        account.prefilling += sign * placement.choices
        account.prefill_tokens += sign * tokens
        if sign > 0:
            insort(account.prefills, tokens)
        else:
            del account.prefills[bisect_left(account.prefills, tokens)]
        account.prefill_pairs += sign * prefill_pairs(tokens, max(placement.prompt_tokens - tokens, 0))
        account.prefilling_prompts += sign * placement.prompt_tokens
        account.prefilling_outputs += sign * outputs
        account.prefilling_missing += sign * max(placement.prompt_tokens - placement.ready_tokens, 0)
        if booking.state is BookingState.BOOKED:
            account.unseen_choices += sign * placement.choices
            account.unseen_tokens += sign * tokens
    else:
        account.decoding_lengths += sign * (placement.prompt_tokens * placement.choices + outputs)
