"""What a routing policy may see: the ranks that could take a request, as values, and what each would have to do."""

from collections.abc import Sequence
from typing import Protocol

import attrs

from lmpool.core.cost import prefill_ns, step_ns
from lmpool.core.ids import Nanos, Rank
from lmpool.core.ledger import Account
from lmpool.core.messages.ingress_control import RouteAsked
from lmpool.core.messages.worker_control import Load, WorkerJoined
from lmpool.core.rates import Rates


@attrs.frozen
class RankView:
    """A rank as its last report and its open bookings have it."""

    rank: Rank
    rates: Rates
    tokens_max: int
    step_tokens_max: int
    sequences_max: int
    block_size: int
    blocks_open: int
    """Free or reclaimable, less those that booked prefill will take."""
    blocks_free: int
    """Free, less those that unseen bookings will take."""
    requests: int
    """In flight: open bookings."""
    decoding: int
    decoding_context: int
    prefilling: int
    """Choices booked there that do not decode yet."""
    account: Account
    routed_tokens: int
    """Uncached tokens of all requests ever routed there."""
    step_ns: float
    """One step of its decodes, without prefill."""
    queue_ns: float
    """All prefill booked there and not done, with its steps."""
    step_began_ns: Nanos | None
    step_cost_ns: Nanos
    step_prefills: bool
    """The running step has a chunk of the prefill that `queue_ns` counts."""


def view_rank(
    rank: Rank, facts: WorkerJoined, load: Load, rates: Rates, account: Account, routed_tokens: int
) -> RankView:
    decode_ns = step_ns(rates, load.decoding, load.decoding_context)
    steps = -(-account.prefill_tokens // facts.step_tokens_max)
    blocks_booked = -(-account.prefill_tokens // facts.block_size)
    return RankView(
        rank=rank,
        rates=rates,
        tokens_max=facts.model_tokens_max,
        step_tokens_max=facts.step_tokens_max,
        sequences_max=facts.sequences_max,
        block_size=facts.block_size,
        blocks_open=load.blocks_free + load.blocks_cached - blocks_booked,
        blocks_free=load.blocks_free - account.unseen_tokens // facts.block_size,
        requests=account.requests,
        decoding=load.decoding,
        decoding_context=load.decoding_context,
        prefilling=account.prefilling,
        account=attrs.evolve(account),
        routed_tokens=routed_tokens,
        step_ns=decode_ns,
        queue_ns=prefill_ns(rates, account.prefill_tokens, account.prefill_pairs) + steps * decode_ns,
        step_began_ns=load.step_began_ns,
        step_cost_ns=load.step_cost_ns,
        step_prefills=load.prefilling > 0,
    )


def queue_wait_ns(view: RankView, now: Nanos) -> float:
    """Until the prefill booked there is done, or at least the running step. Its progress counts."""
    began = view.step_began_ns
    if began is None:
        return view.queue_ns
    done = min(max(now - began, 0), view.step_cost_ns)
    left = view.step_cost_ns - done
    if view.step_prefills:
        return max(view.queue_ns - done, left)
    return view.queue_ns + left


def room_wait_ns(view: RankView, tokens: int, choices: int, output_mean: float) -> float:
    """Until enough of the sequences there have ended to leave blocks and places for a request. 0 if there are.

    Sequences there end evenly over the time of one mean output; each gives back the blocks of a mean context.
    """
    present = view.decoding + view.prefilling
    blocks_short = -(-tokens // view.block_size) + choices - view.blocks_open
    places_short = present + choices - view.sequences_max
    if present == 0 or (blocks_short <= 0 and places_short <= 0):
        return 0.0
    context = view.decoding_context + view.account.prefill_tokens
    blocks_each = max(context // (present * view.block_size), 1)
    ends = max(-(-blocks_short // blocks_each), places_short)
    return ends * output_mean * view.step_ns / present


@attrs.frozen
class RouteView:
    """A question and everything that an answer may depend on. The columns are parallel to `ranks`, never empty."""

    asked: RouteAsked
    now: Nanos
    ranks: Sequence[RankView]
    """Eligible, not excluded and large enough; in the order of their numbers."""
    ready: Sequence[int]
    """Leading blocks of the chain that are resident."""
    arriving: Sequence[int]
    """Blocks after those that open bookings will make resident."""
    uncached: Sequence[int]
    """Tokens to compute, at least 1."""
    waits: Sequence[float]
    """Nanoseconds until the rank could begin."""
    chain_blocks: int
    output_mean: float
    arrivals_per_ns: float
    """L: per eligible rank."""
    busy_share: float
    """rho: booked prefill time per time and eligible rank."""
    cursor: int
    """Ties go to the first rank from here on, cyclically."""


@attrs.frozen
class Choice:
    index: int
    """Into the view's ranks."""
    reason: str
    terms: Sequence[tuple[float, ...]]
    """Parallel to the view's ranks; each parallel to the policy's `term_names`."""
    costs: Sequence[float]


class Policy(Protocol):
    """One way to route. A policy owns its memory, if it needs any, and bounds it."""

    @property
    def name(self) -> str: ...

    @property
    def term_names(self) -> tuple[str, ...]: ...

    def choose(self, view: RouteView) -> Choice: ...

    def remember(self, asked: RouteAsked, rank: Rank) -> None:
        """The request was booked there."""
        ...

    def digest_state(self) -> str: ...


def first_from(indexes: Sequence[int], view: RouteView) -> int:
    """Of these indexes the one whose rank comes first from the cursor on, cyclically."""
    ranks, cursor = view.ranks, view.cursor
    for index in indexes:
        if ranks[index].rank >= cursor:
            return index
    return indexes[0]


def least(costs: Sequence[float], view: RouteView) -> int:
    """Index of the least cost; exact ties go by the cursor."""
    smallest = min(costs)
    return first_from([index for index, cost in enumerate(costs) if cost == smallest], view)
