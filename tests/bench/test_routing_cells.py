from pathlib import Path

import pytest

from lmpool.bench.routing_cells import BRACKET, CELLS, CONVERSATION, STRIDE, is_sustained, keeps_up, load, saturation
from lmpool.core.ids import SECOND, Nanos
from lmpool.sim.replay import Replay
from lmpool.sim.trace import TraceError
from lmpool.sim.workload import WORKLOADS
from tests.specs.tables import read_rows

EXCERPT = Path(__file__).parents[1] / "sim" / "conversation_excerpt.jsonl"


def test_the_page_names_every_cell() -> None:
    named = [name.strip() for row in read_rows("workloads.md", "Matrix") for name in row["cell"].split(",")]
    assert named == list(CELLS)
    assert {cell.workload for cell in CELLS.values()} == {"", *WORKLOADS}


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


def _up_to_the_last_arrival(rate: float) -> tuple[Replay, int]:
    cell = CELLS["single-turn"]
    ready = load(cell, None, 150, rate, 0)
    replay = Replay(ready.trace, ready.prompts, cell.rack, "least-loaded", 0)
    replay.advance_to(Nanos(ready.trace.span_ns))
    return replay, ready.trace.span_ns


def test_who_answers_as_fast_as_is_asked_keeps_up() -> None:
    replay, span_ns = _up_to_the_last_arrival(1.0)
    assert keeps_up(replay, span_ns)
    assert not replay.front.is_done


def test_who_has_a_growing_backlog_does_not_keep_up() -> None:
    replay, span_ns = _up_to_the_last_arrival(200.0)
    assert span_ns < 2 * SECOND
    assert not keeps_up(replay, span_ns)


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
