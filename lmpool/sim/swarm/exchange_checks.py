"""What must hold of a rank's transfers after each of its events. It looks into the machine, and asks it nothing."""

from collections import Counter
from typing import TypeAlias

import attrs

from lmpool.core.block import BlockState
from lmpool.core.effects import CopyBlocks, Send, SendBlocks
from lmpool.core.events import BlocksCopied, BlocksSent, CopyFailed, SendFailed
from lmpool.core.ids import BlockId, Generation, Nanos, SequenceId, TransferId
from lmpool.core.messages.transfer import (
    Confirmed,
    Copied,
    Published,
    SourcePrepared,
    TargetPrepared,
    TransferEnd,
    TransferEnded,
)
from lmpool.core.transfer.inbound import TargetSide
from lmpool.core.transfer.life import TargetState
from lmpool.core.worker import Worker

Blocks: TypeAlias = tuple[tuple[BlockId, Generation], ...]

ARRIVING = (BlockState.RESERVED, BlockState.ABORTING)


@attrs.frozen
class TransferWords:
    """What any rank has said of any transfer."""

    copied: dict[TransferId, None]
    confirmed: dict[TransferId, None]
    published: dict[TransferId, None]
    counts: Counter[str]
    """What came of them."""


class ExchangeChecks:
    """Of one life of a rank."""

    def __init__(self, machine: Worker, words: TransferWords) -> None:
        self._machine = machine
        self._exchange = machine._exchange
        self._pool = machine._execution.pool
        self._words = words
        self._written: dict[TransferId, Blocks] = {}
        """By the driver, until it says that it does not."""
        self._read: dict[TransferId, Blocks] = {}
        self._prepared: dict[TransferId, Blocks] = {}
        """What a source has said where its blocks are; kept for ever, as a late confirmation might come."""
        self._let_go: dict[TransferId, None] = {}
        """Of those: held no more."""
        self._reserved: dict[TransferId, Blocks] = {}
        self._waiting: dict[SequenceId, TransferId] = {}

    def after(self, now: Nanos, event: object, effects: list[object]) -> None:
        match event:
            case BlocksCopied(transfer=transfer) | CopyFailed(transfer=transfer):
                del self._written[transfer]
            case BlocksSent(transfer=transfer) | SendFailed(transfer=transfer):
                del self._read[transfer]
            case _:
                pass
        for effect in effects:
            self._note_order(effect)
        for effect in effects:
            self._hear(effect)
        for transfer, blocks in self._written.items():
            self._check(blocks, ARRIVING, f"while the copy of {transfer} writes it")
        for transfer, blocks in self._read.items():
            self._check(blocks, (BlockState.PINNED,), f"while {transfer} is sent")
        self._check_sources()
        self._check_targets()
        self._check_time(now)
        self._count_waiters()

    def _note_order(self, effect: object) -> None:
        match effect:
            case CopyBlocks(transfer=transfer, target_blocks=blocks):
                assert transfer not in self._written, f"{transfer} is copied twice"
                self._written[transfer] = self._marked(blocks)
            case SendBlocks(transfer=transfer, blocks=blocks):
                assert transfer not in self._read, f"{transfer} is sent twice"
                self._read[transfer] = self._marked(blocks)
            case _:
                pass

    def _hear(self, effect: object) -> None:
        words = self._words
        match effect:
            case Send(message=SourcePrepared(transfer=transfer, blocks=blocks, generations=generations)):
                told = tuple(zip(blocks, generations, strict=True))
                assert self._prepared.setdefault(transfer, told) == told, "a repeat says something else"
            case Send(message=TargetPrepared(transfer=transfer)):
                side = self._exchange.side(transfer)
                if isinstance(side, TargetSide):
                    self._reserved.setdefault(transfer, self._marked(side._reservation.blocks))
            case Send(message=Copied(transfer=transfer)):
                assert transfer not in self._written, f"{transfer} is copied, and the driver still writes"
                words.copied[transfer] = None
            case Send(message=Confirmed(transfer=transfer)):
                assert transfer in words.copied, f"{transfer} is confirmed before the last read"
                assert transfer not in self._let_go, f"{transfer} is confirmed, and was not held throughout"
                self._check(self._prepared[transfer], (BlockState.PINNED,), f"and {transfer} is confirmed")
                words.confirmed[transfer] = None
            case Send(message=Published(transfer=transfer)):
                assert transfer in words.confirmed, f"{transfer} is published, and not confirmed"
                words.published[transfer] = None
            case Send(message=TransferEnded(transfer=transfer, end=end, blocks_freed=freed)):
                is_over = transfer in words.published and end is TransferEnd.FINALIZED
                assert is_over or not freed, f"{transfer} frees its source before it is published"
                words.counts["blocks freed by moves"] += freed
            case _:
                pass

    def _marked(self, blocks: tuple[BlockId, ...]) -> Blocks:
        return tuple((block, self._pool.generation(block)) for block in blocks)

    def _check(self, blocks: Blocks, states: tuple[BlockState, ...], when: str) -> None:
        for block, generation in blocks:
            state = self._pool.state(block)
            assert state in states, f"block {block} is {state.value} {when}"
            assert self._pool.generation(block) == generation, f"block {block} was reused {when}"

    def _check_sources(self) -> None:
        for transfer in self._prepared:
            side = self._exchange.side(transfer)
            if side is None or side.end is not None:
                self._let_go[transfer] = None

    def _check_targets(self) -> None:
        """A reservation stays whole as long as its side goes on, and then it is resident or free."""
        for transfer, blocks in list(self._reserved.items()):
            side = self._exchange.side(transfer)
            if side is not None:
                state = BlockState.ABORTING if side.state is TargetState.ABORTING else BlockState.RESERVED
                self._check(blocks, (state,), f"and reserved for {transfer}")
                continue
            del self._reserved[transfer]
            is_published = transfer in self._exchange._unreported or transfer in self._words.published
            assert not is_published or transfer in self._words.confirmed, f"{transfer} is resident, and not confirmed"
            for block, generation in blocks:
                state = self._pool.state(block)
                is_held = self._pool.generation(block) == generation and state is not BlockState.FREE
                assert is_published or not is_held, f"block {block} is {state.value}, and {transfer} is off"
                assert state not in ARRIVING or not is_held, f"block {block} is {state.value}, and {transfer} published"

    def _check_time(self, now: Nanos) -> None:
        exchange, sequences = self._exchange, self._machine._execution._sequences
        for side in exchange._sides.values():
            assert side.end is not None or now < side.deadline_ns, f"{side.transfer} outlives its deadline here"
        for lease in exchange._leases._leases:
            assert now < lease.until_ns, f"the lease of {lease.transfer} outlives its deadline"
            assert all(waiter in sequences for waiter in lease.waiters), "a lease waits for who has ended"
        for sequence, awaited in exchange.waiters._awaited.items():
            assert sequence in sequences, f"{sequence} has ended, and waits"
            assert now < awaited.until_ns, f"{sequence} waits too long"
            assert not exchange.remembers(awaited.transfer), f"{sequence} waits for a transfer that is over"

    def _count_waiters(self) -> None:
        awaited, words = self._exchange.waiters._awaited, self._words
        for sequence, transfer in self._waiting.items():
            if sequence not in awaited:
                words.counts["sequences that awaited blocks"] += 1
                is_published = transfer in self._exchange._unreported or transfer in words.published
                words.counts["sequences whose blocks came"] += is_published
        self._waiting = {sequence: promise.transfer for sequence, promise in awaited.items()}

    def audit(self) -> None:
        """What is reserved is reserved for a side, and nothing else is out of use."""
        sides = [side for side in self._exchange._sides.values() if isinstance(side, TargetSide)]
        counts = self._pool.counts()
        aborting = sum(side.reserved for side in sides if side.state is TargetState.ABORTING)
        assert counts.aborting == aborting, f"{counts.aborting} blocks are aborting, and {aborting} should be"
        reserved = sum(side.reserved for side in sides) - aborting
        assert counts.reserved == reserved, f"{counts.reserved} blocks are reserved, and {reserved} should be"

    def going_on(self) -> list[TransferId]:
        """Sides that do not know of an end."""
        return [side.transfer for side in self._exchange._sides.values() if side.end is None]

    @property
    def is_at_rest(self) -> bool:
        exchange = self._exchange
        return exchange.is_idle and not exchange.has_deadlines and not (self._written or self._read)

    def check_rest(self) -> None:
        exchange = self._exchange
        assert exchange.is_idle, f"transfers go on: {list(exchange._sides)}"
        assert not exchange._leases, "leases are left"
        assert not exchange.waiters, "somebody still waits for blocks"
        assert not self._written, "a copy was never answered"
        assert not self._read, "a sending was never answered"
