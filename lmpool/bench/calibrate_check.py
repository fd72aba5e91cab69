"""How well a calibration predicts transfers of sizes that it was not made from."""

from collections.abc import Sequence
from statistics import median
from typing import Any

import attrs

from lmpool.bench.table import table_lines
from lmpool.bench.transactions import Transaction, times
from lmpool.core.ids import SECOND, Rank
from lmpool.core.placement.price import Pair, TransferPrices
from lmpool.io.calibration import Calibration, transfer_profile
from lmpool.io.topology import RankPair

HELD_OUT = (3, 6, 12, 24, 48)
"""Blocks: between the sizes that are calibrated."""
ERROR_MAX = 0.25
COVERED = (0.90, 0.98)
"""Bounds on an idle machine."""
COLUMNS = ("pair", "blocks", "predicted ms", "took ms", "error", "P95 ms", "below it")


@attrs.frozen
class SizeCheck:
    pair: RankPair
    blocks: int
    predicted_p50_s: float
    predicted_p95_s: float
    took_p50_s: float
    error: float
    """Of the predicted median, as a share of the median that was seen."""
    covered: float
    """Share of times up to the predicted P95."""
    count: int


@attrs.frozen
class Check:
    """Of predictions as the file gives them, before anything is corrected by what is observed."""

    sizes: tuple[SizeCheck, ...]
    error: float
    """Median over pairs and sizes."""
    covered: float
    """Of all times."""

    @property
    def is_within(self) -> bool:
        return self.error <= ERROR_MAX and COVERED[0] <= self.covered <= COVERED[1]


def check(calibration: Calibration, found: Sequence[Transaction]) -> Check:
    """Of at least one."""
    prices = TransferPrices(transfer_profile(calibration))
    keys = dict.fromkeys((one.pair, one.blocks) for one in found)
    sizes = tuple(
        _size_check(prices, pair, blocks, [one for one in found if (one.pair, one.blocks) == (pair, blocks)])
        for pair, blocks in sorted(keys)
    )
    covered = sum(each.covered * each.count for each in sizes) / sum(each.count for each in sizes)
    return Check(sizes, median(each.error for each in sizes), covered)


def _size_check(prices: TransferPrices, pair: RankPair, blocks: int, found: Sequence[Transaction]) -> SizeCheck:
    price = prices.price(Pair(Rank(pair[0]), Rank(pair[1])), blocks)
    predicted, p95, took = price.median_ns / SECOND, price.p95_ns / SECOND, times(found).p50_s
    return SizeCheck(
        pair=pair,
        blocks=blocks,
        predicted_p50_s=predicted,
        predicted_p95_s=p95,
        took_p50_s=took,
        error=abs(predicted - took) / took,
        covered=sum(one.took_s <= p95 for one in found) / len(found),
        count=len(found),
    )


def check_document(checked: Check) -> dict[str, Any]:
    return attrs.asdict(checked) | {"is_within": checked.is_within}


def check_lines(name: str, checked: Check) -> list[str]:
    rows = [
        [
            f"{each.pair[0]}>{each.pair[1]}",
            str(each.blocks),
            f"{each.predicted_p50_s * 1e3:.2f}",
            f"{each.took_p50_s * 1e3:.2f}",
            f"{each.error:.0%}",
            f"{each.predicted_p95_s * 1e3:.2f}",
            f"{each.covered:.0%}",
        ]
        for each in checked.sizes
    ]
    return [
        f"other sizes, {name}: error of the median {checked.error:.1%}; {checked.covered:.1%} of times up to the P95",
        *table_lines(COLUMNS, rows),
    ]


def verdict(idle: Check) -> str:
    word = "within" if idle.is_within else "OUT OF"
    low, high = COVERED
    return f"{word} the bounds, which hold for idle replicas: error {ERROR_MAX:.0%}, P95 {low:.0%} to {high:.0%}"
