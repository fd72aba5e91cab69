"""The rule of the LMPool paper with its code's defaults; leases and the route cache are off. `specs/routing.md`."""

from collections.abc import Sequence

import attrs

from lmpool.core.fleet import Choice, RankView, RouteView
from lmpool.core.ids import Rank
from lmpool.core.messages.ingress_control import RouteAsked

RUNNING_WEIGHT = 0.25
SEQUENCE_TOKENS = 32.0
RECLAIM_WEIGHT = 0.5
OUTPUT_TOKEN_WEIGHT = 8
SPILL_PRESSURE = 2.0
SPILL_COST = 2048.0
BYPASS_COST = 512.0
PREFIX_SCORE = 8.0
LOAD_SCORE = 0.01
CAPACITY_SCORE = 0.05


@attrs.frozen
class Offer:
    """What one rank would have to do, in token equivalents."""

    index: int
    rank: Rank
    held: int
    """Contiguous ready blocks."""
    queue: float
    missing: float
    reclaim: float
    cost: float
    pressure: float
    capacity: int
    """Blocks that are or could be made free."""
    is_feasible: bool

    @property
    def score(self) -> float:
        return self.held * PREFIX_SCORE - self.queue * LOAD_SCORE + self.capacity * CAPACITY_SCORE


def _offer(view: RouteView, index: int, rank: RankView) -> Offer:
    size, account = rank.block_size, rank.account
    held = view.ready[index]
    blocks = max(-(-view.asked.prompt_tokens // size) - held, 0)
    waiting = account.prefilling_prompts + OUTPUT_TOKEN_WEIGHT * account.prefilling_outputs
    outputs_left = max(account.decoding_lengths - rank.decoding_context, 0)
    running = rank.decoding_context + OUTPUT_TOKEN_WEIGHT * outputs_left
    queue = waiting + RUNNING_WEIGHT * running + SEQUENCE_TOKENS * (rank.decoding + account.unseen_choices)
    missing = float(min(view.asked.prompt_tokens, blocks * size))
    reclaim = RECLAIM_WEIGHT * max(blocks - rank.blocks_free, 0) * size
    return Offer(
        index=index,
        rank=rank.rank,
        held=held,
        queue=queue,
        missing=missing,
        reclaim=reclaim,
        cost=queue + missing + reclaim,
        pressure=account.prefilling + 2.0 * rank.decoding,
        capacity=rank.blocks_open,
        is_feasible=rank.blocks_open >= blocks,
    )


def _cheapest(offers: Sequence[Offer]) -> Offer:
    return min(offers, key=lambda offer: (offer.cost, -offer.capacity, offer.rank))


def _decide(offers: Sequence[Offer]) -> tuple[Offer, str]:
    feasible = [offer for offer in offers if offer.is_feasible]
    cheapest = _cheapest(feasible or offers)
    holders = [offer for offer in offers if offer.held]
    if not holders:
        return cheapest, "no holder: least cost"
    owners = [offer for offer in holders if offer.is_feasible]
    if not owners:
        return (cheapest, "holders full: least cost") if feasible else (_cheapest(holders), "all full: holder")
    owner = min(owners, key=lambda offer: (offer.cost, -offer.score, offer.rank))
    partner = next((offer for offer in offers if offer.rank == owner.rank ^ 1), None)
    if partner is not None:
        spill = partner if partner.is_feasible else cheapest
        if owner.pressure - spill.pressure >= SPILL_PRESSURE and spill.cost <= owner.cost + SPILL_COST:
            return spill, "holder under pressure: spilled to its pair"
    if cheapest.cost + BYPASS_COST < owner.cost:
        return cheapest, "holder too costly: least cost"
    return owner, "holder of least cost"


class LMPoolPaper:
    __slots__ = ()
    name = "lmpool-paper"
    term_names = ("queue", "missing", "reclaim", "pressure")

    def choose(self, view: RouteView) -> Choice:
        offers = [_offer(view, index, rank) for index, rank in enumerate(view.ranks)]
        chosen, reason = _decide(offers)
        terms = [term for offer in offers for term in (offer.queue, offer.missing, offer.reclaim, offer.pressure)]
        return Choice(chosen.index, reason, terms, [offer.cost for offer in offers])

    def remember(self, asked: RouteAsked, rank: Rank) -> None:
        pass

    def digest_state(self) -> str:
        return ""
