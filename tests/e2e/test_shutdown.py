"""TERM and Ctrl+C: what runs is finished, what is new is refused, and a second signal ends it all."""

import json
import signal
import threading
from pathlib import Path

import httpx

from tests.e2e.server import RECOVERY_S, Server, assert_gone, moments, serving, started


class Stream:
    """One streamed completion, read on a thread of its own."""

    def __init__(self, server: Server, model: str, max_tokens: int) -> None:
        self.begun = threading.Event()
        self.events: list[str] = []
        body = {"model": model, "prompt": "tell me", "max_tokens": max_tokens, "stream": True, "ignore_eos": True}
        self._thread = threading.Thread(target=self._read, args=(server.url + "/v1/completions", body))
        self._thread.start()

    def _read(self, url: str, body: dict[str, object]) -> None:
        try:
            with httpx.stream("POST", url, json=body, timeout=60) as answer:
                for line in answer.iter_lines():
                    if line.startswith("data: "):
                        self.events.append(line.removeprefix("data: "))
                        self.begun.set()
        except httpx.TransportError:
            self.events.append("broken")
            self.begun.set()

    def result(self) -> list[str]:
        self._thread.join(30)
        assert not self._thread.is_alive()
        return self.events


def test_b63_term_lets_streams_finish_and_refuses_new_requests(slow_folder: Path, tmp_path: Path) -> None:
    with serving(tmp_path, str(slow_folder), "--replicas", "2") as server:
        streams = [Stream(server, slow_folder.name, 40) for _ in range(10)]
        for stream in streams:
            assert stream.begun.wait(RECOVERY_S)
        server.process.send_signal(signal.SIGTERM)
        refused = ""
        for _ in moments(RECOVERY_S):
            refused = refusal(server)
            if refused:
                break
        assert refused
        for stream in streams:
            events = stream.result()
            assert events[-1] == "[DONE]", events[-3:]
            assert json.loads(events[-2])["choices"][0]["finish_reason"] == "length"
        assert server.wait_end(RECOVERY_S) == 0


def refusal(server: Server) -> str:
    """How a new request is turned away; empty while it is not."""
    try:
        answer = httpx.get(server.url + "/readyz", timeout=5)
    except httpx.TransportError as error:
        return type(error).__name__
    return "" if answer.status_code == 200 else str(answer.status_code)


def test_b63_what_does_not_finish_in_time_gets_one_error_event(slow_folder: Path, tmp_path: Path) -> None:
    with serving(tmp_path, str(slow_folder), "--replicas", "1", "--drain-seconds", "1") as server:
        stream = Stream(server, slow_folder.name, 2000)
        assert stream.begun.wait(RECOVERY_S)
        server.process.send_signal(signal.SIGTERM)
        events = stream.result()
        assert server.wait_end(RECOVERY_S) == 0
        assert "error" in json.loads(events[-1]), events[-3:]
        assert [event for event in events if '"error"' in event] == [events[-1]]


def test_b63_a_second_signal_ends_it_now(slow_folder: Path, tmp_path: Path) -> None:
    with serving(tmp_path, str(slow_folder), "--replicas", "1") as server:
        children = list(server.children().values())
        stream = Stream(server, slow_folder.name, 2000)
        assert stream.begun.wait(RECOVERY_S)
        server.process.send_signal(signal.SIGINT)
        for _ in moments(RECOVERY_S):
            if "a second one ends it now" in server.log():
                break
        server.process.send_signal(signal.SIGINT)
        assert server.wait_end(RECOVERY_S) == 130
        assert_gone(children, 0.1)
        assert list(server.runs.iterdir()) == []
        stream.result()


def test_a_signal_during_the_start_ends_it_in_order(slow_folder: Path, tmp_path: Path) -> None:
    with started(tmp_path, str(slow_folder), "--replicas", "2") as server:
        server.wait_for_child("worker-0", 0)
        children = list(server.children().values())
        server.process.send_signal(signal.SIGTERM)
        assert server.wait_end(RECOVERY_S) == 0
        assert_gone(children, 0.1)
        assert list(server.runs.iterdir()) == []
