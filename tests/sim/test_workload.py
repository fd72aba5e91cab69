from collections import Counter
from itertools import pairwise
from statistics import fmean

import pytest

from lmpool.core.ids import SECOND
from lmpool.sim.bounds import bounds
from lmpool.sim.replay import make_prompts
from lmpool.sim.trace import Trace, TraceError, prompt_lengths
from lmpool.sim.workload import SIBLINGS, TURNS, WORKLOADS, make_workload
from tests.specs.tables import read_rows

PAGE = "workloads.md"


def _arrivals(made: Trace) -> list[int]:
    return [request.at_ns for request in made.requests if request.at_ns is not None]


def _endless(made: Trace) -> float:
    return bounds(made, make_prompts(made, 64), 1_000_000, 64).infinite


def test_the_page_names_every_workload_with_its_fingerprint() -> None:
    rows = {row["workload"]: row for row in read_rows(PAGE, "Workloads")}
    assert list(rows) == list(WORKLOADS)
    for name, row in rows.items():
        assert make_workload(name, 200, 1.0, 0).fingerprint == row["fingerprint"]
        assert row["a rate counts"] == WORKLOADS[name].arrival


@pytest.mark.parametrize("name", WORKLOADS)
def test_a_workload_is_a_matter_of_its_seed_alone(name: str) -> None:
    assert make_workload(name, 100, 2.0, 1) == make_workload(name, 100, 2.0, 1)
    assert make_workload(name, 100, 2.0, 1).fingerprint != make_workload(name, 100, 2.0, 2).fingerprint


@pytest.mark.parametrize("name", WORKLOADS)
def test_a_rate_changes_when_requests_arrive_and_nothing_else(name: str) -> None:
    slow, fast = make_workload(name, 100, 1.0, 1), make_workload(name, 100, 8.0, 1)
    assert [request.parts for request in slow.requests] == [request.parts for request in fast.requests]
    assert fast.span_ns == pytest.approx(slow.span_ns / 8, abs=1)
    assert len(slow.requests) >= 100


@pytest.mark.parametrize("name", WORKLOADS)
def test_arrivals_come_at_the_rate_and_irregularly(name: str) -> None:
    made = make_workload(name, 6_000, 4.0, 3)
    moments = sorted(set(_arrivals(made)))
    gaps = [(later - earlier) / SECOND for earlier, later in pairwise(moments)]
    assert fmean(gaps) == pytest.approx(0.25, rel=0.15)
    assert fmean(gap * gap for gap in gaps) == pytest.approx(2 * 0.25**2, rel=0.5)


def test_agent_sessions_are_closed_loops_of_twelve_turns_that_share_four_beginnings() -> None:
    made = make_workload("agent-sessions", 600, 1.0, 0)
    assert len(_arrivals(made)) == 600 // TURNS
    assert set(Counter(request.session for request in made.requests).values()) == {TURNS}
    first = Counter(request.parts[0] for request in made.requests if request.continues is None)
    assert len(first) == 4
    assert 8_000 < fmean(prompt_lengths(made)) < 16_000


def test_a_few_contexts_are_asked_about_most() -> None:
    made = make_workload("hot-session-skew", 3_000, 1.0, 0)
    counts = Counter(request.session for request in made.requests)
    (_, hottest), *_ = counts.most_common(1)
    assert 0.2 < hottest / 3_000 < 0.4
    assert len(counts) == 64


def test_long_decode_is_more_answer_than_prompt() -> None:
    made = make_workload("long-decode", 500, 1.0, 0)
    assert fmean(request.output_tokens for request in made.requests) > fmean(prompt_lengths(made))


def test_single_turns_share_nothing() -> None:
    assert _endless(make_workload("single-turn", 300, 1.0, 0)) == 0.0


def test_one_system_prompt_is_in_every_request() -> None:
    made = make_workload("one-system-prompt", 300, 1.0, 0)
    assert len({request.parts[0] for request in made.requests}) == 1
    assert _endless(made) > 0.6


def test_a_few_long_contexts_are_most_of_the_tokens() -> None:
    made = make_workload("few-long", 2_000, 1.0, 0)
    lengths = prompt_lengths(made)
    long = [length for length in lengths if length > 20_000]
    assert 0.03 < len(long) / 2_000 < 0.07
    assert sum(long) > 0.8 * sum(lengths)


def test_siblings_come_at_one_moment_and_share_their_beginning() -> None:
    made = make_workload("sibling-bursts", 320, 1.0, 0)
    bursts = Counter((request.at_ns, request.parts[0]) for request in made.requests)
    assert set(bursts.values()) == {SIBLINGS}


def test_an_unknown_workload_is_answered_with_the_known_ones() -> None:
    with pytest.raises(TraceError, match="no workload is named 'knitting'; there is agent-sessions"):
        make_workload("knitting", 10, 1.0, 0)
