"""Carries out a plan of strikes on a server under load, each when the pool has recovered enough from those before."""

import asyncio
import time
from collections import Counter
from collections.abc import Sequence
from typing import Protocol, assert_never

from lmpool.bench.chaos.plan import Blow, Strike

RECOVERY_S = 60.0
PAUSE_S = 0.1
GAP_S = 5.0
"""Between two strikes that end workers."""
SETTLED_S = 3.5
"""In service. The server runs with `--healthy-seconds 3`, after which a process has all its restarts again."""
UNANSWERED_MAX = 2
"""Strikes of workers that a request may see without any text: it is given up at its fourth loss in a row, and stopped
workers may be lost beside those that are killed."""


class Processes(Protocol):
    """Of a server under load, by name: worker-0, control, ingress."""

    def lives(self) -> dict[str, int]: ...
    async def live_ranks(self) -> list[int]: ...
    def kill(self, name: str) -> bool: ...
    def stop(self, name: str, seconds: float) -> int | None: ...
    def resume(self, pid: int) -> None: ...


class Clients(Protocol):
    """Those whose requests are open."""

    @property
    def strikes_max(self) -> int: ...
    def note_strike(self) -> None: ...


class Striker:
    """Strikes as fast as the server promises to bear, however slow the machine is."""

    def __init__(self, server: Processes, clients: Clients, replicas: int) -> None:
        self.done: Counter[str] = Counter()
        """Strikes that were carried out, by what they do."""
        self.skipped = 0
        """Those for which the pool was not ready in time."""
        self.processes: Counter[str] = Counter()
        """Kills of processes by kind."""
        self._server = server
        self._clients = clients
        self._replicas = replicas
        self._standing: dict[str, asyncio.Task[None]] = {}
        """Processes that stand still, by name."""
        self._struck_workers = 0.0
        self._serving: dict[int, float] = {}
        """Since when a process is known to serve, by its number."""

    async def run(self, plan: Sequence[Strike], began: float, ends: float) -> None:
        """The moments of the plan count from `began`; nothing is struck after `ends`."""
        looking = asyncio.create_task(self._keep_looking())
        for strike in plan:
            await asyncio.sleep(max(0.0, began + strike.at_s - time.monotonic()))
            if time.monotonic() >= ends:
                break
            await self._carry_out(strike, ends)
        looking.cancel()
        await asyncio.gather(*self._standing.values())

    async def _keep_looking(self) -> None:
        while True:
            names = [f"worker-{rank}" for rank in await self._server.live_ranks()]
            if names:
                names += ["control", "ingress"]
            now, lives = time.monotonic(), self._server.lives()
            serving = [lives[name] for name in names if name in lives and name not in self._standing]
            self._serving = {pid: self._serving.get(pid, now) for pid in serving}
            await asyncio.sleep(PAUSE_S)

    async def _carry_out(self, strike: Strike, ends: float) -> None:
        until = min(time.monotonic() + RECOVERY_S, ends)
        while time.monotonic() < until:
            settled = [name for name in self._server.lives() if self._is_settled(name)]
            if self._may_strike(strike.blow, settled):
                if self._strike(strike, [name for name in settled if name.startswith("worker-")]):
                    self.done[strike.blow.value] += 1
                    return
                break
            await asyncio.sleep(PAUSE_S)
        self.skipped += 1

    def _is_settled(self, name: str) -> bool:
        """Whether the supervisor takes its next end for a first one."""
        since = self._serving.get(self._server.lives().get(name, 0))
        return since is not None and time.monotonic() >= since + SETTLED_S

    def _may_strike(self, blow: Blow, settled: Sequence[str]) -> bool:
        match blow:
            case Blow.KILL_WORKER | Blow.STOP_WORKER:
                return self._may_strike_workers(settled, min(2, self._replicas))
            case Blow.OUTAGE:
                return self._may_strike_workers(settled, self._replicas)
            case Blow.KILL_CONTROL | Blow.STOP_CONTROL:
                return "control" in settled
            case Blow.KILL_INGRESS | Blow.STOP_INGRESS:
                return "ingress" in settled
            case _:
                assert_never(blow)

    def _may_strike_workers(self, settled: Sequence[str], needed: int) -> bool:
        workers = sum(name.startswith("worker-") for name in settled)
        is_paced = time.monotonic() >= self._struck_workers + GAP_S
        return workers >= needed and is_paced and self._clients.strikes_max < UNANSWERED_MAX

    def _strike(self, strike: Strike, workers: Sequence[str]) -> bool:
        match strike.blow:
            case Blow.KILL_WORKER:
                self._note_workers()
                return self._kill(workers[strike.draw % len(workers)])
            case Blow.STOP_WORKER:
                self._note_workers()
                return self._stand(workers[strike.draw % len(workers)], strike.stop_s)
            case Blow.OUTAGE:
                self._note_workers()
                killed = [self._kill(name) for name in workers]
                return all(killed)
            case Blow.KILL_CONTROL:
                return self._kill("control")
            case Blow.STOP_CONTROL:
                return self._stand("control", strike.stop_s)
            case Blow.KILL_INGRESS:
                return self._kill("ingress")
            case Blow.STOP_INGRESS:
                return self._stand("ingress", strike.stop_s)
            case _:
                assert_never(strike.blow)

    def _note_workers(self) -> None:
        self._struck_workers = time.monotonic()
        self._clients.note_strike()

    def _kill(self, name: str) -> bool:
        is_killed = self._server.kill(name)
        self.processes[name.partition("-")[0]] += is_killed
        return is_killed

    def _stand(self, name: str, seconds: float) -> bool:
        if name in self._standing:
            return False
        pid = self._server.stop(name, seconds)
        if pid is None:
            return False
        self._standing[name] = asyncio.create_task(self._resume(name, pid, seconds))
        return True

    async def _resume(self, name: str, pid: int, seconds: float) -> None:
        await asyncio.sleep(seconds)
        self._server.resume(pid)
        del self._standing[name]
