"""Simulated copies move what really stands in the slots, when they really get there, and answer once."""

from collections.abc import Callable
from random import Random

import attrs
import pytest

from lmpool.core.effects import CancelCopy, CopyBlocks, SendBlocks
from lmpool.core.events import BlocksCopied, BlocksSent, CopyEvent, CopyFailed, SendFailed
from lmpool.core.ids import SECOND, BlockId, Epoch, Generation, Nanos, Peer, Rank, Role, TransferId
from lmpool.core.messages.transfer import CopyMeans
from lmpool.sim.swarm.copies import Copies
from lmpool.sim.swarm.knobs import TransferKnobs, draw_knobs
from lmpool.sim.timeline import Timeline

WIDTH = 4
BLOCKS = 8
SOURCE = Peer(Role.WORKER, Rank(0), Epoch(1))
TARGET = Peer(Role.WORKER, Rank(1), Epoch(2))
TRANSFER = TransferId(Epoch(3), 1)
FROM = (BlockId(6), BlockId(1), BlockId(2), BlockId(5))
INTO = (BlockId(0), BlockId(7), BlockId(3), BlockId(4))
FINE = attrs.evolve(draw_knobs(0).transfers.healed, block_ns=1_000, chunk_blocks=1)


class Bench:
    def __init__(self, knobs: TransferKnobs, seed: int = 1) -> None:
        self.timeline = Timeline(Nanos(0))
        self.copies = Copies(self.timeline, Random(seed), knobs, WIDTH)
        self.source = bytearray(b"".join(bytes([65 + block]) * WIDTH for block in range(BLOCKS)))
        self.target = bytearray(WIDTH * BLOCKS)
        self.answers: list[tuple[Peer, CopyEvent]] = []
        self.copies.begin_life(SOURCE, self.source, lambda event: self.answers.append((SOURCE, event)))
        self.copies.begin_life(TARGET, self.target, lambda event: self.answers.append((TARGET, event)))

    def copy(self, means: CopyMeans = CopyMeans.READ, deadline_ns: int = SECOND) -> None:
        generations = (Generation(1),) * len(FROM)
        source = SOURCE.rank, SOURCE.epoch, FROM, generations
        self.copies.perform(TARGET, CopyBlocks(TRANSFER, means, *source, INTO, Nanos(deadline_ns)))
        assert self.answers == [], "it answers within the effect"

    def send(self) -> None:
        self.copies.perform(SOURCE, SendBlocks(TRANSFER, TARGET.rank, TARGET.epoch, FROM, Nanos(SECOND)))

    def after(self, ns: int, action: Callable[[], None]) -> None:
        self.timeline.after(ns, action)

    def finish(self) -> None:
        while self.timeline.advance():
            assert self.timeline.now < 2 * SECOND

    @property
    def arrived(self) -> str:
        return "".join(chr(self.target[block * WIDTH]) for block in INTO)

    def answers_of(self, peer: Peer) -> list[CopyEvent]:
        return [event for whose, event in self.answers if whose == peer]


COMPLETE = BlocksCopied(TRANSFER, len(INTO), len(INTO) * WIDTH)


def test_a_target_that_reads_gets_every_block() -> None:
    bench = Bench(FINE)
    bench.copy()
    bench.finish()
    assert bench.arrived == "GBCF"
    assert bench.answers == [(TARGET, COMPLETE)]


@pytest.mark.parametrize("chunk", [1, 3, 8])
def test_what_a_source_sends_arrives_in_order_and_both_are_told(chunk: int) -> None:
    bench = Bench(attrs.evolve(FINE, chunk_blocks=chunk))
    bench.send()
    bench.after(3_000, lambda: bench.copies.perform(TARGET, _receive()))
    bench.finish()
    assert bench.arrived == "GBCF"
    assert bench.answers_of(TARGET) == [COMPLETE]
    assert bench.answers_of(SOURCE) == [BlocksSent(TRANSFER)]


def _receive() -> CopyBlocks:
    generations = (Generation(1),) * len(FROM)
    return CopyBlocks(TRANSFER, CopyMeans.SEND, SOURCE.rank, SOURCE.epoch, FROM, generations, INTO, Nanos(SECOND))


def test_what_is_read_too_late_is_what_was_written_there_meanwhile() -> None:
    bench = Bench(FINE)
    bench.copy()
    bench.after(2_500, lambda: bench.source.__setitem__(slice(None), b"z" * len(bench.source)))
    bench.finish()
    assert bench.arrived.startswith("G")
    assert bench.arrived.endswith("z")
    assert bench.answers == [(TARGET, COMPLETE)]


def test_a_copy_that_is_off_ends_soon_or_writes_on_to_its_end() -> None:
    for deaf, answer in ((0.0, CopyFailed(TRANSFER, "it is off")), (1.0, COMPLETE)):
        bench = Bench(attrs.evolve(FINE, deaf=deaf))
        bench.copy()
        bench.after(1_500, lambda bench=bench: bench.copies.perform(TARGET, CancelCopy(TRANSFER)))  # type: ignore[misc]
        bench.finish()
        assert bench.answers == [(TARGET, answer)]
        assert (bench.arrived == "GBCF") == (answer == COMPLETE)


def test_a_copy_ends_with_its_deadline_and_with_its_source() -> None:
    late, alone = Bench(FINE), Bench(FINE)
    late.copy(deadline_ns=2_000)
    alone.copy()
    alone.after(1_500, lambda: alone.copies.end_life(SOURCE))
    for bench in (late, alone):
        bench.finish()
        assert bench.answers == [(TARGET, CopyFailed(TRANSFER, "it is off"))]


def test_who_waits_for_a_sender_that_is_gone_is_told_so() -> None:
    bench = Bench(attrs.evolve(FINE, deaf=1.0))
    bench.copy(CopyMeans.SEND)
    bench.after(5_000, lambda: bench.copies.end_life(SOURCE))
    bench.finish()
    assert bench.answers == [(TARGET, CopyFailed(TRANSFER, "nothing comes any more"))]


def test_copies_and_sendings_fail_in_all_ways_and_answer_once() -> None:
    seen: dict[str, None] = {}
    for seed in range(60):
        bench = Bench(attrs.evolve(FINE, fails=0.7), seed)
        bench.copy(CopyMeans.SEND)
        bench.send()
        bench.finish()
        (copied,), (sent,) = bench.answers_of(TARGET), bench.answers_of(SOURCE)
        match copied, sent:
            case BlocksCopied(blocks=blocks), _:
                seen["whole" if blocks == len(INTO) else "short"] = None
            case CopyFailed(), SendFailed():
                seen["both fail"] = None
            case CopyFailed(), BlocksSent():
                seen["target fails"] = None
            case _:
                pytest.fail(str((copied, sent)))
    assert sorted(seen) == ["both fail", "short", "target fails", "whole"]


def test_an_end_may_be_told_of_much_later() -> None:
    bench = Bench(attrs.evolve(FINE, late=1.0, late_ns=SECOND))
    bench.copy()
    bench.finish()
    assert bench.answers == [(TARGET, COMPLETE)]
    assert bench.timeline.now > SECOND / 100


def test_a_dead_process_copies_nothing_more() -> None:
    bench = Bench(FINE)
    bench.copy()
    bench.after(1_500, lambda: bench.copies.end_life(TARGET))
    bench.finish()
    assert bench.answers == []
    assert bench.arrived != "GBCF"
