"""Copies of blocks between the pools of a cluster in virtual time, with what really stands in their slots.

A chunk is read at one moment and written at another, so a block that its source has given away meanwhile brings what
the next owner wrote. Copies go on while a process stalls, and some while they are off; the memory of a dead process can
still be read. The counterpart of `io/block_copies.py`.
"""

from collections import deque
from collections.abc import Callable
from random import Random
from typing import assert_never

import attrs

from lmpool.core.effects import CancelCopy, CopyBlocks, CopyEffect, SendBlocks
from lmpool.core.events import BlocksCopied, BlocksSent, CopyEvent, CopyFailed, SendFailed
from lmpool.core.ids import BlockId, Peer, Role, TransferId
from lmpool.core.messages.transfer import CopyMeans
from lmpool.sim.swarm.knobs import TransferKnobs
from lmpool.sim.timeline import Timeline

TOLD_NS = 200_000
"""At most so long after its end a copy is told of, if it is not late."""
SHORT = 0.3
"""Share of the copies that fail that bring another number of blocks than was ordered, and call that a success."""


@attrs.define
class Copy:
    """One `CopyBlocks` or `SendBlocks` that is not over."""

    peer: Peer
    """Whose driver it is."""
    other: Peer
    order: CopyBlocks | SendBlocks
    done: int
    """Blocks."""
    chunk: list[bytes]
    """Read from the source's pool, and not written yet."""
    is_cancelled: bool
    is_deaf: bool
    fails_at: int | None
    """After so many blocks."""

    @property
    def blocks(self) -> tuple[BlockId, ...]:
        return self.order.target_blocks if isinstance(self.order, CopyBlocks) else self.order.blocks


@attrs.frozen
class Life:
    """Of a worker process."""

    slots: bytearray
    answer: Callable[[CopyEvent], None]
    """At any moment but within an effect."""


class Copies:
    def __init__(self, timeline: Timeline, chance: Random, knobs: TransferKnobs, block_bytes: int) -> None:
        self.knobs = knobs
        """Of this moment."""
        self._timeline = timeline
        self._chance = chance
        self._width = block_bytes
        self._lives: dict[Peer, Life] = {}
        self._slots: dict[Peer, bytearray] = {}
        """Of the dead as well."""
        self._copies: dict[tuple[Peer, TransferId], Copy] = {}
        """By whose they are, one of each transfer."""
        self._pipes: dict[tuple[Peer, TransferId], deque[bytes]] = {}
        """What was sent and has arrived, by target."""
        self._broken: dict[tuple[Peer, TransferId], None] = {}
        """Pipes into which nothing more comes."""

    def begin_life(self, peer: Peer, slots: bytearray, answer: Callable[[CopyEvent], None]) -> None:
        self._lives[peer] = Life(slots, answer)
        self._slots[peer] = slots

    def end_life(self, peer: Peer) -> None:
        """Harmless for whoever copies nothing."""
        self._lives.pop(peer, None)
        for place in [place for place in self._copies if place[0] == peer]:
            del self._copies[place]

    def perform(self, peer: Peer, effect: CopyEffect) -> None:
        match effect:
            case CopyBlocks(source=rank, source_epoch=epoch) | SendBlocks(target=rank, target_epoch=epoch):
                self._begin(peer, Peer(Role.WORKER, rank, epoch), effect)
            case CancelCopy(transfer=transfer):
                copy = self._copies.get((peer, transfer))
                if copy is not None:
                    copy.is_cancelled = True
            case _:
                assert_never(effect)

    def _begin(self, peer: Peer, other: Peer, order: CopyBlocks | SendBlocks) -> None:
        chance, knobs = self._chance, self.knobs
        copy = Copy(peer, other, order, 0, [], False, chance.random() < knobs.deaf, None)
        if chance.random() < knobs.fails:
            copy.fails_at = chance.randrange(len(copy.blocks) + 1)
        assert (peer, order.transfer) not in self._copies, "it is copied twice at a time"
        self._copies[peer, order.transfer] = copy
        self._go_on(copy)

    def _go_on(self, copy: Copy) -> None:
        pause = self.knobs.block_ns * self._chance.uniform(0.3, 1.7) * max(len(copy.chunk), 1)
        self._timeline.after(int(pause) + 1, lambda: self._advance(copy))

    def _advance(self, copy: Copy) -> None:
        """One chunk further, or its end."""
        if copy.peer not in self._lives:
            return
        match copy.order:
            case SendBlocks():
                self._send(copy)
            case CopyBlocks(means=CopyMeans.READ):
                self._write(copy, copy.chunk)
                copy.chunk = []
                if self._goes_on(copy):
                    copy.chunk = self._read(copy, self._slots[copy.other], copy.order.source_blocks)
            case CopyBlocks():
                self._receive(copy)
            case _:
                assert_never(copy.order)
        if (copy.peer, copy.order.transfer) in self._copies:
            self._go_on(copy)

    def _goes_on(self, copy: Copy) -> bool:
        """Ends it where it is complete, is made to fail, or notices that nobody wants it."""
        transfer = copy.order.transfer
        if copy.done == copy.fails_at:
            self._fail(copy, "made to fail")
        elif copy.done == len(copy.blocks):
            is_sending = isinstance(copy.order, SendBlocks)
            self._end(copy, BlocksSent(transfer) if is_sending else self._copied(copy, copy.done))
        elif not copy.is_deaf and self._is_off(copy):
            self._fail(copy, "it is off")
        else:
            return True
        return False

    def _is_off(self, copy: Copy) -> bool:
        return copy.is_cancelled or copy.order.deadline_ns <= self._timeline.now or copy.other not in self._lives

    def _read(self, copy: Copy, slots: bytearray, blocks: tuple[BlockId, ...]) -> list[bytes]:
        width, end = self._width, self._chunk_end(copy)
        return [bytes(slots[block * width : (block + 1) * width]) for block in blocks[copy.done : end]]

    def _chunk_end(self, copy: Copy) -> int:
        end = copy.done + self.knobs.chunk_blocks
        return end if copy.fails_at is None or copy.fails_at <= copy.done else min(end, copy.fails_at)

    def _write(self, copy: Copy, chunk: list[bytes]) -> None:
        slots, width = self._slots[copy.peer], self._width
        for block, value in zip(copy.blocks[copy.done :], chunk, strict=False):
            slots[block * width : (block + 1) * width] = value
            copy.done += 1

    # Where the source sends

    def _send(self, copy: Copy) -> None:
        pipe = copy.other, copy.order.transfer
        if self._goes_on(copy):
            chunk = self._read(copy, self._slots[copy.peer], copy.blocks)
            copy.done += len(chunk)
            self._timeline.after(self.knobs.block_ns, lambda: self._pipes.setdefault(pipe, deque()).extend(chunk))

    def _receive(self, copy: Copy) -> None:
        place = copy.peer, copy.order.transfer
        arrived = self._pipes.setdefault(place, deque())
        is_broken = place in self._broken
        if arrived:
            count = min(len(arrived), self._chunk_end(copy) - copy.done)
            self._write(copy, [arrived.popleft() for _ in range(count)])
        if self._goes_on(copy) and not arrived and (is_broken or self._is_off(copy)):
            self._fail(copy, "nothing comes any more")

    # Ends

    def _fail(self, copy: Copy, cause: str) -> None:
        transfer = copy.order.transfer
        if isinstance(copy.order, SendBlocks):
            # What was read before still arrives.
            self._timeline.after(2 * self.knobs.block_ns, lambda: self._broken.update({(copy.other, transfer): None}))
            self._end(copy, SendFailed(transfer, cause))
        elif copy.done == copy.fails_at != len(copy.blocks) and self._chance.random() < SHORT:
            self._end(copy, self._copied(copy, copy.done))
        else:
            self._end(copy, CopyFailed(transfer, cause))

    def _copied(self, copy: Copy, blocks: int) -> BlocksCopied:
        return BlocksCopied(copy.order.transfer, blocks, blocks * self._width)

    def _end(self, copy: Copy, event: CopyEvent) -> None:
        chance, knobs = self._chance, self.knobs
        life = self._lives[copy.peer]
        del self._copies[copy.peer, copy.order.transfer]
        most = knobs.late_ns if chance.random() < knobs.late else TOLD_NS
        self._timeline.after(chance.randint(1, most), lambda: life.answer(event))
