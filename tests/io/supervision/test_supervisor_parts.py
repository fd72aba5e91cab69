"""The decisions of supervision, without processes: hang detection, restart budget, first cause, scale."""

import json
import signal
from collections.abc import Mapping
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lmpool.io.orders import Beat
from lmpool.io.settings.sources import program_settings
from lmpool.io.settings.tree import Settings
from lmpool.io.supervision.fault import Cause, Exited, Fault, Killed, Silent, Stalled, Told
from lmpool.io.supervision.journal import Journal, quote_json, quote_plain
from lmpool.io.supervision.machine import gpus, quota_cores, usual_run_parent
from lmpool.io.supervision.posts import policy_line, reading_of, scale_of, served_names
from lmpool.io.supervision.restart import RestartBudget
from lmpool.io.supervision.vigil import Verdict, Vigil
from lmpool.io.topology import Reading, TopologyError
from tests.io.test_topology import BRIDGED, listing

CAUSES: tuple[Cause, ...] = (Told("x", "y"), Exited(1), Killed(9), Killed(64), Silent(10), Stalled(30))


def ticks(vigil: Vigil, count: int, *, is_stopped: bool = False) -> list[Verdict]:
    return [vigil.tick(is_stopped=is_stopped) for _ in range(count)]


def test_a_child_that_loads_may_be_silent() -> None:
    assert set(ticks(Vigil(10, 30), 1000)) == {Verdict.WELL}


def test_b60_a_child_that_is_stopped_while_it_loads_is_noticed() -> None:
    vigil = Vigil(10, 30)
    for _ in range(3):  # one that goes on in time is not blamed
        assert set(ticks(vigil, 10, is_stopped=True) + ticks(vigil, 1)) == {Verdict.WELL}
    assert ticks(vigil, 11, is_stopped=True) == [Verdict.WELL] * 10 + [Verdict.SILENT]


def test_b60_silence_after_a_beat_is_noticed() -> None:
    vigil = Vigil(10, 30)
    vigil.beat(Beat(working=False, steps=0))
    assert ticks(vigil, 11) == [Verdict.WELL] * 10 + [Verdict.SILENT]


def test_b60_work_without_a_step_is_noticed() -> None:
    vigil = Vigil(10, 30)
    verdicts = []
    for _ in range(31):
        vigil.beat(Beat(working=True, steps=0))
        verdicts += ticks(vigil, 1)
    assert verdicts == [Verdict.WELL] * 30 + [Verdict.STALLED]


def test_steps_and_idleness_are_no_stall() -> None:
    vigil = Vigil(10, 30)
    for second in range(100):
        vigil.beat(Beat(working=True, steps=second))
        assert ticks(vigil, 1) == [Verdict.WELL]
    for _ in range(100):
        vigil.beat(Beat(working=False, steps=100))
        assert ticks(vigil, 1) == [Verdict.WELL]


def test_pauses_double_up_to_the_longest_and_end() -> None:
    budget = RestartBudget(6, 0.5, 10, 30)
    assert [budget.take() for _ in range(7)] == [0.5, 1, 2, 4, 8, 10, None]
    budget.refill()
    assert budget.take() == 0.5


@given(st.integers(0, 1000), st.floats(0.01, 60), st.floats(60, 600))
def test_a_budget_always_ends(restarts: int, pause_s: float, pause_max_s: float) -> None:
    budget = RestartBudget(restarts, pause_s, pause_max_s, 30)
    pauses = [budget.take() for _ in range(restarts + 1)]
    assert pauses[-1] is None
    assert all(pause is not None and pause_s <= pause <= pause_max_s for pause in pauses[:-1])


def test_so_long_in_service_gives_the_budget_back() -> None:
    budget = RestartBudget(2, 0.5, 10, 30)
    for _ in range(3):
        assert [budget.take(), budget.take()] == [0.5, 1]
        for _ in range(30):
            budget.serve()
    for _ in range(2):  # a life that serves for a shorter time brings nothing, and two of them no more
        assert budget.take() is not None
        for _ in range(29):
            budget.serve()
    assert budget.take() is None


def test_b82_a_killed_process_is_told_with_signal_and_exit_code() -> None:
    report = Fault("worker 1", Killed(signal.SIGKILL), ("loading", "")).report()
    assert report[0] == "worker 1: was killed by signal 9 (SIGKILL, exit code 137)"
    assert "memory" in report[-1]
    assert "--kv-memory" in report[-1]


@pytest.mark.parametrize(
    ("line", "hint"),
    [
        ("ModuleNotFoundError: No module named 'torch'", "pip install 'lmpool[model]'"),
        ("MemoryError", "--kv-memory"),
        ("libcudart.so.12: cannot open shared object file", "system library"),
        ("OSError: [Errno 28] No space left on device", "make room"),
    ],
)
def test_b82_the_last_lines_give_the_hint(line: str, hint: str) -> None:
    report = Fault("worker 0", Exited(1), ("Traceback", line)).report()
    assert "ended with exit code 1" in report[0]
    assert f"  {line}" in report
    assert hint in report[-1]


@given(st.sampled_from(CAUSES), st.lists(st.text(max_size=20), max_size=30))
def test_b82_a_report_has_at_most_eight_lines_and_ends_with_the_hint(cause: Cause, lines: list[str]) -> None:
    report = Fault("worker 0", cause, tuple(lines)).report()
    assert len(report) <= 8
    assert report[0].startswith("worker 0: ")
    assert report[-1].startswith("hint: ")


def test_b82_the_first_cause_is_told_even_when_something_else_failed_last() -> None:
    journal = Journal(lambda line: None, quote_plain, lambda: 0.0)
    first, last = Fault("control", Killed(9), ()), Fault("worker 0", Exited(1), ("link lost",))
    journal.fault(first)
    journal.fault(last)
    lines = journal.end(last, "the server ends")
    assert lines[0].startswith("lmpool: the server ends: control: was killed by signal 9")
    assert lines[-1] == "in the end worker 0: ended with exit code 1"
    assert len(lines) <= 10


def test_a_fault_before_all_was_well_is_forgotten() -> None:
    journal = Journal(lambda line: None, quote_plain, lambda: 0.0)
    journal.fault(Fault("control", Killed(9), ()))
    journal.all_well()
    last = Fault("worker 0", Exited(7), ())
    journal.fault(last)
    assert "worker 0: ended with exit code 7" in journal.end(last, "the server ends")[0]


def test_equal_facts_are_told_once() -> None:
    said: list[str] = []
    journal = Journal(said.append, quote_plain, lambda: 0.0)
    for name in ("worker 0", "worker 1", "control"):
        journal.ready(name, ("cpu",))
    assert said == ["worker 0: ready", "  cpu", "worker 1: ready", "control: ready", "  cpu"]


def test_what_is_awaited_is_told_when_nothing_else_was_for_two_seconds() -> None:
    said: list[str] = []
    now = [0.0]
    journal = Journal(said.append, quote_plain, lambda: now[0])
    journal.say_waiting()
    journal.started("control")
    journal.progress("worker 0", "loading weights")
    journal.ready("control", ())
    now[0] = 1.0
    journal.say_waiting()
    now[0] = 2.0
    journal.say_waiting()
    journal.say_waiting()
    assert said == ["worker 0: loading weights", "control: ready", "waiting for worker 0 (loading weights, 2 s)"]


def test_progress_is_told_once_a_second_for_each_process_and_never_twice() -> None:
    said: list[str] = []
    now = [0.0]
    journal = Journal(said.append, quote_plain, lambda: now[0])
    for text in ("1 %", "1 %", "2 %"):
        journal.progress("prepare", text)
    journal.progress("worker 0", "1 %")
    now[0] = 1.0
    journal.progress("prepare", "2 %")
    journal.progress("prepare", "3 %")
    assert said == ["prepare: 1 %", "worker 0: 1 %", "prepare: 3 %"]


def test_lines_of_processes_are_told_with_their_names_in_both_formats() -> None:
    assert quote_plain("worker 0", "a warning") == "worker 0 | a warning"
    assert json.loads(quote_json("worker 0", 'a "warning"')) == {
        "event": 'a "warning"',
        "level": "info",
        "process": "worker 0",
    }
    assert quote_json("worker 0", '{"event": "x"}') == '{"event": "x"}'


@pytest.mark.parametrize(("content", "expected"), [("max 100000", 1 << 16), ("150000 100000", 2), ("1000 100000", 1)])
def test_a_container_has_the_cores_of_its_quota(content: str, expected: int) -> None:
    assert quota_cores(content) == expected


NO_GPU: Mapping[str, str] = {"CUDA_VISIBLE_DEVICES": ""}


@pytest.mark.parametrize(("visible", "expected"), [("", 0), ("-1", 0), ("0", 1), ("0,3", 2), ("GPU-aa,GPU-bb", 2)])
def test_visible_devices_are_counted(visible: str, expected: int) -> None:
    assert gpus({"CUDA_VISIBLE_DEVICES": visible}) == expected


def test_replicas_follow_the_gpus() -> None:
    eight = {"CUDA_VISIBLE_DEVICES": "0,1,2,3,4,5,6,7"}
    assert scale_of(Settings(), eight).replicas == 8
    assert scale_of(program_settings({"device": "cpu"}), eight).replicas <= 2
    assert scale_of(program_settings({"replicas": 3}), eight).replicas == 3


def test_replicas_read_each_other_by_what_their_devices_share(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of four devices two and two are connected."""
    nvidia_smi(tmp_path, monkeypatch, listing(4), BRIDGED)
    four = {"CUDA_VISIBLE_DEVICES": "0,1,2,3"}
    path = {"transfer_path": "cuda-ipc"}
    linked = ((0, 1), (1, 0), (2, 3), (3, 2))
    assert reading_of(program_settings(path), 4, four) == Reading("cuda-ipc", linked)
    assert reading_of(program_settings({**path, "transfer_pairs": "0>2"}), 4, four) == Reading("cuda-ipc", ((0, 2),))
    assert reading_of(program_settings({**path, "placement": "off"}), 4, four) == Reading("cuda-ipc", ())
    assert reading_of(program_settings(path), 1, four) == Reading("cuda-ipc", ())
    assert reading_of(Settings(), 4, four) == Reading(None, ())


def test_on_the_cpu_all_replicas_share_memory() -> None:
    assert reading_of(Settings(), 2, NO_GPU) == Reading("shm", ((0, 1), (1, 0)))
    assert reading_of(program_settings({"device": "cpu"}), 2, {"CUDA_VISIBLE_DEVICES": "0"}).path == "shm"
    assert reading_of(program_settings({"transfer_pairs": "1>0"}), 2, NO_GPU) == Reading("shm", ((1, 0),))
    with pytest.raises(TopologyError, match="'0-2' is no pair of two of the ranks 0 to 1"):
        reading_of(program_settings({"transfer_pairs": "0-2"}), 2, NO_GPU)
    refused_later = reading_of(program_settings({"transfer_path": "cuda-ipc"}), 2, NO_GPU)
    assert refused_later == Reading("cuda-ipc", ())


def nvidia_smi(folder: Path, monkeypatch: pytest.MonkeyPatch, devices: str, links: str) -> None:
    """A program in the place of nvidia-smi."""
    for name, text in (("devices", devices), ("links", links)):
        (folder / name).write_text(text)
    program = folder / "nvidia-smi"
    program.write_text(f'#!/bin/sh\n[ "$1" = -L ] && exec /bin/cat {folder}/devices\nexec /bin/cat {folder}/links\n')
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(folder))


def test_more_replicas_than_cores_are_told() -> None:
    scale = scale_of(program_settings({"replicas": 64, "device": "cpu"}), NO_GPU)
    assert scale.threads >= 1
    assert scale.threads > 1 or "more threads than cores" in scale.lines[1]


def test_an_alias_is_told_with_what_it_stands_for() -> None:
    assert policy_line(Settings()) == "policy default (marginal-time)"
    assert policy_line(program_settings({"policy": "session"})) == "policy session"


def test_names_that_clients_may_use() -> None:
    named = program_settings({"model": "/m/tiny", "served_model_name": ["a", "b"]})
    assert served_names(named, Path("/m/tiny")) == ("a", "b")
    assert served_names(program_settings({"model": "/m/tiny/"}), Path("/m/tiny")) == ("/m/tiny/", "tiny")
    assert served_names(program_settings({"model": "o/tiny"}), Path("/cache/x")) == ("o/tiny", "tiny")
    assert served_names(Settings(), Path("/cache/SmolLM2")) == ("SmolLM2",)


def test_sockets_lie_in_a_folder_of_the_users_own(tmp_path: Path) -> None:
    assert usual_run_parent({"XDG_RUNTIME_DIR": str(tmp_path)}) == tmp_path / "lmpool"
    assert "lmpool-" in usual_run_parent({"XDG_RUNTIME_DIR": "/nowhere"}).name
