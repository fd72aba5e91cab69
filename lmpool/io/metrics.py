"""Prometheus metrics: what requests lived through, and a snapshot of the pool at each scrape. `specs/metrics.md`."""

from collections.abc import Callable, Iterable, Iterator
from enum import Enum

import attrs
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector
from typing_extensions import override

import lmpool
from lmpool.core.ids import SECOND, Nanos
from lmpool.core.ingress import IngressSnapshot
from lmpool.core.messages.ingress_control import RankState, StateReported
from lmpool.core.messages.transfer import PlacementShown, TransfersShown

SECONDS_BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 20, 40, 60, 120, 300, 600)
"""Up to ten minutes, so that overload does not end in one overflow bucket."""


class RequestOutcome(Enum):
    """How a request ended; each one that was started has exactly one in the end."""

    STOP = "stop"
    LENGTH = "length"
    CANCELLED = "cancelled"
    REFUSED = "refused"
    ERROR = "error"


@attrs.frozen
class PoolView:
    """What a scrape shows of the pool. Without an answer of control `state` is None."""

    is_ready: bool
    model: str
    ingress: IngressSnapshot
    state: StateReported | None


class Metrics:
    """Owns its registry, so that several servers live in one process."""

    def __init__(self, now: Callable[[], Nanos]) -> None:
        registry = CollectorRegistry()
        self.now = now
        self._registry = registry
        self.started = Counter(
            "lmpool_requests_started", "Generation requests that arrived.", ["endpoint"], registry=registry
        )
        self.ended = Counter(
            "lmpool_requests_ended", "Those that ended, by outcome.", ["endpoint", "outcome"], registry=registry
        )
        self.running = Gauge("lmpool_requests_running", "Started and not ended.", ["endpoint"], registry=registry)
        self.first_token = self._seconds("lmpool_first_token_seconds", "From arrival to the first token.")
        self.queue = self._seconds("lmpool_queue_seconds", "From arrival to the begin of the prefill.")
        self.prefill = self._seconds("lmpool_prefill_seconds", "From the begin of the prefill to the first token.")
        self.gap = self._seconds("lmpool_gap_seconds", "Between two pieces of one choice.")
        self.total = Histogram(
            "lmpool_request_seconds",
            "From arrival to the end of the answer.",
            ["endpoint", "outcome"],
            buckets=SECONDS_BUCKETS,
            registry=registry,
        )
        self.prompt_tokens = Counter(
            "lmpool_prompt_tokens", "Prompt tokens of requests that began.", ["endpoint"], registry=registry
        )
        self.cached_tokens = Counter(
            "lmpool_cached_prompt_tokens", "Those found in cached blocks.", ["endpoint"], registry=registry
        )
        self.output_tokens = Counter(
            "lmpool_output_tokens", "Tokens of answers, ended or not.", ["endpoint"], registry=registry
        )
        self.ignored_fields = Counter(
            "lmpool_fields_ignored", "Request fields that no endpoint knows.", registry=registry
        )

    def render(self, view: PoolView) -> bytes:
        """Text format of Prometheus, version 0.0.4."""
        scrape = CollectorRegistry()
        scrape.register(_PoolCollector(view))
        return generate_latest(self._registry) + generate_latest(scrape)

    def _seconds(self, name: str, about: str) -> Histogram:
        return Histogram(name, about, ["endpoint"], buckets=SECONDS_BUCKETS, registry=self._registry)


class Meter:
    """One request, from the moment its HTTP head arrived. `end` is called exactly once."""

    __slots__ = ("_arrived", "_endpoint", "_gap", "_last", "_metrics", "_output_tokens", "_queued", "is_ended")

    def __init__(self, metrics: Metrics, endpoint: str) -> None:
        self._metrics = metrics
        self._endpoint = endpoint
        self._arrived = metrics.now()
        self._queued: float | None = None
        self._last: dict[tuple[int, int], Nanos] = {}
        self._gap = metrics.gap.labels(endpoint)
        self._output_tokens = metrics.output_tokens.labels(endpoint)
        self.is_ended = False
        metrics.started.labels(endpoint).inc()
        metrics.running.labels(endpoint).inc()

    @property
    def arrived_ns(self) -> Nanos:
        return self._arrived

    def begun(self, prompt_tokens: int, cached_tokens: int, queued_ns: Nanos) -> None:
        """The first worker has begun a prompt of this request."""
        metrics, endpoint = self._metrics, self._endpoint
        metrics.prompt_tokens.labels(endpoint).inc(prompt_tokens)
        metrics.cached_tokens.labels(endpoint).inc(cached_tokens)
        metrics.queue.labels(endpoint).observe(queued_ns / SECOND)
        if self._queued is None:
            self._queued = queued_ns / SECOND

    def produced(self, prompt: int, choice: int, tokens: int) -> None:
        """So many tokens of a choice of a prompt have come."""
        metrics, endpoint, now = self._metrics, self._endpoint, self._metrics.now()
        self._output_tokens.inc(tokens)
        last = self._last.get((prompt, choice))
        if last is not None:
            self._gap.observe((now - last) / SECOND)
        elif not self._last:
            seconds = (now - self._arrived) / SECOND
            metrics.first_token.labels(endpoint).observe(seconds)
            if self._queued is not None:
                metrics.prefill.labels(endpoint).observe(max(0.0, seconds - self._queued))
        self._last[prompt, choice] = now

    def end(self, outcome: RequestOutcome) -> None:
        assert not self.is_ended
        self.is_ended = True
        metrics, endpoint = self._metrics, self._endpoint
        metrics.ended.labels(endpoint, outcome.value).inc()
        metrics.running.labels(endpoint).dec()
        metrics.total.labels(endpoint, outcome.value).observe((metrics.now() - self._arrived) / SECOND)


class _PoolCollector(Collector):
    def __init__(self, view: PoolView) -> None:
        self._view = view

    @override
    def collect(self) -> Iterator[Metric]:
        view, state = self._view, self._view.state
        info = GaugeMetricFamily("lmpool_info", "Always 1; what runs.", labels=["version", "model", "policy"])
        info.add_metric([lmpool.__version__, view.model, "" if state is None else state.policy], 1)
        yield info
        yield GaugeMetricFamily("lmpool_ready", "1 if requests are taken.", value=int(view.is_ready))
        yield GaugeMetricFamily("lmpool_control_up", "1 if control answered this scrape.", value=int(state is not None))
        yield from _ingress_families(view.ingress)
        if state is None:
            return
        yield GaugeMetricFamily("lmpool_page_table_hashes", "Hashes that control knows.", value=state.page_table_hashes)
        yield CounterMetricFamily("lmpool_decisions", "Routes decided by this control.", value=state.decisions)
        yield CounterMetricFamily("lmpool_stale_messages", "Dropped: old epoch or version.", value=state.stale_dropped)
        yield CounterMetricFamily("lmpool_resyncs", "Full reports asked for because of a gap.", value=state.resyncs)
        yield from _transfer_families(state.transfers)
        yield from _replica_families(state.ranks)


def _ingress_families(ingress: IngressSnapshot) -> Iterator[Metric]:
    phases = GaugeMetricFamily("lmpool_open_prompts", "Prompts at the ingress.", labels=["phase"])
    for phase, number in ingress.phases:
        phases.add_metric([phase], number)
    yield phases
    yield CounterMetricFamily("lmpool_degraded_routes", "Routed without control.", value=ingress.degraded)
    yield CounterMetricFamily("lmpool_resumed_prompts", "Went on after the loss of a worker.", value=ingress.resumed)
    yield CounterMetricFamily("lmpool_dropped_rows", "Token rows of older attempts.", value=ingress.dropped)


GAUGES: tuple[tuple[str, str, Callable[[RankState], int]], ...] = (
    ("lmpool_kv_blocks", "Blocks of the pool.", lambda rank: rank.blocks),
    ("lmpool_kv_blocks_free", "Blocks that hold nothing.", lambda rank: rank.blocks_free),
    ("lmpool_kv_blocks_cached", "Blocks that are cached and unused.", lambda rank: rank.blocks_cached),
    ("lmpool_bookings", "Requests booked there and not ended.", lambda rank: rank.booked),
    ("lmpool_booked_prefill_tokens", "Booked prefill tokens to compute.", lambda rank: rank.prefill_tokens),
    ("lmpool_replica_epoch", "Life of the worker; its counters begin anew in each.", lambda rank: rank.epoch),
)
COUNTERS: tuple[tuple[str, str, Callable[[RankState], int]], ...] = (
    ("lmpool_prefill_tokens_computed", "Prefill tokens computed in this epoch.", lambda rank: rank.tokens_computed),
    ("lmpool_prefill_tokens_cached", "Prompt tokens found cached in this epoch.", lambda rank: rank.tokens_cached),
    ("lmpool_preemptions", "Sequences that gave way in this epoch.", lambda rank: rank.preemptions),
    ("lmpool_steps_failed", "Steps that failed in this epoch.", lambda rank: rank.steps_failed),
    ("lmpool_requests_routed", "Requests sent there by this control.", lambda rank: rank.routed),
)


def _transfer_families(transfers: TransfersShown) -> Iterator[Metric]:
    open_ones = len(transfers.under_way)
    yield GaugeMetricFamily("lmpool_transfers_under_way", "Begun and not over.", value=open_ones)
    outcomes = CounterMetricFamily("lmpool_transfers", "Those that are over, by outcome.", labels=["outcome"])
    for outcome, count in transfers.outcomes:
        outcomes.add_metric([outcome], count)
    yield outcomes
    refusals = CounterMetricFamily("lmpool_transfers_refused", "By control or by a side.", labels=["reason"])
    for reason, count in transfers.refusals:
        refusals.add_metric([reason], count)
    yield refusals
    yield CounterMetricFamily("lmpool_transfer_blocks", "Blocks that were published.", value=transfers.blocks)
    yield CounterMetricFamily("lmpool_transfer_bytes", "Bytes of those.", value=transfers.size_bytes)
    seconds = transfers.copy_ns / SECOND
    yield CounterMetricFamily(
        "lmpool_transfer_copy_seconds", "What their copies took, as targets saw it.", value=seconds
    )
    if transfers.placement is not None:
        yield from _placement_families(transfers.placement)


PREDICTIONS: tuple[tuple[str, str, Callable[[PlacementShown], float]], ...] = (
    ("lmpool_placement_predictions", "Transfers compared with their price.", lambda shown: shown.observed),
    ("lmpool_placement_seconds", "What those took.", lambda shown: shown.observed_ns / SECOND),
    ("lmpool_placement_error_seconds", "Their distance from the median.", lambda shown: shown.error_ns / SECOND),
    ("lmpool_placement_over_median", "Those that took longer than the median.", lambda shown: shown.over_median),
    ("lmpool_placement_over_p95", "Those that took longer than the P95.", lambda shown: shown.over_p95),
)


def _placement_families(shown: PlacementShown) -> Iterator[Metric]:
    admitted = CounterMetricFamily("lmpool_placement_admitted", "Begun by control itself.", labels=["occasion"])
    for occasion, count in shown.admitted:
        admitted.add_metric([occasion], count)
    yield admitted
    refused = CounterMetricFamily("lmpool_placement_refused", "Not begun by control.", labels=["occasion", "gate"])
    for occasion, gate, count in shown.refused:
        refused.add_metric([occasion, gate], count)
    yield refused
    blocks = CounterMetricFamily("lmpool_placement_blocks", "Blocks that were published.", labels=["occasion"])
    for occasion, count in shown.blocks:
        blocks.add_metric([occasion], count)
    yield blocks
    for name, about, value in PREDICTIONS:
        yield CounterMetricFamily(name, about, value=value(shown))


def _replica_families(ranks: Iterable[RankState]) -> Iterator[Metric]:
    ranks = tuple(ranks)
    for name, about, value in GAUGES:
        gauge = GaugeMetricFamily(name, about, labels=["rank"])
        for rank in ranks:
            gauge.add_metric([str(rank.rank)], value(rank))
        yield gauge
    for name, about, value in COUNTERS:
        counter = CounterMetricFamily(name, about, labels=["rank"])
        for rank in ranks:
            counter.add_metric([str(rank.rank)], value(rank))
        yield counter
    sequences = GaugeMetricFamily("lmpool_sequences", "Choices at a replica.", labels=["rank", "state"])
    membership = GaugeMetricFamily("lmpool_replica_up", "1 if it is live.", labels=["rank", "membership"])
    for rank in ranks:
        label = str(rank.rank)
        sequences.add_metric([label, "waiting"], rank.waiting)
        sequences.add_metric([label, "prefilling"], rank.prefilling)
        sequences.add_metric([label, "decoding"], rank.decoding)
        membership.add_metric([label, rank.membership], int(rank.membership == "live"))
    yield sequences
    yield membership
