"""A server in processes of its own, watched from outside: which live, what they hold, and who ended unasked."""

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import attrs
import httpx

WATCH_S = 0.05
START_S = 300.0
END_S = 60.0
LINES_SHOWN = 40
EXCUSE_S = 3.0
"""A process that was made to stand still may be found silent so long after it goes on."""


class ServerError(Exception):
    """It cannot be used at all; with the last lines of its log."""


@attrs.frozen
class Death:
    at: float
    """On the monotonic clock, as all moments here."""
    name: str
    is_expected: bool
    """Somebody here killed or stopped the process."""


@attrs.define
class Life:
    name: str
    """worker-0, control, ingress"""
    born: float


class ChaosServer:
    """`start` it, `watch` it in a task of its own, `end` it."""

    def __init__(self, folder: Path, arguments: Sequence[str]) -> None:
        """`folder` gets run folder, cache and log."""
        self.runs = folder / "runs"
        self.url = ""
        self.deaths: list[Death] = []
        self.seen: dict[int, str] = {}
        """Every process there ever was, by number."""
        self._log = folder / "log"
        self._lives: dict[int, Life] = {}
        self._struck: dict[int, float] = {}
        """Until when the end of a process is no surprise."""
        environment = {name: value for name, value in os.environ.items() if not name.startswith("LMPOOL_")}
        environment |= {"LMPOOL_RUN_FOLDER": str(self.runs)}
        with self._log.open("wb") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "lmpool", "serve", *arguments, "--port", "0"],
                stdout=subprocess.PIPE,
                stderr=log,
                env=environment,
            )

    async def start(self) -> None:
        """Raises ServerError."""
        assert self.process.stdout is not None
        try:
            line = await asyncio.wait_for(asyncio.to_thread(self.process.stdout.readline), START_S)
        except TimeoutError:
            line = b""
        if not line.startswith(b"ready "):
            raise ServerError(f"the server did not come up\n{self.last_lines()}")
        self.url = line.decode().split()[1]
        self._look()

    @property
    def is_running(self) -> bool:
        return self.process.poll() is None

    async def watch(self) -> None:
        while True:
            self._look()
            await asyncio.sleep(WATCH_S)

    def _look(self) -> None:
        now = time.monotonic()
        present = children_of(self.process.pid)
        for pid in [pid for pid in self._lives if pid not in present]:
            self.deaths.append(Death(now, self._lives.pop(pid).name, now <= self._struck.pop(pid, 0.0)))
        for pid in present:
            if pid not in self._lives:
                words = command_of(pid)
                if "child" in words:
                    self.seen[pid] = words[words.index("child") + 1]
                    self._lives[pid] = Life(self.seen[pid], now)

    def lives(self) -> dict[str, int]:
        """Process numbers by name, as last seen."""
        return {life.name: pid for pid, life in self._lives.items()}

    def kill(self, name: str) -> bool:
        return self._signal(name, signal.SIGKILL, 60.0) is not None

    def stop(self, name: str, seconds: float) -> int | None:
        """Its number, for `resume`."""
        return self._signal(name, signal.SIGSTOP, seconds + EXCUSE_S)

    def resume(self, pid: int) -> None:
        if pid in self._lives:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)

    def _signal(self, name: str, number: signal.Signals, excuse_s: float) -> int | None:
        pid = self.lives().get(name)
        if pid is None or "child" not in command_of(pid):
            return None
        self._struck[pid] = max(self._struck.get(pid, 0.0), time.monotonic() + excuse_s)
        with suppress(ProcessLookupError):
            os.kill(pid, number)
        return pid

    async def document(self, path: str) -> Mapping[str, Any] | None:
        """None while nobody answers."""
        try:
            async with httpx.AsyncClient(timeout=2) as client:
                answer = await client.get(self.url + path)
            return answer.json() if answer.status_code == 200 else None
        except httpx.TransportError:
            return None

    async def metrics(self) -> str:
        """Empty while nobody answers."""
        try:
            async with httpx.AsyncClient(timeout=5) as client:
                return (await client.get(self.url + "/metrics")).text
        except httpx.TransportError:
            return ""

    async def live_ranks(self) -> list[int]:
        state = await self.document("/pool/state")
        return [] if state is None else [rank["rank"] for rank in state["replicas"] if rank["membership"] == "live"]

    async def end(self) -> int | None:
        """The exit code after TERM; None if it had to be killed."""
        self.process.terminate()
        try:
            return await asyncio.to_thread(self.process.wait, END_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            await asyncio.to_thread(self.process.wait)
            return None

    def close(self) -> None:
        """Whatever has happened."""
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        assert self.process.stdout is not None
        self.process.stdout.close()

    def log(self) -> str:
        return self._log.read_text(errors="replace")

    def last_lines(self) -> str:
        return "\n".join(self.log().splitlines()[-LINES_SHOWN:])


def children_of(pid: int) -> list[int]:
    """Of all threads of a process; those that are dead and not yet reaped are none."""
    found = []
    try:
        for task in Path(f"/proc/{pid}/task").iterdir():
            found += [int(word) for word in (task / "children").read_text().split()]
    except OSError:
        return []
    return [child for child in found if is_running(child)]


def is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in ("Z", "X")
    except OSError:
        return False


def command_of(pid: int) -> list[str]:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace").split("\0")
    except OSError:
        return []


def descriptors_of(pid: int) -> list[str]:
    """What each open file of a process is: a path, or socket:[...] and the like."""
    found = []
    for entry in Path(f"/proc/{pid}/fd").iterdir():
        try:
            found.append(str(entry.readlink()))
        except OSError:
            continue  # closed meanwhile
    return found


def resident_bytes(pid: int) -> int:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
