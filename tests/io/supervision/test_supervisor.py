"""The supervisor over real processes that do what a script says, on both event loops."""

import asyncio
import json
import os
import select
import signal
import socket
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from lmpool.io.errors import StartFailed
from lmpool.io.settings.sources import program_settings
from lmpool.io.supervision.listener import listen
from lmpool.io.supervision.supervisor import Supervisor
from tests.io.loops import Run, on_both_loops

PROGRAM = (sys.executable, str(Path(__file__).with_name("scripted_child.py")))
PATIENCE_S = 60.0
"""The time limit of a test raises in whatever task runs, where it may end in a future that nobody awaits."""
DEATH_S = 10.0
"""Within which what is killed is gone."""


class Stage:
    """One supervisor and what its children left on record."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.said: list[str] = []
        self._folder = folder
        self._news = asyncio.Event()
        self._monkeypatch = monkeypatch

    def supervisor(
        self, script: dict[str, list[list[str]]], listener: socket.socket | None = None, **values: object
    ) -> Supervisor:
        (self._folder / "script").write_text(json.dumps(script))
        self._monkeypatch.setenv("SCRIPT", str(self._folder / "script"))
        quick = {"restart_pause_seconds": 0.01, "restart_pause_max_seconds": 0.02, "restarts": 2}
        usual = {"run_folder": self._folder / "runs", "replicas": 2, "cache_folder": self._folder}
        return Supervisor(program_settings({**quick, **usual, **values}), listener, self._say, PROGRAM)

    async def until_said(self, part: str, times: int) -> None:
        async with asyncio.timeout(PATIENCE_S):
            while sum(part in line for line in self.said) < times:
                self._news.clear()
                await self._news.wait()

    def lives(self, name: str) -> list[tuple[int, int]]:
        """Process number and epoch of each life of `name`."""
        return [(int(pid), int(epoch)) for who, pid, epoch in self._record() if who == name]

    def was_drained(self, name: str) -> bool:
        return any(who == f"{name} drained" for who, _, _ in self._record())

    def all_gone(self) -> None:
        spawned = [int(who.rpartition(" ")[2]) for who, _, _ in self._record() if who.startswith("spawned")]
        for pid in [*(int(pid) for _, pid, _ in self._record()), *spawned]:
            assert ends(pid), self._record()
        assert list((self._folder / "runs").iterdir()) == []

    def _record(self) -> list[list[str]]:
        return [line.split(":") for line in (self._folder / "lived").read_text().splitlines()]

    def _say(self, line: str) -> None:
        self.said.append(line)
        self._news.set()


def ends(pid: int) -> bool:
    """Waits for it. Also one that has ended and that nobody has asked after yet has ended."""
    try:
        handle = os.pidfd_open(pid)
    except ProcessLookupError:
        return True
    try:
        return bool(select.select([handle], [], [], DEATH_S)[0])
    finally:
        os.close(handle)


@pytest.fixture
def stage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Stage:
    return Stage(tmp_path, monkeypatch)


@on_both_loops
def test_a_run_starts_tells_its_facts_and_ends_in_order(run: Run, stage: Stage) -> None:
    async def main() -> None:
        supervisor = stage.supervisor({"worker-0": [["progress:loading", "write:a warning\n", "ready"]]})
        begun = await supervisor.start()
        assert begun.model_folder == Path("/model")
        assert begun.scale.replicas == 2
        assert {"worker 0: ready", "worker 1: ready", "control: ready", "worker 0: loading"} <= set(stage.said)
        assert "worker 0 | a warning" in stage.said
        assert begun.folder.is_dir()
        await supervisor.stop(0)
        assert all(stage.was_drained(name) for name in ("worker-0", "worker-1", "control"))
        stage.all_gone()

    run(main())


@on_both_loops
def test_epochs_rise_from_life_to_life(run: Run, stage: Stage) -> None:
    async def main() -> None:
        supervisor = stage.supervisor({})
        await supervisor.start()
        (first, epoch), *_ = stage.lives("worker-1")
        os.kill(first, signal.SIGKILL)
        await stage.until_said("worker 1: ready", 2)
        (_, _), (second, later) = stage.lives("worker-1")
        assert second != first
        assert later > max(epoch, *(epoch for _, epoch in [*stage.lives("worker-0"), *stage.lives("control")]))
        assert any("worker 1: was killed by signal 9 (SIGKILL, exit code 137); starting" in line for line in stage.said)
        assert len(stage.lives("worker-0")) == len(stage.lives("control")) == 1
        await supervisor.stop(0)
        stage.all_gone()

    run(main())


def refused(run: Run, supervise: Callable[[], Supervisor]) -> list[str]:
    """The lines of a start that fails."""
    lines: list[str] = []

    async def main() -> None:
        with pytest.raises(StartFailed) as failure:
            await supervise().start()
        lines.extend(str(failure.value).splitlines())

    run(main())
    assert 0 < len(lines) <= 10
    return lines


@on_both_loops
def test_b82_what_a_process_says_of_itself_ends_the_start_at_once(run: Run, stage: Stage) -> None:
    script = {"worker-0": [["fail:there is no CUDA device"]], "worker-1": [["deaf"]]}
    lines = refused(run, lambda: stage.supervisor(script))
    assert lines == ["lmpool: the start failed: worker 0: there is no CUDA device", "hint: mend it"]
    assert len(stage.lives("worker-0")) == 1
    stage.all_gone()


@on_both_loops
def test_b82_a_bad_path_is_told_by_the_preparing_process(run: Run, stage: Stage) -> None:
    lines = refused(run, lambda: stage.supervisor({"prepare": [["fail:no folder /nowhere"]]}))
    assert lines == ["lmpool: the start failed: prepare: no folder /nowhere", "hint: mend it"]


@on_both_loops
@pytest.mark.parametrize(
    ("act", "told"),
    [("kill:9", "was killed by signal 9 (SIGKILL, exit code 137)"), ("exit:7", "ended with exit code 7")],
)
def test_b82_a_replica_that_cannot_start_ends_the_start_with_its_last_lines(
    run: Run, stage: Stage, act: str, told: str
) -> None:
    lines = refused(run, lambda: stage.supervisor({"worker-1": [["write:first\nsecond\nlast words", act]]}))
    assert lines[0] == f"lmpool: the start failed: worker 1: {told}"
    assert lines[1:-1] == ["its last lines:", "  first", "  second", "  last words"]
    assert lines[-1].startswith("hint: ")
    assert len(stage.lives("worker-1")) == 3
    stage.all_gone()


@on_both_loops
def test_a_replica_that_comes_up_at_the_second_try_is_enough(run: Run, stage: Stage) -> None:
    async def main() -> None:
        supervisor = stage.supervisor({"worker-1": [["exit:1"], ["ready"]]})
        await supervisor.start()
        assert len(stage.lives("worker-1")) == 2
        await supervisor.stop(0)

    run(main())


@on_both_loops
def test_what_fails_in_service_again_and_again_ends_the_run_with_the_first_cause(run: Run, stage: Stage) -> None:
    async def main() -> None:
        supervisor = stage.supervisor({"control": [["ready"], ["write:no more", "exit:3"], ["exit:4"]]})
        await supervisor.start()
        os.kill(stage.lives("control")[0][0], signal.SIGSEGV)
        lines = await supervisor.failed()
        assert lines[0] == "lmpool: the server ends: control: was killed by signal 11 (SIGSEGV, exit code 139)"
        assert lines[-1] == "in the end control: ended with exit code 4"
        await supervisor.stop(0)
        stage.all_gone()

    run(main())


@on_both_loops
def test_an_ingress_that_cannot_be_kept_up_ends_the_run_and_tells_what_failed_first(run: Run, stage: Stage) -> None:
    async def main() -> None:
        supervisor = stage.supervisor({"ingress": [["ready"], ["exit:5"]]}, listener=listen("127.0.0.1", 0))
        await supervisor.start()
        os.kill(stage.lives("ingress")[0][0], signal.SIGKILL)
        lines = await supervisor.failed()
        assert lines[0] == "lmpool: the server ends: ingress: was killed by signal 9 (SIGKILL, exit code 137)"
        assert lines[-1] == "in the end ingress: ended with exit code 5"
        assert len(stage.lives("ingress")) == 3
        await supervisor.stop(0)
        stage.all_gone()

    run(main())


@on_both_loops
def test_a_completed_step_gives_the_budget_back(run: Run, stage: Stage) -> None:
    async def main() -> None:
        supervisor = stage.supervisor({"worker-0": [["beat:1", "ready"]]}, restarts=1)
        await supervisor.start()
        for life in range(1, 4):
            os.kill(stage.lives("worker-0")[-1][0], signal.SIGKILL)
            await stage.until_said("worker 0: ready", life + 1)
        await supervisor.stop(0)
        stage.all_gone()

    run(main())


@on_both_loops
def test_b60_a_stopped_process_is_killed_and_started_again(run: Run, stage: Stage) -> None:
    async def main() -> None:
        supervisor = stage.supervisor({"worker-0": [["ready", "beat:0"], ["ready"]]}, silence_seconds=3)
        await supervisor.start()
        await stage.until_said("worker 0: gave no sign of life for 3 s and was killed", 1)
        await stage.until_said("worker 0: ready", 2)
        await supervisor.stop(0)
        stage.all_gone()

    run(main())


@on_both_loops
def test_b60_a_process_stopped_while_it_loads_is_killed_and_started_again(run: Run, stage: Stage) -> None:
    async def main() -> None:
        script = {"worker-0": [[f"kill:{int(signal.SIGSTOP)}"], ["ready"]]}
        supervisor = stage.supervisor(script, silence_seconds=3)
        await supervisor.start()
        assert "worker 0: gave no sign of life for 3 s and was killed; starting again in 0.01 s" in stage.said
        await supervisor.stop(0)
        stage.all_gone()

    run(main())


@on_both_loops
def test_b59_what_a_child_started_ends_with_it(run: Run, stage: Stage) -> None:
    async def main() -> None:
        supervisor = stage.supervisor({"worker-0": [["spawn", "ready"]], "worker-1": [["spawn", "deaf"]]})
        starting = asyncio.create_task(supervisor.start())
        await stage.until_said("worker 0: ready", 1)
        await stage.until_said("control: ready", 1)
        starting.cancel()
        await asyncio.wait((starting,))
        assert starting.cancelled()
        stage.all_gone()

    run(main())


@on_both_loops
def test_what_does_not_end_in_time_is_killed(run: Run, stage: Stage) -> None:
    async def main() -> None:
        supervisor = stage.supervisor({"worker-0": [["ready", "deaf"]]})
        await supervisor.start()
        await supervisor.stop(0)
        assert stage.was_drained("worker-1")
        assert not stage.was_drained("worker-0")
        stage.all_gone()

    run(main())


@on_both_loops
def test_b63_runs_in_one_process_leave_no_descriptor_and_no_thread(run: Run, stage: Stage) -> None:
    async def main() -> None:
        sizes = []
        for _ in range(4):
            supervisor = stage.supervisor({}, replicas=1)
            await supervisor.start()
            await supervisor.stop(0)
            sizes.append((len(os.listdir("/proc/self/fd")), len(os.listdir("/proc/self/task"))))
        assert len(set(sizes[1:])) == 1
        stage.all_gone()

    run(main())


@on_both_loops
def test_links_that_cannot_be_known_end_the_start_with_a_remedy(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stage = Stage(tmp_path, monkeypatch)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1")
    monkeypatch.setenv("PATH", str(tmp_path))

    async def main() -> None:
        with pytest.raises(StartFailed, match=r"nvidia-smi is not installed.*--transfer-pairs.*--placement off"):
            await stage.supervisor({}, transfer_path="cuda-ipc").start()

    run(main())
    assert list((tmp_path / "runs").iterdir()) == []
