"""What a routing policy may see: the ranks that could take a request, as values, and what each would have to do."""

from collections.abc import Sequence
from typing import Protocol

import attrs

from lmpool.core.booking import Account
from lmpool.core.cost import prefill_ns, step_ns
from lmpool.core.ids import Epoch, Nanos, Rank
from lmpool.core.messages.ingress_control import RouteAsked
from lmpool.core.messages.worker_control import Load, WorkerJoined
from lmpool.core.rates import Rates

IN_TIME = {"marginal-time": "least marginal time", "mooncake": "least predicted time to first token"}
"""Policies that reckon in time, so that blocks sent can be weighed against blocks computed; and what each minimises."""


@attrs.define
class RankView:
    """An eligible rank as its last report and its open bookings have it.

    Read only, like `RouteView` and `Choice`; none is frozen, because that takes four times as long to make.
    """

    rank: Rank
    epoch: Epoch
    holder: int
    """Its bit in the page table."""
    rates: Rates
    tokens_max: int
    step_tokens_max: int
    sequences_max: int
    block_size: int
    blocks: int
    load: Load
    """As reported last."""
    blocks_open: int
    """Free or reclaimable, less those that booked prefill will take."""
    blocks_free: int
    """Free, less those that unseen bookings will take."""
    requests: int
    """In flight: open bookings."""
    present: int
    """Choices there: decoding, and booked ones that do not decode yet."""
    decoding: int
    context: int
    """Tokens that the sequences there have or will have computed."""
    decoding_context: int
    account: Account
    """Read only. A view is made anew whenever it changes."""
    routed_tokens: int
    """Uncached tokens of all requests ever routed there."""
    step_ns: float
    """One step of its decodes, without prefill."""
    present_step_ns: float
    """The same once everybody who is there decodes."""
    pending_ns: float
    """When the running step began: that step, and all prefill booked there and not done with its steps."""
    step_began_ns: Nanos
    step_cost_ns: Nanos
    """0 when no step runs."""


def view_rank(
    rank: Rank,
    epoch: Epoch,
    holder: int,
    facts: WorkerJoined,
    load: Load,
    rates: Rates,
    account: Account,
    routed_tokens: int,
) -> RankView:
    decoding, decoding_context, prefill_tokens = load.decoding, load.decoding_context, account.prefill_tokens
    decode_ns = step_ns(rates, decoding, decoding_context)
    steps = -(-prefill_tokens // facts.step_tokens_max)
    queue_ns = prefill_ns(rates, prefill_tokens, account.prefill_pairs) + steps * decode_ns
    running_ns = load.step_cost_ns if load.step_began_ns is not None else Nanos(0)
    block_size = facts.block_size
    present, context = decoding + account.prefilling, decoding_context + prefill_tokens
    # By position and in the order of the fields, because a booking makes a view and names take longer.
    return RankView(
        rank,
        epoch,
        holder,
        rates,
        facts.model_tokens_max,
        facts.step_tokens_max,
        facts.sequences_max,
        block_size,
        facts.blocks,
        load,
        load.blocks_free + load.blocks_cached - -(-prefill_tokens // block_size),
        load.blocks_free - account.unseen_tokens // block_size,
        account.requests,
        present,
        decoding,
        context,
        decoding_context,
        account,
        routed_tokens,
        decode_ns,
        step_ns(rates, present, context),
        # A running chunk is part of the prefill that is not done; a step that only decodes comes on top of it.
        max(queue_ns, running_ns) if load.prefilling else queue_ns + running_ns,
        load.step_began_ns or Nanos(0),
        running_ns,
    )


def room_wait_ns(view: RankView, tokens: int, choices: int, output_mean: float) -> float:
    """Until enough of the sequences there have ended to leave blocks and places for a request. 0 if there are.

    Sequences there end evenly over the time of one mean output; each gives back the blocks of a mean context.
    """
    blocks_short = -(-tokens // view.block_size) + choices - view.blocks_open
    places_short = view.present + choices - view.sequences_max
    if (blocks_short <= 0 and places_short <= 0) or view.present == 0:
        return 0.0
    blocks_each = max(view.context // (view.present * view.block_size), 1)
    ends = max(-(-blocks_short // blocks_each), places_short)
    return ends * output_mean * view.step_ns / view.present


def outlook(
    views: Sequence[RankView], known: Sequence[int], asked: RouteAsked, now: Nanos, output_mean: float
) -> tuple[list[int], list[float]]:
    """Tokens that each rank would compute after so many known blocks, and nanoseconds until it could begin."""
    prompt, choices = asked.prompt_tokens, asked.choices
    tokens: list[int] = []
    waits: list[float] = []
    for index, view in enumerate(views):
        missing = prompt - known[index] * view.block_size
        uncached = missing if missing > 1 else 1  # the last token is always computed
        elapsed = now - view.step_began_ns
        wait = view.pending_ns - (elapsed if elapsed < view.step_cost_ns else view.step_cost_ns)
        if view.blocks_open < uncached // view.block_size + 1 + choices or view.sequences_max < view.present + choices:
            wait += room_wait_ns(view, uncached, choices, output_mean)
        tokens.append(uncached)
        waits.append(wait)
    return tokens, waits


@attrs.define
class Lineup:
    """All ranks, as membership has them. Read only."""

    eligible: tuple[RankView, ...]
    """In the order of their numbers."""
    numbers: tuple[Rank, ...]
    """Theirs."""
    leaving: tuple[RankView, ...]
    """Draining ranks of which is known what they hold; in the order of their numbers, and absent as well."""
    absent: tuple[tuple[Rank, str], ...]
    """The others, each with the reason."""
    holders: int
    """Bits of the eligible ranks."""
    tokens_least: int
    tokens_most: int
    """Longest context that every and that any eligible rank can hold; 0 without."""


def line_up(
    eligible: tuple[RankView, ...], leaving: tuple[RankView, ...], absent: tuple[tuple[Rank, str], ...]
) -> Lineup:
    limits = [view.tokens_max for view in eligible]
    return Lineup(
        eligible,
        tuple([view.rank for view in eligible]),
        leaving,
        absent,
        sum(view.holder for view in eligible),
        min(limits, default=0),
        max(limits, default=0),
    )


def with_views(lineup: Lineup, eligible: tuple[RankView, ...], leaving: tuple[RankView, ...]) -> Lineup:
    """The same ranks under another load."""
    tokens = lineup.tokens_least, lineup.tokens_most
    return Lineup(eligible, lineup.numbers, leaving, lineup.absent, lineup.holders, *tokens)


@attrs.define
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
    known: Sequence[int]
    """Both."""
    uncached: Sequence[int]
    """Tokens to compute, at least 1."""
    waits: Sequence[float]
    """Nanoseconds until the rank could begin."""
    fetch_ns: Sequence[float]
    """Nanoseconds until a transfer has brought what `uncached` counts on; 0 where none does. Perhaps longer."""
    rent_ns: Sequence[float]
    """What later requests compute again because of that transfer; 0 where none is begun."""
    chain_blocks: int
    output_mean: float
    arrivals_per_ns: float
    """L: per eligible rank."""
    busy_share: float
    """rho: booked prefill time per time and eligible rank."""
    cursor: int
    """Ties go to the first rank from here on, cyclically."""


@attrs.define
class Choice:
    index: int
    """Into the view's ranks."""
    reason: str
    terms: Sequence[float]
    """Flat: the policy's `term_names` of the first rank, then of the next."""
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


def drawn(costs: Sequence[float], view: RouteView) -> int:
    """Index of the least cost; exact ties go by the chance that came with the question."""
    smallest = min(costs)
    tied = [index for index, cost in enumerate(costs) if cost == smallest]
    return tied[view.asked.draw % len(tied)]
