"""Names, types and labels of metrics against specs/metrics.md, and sums that close."""

from itertools import count

import attrs
from prometheus_client.parser import text_string_to_metric_families

from lmpool.core.ids import SECOND, Epoch, Nanos, Rank, TransferId
from lmpool.core.ingress import IngressSnapshot
from lmpool.core.messages.ingress_control import RankState, StateReported
from lmpool.core.messages.transfer import PlacementShown, TransferMode, TransferShown, TransfersShown
from lmpool.io.metrics import Meter, Metrics, PoolView, RequestOutcome
from tests.specs.tables import read_rows

OUTCOMES = [RequestOutcome.STOP, RequestOutcome.LENGTH, RequestOutcome.CANCELLED, RequestOutcome.REFUSED] * 3


def rank_state(rank: int) -> RankState:
    return RankState(
        rank=Rank(rank),
        epoch=Epoch(3),
        membership="live",
        blocks=100,
        blocks_free=10,
        blocks_cached=20,
        resident_hashes=30,
        waiting=1,
        prefilling=2,
        decoding=3,
        booked=4,
        prefill_tokens=5,
        tokens_computed=6 + rank,
        tokens_cached=7,
        steps_failed=1,
        preemptions=2,
        routed=8,
    )


SHOWN = TransferShown(TransferId(Epoch(4), 9), Rank(0), Rank(1), TransferMode.COPY, 3, "copying", "", "", None, None)
PLACEMENT = PlacementShown(
    (("pull", 3), ("copy", 1)), (("pull", "not worth it", 2),), (("pull", 30),), 4, 2e9, 5e8, 2, 1, (), ()
)
STATE = StateReported(
    number=1,
    policy="marginal-time",
    ranks=(rank_state(0), rank_state(1)),
    page_table_hashes=9,
    bookings=4,
    decisions=16,
    stale_dropped=0,
    resyncs=0,
    transfers=TransfersShown(
        (SHOWN,), (SHOWN,), (("published", 3), ("late", 1)), (("no blocks", 2),), 30, 4096, 1_500_000_000, PLACEMENT
    ),
)

INGRESS = IngressSnapshot(
    phases=(("routing", 1), ("streaming", 2)),
    choices=3,
    outcomes=(),
    degraded=4,
    resumed=5,
    dropped=6,
    is_control_heard=True,
    linked=(Rank(0),),
    homes=0,
)


def samples(metrics: Metrics, state: StateReported | None) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    text = metrics.render(PoolView(is_ready=True, model="tiny", ingress=INGRESS, state=state)).decode()
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def ticking() -> Metrics:
    moments = count()
    return Metrics(lambda: Nanos(next(moments) * SECOND))


def lived(metrics: Metrics, outcome: RequestOutcome) -> None:
    meter = Meter(metrics, "/v1/completions")
    meter.begun(prompt_tokens=10, cached_tokens=4, queued_ns=SECOND)
    meter.produced(0, 0, 1)
    meter.produced(0, 0, 2)
    meter.end(outcome)


def test_b69_names_types_and_labels_are_those_of_the_specification() -> None:
    metrics = ticking()
    lived(metrics, RequestOutcome.STOP)
    text = metrics.render(PoolView(is_ready=True, model="tiny", ingress=INGRESS, state=STATE)).decode()
    found = {}
    for family in text_string_to_metric_families(text):
        if family.name.endswith("_created"):
            continue
        labels = {label for sample in family.samples for label in sample.labels} - {"le"}
        name = family.name + ("_total" if family.type == "counter" else "")
        found[name] = (family.type, labels)
    rows = [*read_rows("metrics.md", "Of requests"), *read_rows("metrics.md", "Of the pool")]
    listed = {
        row["name"]: (row["type"], {label.strip() for label in row["labels"].split(",") if label.strip()})
        for row in rows
    }
    assert found == listed


def test_b67_started_is_ended_plus_running() -> None:
    metrics = ticking()
    for outcome in OUTCOMES:
        lived(metrics, outcome)
    Meter(metrics, "/v1/completions")
    found = samples(metrics, None)
    ended = sum(value for (name, _), value in found.items() if name == "lmpool_requests_ended_total")
    timed = sum(value for (name, _), value in found.items() if name == "lmpool_request_seconds_count")
    endpoint = (("endpoint", "/v1/completions"),)
    assert found["lmpool_requests_started_total", endpoint] == len(OUTCOMES) + 1
    assert found["lmpool_requests_running", endpoint] == 1
    assert ended == timed == len(OUTCOMES)
    assert found["lmpool_output_tokens_total", endpoint] == 3 * len(OUTCOMES)
    assert found["lmpool_prompt_tokens_total", endpoint] == 10 * len(OUTCOMES)


def test_b70_times_begin_with_the_request_and_reach_minutes() -> None:
    metrics = ticking()
    lived(metrics, RequestOutcome.STOP)
    found = samples(metrics, None)
    endpoint = ("endpoint", "/v1/completions")
    assert found["lmpool_queue_seconds_sum", (endpoint,)] == 1
    assert found["lmpool_first_token_seconds_sum", (endpoint,)] == 1
    assert found["lmpool_prefill_seconds_sum", (endpoint,)] == 0
    assert found["lmpool_gap_seconds_sum", (endpoint,)] == 1
    assert found["lmpool_request_seconds_sum", (endpoint, ("outcome", "stop"))] == 3
    assert found["lmpool_first_token_seconds_bucket", (endpoint, ("le", "600.0"))] == 1


def test_b68_every_replica_has_its_own_values() -> None:
    found = samples(ticking(), STATE)
    assert found["lmpool_prefill_tokens_computed_total", (("rank", "0"),)] == 6
    assert found["lmpool_prefill_tokens_computed_total", (("rank", "1"),)] == 7
    assert found["lmpool_sequences", (("rank", "1"), ("state", "decoding"))] == 3


def test_b68_a_replica_that_starts_again_counts_anew_says_so_and_changes_no_other() -> None:
    metrics = ticking()
    before = samples(metrics, STATE)
    again = attrs.evolve(rank_state(1), epoch=Epoch(7), tokens_computed=2, tokens_cached=0, steps_failed=0)
    after = samples(metrics, attrs.evolve(STATE, ranks=(STATE.ranks[0], again)))
    of_rank = (("rank", "1"),)
    assert (after["lmpool_replica_epoch", of_rank], after["lmpool_prefill_tokens_computed_total", of_rank]) == (7, 2)
    changed = {name for name in before if before[name] != after[name]}
    assert {labels for _, labels in changed} == {of_rank}
    assert before.keys() == after.keys()


def test_predictions_of_transfers_stand_beside_what_they_took() -> None:
    found = samples(ticking(), STATE)
    assert found["lmpool_placement_admitted_total", (("occasion", "pull"),)] == 3
    assert found["lmpool_placement_refused_total", (("gate", "not worth it"), ("occasion", "pull"))] == 2
    assert found["lmpool_placement_seconds_total", ()] == 2
    assert found["lmpool_placement_error_seconds_total", ()] == 0.5
    off = attrs.evolve(STATE, transfers=attrs.evolve(STATE.transfers, placement=None))
    assert not [name for name, _ in samples(ticking(), off) if name.startswith("lmpool_placement")]


def test_without_control_the_scrape_says_so() -> None:
    found = samples(ticking(), None)
    assert found["lmpool_control_up", ()] == 0
    assert found["lmpool_ready", ()] == 1
    assert not any(name == "lmpool_kv_blocks" for name, _ in found)
