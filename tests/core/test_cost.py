import pytest
from hypothesis import given
from hypothesis import strategies as st

from lmpool.core.cost import (
    DECAY_NS,
    Traffic,
    prefill_ns,
    prefill_pairs,
    smooth_output,
    smooth_rates,
    step_ns,
    traffic_after,
    traffic_rates,
)
from lmpool.core.ids import SECOND, Nanos
from lmpool.core.rates import Rates

RATES = Rates(1e6, 1e5, 2.0, 2e5, 10.0)


def test_prefill_is_quadratic_in_context() -> None:
    assert prefill_pairs(4, 0) == 0 + 1 + 2 + 3
    assert prefill_pairs(2, 10) == 10 + 11
    assert prefill_ns(RATES, 2, prefill_pairs(2, 10)) == 2 * 1e5 + 2.0 * 21
    assert step_ns(RATES, 3, 100) == 1e6 + 3 * 2e5 + 100 * 10.0


@given(st.integers(0, 5_000), st.integers(0, 5_000), st.integers(0, 5_000))
def test_prefill_in_chunks_costs_what_it_costs_at_once(first: int, second: int, context: int) -> None:
    whole = prefill_pairs(first + second, context)
    assert whole == prefill_pairs(first, context) + prefill_pairs(second, context + first)


def test_rates_follow_reports_smoothly() -> None:
    rates = RATES
    for _ in range(20):
        rates = smooth_rates(rates, Rates(2e6, 2e5, 4.0, 4e5, 20.0))
    assert rates.prefill == pytest.approx(2e5, rel=0.01)
    assert smooth_rates(RATES, RATES) == RATES


def test_mean_output_follows_what_ends() -> None:
    assert smooth_output(128.0, 0, 0) == 128.0
    assert 128.0 < smooth_output(128.0, 1, 256) < 131.0
    assert smooth_output(128.0, 1_000, 20_000) == pytest.approx(20.0, rel=0.01)


def test_traffic_is_what_was_routed_per_time() -> None:
    traffic = Traffic(0.0, 0.0, Nanos(0))
    for tenth in range(1, 1_801):
        traffic = traffic_after(traffic, Nanos(tenth * SECOND // 10), 0.05 * SECOND)
    arrivals, busy = traffic_rates(traffic, Nanos(180 * SECOND))
    assert arrivals * SECOND == pytest.approx(10.0, rel=0.01)
    assert busy == pytest.approx(0.5, rel=0.01)
    later, _ = traffic_rates(traffic, Nanos(180 * SECOND + DECAY_NS))
    assert later == pytest.approx(arrivals / 2.718, rel=0.01)
