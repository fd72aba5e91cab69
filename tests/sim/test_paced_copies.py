"""Transfers in a replayed trace: copies take what their rates say, and whoever asks afterwards finds the blocks."""

from typing import cast

import attrs
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lmpool.core.effects import CancelCopy, CopyBlocks, SendBlocks
from lmpool.core.events import (
    BlocksCopied,
    BlocksSent,
    CopyEvent,
    CopyFailed,
    DrainOrdered,
    SendFailed,
    Tick,
    WorkerEvent,
)
from lmpool.core.ids import MILLISECOND, SECOND, BlockId, Epoch, Generation, Nanos, Rank, TransferId
from lmpool.core.messages.transfer import CopyMeans, TransferAsked, TransferDecided, TransferMode
from lmpool.core.prefix import HASH_BYTES, split_chain
from lmpool.core.worker import Worker
from lmpool.sim.copy_time import copy_ns
from lmpool.sim.paced_worker import PacedWorker
from lmpool.sim.rack import BEGIN_NS, LATENCY_NS, RackSettings
from lmpool.sim.replay import Replay, Replayed, make_prompts
from lmpool.sim.trace import Trace
from tests.sim.racks import COPIES, RACK, RATES, asked, mixed, trace

PAIR = attrs.evolve(RACK, replicas=2)
WHOLE = 100 // RACK.block_size
"""Blocks of the shared part."""
COPY_NS = copy_ns(COPIES, WHOLE)


def replay_of(made: Trace, rack: RackSettings) -> Replay:
    return Replay(made, make_prompts(made, rack.block_size), rack, "round-robin", 0)


def order(
    replay: Replay, source: int, target: int, mode: TransferMode = TransferMode.COPY, means: CopyMeans = CopyMeans.READ
) -> TransferDecided:
    """The longest chain that the source has."""
    pool = replay.rack.workers[source].worker._execution.pool
    chain = b"".join(split_chain(pool.residents())[:WHOLE])
    assert pool.resident_depth(chain) == len(chain) // HASH_BYTES
    return replay.rack.order(
        TransferAsked(1, Rank(source), Rank(target), mode, means, chain, 0, Nanos(SECOND), Nanos(0))
    )


def finish(replay: Replay) -> Replayed:
    while replay.advance(50):
        pass
    return replay.figures()


TWICE = trace(asked(0, (1, 100), output=1), asked(1000, (1, 100), output=1))
"""The second goes to the other rank."""


@pytest.mark.parametrize("means", list(CopyMeans))
@pytest.mark.parametrize("mode", list(TransferMode))
def test_blocks_that_were_copied_are_found_where_they_arrived(mode: TransferMode, means: CopyMeans) -> None:
    without = finish(replay_of(TWICE, PAIR))
    assert without.cached_tokens == 0
    replay = replay_of(TWICE, PAIR)
    replay.advance_to(Nanos(500 * MILLISECOND))
    assert order(replay, 0, 1, mode, means).denial is None
    figures = finish(replay)
    assert figures.cached_tokens == WHOLE * RACK.block_size
    assert figures.computed_prefill_tokens == without.computed_prefill_tokens - figures.cached_tokens
    there = [len(worker.worker._execution.pool.residents()) // HASH_BYTES for worker in replay.rack.workers]
    assert there == [0 if mode is TransferMode.MOVE else WHOLE, WHOLE]
    snapshot = replay.rack.control.snapshot()
    assert snapshot.transferred_bytes == WHOLE * COPIES.block_bytes


def test_a_transfer_takes_its_messages_and_its_copy() -> None:
    replay = replay_of(TWICE, PAIR)
    replay.advance_to(Nanos(500 * MILLISECOND))
    began = replay._timeline.now
    order(replay, 0, 1)
    target = replay.rack.workers[1].worker
    links = 7 * LATENCY_NS  # prepare, prepared, copy; copied, confirm, confirmed, publish
    replay.advance_to(Nanos(began - BEGIN_NS + links + COPY_NS - 1))
    assert target.snapshot().exchange.published == 0
    replay.advance_to(Nanos(began - BEGIN_NS + links + COPY_NS))
    assert target.snapshot().exchange.published == 1


@settings(max_examples=15, deadline=None)
@given(st.integers(50, 3_000), st.integers(0, 1), st.sampled_from(list(TransferMode)), st.sampled_from(list(CopyMeans)))
def test_streaks_change_nothing_where_blocks_are_copied(
    at_ms: int, source: int, mode: TransferMode, means: CopyMeans
) -> None:
    """The copy ends in the middle of a streak."""

    def run(rack: RackSettings) -> tuple[Replayed, TransferDecided, object]:
        replay = replay_of(mixed(60), rack)
        replay.advance_to(Nanos(at_ms * MILLISECOND))
        decided = order(replay, source, 1 - source, mode, means)
        figures = finish(replay)
        for worker in replay.rack.workers:
            worker.worker.audit()
        return figures, decided, replay.front.times

    assert run(PAIR) == run(attrs.evolve(PAIR, streak_max=1))


ORDER = CopyBlocks(
    TransferId(Epoch(1), 1),
    CopyMeans.READ,
    Rank(0),
    Epoch(1),
    (BlockId(4), BlockId(2)),
    (Generation(1), Generation(1)),
    (BlockId(1), BlockId(0)),
    Nanos(SECOND),
)
SENDING = SendBlocks(ORDER.transfer, Rank(1), Epoch(1), ORDER.source_blocks, Nanos(SECOND))


class Script:
    """Stands in for a worker: gives the effects that it is told to, and keeps what it hears."""

    def __init__(self) -> None:
        self.effects: list[CopyBlocks | SendBlocks | CancelCopy] = []
        self.heard: list[tuple[Nanos, CopyEvent]] = []

    def next_deadline(self) -> Nanos:
        return Nanos(100 * SECOND)

    def handle(self, now: Nanos, event: WorkerEvent) -> list[CopyBlocks | SendBlocks | CancelCopy]:
        if isinstance(event, BlocksCopied | CopyFailed | BlocksSent | SendFailed):
            self.heard.append((now, event))
        effects, self.effects = self.effects, []
        return effects


@pytest.mark.parametrize(
    ("effect", "failure"),
    [(ORDER, CopyFailed(ORDER.transfer, "it is off")), (SENDING, SendFailed(ORDER.transfer, "it is off"))],
)
def test_what_is_cancelled_fails_soon_and_once(effect: CopyBlocks | SendBlocks, failure: CopyEvent) -> None:
    script = Script()
    paced = PacedWorker(cast(Worker, script), RATES, COPIES, [], 1)
    script.effects = [effect]
    paced.handle(Nanos(1_000), DrainOrdered())
    assert paced.next_deadline() == 1_000 + copy_ns(COPIES, 2)
    script.effects = [CancelCopy(ORDER.transfer)]
    paced.handle(Nanos(5_000), DrainOrdered())
    assert script.heard == []
    assert paced.next_deadline() == 5_001
    paced.handle(paced.next_deadline(), Tick())
    assert script.heard == [(5_001, failure)]
    script.effects = [CancelCopy(ORDER.transfer)]
    paced.handle(Nanos(6_000), DrainOrdered())
    assert paced.next_deadline() == 100 * SECOND
