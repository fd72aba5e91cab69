"""Figures of a trial, from its evidence alone and under the same names in both venues. `specs/trials.md`."""

from collections.abc import Mapping
from enum import Enum

import attrs

from lmpool.bench.load.counters import rank_counters
from lmpool.bench.load.figures import Bounds, Figures, Spread, figures
from lmpool.bench.trial.evidence import CountersRead, Evidence
from lmpool.core.messages.ingress_control import StateReported
from lmpool.core.route import FETCHED


class Better(Enum):
    LESS = "less"
    MORE = "more"
    NEITHER = ""


@attrs.frozen
class Metric:
    unit: str
    better: Better
    about: str
    is_always: bool = True
    """False: it is left out where there is nothing to count it from."""


METRICS: Mapping[str, Metric] = {
    "throughput": Metric("tokens/s", Better.MORE, "output tokens of successes over the window"),
    "goodput": Metric(
        "tokens/s", Better.MORE, "the same of those that ended within `e2e_max_s` of the spec", is_always=False
    ),
    "completion_s": Metric("s", Better.LESS, "the window: from the first planned to the last content"),
    "ttft_mean_s": Metric("s", Better.LESS, "time to first token"),
    "ttft_p50_s": Metric("s", Better.LESS, "the same, median"),
    "ttft_p90_s": Metric("s", Better.LESS, "the same, 90th percentile"),
    "ttft_p99_s": Metric("s", Better.LESS, "the same, 99th percentile"),
    "resumed_ttft_mean_s": Metric("s", Better.LESS, "the same of requests that continue a session", is_always=False),
    "resumed_ttft_p95_s": Metric("s", Better.LESS, "their 95th percentile", is_always=False),
    "tpot_mean_s": Metric("s", Better.LESS, "time per token after the first, where there are any", is_always=False),
    "tpot_p99_s": Metric("s", Better.LESS, "its 99th percentile", is_always=False),
    "e2e_mean_s": Metric("s", Better.LESS, "time to last token"),
    "e2e_p90_s": Metric("s", Better.LESS, "its 90th percentile"),
    "e2e_p99_s": Metric("s", Better.LESS, "its 99th percentile"),
    "queued_mean_s": Metric("s", Better.LESS, "from the arrival of a request to its begin", is_always=False),
    "prompt_tokens": Metric("tokens", Better.NEITHER, "by the answers' counts, as the next two"),
    "output_tokens": Metric("tokens", Better.NEITHER, "of successes"),
    "uncached_tokens": Metric("tokens", Better.LESS, "of prompts, not cached when their request first began"),
    "computed_tokens": Metric("tokens", Better.LESS, "prefill by the replicas' counters, resumes included"),
    "cached_tokens": Metric("tokens", Better.MORE, "of prompts, found cached, by the replicas' counters"),
    "reuse": Metric("", Better.MORE, "cached over all prompt tokens, by the answers' counts"),
    "request_hit": Metric("", Better.MORE, "share of requests that found at least one block"),
    "preemptions": Metric("", Better.LESS, "sequences that gave up their blocks and began again"),
    "transfers": Metric("", Better.NEITHER, "copies of blocks between replicas that were published"),
    "transferred_blocks": Metric("blocks", Better.NEITHER, "of these"),
    "fetched_routes": Metric("", Better.NEITHER, "routes that were chosen with a copy for the request"),
    "routed_share_most": Metric("", Better.NEITHER, "share of the requests that went to the rank with most"),
}
"""Beside these, `routed_0` and so on: requests of each rank."""

PUBLISHED = "published"
"""An outcome of a transfer (`specs/transfer.md`)."""


def metrics(evidence: Evidence) -> dict[str, float]:
    """In the order of `METRICS`, then requests by rank."""
    bound = evidence.spec.e2e_max_s
    resumed = [before is not None for before in evidence.workload.continues]
    found = figures(evidence.requests, resumed, (), Bounds(None, bound))
    told = {**_times(found), **_tokens(evidence), **_counts(evidence)}
    told |= {"throughput": found.throughput, "completion_s": found.window_s}
    if bound is not None:
        told["goodput"] = found.goodput
    return {**{name: told[name] for name in METRICS if name in told}, **_by_rank(evidence.counters)}


def _times(found: Figures) -> dict[str, float]:
    spreads: tuple[tuple[str, Spread | None, tuple[str, ...]], ...] = (
        ("ttft", found.ttft_s, ("mean", "p50", "p90", "p99")),
        ("resumed_ttft", found.resumed_ttft_s, ("mean", "p95")),
        ("tpot", found.tpot_s, ("mean", "p99")),
        ("e2e", found.e2e_s, ("mean", "p90", "p99")),
    )
    return {
        f"{name}_{statistic}_s": float(getattr(spread, statistic))
        for name, spread, statistics in spreads
        if spread is not None
        for statistic in statistics
    }


def _tokens(evidence: Evidence) -> dict[str, float]:
    whole = [one for one in evidence.requests if one.is_success]
    prompts = sum(one.prompt_tokens or 0 for one in whole)
    cached = sum(one.cached_tokens or 0 for one in whole)
    queued = [one.queued_ns for one in whole if one.queued_ns is not None]
    told: dict[str, float] = {
        "prompt_tokens": prompts,
        "output_tokens": sum(one.output_tokens or 0 for one in whole),
        "uncached_tokens": prompts - cached,
    }
    if prompts:
        told["reuse"] = cached / prompts
        told["request_hit"] = sum(bool(one.cached_tokens) for one in whole) / len(whole)
    if queued:
        told["queued_mean_s"] = sum(queued) / len(queued) / 1e9
    return told


def _counts(evidence: Evidence) -> dict[str, float]:
    counters = evidence.counters
    before, after = rank_counters(counters.before.ranks), rank_counters(counters.after.ranks)
    cached = after.cached - before.cached
    routed = list(_by_rank(counters).values())
    return {
        "computed_tokens": after.asked - before.asked - cached,
        "cached_tokens": cached,
        "preemptions": sum(gained(counters, "preemptions")),
        "transfers": _published(counters.after) - _published(counters.before),
        "transferred_blocks": counters.after.transfers.blocks - counters.before.transfers.blocks,
        "fetched_routes": sum(decision.reason.endswith(FETCHED) for decision in evidence.decisions),
        "routed_share_most": max(routed, default=0) / sum(routed) if sum(routed) else 0.0,
    }


def gained(counters: CountersRead, name: str) -> list[int]:
    """By rank."""
    ranks = zip(counters.before.ranks, counters.after.ranks, strict=True)
    return [getattr(after, name) - getattr(before, name) for before, after in ranks]


def _by_rank(counters: CountersRead) -> dict[str, float]:
    return {f"routed_{rank}": count for rank, count in enumerate(gained(counters, "routed"))}


def _published(state: StateReported) -> int:
    return dict(state.transfers.outcomes).get(PUBLISHED, 0)
