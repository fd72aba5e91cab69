import pytest

from lmpool.bench.load.figures import Bounds, figures, percentile
from lmpool.bench.load.measured import Gap, Measured, Piece, token_gaps_ns
from lmpool.core.ids import MILLISECOND, SECOND, Nanos


def measured(number: int, planned_ms: int, content_ms: tuple[int, ...], tokens: int, fault: str = "") -> Measured:
    pieces = tuple(Piece(Nanos(at * MILLISECOND), None) for at in content_ms)
    planned = Nanos(planned_ms * MILLISECOND)
    closed = Nanos((content_ms[-1] if content_ms else planned_ms) * MILLISECOND)
    return Measured(number, "", planned, planned, pieces, closed, 100, 40, tokens, tokens, fault, "")


TWO = (measured(0, 0, (100, 200), 10), measured(1, 1_000, (1_800, 2_000), 30))
RESUMED = (False, True)


def test_throughput_counts_output_tokens_of_successes_over_the_window() -> None:
    failed = measured(2, 1_500, (), 0, "timeout")
    found = figures((*TWO, failed), (*RESUMED, False), (), Bounds(None, None))
    assert found.window_s == 2.0
    assert found.throughput == 20.0
    assert (found.prompt_tokens, found.cached_tokens, found.output_tokens) == (200, 80, 40)
    assert found.errors == {"timeout": 1}


@pytest.mark.parametrize(
    ("bounds", "goodput"),
    [
        (Bounds(None, None), 20.0),
        (Bounds(0.5, None), 5.0),
        (Bounds(None, 0.999), 5.0),
        (Bounds(None, 1.0), 20.0),
        (Bounds(0.05, 9.0), 0.0),
    ],
)
def test_goodput_counts_only_what_keeps_the_bounds(bounds: Bounds, goodput: float) -> None:
    assert figures(TWO, RESUMED, (), bounds).goodput == goodput


def test_requests_under_way_are_counted_between_sending_and_the_end() -> None:
    pair = (measured(0, 0, (100,), 1), measured(1, 50, (150,), 1), measured(2, 100, (200,), 1))
    found = figures(pair, (False,) * 3, (), Bounds(None, None))
    assert found.in_flight_most == 2
    assert found.in_flight_mean == pytest.approx(1.5)


def test_a_run_without_successes_has_no_times() -> None:
    found = figures((measured(0, 0, (), 0, "connect"),), (False,), (), Bounds(None, None))
    assert (found.ttft_s, found.e2e_s, found.throughput, found.successes) == (None, None, 0.0, 0)


def test_percentiles_lie_between_their_neighbours() -> None:
    assert percentile([1.0], 99) == 1.0
    assert percentile([0.0, 10.0], 50) == 5.0
    assert percentile([float(value) for value in range(101)], 95) == 95.0


def test_a_gap_is_shared_by_its_tokens_and_one_without_any_lengthens_the_next() -> None:
    gaps = (Gap(Nanos(8), 4), Gap(Nanos(1), 0), Gap(Nanos(5), 3))
    assert token_gaps_ns(gaps) == [2.0] * 4 + [2.0] * 3
    assert token_gaps_ns((*gaps, Gap(Nanos(SECOND), None))) is None
