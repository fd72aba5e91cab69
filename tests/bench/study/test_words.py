import pytest

from lmpool.bench.study.statistic import Estimate
from lmpool.bench.study.words import estimate_text, metric_name, number


@pytest.mark.parametrize(
    ("value", "text"),
    [(0.0, "0"), (1_234_567.8, "1,234,568"), (999.94, "999.9"), (0.012341, "0.01234"), (-0.00001234, "-1.23e-05")],
)
def test_numbers_have_four_digits_or_are_whole(value: float, text: str) -> None:
    assert number(value) == text


def test_an_estimate_has_its_interval_where_there_is_one() -> None:
    assert estimate_text(Estimate(5, 2.0, 1.5, 2.5)) == "2 [1.5, 2.5]"
    assert estimate_text(Estimate(1, 2.0, None, None)) == "2"
    assert estimate_text(None) == ""


@pytest.mark.parametrize(
    ("metric", "name"),
    [
        ("resumed_ttft_mean_s", "resumed ttft mean, s"),
        ("computed_tokens", "computed tokens"),
        ("throughput", "throughput, tokens/s"),
        ("reuse", "reuse"),
    ],
)
def test_a_metric_is_named_with_its_unit(metric: str, name: str) -> None:
    assert metric_name(metric) == name
