"""Clients that ask without pause, and now and then a crowd of them at once."""

import asyncio
import time
from collections.abc import Sequence
from random import Random

from lmpool.bench.chaos.client import ChaosClient
from lmpool.bench.chaos.lesson import Known
from lmpool.bench.chaos.question import PLAIN, draw_manner
from lmpool.bench.chaos.server import ChaosServer
from lmpool.bench.chaos.tally import Fate, Tally

REFUSED_PAUSE_S = 0.25
BURST_PAUSE_S = (10.0, 25.0)
BURST = 64
"""More than the limits of the server take together with the others."""


class Load:
    def __init__(
        self, server: ChaosServer, client: ChaosClient, known: Sequence[Known], seed: int, tally: Tally
    ) -> None:
        self._server = server
        self._client = client
        self._known = known
        self._seed = seed
        self._tally = tally

    async def run(self, clients: int, ends: float) -> None:
        """Until `ends`; then every request that is under way comes to its end."""
        async with asyncio.TaskGroup() as group:
            for number in range(clients):
                group.create_task(self._keep_asking(Random(f"client {self._seed} {number}"), ends))
            group.create_task(self._burst_at_times(Random(f"bursts {self._seed}"), ends, group))

    async def _keep_asking(self, random: Random, ends: float) -> None:
        while time.monotonic() < ends and self._server.is_running:
            fate = await self._ask(random.choice(self._known), random)
            if fate in (Fate.REFUSED, Fate.INGRESS_LOST):
                await asyncio.sleep(REFUSED_PAUSE_S)

    async def _burst_at_times(self, random: Random, ends: float, group: asyncio.TaskGroup) -> None:
        short = [known for known in self._known if known.question.fields["max_tokens"] in (4, 16)]
        while True:
            await asyncio.sleep(random.uniform(*BURST_PAUSE_S))
            if time.monotonic() >= ends or not self._server.is_running:
                return
            for _ in range(BURST):
                group.create_task(self._ask(random.choice(short), random))

    async def _ask(self, known: Known, random: Random) -> Fate:
        manner = PLAIN if known.question.refusal is not None else draw_manner(random)
        self._tally.under_way += 1
        try:
            ask = await self._client.ask(known.question, manner, known.answer)
        finally:
            self._tally.under_way -= 1
        self._tally.add(ask)
        return ask.fate
