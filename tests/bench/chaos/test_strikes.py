"""A strike waits for a pool that the strikes before have left able to bear it, and is skipped if none comes."""

import asyncio
import time
from collections.abc import Sequence

import pytest

from lmpool.bench.chaos import strikes
from lmpool.bench.chaos.plan import Blow, Strike
from lmpool.bench.chaos.strikes import UNANSWERED_MAX, Striker


class Pool:
    """Whoever is killed is there again at once, as another process."""

    def __init__(self, ranks: Sequence[int]) -> None:
        self.ranks = list(ranks)
        self.killed: list[str] = []
        self._pids = {name: number for number, name in enumerate(["control", "ingress", *map(name_of, ranks)], 1)}

    def lives(self) -> dict[str, int]:
        return dict(self._pids)

    async def live_ranks(self) -> list[int]:
        return list(self.ranks)

    def kill(self, name: str) -> bool:
        self.killed.append(name)
        self._pids[name] += 100
        return True

    def stop(self, name: str, seconds: float) -> int | None:
        return self._pids[name]

    def resume(self, pid: int) -> None:
        pass


def name_of(rank: int) -> str:
    return f"worker-{rank}"


class Crowd:
    strikes_max = 0

    def note_strike(self) -> None:
        self.strikes_max += 1


@pytest.fixture(autouse=True)
def _fast(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"SETTLED_S": 0.05, "GAP_S": 0.1, "RECOVERY_S": 0.5, "PAUSE_S": 0.005}.items():
        monkeypatch.setattr(strikes, name, value)


def struck(pool: Pool, crowd: Crowd, *blows: Blow) -> Striker:
    striker = Striker(pool, crowd, 2)
    plan = [Strike(0.0, blow, 0, 0.0) for blow in blows]
    began = time.monotonic()
    asyncio.run(striker.run(plan, began, began + 60))
    return striker


def test_what_serves_is_struck() -> None:
    pool = Pool([0, 1])
    striker = struck(pool, Crowd(), Blow.KILL_WORKER, Blow.KILL_CONTROL, Blow.KILL_INGRESS)
    assert pool.killed == ["worker-0", "control", "ingress"]
    assert striker.done == {"kill worker": 1, "kill control": 1, "kill ingress": 1}
    assert striker.skipped == 0


def test_an_outage_takes_every_worker() -> None:
    pool = Pool([0, 1])
    assert struck(pool, Crowd(), Blow.OUTAGE).processes == {"worker": 2}
    assert pool.killed == ["worker-0", "worker-1"]


def test_the_last_worker_that_serves_is_not_struck() -> None:
    striker = struck(Pool([1]), Crowd(), Blow.KILL_WORKER)
    assert (striker.done, striker.skipped) == ({}, 1)


def test_while_nobody_answers_nothing_is_struck() -> None:
    striker = struck(Pool([]), Crowd(), Blow.KILL_CONTROL, Blow.KILL_INGRESS)
    assert (striker.done, striker.skipped) == ({}, 2)


def test_a_process_that_began_anew_has_to_serve_for_a_while_first(monkeypatch: pytest.MonkeyPatch) -> None:
    pool = Pool([0, 1])
    striker = struck(pool, Crowd(), Blow.KILL_CONTROL)
    assert striker.skipped == 0
    monkeypatch.setattr(strikes, "SETTLED_S", 10.0)
    assert struck(pool, Crowd(), Blow.KILL_CONTROL).skipped == 1


def test_nobody_is_struck_again_and_again_without_a_word_in_between() -> None:
    pool, crowd = Pool([0, 1]), Crowd()
    striker = struck(pool, crowd, *[Blow.KILL_WORKER] * (UNANSWERED_MAX + 1))
    assert len(pool.killed) == UNANSWERED_MAX
    assert striker.skipped == 1
    crowd.strikes_max = 0
    assert struck(pool, crowd, Blow.KILL_WORKER).skipped == 0
