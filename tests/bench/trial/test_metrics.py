import attrs
import pytest

from lmpool.bench.trial.metrics import METRICS, metrics
from tests.bench.trial.made import EVIDENCE


def test_figures_are_those_of_a_hand_computation() -> None:
    """Times to first token are 20, 40, 30 and 60 ms, to last 60, 80, 90 and 120, in a window of 210."""
    found = metrics(EVIDENCE)
    expected = {
        "throughput": 12 / 0.21,
        "goodput": 9 / 0.21,
        "completion_s": 0.21,
        "ttft_mean_s": 0.0375,
        "ttft_p50_s": 0.035,
        "ttft_p90_s": 0.054,
        "ttft_p99_s": 0.0594,
        "resumed_ttft_mean_s": 0.045,
        "resumed_ttft_p95_s": 0.0585,
        "tpot_mean_s": 0.025,
        "tpot_p99_s": 0.03,
        "e2e_mean_s": 0.0875,
        "e2e_p90_s": 0.111,
        "e2e_p99_s": 0.1191,
        "queued_mean_s": 0.00375,
        "prompt_tokens": 260,
        "output_tokens": 12,
        "uncached_tokens": 228,
        "computed_tokens": 238,
        "cached_tokens": 32,
        "reuse": 32 / 260,
        "request_hit": 0.25,
        "preemptions": 1,
        "transfers": 2,
        "transferred_blocks": 15,
        "fetched_routes": 0,
        "routed_share_most": 0.75,
        "routed_0": 3,
        "routed_1": 1,
    }
    assert found == pytest.approx(expected)
    assert list(found) == list(expected)


def test_what_cannot_be_counted_is_left_out() -> None:
    alone = attrs.evolve(
        EVIDENCE,
        spec=attrs.evolve(EVIDENCE.spec, e2e_max_s=None),
        workload=attrs.evolve(EVIDENCE.workload, continues=(None,) * 4),
    )
    missing = [name for name in METRICS if name not in metrics(alone)]
    assert missing == ["goodput", "resumed_ttft_mean_s", "resumed_ttft_p95_s"]
    assert not any(METRICS[name].is_always for name in missing)
