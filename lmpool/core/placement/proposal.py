"""A transfer that may be worth its price: what it would bring, what it would take, and what speaks against it.

`specs/placement.md` has the formulas; `placement.py` makes proposals and `fetch.py` those of a request.
"""

from collections.abc import Mapping
from enum import Enum

import attrs

from lmpool.core.cost import prefill_ns, prefill_pairs
from lmpool.core.ids import MILLISECOND, SECOND, BlockHash, Epoch, Nanos, Rank, TransferId
from lmpool.core.messages.transfer import CopyMeans, TransferMode
from lmpool.core.placement.price import Pair, Price
from lmpool.core.prefix import HASH_BYTES, chain_length, hash_at
from lmpool.core.rates import Rates

LATE_NS = float(MILLISECOND)
"""What a transfer that should be over still takes, as others reckon: never nothing, or its ranks would look free."""


class Occasion(Enum):
    PULL = "pull"
    """A request goes to a rank that lacks what another one has."""
    COPY = "copy"
    """A chain that many ask for, to a rank with a shorter queue."""
    MOVE = "move"
    """From a rank that reclaims to one that has blocks to spare."""
    DRAIN = "drain"
    """From a rank that is to stop."""


class Gate(Enum):
    """Why a proposal is not carried out. In the order in which they are asked."""

    ASKED_ONCE = "asked once"
    """Nobody has come back for the chain."""
    TOO_SHORT = "too short"
    ARRIVING = "arriving"
    """A request computes it there already."""
    CHAIN_TAKEN = "chain taken"
    """A transfer of it is under way, or a better one is admitted."""
    CHAIN_COOLS = "chain cools"
    """The same transfer was tried or done lately."""
    RANK_COOLS = "rank cools"
    """A transfer of one of the two ranks failed lately."""
    NO_ROOM = "no room"
    """The target would have too few blocks left."""
    NOT_WORTH_IT = "not worth it"
    """It saves less than its price, with a margin."""
    RANK_BUSY = "rank busy"
    """The source sends, or the target receives, another transfer."""
    TOO_MANY = "too many"
    """As many transfers run as may."""


@attrs.frozen
class PlacementSettings:
    """Bounds of what is proposed and admitted."""

    safety_ratio: float
    """Saved time over the P95 of the price, at least."""
    blocks_min: int
    """Shorter transfers are all overhead."""
    blocks_max: int
    """Longer ones go in parts, so that none holds its ranks for long. The next part begins where this one ends."""
    transfers_max: int
    """At once, over all ranks."""
    visits_min: int
    """Before a chain is placed without a request."""
    chains_max: int
    """Looked at in one planning: the hottest."""
    targets_max: int
    """Looked at for each of them: those with the shortest waits."""
    pause_ns: Nanos
    """Between two plannings."""
    horizon_ns: Nanos
    """How long the difference of two queues is taken to last."""
    reuse_discount: float
    """Of past visits: what part of them is expected to come again."""
    reuses_max: float
    """Expected ones that count: what is used often is kept or computed again after the first."""
    room_share: float
    """Of the target's blocks: what must be left there."""
    pressure_share: float
    """Of the source's blocks: with fewer free ones it is about to reclaim."""
    pair_wait_max_ns: Nanos
    """How long a pull may wait for its ranks to be done with others."""
    chain_pause_ns: Nanos
    """Before the same part of a chain is sent to the same rank again. Doubles with each failure."""
    rank_pause_ns: Nanos
    """After a transfer failed, for both of its ranks."""
    lease_ns: Nanos
    """How long a chain that was placed without a request is kept for its first use."""
    lease_share: float
    """Of a rank's blocks: what may be leased."""


USUAL = PlacementSettings(
    safety_ratio=1.5,
    blocks_min=4,
    blocks_max=1024,
    transfers_max=8,
    visits_min=2,
    chains_max=16,
    targets_max=4,
    pause_ns=Nanos(100 * MILLISECOND),
    horizon_ns=Nanos(12 * SECOND),
    reuse_discount=0.5,
    reuses_max=4.0,
    room_share=1 / 16,
    pressure_share=1 / 16,
    pair_wait_max_ns=Nanos(0),
    chain_pause_ns=Nanos(5 * SECOND),
    rank_pause_ns=SECOND,
    lease_ns=Nanos(10 * SECOND),
    lease_share=1 / 8,
)
"""`specs/placement.md` has the reasons."""


@attrs.define
class Underway:
    """A transfer that control has begun. Read only."""

    transfer: TransferId
    pair: Pair
    epochs: tuple[Epoch, Epoch]
    chain: bytes = attrs.field(repr=False)
    began: Nanos
    price: Price

    def remaining_ns(self, now: Nanos) -> float:
        """By its median; when that has passed, by its P95; a late one may end at any time."""
        elapsed = now - self.began
        median, p95 = self.price.median_ns, self.price.p95_ns
        return max((median if elapsed < median else p95) - elapsed, LATE_NS)


@attrs.define
class Conditions:
    """What speaks against a proposal beside its price. Read only."""

    paths: Mapping[Pair, CopyMeans]
    """All pairs that can."""
    underway: tuple[Underway, ...]
    chain_until: Mapping[tuple[BlockHash, Rank], Nanos]
    """Last block and target -> when it has cooled."""
    rank_until: Mapping[Rank, Nanos]
    leased: Mapping[Rank, int]
    """Blocks."""
    rents: Mapping[Rank, float]
    """Tokens a block; of a rank that is absent, nobody knows."""


@attrs.define
class Proposal:
    """Read only."""

    occasion: Occasion
    pair: Pair
    epochs: tuple[Epoch, Epoch]
    """Of source and target: it is void in any other life of them."""
    mode: TransferMode
    means: CopyMeans
    chain: bytes = attrs.field(repr=False)
    """Packed, from its first block to the last that is wanted."""
    first: int
    """Blocks that the target has."""
    blocks: int
    joins: TransferId | None
    """Nothing is to be begun: this one brings it."""
    wait_ns: float
    """Until the two ranks are done with others."""
    price: Price
    prefill_ns: float
    """Of these blocks, at the target."""
    visitors: float
    """Who would compute them, or wait elsewhere, without it."""
    saved_ns: float
    """By all of them together."""
    rent_ns: float
    """What others lose of it: blocks that it pushes out would have saved so much."""
    lease_ns: Nanos
    """0: no lease."""
    gate: Gate | None
    """None: admitted."""

    @property
    def gain_ns(self) -> float:
        return self.saved_ns - self.rent_ns

    @property
    def arrives_ns(self) -> float:
        """Until its blocks can be used."""
        return self.wait_ns + self.price.median_ns

    @property
    def last(self) -> BlockHash:
        return hash_at(self.chain, chain_length(self.chain) - 1)

    @property
    def reason(self) -> str:
        """In words."""
        what = f"{self.blocks} blocks from rank {self.pair.source} to rank {self.pair.target}"
        saves = f"would save {self.saved_ns / MILLISECOND:.1f} ms of {self.visitors:.1f} requests"
        if self.rent_ns:
            saves += f", {self.rent_ns / MILLISECOND:.1f} ms less for what it pushes out,"
        if self.joins is None:
            costs = (
                f"takes {self.price.median_ns / MILLISECOND:.1f} ms, at P95 {self.price.p95_ns / MILLISECOND:.1f} ms"
            )
        else:
            costs = f"is on its way for another {self.wait_ns / MILLISECOND:.1f} ms"
        verdict = "admitted" if self.gate is None else f"refused: {self.gate.value}"
        return f"{self.occasion.value} of {what} {saves} and {costs}; {verdict}"


def chain_prefill_ns(rates: Rates, block_size: int, first: int, blocks: int) -> float:
    """To compute so many blocks after the first ones, without the steps' own time."""
    tokens = blocks * block_size
    return prefill_ns(rates, tokens, prefill_pairs(tokens, first * block_size))


def busy_with(conditions: Conditions, pair: Pair) -> list[Underway]:
    """Transfers that its source sends or its target receives."""
    return [
        other for other in conditions.underway if other.pair.source == pair.source or other.pair.target == pair.target
    ]


def is_related(chain: bytes, other: bytes) -> bool:
    """One is the beginning of the other."""
    end = min(len(chain), len(other))
    return end > 0 and chain[end - HASH_BYTES : end] == other[end - HASH_BYTES : end]


def gate_of(
    now: Nanos, proposal: Proposal, room: int, settings: PlacementSettings, conditions: Conditions
) -> Gate | None:
    """What every occasion asks, in order. `room`: blocks left at the target, beyond what must be."""
    pair, price = proposal.pair, proposal.price
    if proposal.blocks < settings.blocks_min:
        return Gate.TOO_SHORT
    if conditions.chain_until.get((proposal.last, pair.target), now) > now:
        return Gate.CHAIN_COOLS
    if max(conditions.rank_until.get(pair.source, now), conditions.rank_until.get(pair.target, now)) > now:
        return Gate.RANK_COOLS
    if room < 0:
        return Gate.NO_ROOM
    if proposal.gain_ns <= proposal.wait_ns + price.p95_ns * settings.safety_ratio:
        return Gate.NOT_WORTH_IT
    wait_max_ns = settings.pair_wait_max_ns if proposal.occasion is Occasion.PULL else 0
    if proposal.wait_ns >= wait_max_ns and busy_with(conditions, pair):
        return Gate.RANK_BUSY
    if len(conditions.underway) >= settings.transfers_max:
        return Gate.TOO_MANY
    return None
