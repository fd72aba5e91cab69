"""A real server records its control, which is replayed to the same decisions and digests."""

import signal
import stat
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx

from lmpool.io.replay import replay
from tests.e2e.server import RECOVERY_S, Server, kill, serving

PROMPT = "the quick brown fox jumps over the lazy dog, again and again, until it is tired of it"


def ask(server: Server, number: int) -> int:
    body = {"prompt": f"{number % 7}: {PROMPT}", "max_tokens": 8, "temperature": 0}
    return httpx.post(server.url + "/v1/completions", json=body, timeout=60).status_code


def ask_many(server: Server, count: int) -> None:
    with ThreadPoolExecutor(8) as threads:
        assert set(threads.map(lambda number: ask(server, number), range(count))) == {200}


def test_each_life_of_control_is_recorded_and_replayed(integer_folder: Path, tmp_path: Path) -> None:
    recording = tmp_path / "recording"
    arguments = (str(integer_folder), "--replicas", "2", "--record-control", str(recording))
    with serving(tmp_path, *arguments) as server:
        assert f"recording its events to {recording}." in server.log()
        ask_many(server, 40)
        decisions = httpx.get(server.url + "/pool/state").json()["decisions"]
        first = server.children()["control"]
        kill(first)
        server.wait_for_child("control", first)
        server.wait_serving()
        ask_many(server, 10)
        server.process.send_signal(signal.SIGTERM)
        assert server.wait_end(RECOVERY_S) == 0
        assert "Traceback" not in server.log()
    killed, ended = sorted(tmp_path.glob("recording.*"), key=lambda path: int(path.suffix[1:]))
    assert {stat.S_IMODE(path.stat().st_mode) for path in (killed, ended)} == {0o600}
    cut, whole = replay(killed, None), replay(ended, None)
    assert (cut.divergences, whole.divergences) == ((), ())
    assert not cut.is_whole
    assert cut.decisions <= decisions == 40
    assert whole.is_whole
    assert whole.digests >= 1
    assert whole.decisions >= 10


def test_a_recording_that_is_there_is_not_written_over(integer_folder: Path, tmp_path: Path) -> None:
    for epoch in range(1, 9):
        (tmp_path / f"recording.{epoch}").write_text("precious")
    server = Server(tmp_path, (str(integer_folder), "--port", "0", "--record-control", str(tmp_path / "recording")))
    try:
        assert server.wait_end(60) == 1
        assert "is there already, and no recording is written over" in server.log()
        assert "name another file with --record-control" in server.log()
        assert "Traceback" not in server.log()
    finally:
        server.close()
    assert {path.read_text() for path in tmp_path.glob("recording.*")} == {"precious"}
