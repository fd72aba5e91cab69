"""Ranks, chains and prices as placement sees them, made by hand for tests."""

from collections.abc import Mapping, Sequence

from lmpool.core.ids import MILLISECOND, SECOND, BlockHash, Epoch, Nanos, Rank, TransferId
from lmpool.core.messages.transfer import CopyMeans
from lmpool.core.placement.demand import HotChain
from lmpool.core.placement.occasions import HeldChain, PlacementView, Site
from lmpool.core.placement.price import CurvePoint, Pair, PairCurve, Price, TransferPrices, TransferProfile
from lmpool.core.placement.proposal import Conditions, Underway
from lmpool.core.prefix import chain_length
from tests.core.plane import BLOCK_SIZE, RATES, chain

MILLI = float(MILLISECOND)
NOW = Nanos(1000 * SECOND)
POOL = 1_000


def pair(source: int, target: int) -> Pair:
    return Pair(Rank(source), Rank(target))


def paths(ranks: int) -> dict[Pair, CopyMeans]:
    """From each to each."""
    return {pair(one, other): CopyMeans.READ for one in range(ranks) for other in range(ranks) if one != other}


def point(blocks: int, copy: tuple[float, float], residual: tuple[float, float]) -> CurvePoint:
    """Median and P95, in milliseconds."""
    return CurvePoint(blocks, copy[0] * MILLI, copy[1] * MILLI, residual[0] * MILLI, residual[1] * MILLI)


def profile(*points: CurvePoint) -> TransferProfile:
    return TransferProfile(1.2, (PairCurve(pair(0, 1), points),))


def flat_prices(median: float, p95: float) -> TransferPrices:
    """The same for every pair and size, in milliseconds."""
    return TransferPrices(profile(point(1, (0, 0), (median, p95))))


def site(rank: int, *, wait: float = 0.0, free: int = 900, is_draining: bool = False) -> Site:
    """`wait` in milliseconds. What is free is all that is open."""
    return Site(Rank(rank), Epoch(1), 1 << rank, is_draining, RATES, BLOCK_SIZE, POOL, free, free, wait * MILLI)


def held(label: str, depths: Sequence[int], *, weight: float = 10.0, visits: int = 10) -> HeldChain:
    """As long as its deepest holder has it."""
    hot = HotChain(chain((label, max(depths))), weight, visits)
    return HeldChain(hot, depths, [0] * len(depths), [0.0] * len(depths))


def conditions(
    ranks: int,
    *,
    underway: Sequence[Underway] = (),
    chain_until: Mapping[tuple[BlockHash, Rank], Nanos] | None = None,
    rank_until: Mapping[Rank, Nanos] | None = None,
    leased: Mapping[Rank, int] | None = None,
    rents: Mapping[Rank, float] | None = None,
) -> Conditions:
    return Conditions(paths(ranks), tuple(underway), chain_until or {}, rank_until or {}, leased or {}, rents or {})


def underway(source: int, target: int, packed: bytes, *, price: tuple[float, float] = (15.0, 40.0)) -> Underway:
    """Begun just now."""
    assert chain_length(packed)
    times = Price(price[0] * MILLI, price[1] * MILLI)
    return Underway(
        TransferId(Epoch(1), 10 * source + target), pair(source, target), (Epoch(1), Epoch(1)), packed, NOW, times
    )


def placement_view(
    sites: Sequence[Site], chains: Sequence[HeldChain], found: Conditions | None = None
) -> PlacementView:
    return PlacementView(NOW, sites, chains, found or conditions(len(sites)))
