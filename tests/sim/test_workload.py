from collections import Counter
from itertools import pairwise
from statistics import fmean

import pytest

from lmpool.core.ids import SECOND, Nanos
from lmpool.sim.bounds import Sharing, bounds, sharing
from lmpool.sim.replay import make_prompts
from lmpool.sim.trace import Trace, TraceError, in_bursts, prompt_lengths, scaled, until
from lmpool.sim.workload import NO_RATE, SIBLINGS, TURNS, WORKLOADS, make_workload
from tests.sim.racks import asked, trace
from tests.specs.tables import read_rows

PAGE = "workloads.md"
OPEN_LOOP = [name for name, workload in WORKLOADS.items() if workload.arrival != NO_RATE]


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


def test_the_page_has_sizes_and_sharing_of_the_studies_own_workloads() -> None:
    for row in read_rows(PAGE, "Studies"):
        made = make_workload(row["workload"], None, 1.0, 0)
        found = sharing(made, make_prompts(made, 256), 256)
        assert len(made.requests) == int(row["requests"])
        assert sum(prompt_lengths(made)) == int(row["prompt tokens"].replace(",", ""))
        assert [f"{found.requests:.2%}", f"{found.tokens:.2%}"] == [row["request sharing"], row["token sharing"]]
        assert str(made.in_flight_max or "") == row["in flight"]


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


@pytest.mark.parametrize("name", OPEN_LOOP)
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


def test_the_hottest_context_gets_hotter_from_skew_to_skew() -> None:
    shares = []
    for name in ("hot-session-skew", "hot-session-skew-2", "hot-session-skew-3"):
        made = make_workload(name, 3_000, 1.0, 0)
        shares.append(Counter(request.session for request in made.requests).most_common(1)[0][1] / 3_000)
    assert [round(share, 1) for share in shares] == [0.3, 0.6, 0.8]


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


@pytest.mark.parametrize(("times", "longest"), [(1, 1_911), (3, 5_655), (5, 9_399)])
def test_shared_prefixes_are_sixteen_groups_of_twelve_in_a_mixed_order(times: int, longest: int) -> None:
    made = make_workload(f"shared-prefix-x{times}", None, 1.0, 0)
    sessions = [request.session for request in made.requests]
    assert set(Counter(sessions).values()) == {12}
    assert len(set(sessions)) == 16
    assert sessions != sorted(sessions)
    assert max(prompt_lengths(made)) == longest
    assert {request.output_tokens for request in made.requests} == {64}


def test_load_skew_plants_three_prefixes_and_asks_for_nothing_else() -> None:
    made = make_workload("load-skew", None, 1.0, 0)
    planted = [request.parts[0] for request in made.requests if request.stage == 0]
    assert len(set(planted)) == 3
    assert Counter(request.parts[0] for request in made.requests if request.stage == 1) == dict.fromkeys(planted, 63)


def test_memory_skew_repeats_its_sessions_whole_after_the_pressure() -> None:
    made = make_workload("memory-skew", None, 1.0, 0)
    stages = [[request for request in made.requests if request.stage == stage] for stage in range(3)]
    assert [len(stage) for stage in stages] == [6, 30, 36]
    assert Counter(request.parts for request in stages[2]) == {request.parts: 6 for request in stages[0]}
    anchors = [request.parts[0] for request in stages[0]]
    pressed = Counter(request.parts[0] for request in stages[1])
    assert pressed[anchors[0]] + pressed[anchors[1]] == 24
    assert len({request.parts[1] for request in stages[1]}) == 30


def test_chat_users_share_one_system_prompt_and_grow_a_history_of_their_own() -> None:
    made = make_workload("multi-round-chat", None, 1.0, 0)
    first = [request for request in made.requests if request.continues is None]
    assert len({request.parts[0] for request in first}) == 1
    assert len({request.parts[1] for request in first}) == len(first) == 40
    assert set(Counter(request.session for request in made.requests).values()) == {6}


def test_tiled_documents_come_in_turn_and_shuffled_ones_do_not() -> None:
    tiled = [request.session for request in make_workload("long-doc-qa-tiled", None, 1.0, 0).requests]
    mixed = [request.session for request in make_workload("long-doc-qa", None, 1.0, 0).requests]
    assert tiled == [f"document-{place}" for place in range(8)] * 5
    assert sorted(mixed) == sorted(tiled)
    assert mixed != tiled


def test_many_sessions_begin_at_one_moment() -> None:
    made = make_workload("high-concurrency", None, 1.0, 0)
    assert _arrivals(made) == [0] * 64


def test_a_scaled_workload_has_as_many_requests_and_shares_about_as_much() -> None:
    made = make_workload("shared-prefix-x3", None, 1.0, 0)
    small = scaled(made, 0.1)
    assert scaled(made, 1.0) == made
    assert len(small.requests) == len(made.requests)
    assert sum(prompt_lengths(small)) == pytest.approx(sum(prompt_lengths(made)) / 10, rel=0.01)
    assert sharing(small, make_prompts(small, 16), 16).tokens == pytest.approx(_endless(made), abs=0.01)


def test_until_cuts_users_off_and_keeps_the_rounds_of_those_who_came() -> None:
    made = make_workload("multi-round-chat", None, 1.0, 0)
    cut = until(made, _seconds(10))
    assert all(moment < _seconds(10) for moment in _arrivals(cut))
    assert set(Counter(request.session for request in cut.requests).values()) == {6}
    with pytest.raises(TraceError, match="nothing arrives before 0 s"):
        until(made, _seconds(0))


def test_bursts_come_at_the_same_rate() -> None:
    made = make_workload("single-turn", 400, 2.0, 0)
    burst = in_bursts(made, 8)
    assert set(Counter(_arrivals(burst)).values()) == {8}
    assert burst.span_ns == pytest.approx(made.span_ns, rel=0.05)
    assert [request.parts for request in burst.requests] == [request.parts for request in made.requests]
    assert in_bursts(made, 1) == made


def test_sharing_of_three_requests_by_hand() -> None:
    made = trace(asked(0, (0, 32), (1, 8)), asked(1, (0, 32), (2, 8)), asked(2, (3, 20)))
    assert sharing(made, make_prompts(made, 16), 16) == Sharing(16, 1 / 3, 32 / 100)


def _seconds(count: int) -> Nanos:
    return Nanos(count * SECOND)
