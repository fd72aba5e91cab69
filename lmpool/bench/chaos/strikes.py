"""Carries out a plan of strikes on a server under load, each when the pool has recovered enough from those before."""

import asyncio
import time
from collections import Counter
from collections.abc import Sequence
from typing import assert_never

from lmpool.bench.chaos.plan import Blow, Strike
from lmpool.bench.chaos.server import ChaosServer

RECOVERY_S = 60.0
PAUSE_S = 0.1
GAP_S = 5.0
"""Between two strikes that end workers."""


class Striker:
    def __init__(self, server: ChaosServer, replicas: int) -> None:
        self.done: Counter[str] = Counter()
        """Strikes that were carried out, by what they do."""
        self.skipped = 0
        """Those for which the pool was not ready in time."""
        self.processes: Counter[str] = Counter()
        """Kills of processes by kind."""
        self._server = server
        self._replicas = replicas
        self._standing: dict[str, asyncio.Task[None]] = {}
        """Processes that stand still, by name."""
        self._struck_workers = 0.0

    async def run(self, plan: Sequence[Strike], began: float, ends: float) -> None:
        """The moments of the plan count from `began`; nothing is struck after `ends`."""
        for strike in plan:
            await asyncio.sleep(max(0.0, began + strike.at_s - time.monotonic()))
            if time.monotonic() >= ends:
                break
            await self._carry_out(strike, ends)
        await asyncio.gather(*self._standing.values())

    async def _carry_out(self, strike: Strike, ends: float) -> None:
        match strike.blow:
            case Blow.KILL_WORKER | Blow.STOP_WORKER:
                needed = min(2, self._replicas)
            case Blow.OUTAGE:
                needed = self._replicas
            case Blow.KILL_CONTROL | Blow.STOP_CONTROL | Blow.KILL_INGRESS | Blow.STOP_INGRESS:
                needed = 0
            case _:
                assert_never(strike.blow)
        ranks = await self._ready(needed, ends)
        if ranks is None or not self._strike(strike, ranks):
            self.skipped += 1
        else:
            self.done[strike.blow.value] += 1

    async def _ready(self, needed: int, ends: float) -> list[int] | None:
        """Ranks that serve, once there are so many; None if that takes too long."""
        if not needed:
            return []
        until = min(time.monotonic() + RECOVERY_S, ends)
        while time.monotonic() < until:
            live = await self._server.live_ranks()
            ranks = [rank for rank in live if f"worker-{rank}" not in self._standing]
            if len(ranks) >= needed and time.monotonic() >= self._struck_workers + GAP_S:
                return ranks
            await asyncio.sleep(PAUSE_S)
        return None

    def _strike(self, strike: Strike, ranks: list[int]) -> bool:
        match strike.blow:
            case Blow.KILL_WORKER:
                self._struck_workers = time.monotonic()
                return self._kill(f"worker-{ranks[strike.draw % len(ranks)]}")
            case Blow.STOP_WORKER:
                self._struck_workers = time.monotonic()
                return self._stand(f"worker-{ranks[strike.draw % len(ranks)]}", strike.stop_s)
            case Blow.OUTAGE:
                self._struck_workers = time.monotonic()
                killed = [self._kill(f"worker-{rank}") for rank in range(self._replicas)]
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
