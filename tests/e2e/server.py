"""A real `lmpool serve` in processes of its own, and what tests do to it."""

import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import httpx

START_S = 60.0
RECOVERY_S = 10.0
"""Within which a killed process is replaced, or everything is gone."""
ROOT = Path(__file__).parents[2]


class Server:
    """Started by the constructor; `wait_ready` gives it an address."""

    def __init__(self, folder: Path, arguments: Sequence[str]) -> None:
        """`folder` holds run folder, cache and log; its parts may be used by several servers in turn."""
        self.runs = folder / "runs"
        self._log = folder / "log"
        environment = {
            name: value for name, value in os.environ.items() if not name.startswith(("LMPOOL_", "OPENAI_", "HF_"))
        }
        environment |= {"LMPOOL_RUN_FOLDER": str(self.runs), "LMPOOL_CACHE_FOLDER": str(folder / "cache")}
        environment |= {"PYTHONPATH": str(ROOT), "HF_HUB_OFFLINE": "1", "NO_COLOR": "1"}
        with self._log.open("wb") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "lmpool", "serve", *arguments],
                stdout=subprocess.PIPE,
                stderr=log,
                env=environment,
                cwd=folder,
            )
        self.url = ""

    def wait_ready(self) -> None:
        assert self.process.stdout is not None
        assert select.select([self.process.stdout], [], [], START_S)[0], self.log()
        line = self.process.stdout.readline().decode()
        assert line.startswith("ready http://127.0.0.1:"), line + self.log()
        self.url = line.removeprefix("ready ").strip()

    def wait_end(self, seconds: float) -> int:
        return self.process.wait(seconds)

    def log(self) -> str:
        """All of standard error so far."""
        return self._log.read_text()

    def rest_of_output(self) -> str:
        """Standard output after the ready line, once the process has ended."""
        assert self.process.stdout is not None
        return self.process.stdout.read().decode()

    def children(self) -> dict[str, int]:
        """Process numbers by name: worker-0, control, ingress, prepare."""
        found = {}
        for entry in Path("/proc").iterdir():
            if entry.name.isdecimal() and parent_of(entry) == self.process.pid:
                words = command_of(entry)
                if "child" in words:
                    found[words[words.index("child") + 1]] = int(entry.name)
        return found

    def wait_for_child(self, name: str, other_than: int) -> int:
        """The process number of `name`, in another life than `other_than`."""
        for _ in moments(START_S):
            pid = self.children().get(name, other_than)
            if pid != other_than:
                return pid
        raise AssertionError(f"no {name}\n{self.log()}")

    def wait_serving(self) -> None:
        """Until every replica is live, as clients see it."""
        for _ in moments(RECOVERY_S):
            try:
                state = httpx.get(self.url + "/pool/state", timeout=5)
                if state.status_code == 200 and all(
                    replica["membership"] == "live" for replica in state.json()["replicas"]
                ):
                    return
            except httpx.TransportError:
                continue
        raise AssertionError(f"not serving again\n{self.log()}")

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        assert self.process.stdout is not None
        self.process.stdout.close()


@contextmanager
def started(folder: Path, *arguments: str) -> Iterator[Server]:
    """Begins to start; a free port unless the arguments name one."""
    server = Server(folder, arguments if "--port" in arguments else (*arguments, "--port", "0"))
    try:
        yield server
    finally:
        server.close()


@contextmanager
def serving(folder: Path, *arguments: str) -> Iterator[Server]:
    """Ready to take requests, every replica live."""
    with started(folder, *arguments) as server:
        server.wait_ready()
        yield server


def moments(seconds: float) -> Iterator[None]:
    """Now and again, for so long: the processes under test tell nobody when they have done something."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        yield
        time.sleep(0.02)


def parent_of(entry: Path) -> int:
    """0 where the process is gone or only waits to be asked after."""
    try:
        state, parent = (entry / "stat").read_text().rpartition(")")[2].split()[:2]
    except (FileNotFoundError, ProcessLookupError):
        return 0
    return 0 if state == "Z" else int(parent)


def command_of(entry: Path) -> list[str]:
    try:
        return (entry / "cmdline").read_bytes().decode(errors="replace").split("\0")
    except (FileNotFoundError, ProcessLookupError):
        return []


def is_gone(pid: int) -> bool:
    return parent_of(Path(f"/proc/{pid}")) == 0


def assert_gone(pids: Sequence[int], seconds: float) -> None:
    left = list(pids)
    for _ in moments(seconds):
        left = [pid for pid in left if not is_gone(pid)]
        if not left:
            return
    raise AssertionError([(pid, command_of(Path(f"/proc/{pid}"))) for pid in left])


def kill(pid: int) -> None:
    os.kill(pid, signal.SIGKILL)
