"""Ingress and control: where does this request go, and why."""

from enum import Enum

import attrs

from lmpool.core.ids import Epoch, Nanos, Rank, RequestId
from lmpool.core.messages.transfer import Awaited, TransfersShown


@attrs.frozen
class RouteAsked:
    request: RequestId
    attempt: int
    chain: bytes
    """Packed hashes of the complete blocks of prompt and output so far."""
    namespace: bytes
    prompt_tokens: int
    """Tokens to prefill if nothing is cached: prompt and output so far."""
    output_tokens_max: int
    """Still to come, per choice."""
    choices: int
    session: str
    """Empty: none named."""
    priority: int
    arrived_ns: Nanos
    deadline_ns: Nanos | None
    excluded: tuple[Rank, ...]
    """Ranks that refused or lost the request."""
    draw: int
    """Chance from outside for policies that need it, 0 to 2^63 - 1."""


@attrs.frozen
class Candidate:
    """What a decision saw of one rank."""

    rank: Rank
    eligible: bool
    reason: str
    """Why not eligible; empty if it is."""
    ready_blocks: int
    """Blocks of the chain that are resident there."""
    arriving_blocks: int
    """Further blocks that requests already booked there will make resident."""
    uncached_tokens: int
    terms: tuple[float, ...]
    """Parallel to the decision's `term_names`; nanoseconds in `marginal-time`, the policy's own unit otherwise."""
    cost: float
    """What the policy compares; the least wins."""


@attrs.frozen
class Decision:
    """A route with everything that led to it."""

    number: int
    request: RequestId
    attempt: int
    at_ns: Nanos
    policy: str
    rank: Rank | None
    reason: str
    prompt_tokens: int
    chain_blocks: int
    term_names: tuple[str, ...]
    candidates: tuple[Candidate, ...]
    fetch: str
    """What the chosen rank could be sent instead of computing it, and whether it is; empty: nobody has more than it."""


@attrs.frozen
class RouteDecided:
    """Booked in the same breath. `epoch` is the life of the worker that was meant."""

    request: RequestId
    attempt: int
    decision: int
    rank: Rank
    epoch: Epoch
    reason: str
    ready_blocks: int
    awaits: Awaited | None
    """A transfer that brings the rank more of the chain, and that the request should wait for there."""


@attrs.frozen
class Busy:
    """Every eligible rank would make it wait too long; nothing is booked."""

    request: RequestId
    attempt: int
    retry_after_ns: Nanos


class UnroutableReason(Enum):
    NEVER_FITS = "never fits"
    NO_REPLICA = "no replica"
    """No rank is eligible, or the request excludes every one that it fits."""


@attrs.frozen
class Unroutable:
    """Nothing is booked. `tokens_max` is the longest context any live rank can hold (0 without ranks)."""

    request: RequestId
    attempt: int
    reason: UnroutableReason
    tokens_max: int


@attrs.frozen
class BookingEnded:
    """The ingress will not submit this attempt after all, or a worker has refused it."""

    request: RequestId
    attempt: int


@attrs.frozen
class BookingsOffered:
    """To a new control: the open requests of this ingress and where each lives; parallel columns."""

    requests: tuple[RequestId, ...]
    attempts: tuple[int, ...]
    ranks: tuple[Rank, ...]
    epochs: tuple[Epoch, ...]
    prompt_tokens: tuple[int, ...]


@attrs.frozen
class StateAsked:
    number: int


@attrs.frozen
class RankState:
    rank: Rank
    epoch: Epoch
    membership: str
    blocks: int
    blocks_free: int
    blocks_cached: int
    resident_hashes: int
    waiting: int
    prefilling: int
    decoding: int
    booked: int
    """Open bookings, seen or not."""
    prefill_tokens: int
    """Booked prefill tokens not yet computed."""
    tokens_computed: int
    tokens_cached: int
    steps_failed: int
    preemptions: int
    """Sequences that gave up their blocks for others and began again later. As all counts above, of this epoch."""
    routed: int
    """Requests sent there by this control."""


@attrs.frozen
class StateReported:
    number: int
    policy: str
    ranks: tuple[RankState, ...]
    page_table_hashes: int
    bookings: int
    decisions: int
    stale_dropped: int
    """Messages of old epochs or versions that were dropped."""
    resyncs: int
    """Full reports asked for because of a gap."""
    transfers: TransfersShown


@attrs.frozen
class DecisionsAsked:
    number: int
    requests: tuple[RequestId, ...] | None
    """None: of all."""
    limit: int
    """Only the newest so many."""


@attrs.frozen
class DecisionsReported:
    number: int
    decisions: tuple[Decision, ...]
    """Newest first."""
