"""A server's own counters of prompt tokens, before and after a run, as proof of its cache condition."""

from collections.abc import Mapping, Sequence
from enum import Enum
from typing import TypeAlias

import attrs
from prometheus_client.parser import text_string_to_metric_families

from lmpool.core.messages.ingress_control import RankState


class CacheCondition(Enum):
    COLD = "cold"
    """No prompt of the run was ever seen by the server."""
    PRIMED = "primed"
    """Each was asked once before."""


@attrs.frozen
class PromptCounters:
    """Tokens since the server's begin."""

    cached: float
    asked: float
    """Cached or computed."""


@attrs.frozen
class Proof:
    """What the counters say of the measured window."""

    condition: str
    source: str
    """Where the counts are from: the server's metrics, its answers, or nowhere."""
    cached_tokens: float | None
    prompt_tokens: float | None
    reuse: float | None
    """Cached over asked prompt tokens."""
    doubts: tuple[str, ...]


Names: TypeAlias = tuple[tuple[str, ...], tuple[str, ...]]
METRICS: dict[str, Names] = {
    "lmpool": (
        ("lmpool_prefill_tokens_cached_total",),
        ("lmpool_prefill_tokens_cached_total", "lmpool_prefill_tokens_computed_total"),
    ),
    "vllm": (("vllm:prefix_cache_hits_total",), ("vllm:prefix_cache_queries_total",)),
    "sglang": (("sglang:cached_tokens_total",), ("sglang:prompt_tokens_total",)),
}
"""Sums that are cached, and that were asked for, by server."""
TOLERANCE = 0.03
"""Of reuse: templates of chats, which traces do not know, and preempted sequences that come back."""


def read_counters(text: str) -> tuple[str, PromptCounters] | None:
    """Of a page in Prometheus' text format, and whose it is. None: there are none that we know. Raises ValueError."""
    sums: dict[str, float] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            sums[sample.name] = sums.get(sample.name, 0.0) + sample.value
    for server, (cached, asked) in METRICS.items():
        if all(name in sums for name in (*cached, *asked)):
            return server, PromptCounters(_sum(sums, cached), _sum(sums, asked))
    return None


def rank_counters(ranks: Sequence[RankState]) -> PromptCounters:
    cached = sum(rank.tokens_cached for rank in ranks)
    return PromptCounters(cached, cached + sum(rank.tokens_computed for rank in ranks))


def _sum(sums: Mapping[str, float], names: Sequence[str]) -> float:
    return sum(sums[name] for name in names)


def proof(
    condition: CacheCondition, source: str, before: PromptCounters | None, after: PromptCounters | None, sharing: float
) -> Proof:
    """`sharing`: of tokens, what the trace itself allows."""
    if before is None or after is None:
        return Proof(condition.value, "none", None, None, None, ("the server counts nothing: it is not proven",))
    cached, asked = after.cached - before.cached, after.asked - before.asked
    if cached < 0 or asked <= 0:
        doubt = "its counters went back or stood still: a replica began anew, or somebody else was served"
        return Proof(condition.value, source, cached, asked, None, (doubt,))
    reuse = cached / asked
    doubts = []
    if condition is CacheCondition.COLD and reuse > sharing + TOLERANCE:
        doubts.append(
            f"{reuse:.1%} of the prompt tokens were cached, but the trace shares only {sharing:.1%}: not cold"
        )
    if condition is CacheCondition.PRIMED and reuse < sharing - TOLERANCE:
        doubts.append(f"{reuse:.1%} of the prompt tokens were cached, less than the {sharing:.1%} of a cold start")
    return Proof(condition.value, source, cached, asked, reuse, tuple(doubts))
