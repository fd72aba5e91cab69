from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lmpool.core.ids import SECOND, Nanos
from lmpool.core.limits import TRANSFER_BLOCKS_MAX
from lmpool.core.placement.price import (
    BUCKETS,
    CORRECTION_MAX,
    FACTOR_MAX,
    FORGET_NS,
    WINDOW,
    PairCurve,
    Price,
    TransferPrices,
    TransferProfile,
    assumed_profile,
    bucket_of,
)
from tests.core.places import MILLI, flat_prices, pair, point, profile

PAIR = pair(0, 1)
CURVE = profile(point(1, (1, 2), (3, 9)), point(8, (6, 9), (3, 10)), point(64, (40, 50), (4, 12)))
SIZES = st.integers(1, TRANSFER_BLOCKS_MAX)
TIMES = st.integers(1, 10**12).map(Nanos)
POINT = st.tuples(*[st.floats(0, 1e3, allow_nan=False)] * 4)


def seen(prices: TransferPrices, milliseconds: float, times: int, blocks: int = 8) -> None:
    for _ in range(times):
        prices.observe(Nanos(0), PAIR, blocks, prices.price(PAIR, blocks), Nanos(round(milliseconds * MILLI)))


def milliseconds(price: Price) -> tuple[float, float]:
    return price.median_ns / MILLI, price.p95_ns / MILLI


def test_every_size_has_a_bucket() -> None:
    assert [bucket_of(blocks) for blocks in (1, 2, 3, 4, 5, 64, 65)] == [0, 1, 2, 2, 3, 6, 7]
    assert bucket_of(TRANSFER_BLOCKS_MAX) == BUCKETS - 1


def test_a_price_follows_what_is_observed_up_and_down() -> None:
    prices = TransferPrices(CURVE)
    before = milliseconds(prices.price(PAIR, 8))
    seen(prices, 20, WINDOW)
    assert milliseconds(prices.price(PAIR, 8)) == pytest.approx((20, 20))
    seen(prices, 3, 2 * WINDOW)
    assert milliseconds(prices.price(PAIR, 8)) == pytest.approx((3, 3))
    assert before[0] > 3


def test_one_outlier_moves_no_price() -> None:
    prices = TransferPrices(CURVE)
    before = [milliseconds(prices.price(PAIR, blocks)) for blocks in (1, 8, 16, 64, 500)]
    seen(prices, 100_000, 1, blocks=16)
    assert [milliseconds(prices.price(PAIR, blocks)) for blocks in (1, 8, 16, 64, 500)] == before


def test_outliers_of_one_size_do_not_price_sizes_that_were_observed() -> None:
    prices = TransferPrices(CURVE)
    seen(prices, 50, WINDOW, blocks=64)
    seen(prices, 1_000, 10, blocks=16)
    assert milliseconds(prices.price(PAIR, 64)) == pytest.approx((50, 50))


def test_a_price_that_closed_its_gate_is_tried_again() -> None:
    prices = TransferPrices(CURVE)
    calibrated = milliseconds(prices.price(PAIR, 8))
    seen(prices, 10_000, WINDOW)
    assert milliseconds(prices.price(PAIR, 8))[1] > 5 * calibrated[1]
    prices.forget(Nanos(FORGET_NS - 1))
    assert milliseconds(prices.price(PAIR, 8))[1] > 5 * calibrated[1]
    prices.forget(FORGET_NS)
    assert milliseconds(prices.price(PAIR, 8)) == calibrated


def test_sizes_without_observations_go_with_their_neighbours() -> None:
    prices, calibrated = TransferPrices(CURVE), TransferPrices(CURVE)
    seen(prices, 2 * calibrated.price(PAIR, 4).median_ns / MILLI, WINDOW, blocks=4)
    seen(prices, 4 * calibrated.price(PAIR, 64).median_ns / MILLI, WINDOW, blocks=64)
    factors = [
        prices.price(PAIR, blocks).median_ns / calibrated.price(PAIR, blocks).median_ns
        for blocks in (1, 4, 8, 16, 32, 64, 4096)
    ]
    assert factors == pytest.approx([2, 2, 2.5, 3, 3.5, 4, 4])


def test_pairs_without_observations_go_with_all_others() -> None:
    prices = TransferPrices(CURVE)
    other = prices.price(pair(1, 0), 8)
    seen(prices, 2 * other.median_ns / MILLI, WINDOW)
    assert prices.price(pair(1, 0), 8).median_ns == pytest.approx(2 * other.median_ns)
    for _ in range(WINDOW):
        prices.observe(Nanos(0), pair(1, 0), 8, other, Nanos(round(other.median_ns)))
    assert prices.price(pair(1, 0), 8).median_ns == pytest.approx(other.median_ns, rel=1e-6)
    assert prices.price(PAIR, 8).median_ns == pytest.approx(2 * other.median_ns, rel=1e-6)


def test_a_pair_that_was_not_calibrated_has_the_median_of_the_others() -> None:
    curves = [PairCurve(pair(0, target), (point(1, (target, 2 * target), (0, 0)),)) for target in (1, 2, 3)]
    prices = TransferPrices(TransferProfile(1.0, tuple(curves)))
    assert milliseconds(prices.price(pair(3, 2), 10)) == pytest.approx((20, 40))


def test_without_calibration_a_gibibyte_takes_a_second() -> None:
    prices = TransferPrices(assumed_profile(1 << 20))
    price = prices.price(PAIR, 1024)
    assert price.median_ns / SECOND == pytest.approx(1.2, rel=0.01)
    assert price.p95_ns / SECOND == pytest.approx(2.4, rel=0.02)


def test_the_prediction_error_is_told() -> None:
    prices = flat_prices(10, 20)
    for took in (8, 12, 30):
        prices.observe(Nanos(0), PAIR, 1, Price(10 * MILLI, 20 * MILLI), Nanos(round(took * MILLI)))
    errors = prices.errors
    assert (errors.observed, errors.observed_ns, errors.error_ns) == (3, 50 * MILLI, 24 * MILLI)
    assert (errors.over_median, errors.over_p95) == (2, 1)


@given(st.lists(st.tuples(st.integers(1, 300), POINT), min_size=1, max_size=6, unique_by=lambda row: row[0]), SIZES)
def test_calibrated_prices_do_not_fall_with_the_size(
    rows: list[tuple[int, tuple[float, float, float, float]]], blocks: int
) -> None:
    points = [point(size, (low, high), (left, right)) for size, (low, high, left, right) in sorted(rows)]
    prices = TransferPrices(profile(*points))
    found = [prices.price(PAIR, size) for size in sorted({1, blocks, blocks + 1, 2 * blocks} - {0}) if size <= 1 << 14]
    for price in found:
        assert 0 <= price.median_ns <= price.p95_ns
    for one, other in pairwise(found):
        assert one.median_ns <= other.median_ns * (1 + 1e-9)
        assert one.p95_ns <= other.p95_ns * (1 + 1e-9)


@given(
    st.lists(st.tuples(st.integers(0, 2), st.integers(0, 2), SIZES, TIMES, st.integers(0, 10**12)), max_size=60),
    SIZES,
)
def test_whatever_is_observed_prices_stay_bounded_and_the_p95_above_the_median(
    rows: list[tuple[int, int, int, Nanos, int]], blocks: int
) -> None:
    prices, calibrated = TransferPrices(CURVE), TransferPrices(CURVE)
    now = Nanos(0)
    for source, target, size, took, pause in rows:
        now = Nanos(now + pause)
        before = prices.price(pair(source, target), size)
        prices.forget(now)
        prices.observe(now, pair(source, target), size, before, took)
        prices.audit()
    for source in range(3):
        for target in range(3):
            price = prices.price(pair(source, target), blocks)
            known = calibrated.price(pair(source, target), blocks)
            assert 0 < price.median_ns <= price.p95_ns
            assert known.median_ns / CORRECTION_MAX * 0.99 <= price.median_ns <= known.median_ns * CORRECTION_MAX * 1.01
            assert price.p95_ns <= max(known.median_ns * CORRECTION_MAX, known.p95_ns) * 1.01


@given(SIZES, st.floats(1 / 60, 60), st.lists(TIMES, max_size=30))
def test_prices_converge_to_a_steady_time_from_wherever_they_are(
    blocks: int, factor: float, earlier: list[Nanos]
) -> None:
    prices = TransferPrices(CURVE)
    for took in earlier:
        prices.observe(Nanos(0), PAIR, blocks, prices.price(PAIR, blocks), took)
    steady = TransferPrices(CURVE).price(PAIR, blocks).median_ns * factor
    for _ in range(8 * WINDOW):
        prices.observe(Nanos(0), PAIR, blocks, prices.price(PAIR, blocks), Nanos(round(steady)))
    assert prices.price(PAIR, blocks).median_ns == pytest.approx(steady, rel=1e-3)
    assert prices.price(PAIR, blocks).p95_ns == pytest.approx(steady, rel=1e-3)


def test_no_correction_is_larger_than_a_slow_link_explains() -> None:
    for time, factor in ((1e9, CORRECTION_MAX), (1e-3, 1 / CORRECTION_MAX)):
        prices = TransferPrices(CURVE)
        before = prices.price(PAIR, 8).median_ns
        seen(prices, time, 20 * WINDOW)
        assert prices.price(PAIR, 8).median_ns == pytest.approx(before * factor)


@given(TIMES, SIZES)
def test_one_observation_moves_a_price_by_a_bounded_step(took: Nanos, blocks: int) -> None:
    prices = TransferPrices(CURVE)
    seen(prices, 20, WINDOW, blocks)
    before = prices.price(PAIR, blocks)
    prices.observe(Nanos(0), PAIR, blocks, before, took)
    after = prices.price(PAIR, blocks)
    for one, other in ((before.median_ns, after.median_ns), (before.p95_ns, after.p95_ns)):
        assert one / FACTOR_MAX * 0.999 <= other <= one * FACTOR_MAX * 1.001
