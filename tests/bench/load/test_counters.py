import pytest

from lmpool.bench.load.counters import CacheCondition, PromptCounters, proof, read_counters

LMPOOL = """\
# HELP lmpool_prefill_tokens_computed_total Prefill tokens computed in this epoch.
# TYPE lmpool_prefill_tokens_computed_total counter
lmpool_prefill_tokens_computed_total{rank="0"} 300.0
lmpool_prefill_tokens_computed_total{rank="1"} 200.0
# HELP lmpool_prefill_tokens_cached_total Prompt tokens found cached in this epoch.
# TYPE lmpool_prefill_tokens_cached_total counter
lmpool_prefill_tokens_cached_total{rank="0"} 400.0
lmpool_prefill_tokens_cached_total{rank="1"} 100.0
"""
VLLM = """\
# TYPE vllm:prefix_cache_queries_total counter
vllm:prefix_cache_queries_total{engine="0"} 900.0
# TYPE vllm:prefix_cache_hits_total counter
vllm:prefix_cache_hits_total{engine="0"} 450.0
"""


def test_counters_are_summed_over_replicas() -> None:
    assert read_counters(LMPOOL) == ("lmpool", PromptCounters(500, 1_000))


def test_counters_of_peers_are_known() -> None:
    assert read_counters(VLLM) == ("vllm", PromptCounters(450, 900))


def test_pages_without_known_counters_prove_nothing() -> None:
    assert read_counters("# TYPE up gauge\nup 1.0\n") is None
    found = proof(CacheCondition.COLD, "none", None, None, 0.5)
    assert found.reuse is None
    assert found.doubts == ("the server counts nothing: it is not proven",)


@pytest.mark.parametrize(
    ("condition", "cached", "doubt"),
    [
        (CacheCondition.COLD, 500, ""),
        (CacheCondition.COLD, 100, ""),
        (CacheCondition.COLD, 900, "90.0% of the prompt tokens were cached, but the trace shares only 50.0%: not cold"),
        (CacheCondition.PRIMED, 900, ""),
        (
            CacheCondition.PRIMED,
            200,
            "20.0% of the prompt tokens were cached, less than the 50.0% of a cold start",
        ),
    ],
)
def test_a_condition_that_the_counters_contradict_is_doubted(
    condition: CacheCondition, cached: float, doubt: str
) -> None:
    found = proof(condition, "lmpool", PromptCounters(70, 100), PromptCounters(70 + cached, 1_100), 0.5)
    assert found.reuse == cached / 1_000
    assert found.doubts == ((doubt,) if doubt else ())


def test_counters_that_begin_anew_in_mid_run_are_no_proof() -> None:
    found = proof(CacheCondition.COLD, "lmpool", PromptCounters(70, 100), PromptCounters(10, 40), 0.5)
    assert found.reuse is None
    assert len(found.doubts) == 1
