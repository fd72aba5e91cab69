"""Clients against real servers on a real loop: what they say is checked, never how long it took."""

import asyncio
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import jsonschema_rs
import pytest
from typing_extensions import override

from lmpool.bench.chat import main
from lmpool.bench.load.client import LoadError, Played, Target, play, shares
from lmpool.bench.load.contents import ProseTexts
from lmpool.bench.load.figures import Bounds
from lmpool.bench.load.http import Dialect
from lmpool.bench.load.run import Allowed, LoadReport, faults, run_figures
from lmpool.bench.load.schema import json_schema
from lmpool.sim.trace import Trace
from lmpool.sim.workload import make_workload
from tests.bench.load.virtual import DONE, counts_event, text_event
from tests.sim.racks import asked, continued, trace


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    refuses = 0
    """Every so many chats; 0: none."""
    extra_tokens = 0
    chats = 0

    def do_GET(self) -> None:
        self._answer(200, json.dumps({"data": [{"id": "small"}]}) if self.path == "/v1/models" else "")

    def do_POST(self) -> None:
        kind = type(self)
        kind.chats += 1
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        if kind.refuses and kind.chats % kind.refuses == 0:
            self._answer(400, json.dumps({"error": {"message": "too much", "code": "invalid_value"}}))
            return
        tokens = body["max_tokens"] + kind.extra_tokens
        lines = [text_event("x" * tokens, "length"), counts_event(tokens), DONE]
        self._answer(200, "".join(f"{line}\n\n" for line in lines))

    def _answer(self, status: int, body: str) -> None:
        self.send_response(status)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body.encode())

    @override
    def log_message(self, format: str, *args: object) -> None:
        pass


class _Server(ThreadingHTTPServer):
    request_queue_size = 512
    daemon_threads = True


@contextmanager
def serving(**how: int) -> Iterator[str]:
    """A server that answers at once."""
    handler = type("Handler", (_Handler,), how)
    server = _Server(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def _play(url: str, made: Trace, processes: int) -> tuple[Played, int]:
    target = Target(url, "small", None, Dialect.EXTENDED, None, None, 1, 60.0)
    ends: list[None] = []
    played = asyncio.run(play(made, target, target.contents(), processes, lambda: ends.append(None)))
    return played, len(ends)


@pytest.mark.parametrize("processes", [1, 2])
def test_every_request_of_a_trace_is_played_and_told_once(processes: int) -> None:
    made = trace(
        *(asked(0, (number, 10), output=2, session=f"s{number}") for number in range(6)),
        continued(1, 0.01, (7, 5), output=3),
        continued(6, 0.01, (8, 5), output=4),
    )
    with serving() as url:
        played, ends = _play(url, made, processes)
    assert [(one.number, one.output_tokens, one.fault) for one in played.measured] == [
        (number, request.output_tokens, "") for number, request in enumerate(made.requests)
    ]
    assert [one.session for one in played.measured] == [request.session for request in made.requests]
    assert ends == 8


def test_a_client_that_cannot_keep_up_says_so() -> None:
    made = trace(*(asked(number / 50, (number % 7, 30), output=1) for number in range(1_000)))
    with serving() as url:
        played, _ = _play(url, made, 1)
    found = run_figures(made, played, Bounds(None, None))
    assert found.successes == 1_000
    assert found.planned_rate == pytest.approx(50_000, rel=0.01)
    assert found.reached_rate < found.planned_rate / 2
    (fault, *_) = faults(found, Allowed(0.01, 0.02))
    assert fault.startswith("the client could not keep up: it sent")


def test_sessions_stay_whole_when_clients_share_a_trace() -> None:
    made = make_workload("multi-round-chat", 60, 1.0, 0)
    cut = shares(made, 3)
    assert sorted(number for _, numbers in cut for number in numbers) == list(range(len(made.requests)))
    sessions = [{made.requests[number].session for number in numbers} for _, numbers in cut]
    assert sum(len(one) for one in sessions) == len(set().union(*sessions))
    for part, numbers in cut:
        assert [request.parts for request in part.requests] == [made.requests[number].parts for number in numbers]
        assert [request.at_ns for request in part.requests] == [made.requests[number].at_ns for number in numbers]


def test_a_bound_in_flight_is_shared_by_clients() -> None:
    made = make_workload("long-doc-qa", None, 1.0, 0)
    assert [part.in_flight_max for part, _ in shares(made, 3)] == [2, 1, 1]


@pytest.mark.parametrize(
    ("made", "count", "why"),
    [
        (make_workload("load-skew", None, 1.0, 0), 2, "stages wait for each other"),
        (make_workload("long-doc-qa", None, 1.0, 0), 5, "4 requests in flight cannot be shared by 5 processes"),
        (trace(asked(0, (0, 5))), 2, "1 sessions cannot be shared by 2 processes"),
    ],
)
def test_what_clients_cannot_share_is_refused(made: Trace, count: int, why: str) -> None:
    with pytest.raises(LoadError, match=why):
        shares(made, count)


def test_a_child_that_cannot_begin_ends_the_run() -> None:
    made = trace(*(asked(0, (number, 10), output=2) for number in range(4)))
    target = Target("http://127.0.0.1:9", "small", None, Dialect.EXTENDED, "/nowhere/tokenizer.json", None, 1, 60.0)
    with pytest.raises(LoadError, match="a client process ended before it was ready"):
        asyncio.run(play(made, target, ProseTexts(None, 1), 2, lambda: None))


def test_sessions_cannot_be_asked_in_tokens() -> None:
    target = Target("http://127.0.0.1:9", "small", None, Dialect.EXTENDED, None, 500, 1, 60.0)
    made = trace(asked(0, (0, 10)), continued(0, 1.0, (1, 5)))
    with pytest.raises(LoadError, match="answers over HTTP are texts"):
        asyncio.run(play(made, target, target.contents(), 1, lambda: None))


def test_a_server_that_goes_away_is_an_error_of_its_kind() -> None:
    played, _ = _play("http://127.0.0.1:9", trace(asked(0, (0, 10), output=2)), 1)
    assert [one.fault for one in played.measured] == ["connect"]


SMALL = ["--workload", "multi-round-chat", "--seconds", "1", "--rate", "4", "--pauses", "0", "--late-max", "60"]


def test_a_report_keeps_its_schema_and_leaves_a_log(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    figures, log = tmp_path / "figures.json", tmp_path / "log.jsonl"
    with serving() as url:
        code = main([*SMALL, "--url", url, "--json", str(figures), "--log", str(log), "--contents", "5"])
    assert code == 0
    report = json.loads(figures.read_text())
    jsonschema_rs.validate(json_schema(LoadReport), report)
    (run,) = report["runs"]
    assert run["figures"]["successes"] == run["input"]["requests"] == len(log.read_text().splitlines())
    assert run["input"]["contents_seed"] == 5
    assert (run["cache"]["source"], run["cache"]["reuse"], run["cache"]["doubts"]) == ("counts in answers", 0.0, [])
    printed = capsys.readouterr()
    assert "TTFT of later turns" in printed.out
    assert "req/s" in printed.err


def test_the_schema_refuses_what_is_no_report() -> None:
    schema = json_schema(LoadReport)
    with pytest.raises(jsonschema_rs.ValidationError):
        jsonschema_rs.validate(schema, {"schema_version": 1})


@pytest.mark.parametrize(
    ("how", "code", "told"),
    [
        ({"refuses": 1}, 1, "x http 400 invalid_value"),
        ({"refuses": 3}, 1, "x http 400 invalid_value"),
        ({"extra_tokens": 20}, 1, "x output length"),
    ],
)
def test_runs_with_errors_end_with_a_code_and_clear_figures(
    how: dict[str, int], code: int, told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with serving(**how) as url:
        assert main([*SMALL, "--url", url]) == code
    printed = capsys.readouterr().out
    assert told in printed
    assert "NOT VALID" in printed


def test_a_server_that_is_not_there_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--url", "http://127.0.0.1:9"]) == 2
    assert capsys.readouterr().err.startswith("lmpool bench chat: no server answers at http://127.0.0.1:9")


def test_what_is_no_address_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--url", "localhost:8000", "--model", "small"]) == 2
    assert capsys.readouterr().err.startswith("lmpool bench chat: 'localhost:8000' is no address of a server")


def test_the_same_seeds_give_the_same_fingerprints(tmp_path: Path) -> None:
    inputs = []
    for name in ("one", "other"):
        with serving() as url:
            main([*SMALL, "--url", url, "--contents", "5", "--json", str(tmp_path / name)])
        inputs.append(json.loads((tmp_path / name).read_text())["runs"][0]["input"])
    assert inputs[0] == inputs[1]
