"""The whole client, in virtual time, against servers whose every event has a known moment."""

import asyncio
from typing import Any

import attrs
import httpx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from typing_extensions import override

from lmpool.bench.load.contents import ProseTexts
from lmpool.bench.load.figures import Bounds, Figures, figures
from lmpool.bench.load.http import Dialect, HTTPEndpoint
from lmpool.bench.load.measured import Measured
from lmpool.bench.load.player import Player
from lmpool.core.ids import MILLISECOND, SECOND, Nanos
from lmpool.sim.trace import Trace
from tests.bench.load.virtual import (
    DONE,
    Script,
    ScriptedServer,
    answered,
    counts_event,
    now,
    role_event,
    run,
    text_event,
)
from tests.sim.racks import asked, continued, trace

ANYTHING = Bounds(None, None)


def play(made: Trace, server: ScriptedServer, *, is_forced: bool = True) -> tuple[list[Measured], Figures]:
    async def body() -> tuple[list[Measured], Figures]:
        async with server.client() as client:
            endpoint = HTTPEndpoint(client, "model", ProseTexts(None, 0), Dialect.EXTENDED, now)
            player = Player(made, endpoint, now, lambda _: None, is_forced=is_forced)
            measured = await player.run(now())
        resumed = [request.continues is not None for request in made.requests]
        return measured, figures(measured, resumed, player.stalls_ns, ANYTHING)

    return run(body)


def single(script: Script, output: int) -> tuple[Measured, Figures]:
    (one,), found = play(trace(asked(0, (0, 10), output=output)), ScriptedServer(lambda *_: script))
    return one, found


def test_a_role_is_no_first_token_and_counts_are_no_last_one() -> None:
    lines = (
        (10, role_event()),
        (100, text_event("a")),
        (120, text_event("b")),
        (140, text_event("c", "length")),
        (400, counts_event(3)),
        (400, DONE),
    )
    one, found = single(Script(lines), 3)
    assert one.ttft_ns == 100 * MILLISECOND
    assert [gap.duration_ns for gap in one.gaps] == [20 * MILLISECOND] * 2
    assert one.e2e_ns == 140 * MILLISECOND
    assert one.tpot_ns == 20 * MILLISECOND
    assert found.throughput == pytest.approx(3 / 0.140)
    assert found.itl_per == "event"


def test_events_of_several_tokens_are_counted_by_token() -> None:
    lines = (
        (100, text_event("a", None, 1)),
        (180, text_event("bcde", None, 5)),
        (200, text_event("", None, 5)),
        (240, text_event("fgh", "length", 8)),
        (300, DONE),
    )
    one, found = single(Script(lines), 8)
    assert [piece.tokens for piece in one.pieces] == [1, 4, 3]
    assert one.tpot_ns == 20 * MILLISECOND
    assert found.itl_per == "token"
    assert found.itl_s is not None
    assert (found.itl_s.count, found.itl_s.most) == (7, 0.02)
    assert found.itl_s.mean == pytest.approx(0.02)


def test_tokens_of_the_first_event_are_not_waited_for() -> None:
    lines = ((50, text_event("abc", None, 3)), (90, text_event("d", "length", 4)), (91, DONE))
    one, _ = single(Script(lines), 4)
    assert one.tpot_ns == 40 * MILLISECOND


def test_an_answer_in_one_event_tells_no_time_per_token() -> None:
    one, _ = single(Script(((50, text_event("abcdefgh", "length")), (51, counts_event(8)), (51, DONE))), 8)
    assert one.is_success
    assert one.tpot_ns is None


def test_one_token_has_no_time_per_token() -> None:
    one, found = single(answered(70, 0, 1), 1)
    assert one.tpot_ns is None
    assert found.tpot_s is None
    assert found.ttft_s is not None
    assert found.ttft_s.mean == 0.07


def test_open_loop_requests_are_sent_at_their_times_however_long_answers_take() -> None:
    server = ScriptedServer(lambda *_: answered(500, 10, 4))
    made = trace(*(asked(50 * number, (number, 10), output=4) for number in range(6)))
    measured, found = play(made, server)
    assert server.arrived_ns == [Nanos(50 * MILLISECOND * number) for number in range(6)]
    assert [one.lateness_ns for one in measured] == [0] * 6
    assert found.planned_rate == found.reached_rate == 20
    assert found.in_flight_most == 6
    assert found.ttft_s is not None
    assert (found.ttft_s.p50, found.ttft_s.p99) == (0.5, 0.5)


def test_a_bound_in_flight_plans_a_request_for_the_moment_of_room() -> None:
    server = ScriptedServer(lambda number, _: answered(100 + 40 * number, 0, 1))
    made = attrs.evolve(trace(*(asked(0, (number, 10), output=1) for number in range(5))), in_flight_max=2)
    measured, _ = play(made, server)
    assert server.most_under_way == 2
    # ends: 105, 145; then 105 + 185, 145 + 225 (counts come 5 ms after the last content)
    assert [one.planned_ns // MILLISECOND for one in measured] == [0, 0, 105, 145, 290]
    assert [one.ttft_ns // MILLISECOND for one in measured] == [100, 140, 180, 220, 260]


def test_stages_wait_for_each_other() -> None:
    server = ScriptedServer(lambda *_: answered(100, 0, 1))
    requests = [attrs.evolve(asked(0, (number, 10), output=1), stage=number // 2) for number in range(4)]
    measured, _ = play(attrs.evolve(trace(*requests), in_flight_max=8), server)
    assert [one.planned_ns // MILLISECOND for one in measured] == [0, 0, 105, 105]


def test_a_turn_follows_the_answer_after_its_pause_and_carries_the_history() -> None:
    server = ScriptedServer(lambda *_: answered(100, 10, 3))
    made = trace(asked(0, (0, 20), (1, 10), output=3), continued(0, 2.0, (2, 10), output=3))
    measured, found = play(made, server)
    assert measured[1].planned_ns == 2 * SECOND + 125 * MILLISECOND
    roles = [message["role"] for message in server.bodies[1]["messages"]]
    assert roles == ["system", "user", "assistant", "user"]
    assert server.bodies[1]["messages"][:2] == server.bodies[0]["messages"]
    assert server.bodies[1]["messages"][2]["content"] == "xxx"
    assert found.resumed_ttft_s is not None
    assert found.resumed_ttft_s.count == 1


def test_a_recorded_turn_waits_for_an_answer_that_is_late() -> None:
    server = ScriptedServer(lambda *_: answered(900, 0, 1))
    made = trace(asked(0, (0, 20), output=1), attrs.evolve(asked(300, (1, 10), output=1), continues=0))
    measured, _ = play(made, server)
    assert [one.planned_ns // MILLISECOND for one in measured] == [0, 905]


def _refused(number: int, _body: dict[str, Any]) -> Script:
    body = '{"error": {"message": "max_tokens is too large", "code": "invalid_value"}}'
    return Script(((1, body),), 400) if number % 3 == 0 else answered(50, 5, 2)


def test_errors_are_counted_by_kind_and_times_cover_the_others() -> None:
    made = trace(*(asked(10 * number, (number, 10), output=2) for number in range(9)))
    measured, found = play(made, ScriptedServer(_refused))
    assert found.errors == {"http 400 invalid_value": 3}
    assert (found.requests, found.successes) == (9, 6)
    assert found.ttft_s is not None
    assert found.ttft_s.count == 6
    assert found.output_tokens == 12
    assert "max_tokens is too large" in measured[0].detail


def test_answers_of_another_length_are_no_successes() -> None:
    one, found = single(answered(50, 5, 40), 2)
    assert one.fault == "output length"
    assert one.detail == "40 tokens instead of 2"
    assert found.successes == 0
    assert found.throughput == 0.0


def test_shorter_answers_are_allowed_where_lengths_are_not_forced() -> None:
    made = trace(asked(0, (0, 10), output=30))
    measured, _ = play(made, ScriptedServer(lambda *_: answered(50, 5, 4)), is_forced=False)
    assert measured[0].is_success
    measured, _ = play(made, ScriptedServer(lambda *_: answered(50, 5, 4)), is_forced=True)
    assert measured[0].detail == "4 tokens instead of 30"


@pytest.mark.parametrize(
    ("lines", "fault"),
    [
        (((1, text_event("a")),), "cut"),
        (((1, 'data: {"error": {"message": "gone", "code": "generation_failed"}}'),), "stream generation_failed"),
        (((1, "data: {"),), "malformed"),
        (((1, "data: 7"),), "malformed"),
        (((1, text_event("", "length")), (2, counts_event(2)), (2, DONE)), "no content"),
    ],
)
def test_a_broken_stream_is_an_error_of_its_kind(lines: tuple[tuple[float, str], ...], fault: str) -> None:
    one, _ = single(Script(lines), 2)
    assert one.fault == fault


@pytest.mark.parametrize(
    ("error", "fault"),
    [
        (httpx.ReadTimeout("slow"), "timeout"),
        (httpx.ConnectError("refused"), "connect"),
        (httpx.RemoteProtocolError("peer closed connection"), "connection lost"),
    ],
)
def test_a_broken_connection_is_an_error_of_its_kind(error: httpx.HTTPError, fault: str) -> None:
    class Broken(ScriptedServer):
        @override
        async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
            raise error

    measured, found = play(trace(asked(0, (0, 10), output=2)), Broken(lambda *_: answered(1, 1, 2)))
    assert measured[0].fault == fault
    assert found.ttft_s is None


def test_what_continues_a_failed_request_is_told_and_not_sent() -> None:
    made = trace(asked(0, (0, 10)), continued(0, 1.0, (1, 10)), continued(1, 1.0, (2, 10)), asked(9, (3, 10), output=2))
    measured, found = play(made, ScriptedServer(_refused))
    assert [one.fault for one in measured] == ["http 400 invalid_value", "history", "history", ""]
    assert found.errors == {"history": 2, "http 400 invalid_value": 1}


def test_a_client_that_is_held_up_sees_its_own_lateness() -> None:
    class Busy(ScriptedServer):
        @override
        async def handle_async_request(self, request: Any) -> Any:
            asyncio.get_running_loop()._jumping.moved_s += 0.1  # type: ignore[attr-defined]
            return await super().handle_async_request(request)

    made = trace(*(asked(number, (number, 10), output=1) for number in range(20)))
    measured, found = play(made, Busy(lambda *_: answered(5, 0, 1)))
    assert measured[-1].lateness_ns is not None
    assert measured[-1].lateness_ns > SECOND
    assert measured[-1].ttft_ns > measured[-1].lateness_ns
    assert found.planned_rate == pytest.approx(1_000)
    assert found.reached_rate < 12
    assert found.stall_s is not None
    assert found.stall_s.most > 0.09


@settings(max_examples=25)
@given(
    st.lists(
        st.tuples(st.integers(0, 400), st.integers(1, 300), st.integers(0, 30), st.integers(1, 9)),
        min_size=1,
        max_size=8,
    )
)
def test_known_times_are_reported_exactly(drawn: list[tuple[int, int, int, int]]) -> None:
    drawn = sorted(drawn)
    made = trace(*(asked(at, (number, 10), output=tokens) for number, (at, _, _, tokens) in enumerate(drawn)))
    scripts = [answered(first, gap, tokens) for _, first, gap, tokens in drawn]
    measured, _ = play(made, ScriptedServer(lambda number, _: scripts[number]))
    for one, (at, first, gap, tokens) in zip(measured, drawn, strict=True):
        assert one.planned_ns == one.sent_ns == at * MILLISECOND
        assert one.ttft_ns == first * MILLISECOND
        assert one.e2e_ns == (first + gap * (tokens - 1)) * MILLISECOND
        assert sum(gap.duration_ns for gap in one.gaps) == one.e2e_ns - one.ttft_ns
        assert one.tpot_ns == (gap * MILLISECOND if tokens > 1 else None)
