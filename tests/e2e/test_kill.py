"""`kill -9` of any one process leaves a server that serves again, or nothing at all."""

import os
import signal
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest

from tests.e2e.server import RECOVERY_S, Server, assert_gone, kill, moments, serving, started

REPLICAS = ("--replicas", "2")


class Load:
    """Four clients that ask all the time, over HTTP, until told to stop."""

    def __init__(self, server: Server, model: str) -> None:
        self.answers: list[tuple[int, str]] = []
        """Status and text of each complete answer to the same greedy question."""
        self.broken = 0
        """Connections that ended without an answer."""
        self._stop = threading.Event()
        self._threads = ThreadPoolExecutor(4)
        body = {"model": model, "prompt": "always the same question", "max_tokens": 32, "temperature": 0}
        self._running = [self._threads.submit(self._ask, server.url + "/v1/completions", body) for _ in range(4)]

    def _ask(self, url: str, body: dict[str, object]) -> None:
        while not self._stop.is_set():
            try:
                answer = httpx.post(url, json=body, timeout=60)
            except httpx.TransportError:
                self.broken += 1
                self._stop.wait(0.05)
                continue
            text = answer.json()["choices"][0]["text"] if answer.status_code == 200 else answer.text
            self.answers.append((answer.status_code, text))

    def wait_for_more(self, count: int) -> None:
        goal = len(self.answers) + count
        for _ in moments(30):
            if len(self.answers) >= goal:
                return
        raise AssertionError(f"{len(self.answers)} answers, {self.broken} broken")

    def end(self) -> None:
        self._stop.set()
        for running in self._running:
            running.result()
        self._threads.shutdown()


@pytest.mark.parametrize("name", ["worker-0", "control"])
def test_b59_b60_streams_survive_what_is_killed_under_load(slow_folder: Path, tmp_path: Path, name: str) -> None:
    with serving(tmp_path, str(slow_folder), *REPLICAS) as server:
        load = Load(server, slow_folder.name)
        load.wait_for_more(4)
        victim = server.children()[name]
        kill(victim)
        server.wait_for_child(name, victim)
        server.wait_serving()
        load.wait_for_more(8)
        load.end()
        assert load.broken == 0
        assert {status for status, _ in load.answers} == {200}, load.answers
        assert len({text for _, text in load.answers}) == 1


def test_b60_streams_survive_a_replica_that_stops_and_it_is_replaced(slow_folder: Path, tmp_path: Path) -> None:
    with serving(tmp_path, str(slow_folder), *REPLICAS, "--silence-seconds", "3") as server:
        load = Load(server, slow_folder.name)
        load.wait_for_more(4)
        victim = server.children()["worker-1"]
        os.kill(victim, signal.SIGSTOP)
        server.wait_for_child("worker-1", victim)
        server.wait_serving()
        load.wait_for_more(8)
        load.end()
        assert "worker 1: gave no sign of life for 3 s and was killed" in server.log()
        assert load.broken == 0
        assert {status for status, _ in load.answers} == {200}, load.answers
        assert len({text for _, text in load.answers}) == 1


def test_b59_a_killed_ingress_costs_connections_and_nothing_else(slow_folder: Path, tmp_path: Path) -> None:
    with serving(tmp_path, str(slow_folder), *REPLICAS) as server:
        before = server.children()
        load = Load(server, slow_folder.name)
        load.wait_for_more(4)
        kill(before["ingress"])
        server.wait_for_child("ingress", before["ingress"])
        server.wait_serving()
        load.wait_for_more(8)
        load.end()
        assert {status for status, _ in load.answers} <= {200, 503}
        after = server.children()
        assert {name: pid for name, pid in after.items() if name != "ingress"} == {
            name: pid for name, pid in before.items() if name != "ingress"
        }


def test_b59_a_killed_supervisor_takes_everything_with_it(slow_folder: Path, tmp_path: Path) -> None:
    with serving(tmp_path, str(slow_folder), *REPLICAS) as server:
        children = server.children()
        assert len(children) == 4
        load = Load(server, slow_folder.name)
        load.wait_for_more(4)
        kill(server.process.pid)
        assert_gone(list(children.values()), RECOVERY_S)
        server.process.wait()
        load.end()
        assert len(list(server.runs.iterdir())) == 1
    with serving(tmp_path, str(slow_folder), "--replicas", "1") as server:
        assert len(list(server.runs.iterdir())) == 1


def test_b59_a_supervisor_killed_during_load_takes_everything_with_it(integer_folder: Path, tmp_path: Path) -> None:
    for name in ("prepare", "worker-1", "ingress"):
        with started(tmp_path, str(integer_folder), *REPLICAS) as server:
            server.wait_for_child(name, 0)
            children = list(server.children().values())
            kill(server.process.pid)
            assert_gone(children, RECOVERY_S)
            server.process.wait()


@pytest.mark.parametrize("name", ["worker-0", "control", "ingress"])
def test_b59_a_process_killed_during_load_is_started_again(integer_folder: Path, tmp_path: Path, name: str) -> None:
    with started(tmp_path, str(integer_folder), *REPLICAS) as server:
        kill(server.wait_for_child(name, 0))
        server.wait_ready()
        server.wait_serving()
        assert "was killed by signal 9 (SIGKILL, exit code 137); starting again" in server.log()


def test_b82_a_preparation_that_is_killed_ends_the_start(integer_folder: Path, tmp_path: Path) -> None:
    with started(tmp_path, str(integer_folder), *REPLICAS) as server:
        kill(server.wait_for_child("prepare", 0))
        assert server.wait_end(RECOVERY_S) == 1
        last = server.log().splitlines()[-10:]
        assert any("prepare: was killed by signal 9 (SIGKILL, exit code 137)" in line for line in last)
        assert last[-1].startswith("hint: ")


def test_b82_a_replica_killed_again_and_again_ends_the_server_with_the_cause(
    integer_folder: Path, tmp_path: Path
) -> None:
    quick = ("--restarts", "2", "--restart-pause-seconds", "0.05")
    with serving(tmp_path, str(integer_folder), *REPLICAS, *quick) as server:
        kill_each_life(server, "worker-1", lives=3)
        assert server.wait_end(RECOVERY_S) == 1
        last = server.log().splitlines()[-10:]
        assert any("worker 1: was killed by signal 9 (SIGKILL, exit code 137)" in line for line in last), last
        assert any(line.startswith("hint: ") for line in last)
        assert list(server.runs.iterdir()) == []


def kill_each_life(server: Server, name: str, lives: int) -> None:
    """Each as soon as it is there, so that none comes to serve after the first."""
    victim = 0
    for _ in range(lives):
        victim = server.wait_for_child(name, victim)
        kill(victim)
