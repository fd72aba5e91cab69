"""Many seeds, on several processes: what fails, and how fast it goes."""

import multiprocessing
import time
from collections import Counter, deque
from collections.abc import Iterable, Iterator
from itertools import islice
from multiprocessing.pool import AsyncResult

import attrs

from lmpool.sim.swarm.run import Result, run_seed

CHUNK = 4
"""Seeds that a process takes at a time."""


@attrs.define
class Tally:
    """Of all seeds so far."""

    began: float
    """Seconds of `time.monotonic`."""
    seeds: int
    events: int
    requests: int
    counts: Counter[str]
    failures: list[Result]

    def add(self, result: Result) -> None:
        self.seeds += 1
        self.events += result.events
        self.requests += result.requests
        self.counts.update(dict(result.counts))
        if result.violation:
            self.failures.append(result)

    def line(self) -> str:
        seconds = time.monotonic() - self.began
        return (
            f"{self.seeds} seeds, {self.events} events, {self.requests} requests in {seconds:.0f} s "
            f"({self.seeds / max(seconds, 1e-9):.2f} seeds/s, {self.events / max(seconds, 1e-9):.0f} events/s), "
            f"{len(self.failures)} failed"
        )


def new_tally() -> Tally:
    return Tally(time.monotonic(), 0, 0, 0, Counter(), [])


def run_seeds(seeds: Iterable[int], jobs: int) -> Iterator[Result]:
    """In the order of the seeds, as soon as they are there. Whoever stops to listen ends the rest."""
    if jobs == 1:
        yield from map(run_seed, seeds)
        return
    # Forked, so that whatever the caller has changed in the machines is so in all processes.
    with multiprocessing.get_context("fork").Pool(jobs) as pool:
        running: deque[AsyncResult[list[Result]]] = deque()
        for chunk in _chunks(seeds):
            running.append(pool.map_async(run_seed, chunk, CHUNK))
            if len(running) > 2 * jobs:
                yield from running.popleft().get()
        while running:
            yield from running.popleft().get()


def _chunks(seeds: Iterable[int]) -> Iterator[list[int]]:
    rest = iter(seeds)
    while chunk := list(islice(rest, CHUNK)):
        yield chunk
