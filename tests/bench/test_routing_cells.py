from pathlib import Path

import pytest

from lmpool.bench.routing_cells import BRACKET, CELLS, CONVERSATION, STRIDE, is_sustained, late_counts, load, saturation
from lmpool.core.ids import Nanos
from lmpool.sim.replay import Replay
from lmpool.sim.trace import TraceError
from lmpool.sim.workload import WORKLOADS
from tests.specs.tables import read_rows

EXCERPT = Path(__file__).parents[1] / "sim" / "conversation_excerpt.jsonl"


def test_the_page_names_every_cell() -> None:
    named = [name.strip() for row in read_rows("workloads.md", "Matrix") for name in row["cell"].split(",")]
    assert named == list(CELLS)
    studies = {row["workload"] for row in read_rows("workloads.md", "Studies")}
    assert {cell.workload for cell in CELLS.values()} == {"", *WORKLOADS} - studies


@pytest.mark.parametrize("limit", [0.2, 9.9, 10.0, 77.0])
def test_the_search_ends_close_below_the_last_rate_that_is_sustained(limit: float) -> None:
    asked: list[float] = []

    def sustains(rate: float) -> bool:
        asked.append(rate)
        return rate <= limit

    found = saturation(10.0, sustains)
    assert limit / BRACKET <= found <= limit
    assert len(asked) == len(set(asked))
    assert len(asked) < 20 + abs(limit / 10 - 10 / limit) / STRIDE


@pytest.mark.parametrize("answer", [True, False])
def test_a_search_without_end_is_given_up(answer: bool) -> None:
    with pytest.raises(TraceError, match="sustained"):
        saturation(10.0, lambda rate: answer)


def _late_counts(rate: float) -> tuple[int, int, Replay]:
    cell = CELLS["single-turn"]
    ready = load(cell, None, 150, rate, 0)
    replay = Replay(ready.trace, ready.prompts, cell.rack, "least-loaded", 0)
    replay.advance_to(Nanos(ready.trace.span_ns))
    return *late_counts(replay, ready.trace.span_ns), replay


def test_where_capacity_suffices_as_many_end_as_arrive() -> None:
    arrived, ended, replay = _late_counts(1.0)
    assert 50 < arrived < 100
    assert 0.9 * arrived <= ended <= 1.1 * arrived
    assert not replay.front.is_done


def test_where_a_backlog_grows_few_end() -> None:
    arrived, ended, _ = _late_counts(200.0)
    assert 50 < arrived < 100
    assert ended < 0.5 * arrived


def test_a_rate_is_sustained_if_any_known_policy_keeps_up() -> None:
    cell = CELLS["sibling-bursts"]
    assert is_sustained(cell, None, 160, 0.2)
    assert not is_sustained(cell, None, 160, 50.0)


def test_the_recorded_cell_draws_a_window_and_jitter_by_the_seed() -> None:
    cell = CELLS[CONVERSATION]
    loads = {seed: load(cell, EXCERPT, 50, 2.0, seed).trace for seed in (1, 2)}
    assert all(len(trace.requests) == 50 for trace in loads.values())
    assert loads[1].fingerprint != loads[2].fingerprint
    assert loads[1] == load(cell, EXCERPT, 50, 2.0, 1).trace


def test_the_recorded_cell_without_a_trace_says_what_it_needs() -> None:
    with pytest.raises(TraceError, match="the cell conversation needs a trace: --trace FILE"):
        load(CELLS[CONVERSATION], None, 50, 2.0, 1)
