"""Whole transfers one at a time, between ranks that a test pretends."""

import asyncio
from collections.abc import AsyncGenerator
from typing import Any, cast

import pytest

from lmpool.bench import transactions
from lmpool.bench.transactions import (
    Pace,
    Transaction,
    TransactionError,
    Transactions,
    foreseen,
    pool_blocks,
    times,
    upper,
)
from lmpool.core.ids import MILLISECOND, Epoch, Nanos, Rank, RequestId, TransferId
from lmpool.core.messages.transfer import TransferMode, TransferShown
from lmpool.io.engine import AsyncEngine
from lmpool.io.generation import SamplingParams
from lmpool.io.topology import RankPair, all_pairs
from lmpool.io.transfer_order import TransferWish

BLOCK = 4


class _Told:
    def __init__(self, **facts: object) -> None:
        self.__dict__.update(facts)


class PretendedEngine:
    """Three ranks in turn. A transfer takes 5 ms and a millisecond a block, which is its copy."""

    def __init__(self, outcome: str = "published") -> None:
        self._outcome = outcome
        self._requests = 0
        self._over: list[TransferShown] = []
        self.held: list[set[tuple[int, ...]]] = [set(), set(), set()]

    async def generate(self, tokens: tuple[int, ...], sampling: SamplingParams) -> AsyncGenerator[Any, None]:
        assert sampling.max_tokens == 1
        self._requests += 1
        self.held[self._requests % 3].add(tokens)
        yield _Told(request=RequestId(Epoch(1), self._requests))

    async def decisions(self, request: RequestId, limit: int) -> list[Any]:
        return [_Told(rank=Rank(request.counter % 3))]

    async def transfer(self, wish: TransferWish) -> TransferId:
        assert isinstance(wish.prompt, tuple)
        assert wish.mode is TransferMode.MOVE
        self.held[wish.source].remove(wish.prompt)
        self.held[wish.target].add(wish.prompt)
        transfer, blocks = TransferId(Epoch(2), len(self._over) + 1), len(wish.prompt) // BLOCK
        ranks = Rank(wish.source), Rank(wish.target)
        copy, took = Nanos(blocks * MILLISECOND), Nanos((5 + blocks) * MILLISECOND)
        outcome = self._outcome
        self._over.append(TransferShown(transfer, *ranks, wish.mode, blocks, "ended", outcome, "no blocks", copy, took))
        return transfer

    async def pool_state(self) -> Any:
        return _Told(transfers=_Told(over=self._over))


def measured(
    monkeypatch: pytest.MonkeyPatch, engine: PretendedEngine, pairs: tuple[RankPair, ...], rounds: int
) -> list[Transaction]:
    monkeypatch.setattr(transactions, "QUIET", Pace(0.0, 0.0, 0.0))
    told: list[Transaction] = []
    measuring = Transactions(cast(AsyncEngine, engine), BLOCK, 1, 0)
    found = asyncio.run(measuring.measure(pairs, (1, 6), rounds, told.append))
    assert found == told
    return found


def test_every_pair_and_size_has_its_rounds_and_a_chain_is_moved_from_where_it_is(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    engine = PretendedEngine()
    found = measured(monkeypatch, engine, all_pairs(3), 5)
    counted = {(pair, blocks): 0 for pair in all_pairs(3) for blocks in (1, 6)}
    for one in found:
        counted[one.pair, one.blocks] += 1
        assert one.copy_s == pytest.approx(one.blocks * 1e-3)
        assert one.took_s == pytest.approx(5e-3 + one.blocks * 1e-3)
    assert set(counted.values()) == {5}


def test_pairs_that_are_not_asked_for_are_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    assert {one.pair for one in measured(monkeypatch, PretendedEngine(), ((2, 0),), 3)} == {(2, 0)}


def test_a_transfer_that_is_not_published_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(TransactionError, match="a transfer of 1 blocks was not published: refused, no blocks"):
        measured(monkeypatch, PretendedEngine("refused"), ((0, 1),), 1)


def test_transfers_follow_each_other_for_so_long(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transactions, "BUSY_S", 0.0)
    engine = PretendedEngine()
    measuring = Transactions(cast(AsyncEngine, engine), BLOCK, 1, 0)

    async def body() -> int:
        return await measuring.move_on(await measuring.chain(2), ((0, 1), (1, 0)), 0.05)

    moves = asyncio.run(body())
    assert moves > 1
    assert [len(held) for held in engine.held] == ([1, 0, 0] if moves % 2 == 1 else [0, 1, 0])


def test_a_rank_without_a_way_on_is_told() -> None:
    measuring = Transactions(cast(AsyncEngine, PretendedEngine()), BLOCK, 1, 0)

    async def body() -> None:
        await measuring.move_on(await measuring.chain(2), ((2, 0),), 1.0)

    with pytest.raises(TransactionError, match="no pair leads on from rank 1"):
        asyncio.run(body())


def test_times_are_of_the_whole_and_of_what_it_adds() -> None:
    found = [Transaction((0, 1), 8, took, copy) for took, copy in ((4.0, 1.0), (9.0, 8.0), (5.0, 3.0))]
    assert (times(found).p50_s, times(found).p95_s, times(found).adds_p50_s) == (5.0, 9.0, 2.0)


def test_a_share_of_values_is_not_above_its_bound() -> None:
    assert upper([float(number) for number in range(1, 41)], 0.95) == 38
    assert upper([1.0, 2.0], 0.95) == 2.0


def test_one_more_value_is_foreseen_with_that_chance() -> None:
    drawn = [float(number) for number in range(1, 40)]
    assert foreseen(drawn, 0.95) == 38  # of 40 equally likely places of one more, 38 are not above it
    assert foreseen([*drawn, 40.0], 0.95) == 39
    assert foreseen([1.0, 2.0], 0.95) == 2.0


def test_a_pool_may_pin_the_largest_transfer() -> None:
    assert pool_blocks(64) // 4 >= 64
