"""Ranks with real pools and exchanges, the transfers of a control, links between them, and a driver whose bytes are the
hashes of the blocks: whatever is resident must hold its own hash."""

from collections import deque
from typing import TypeAlias

import attrs

from lmpool.core.block import BlockState
from lmpool.core.block_pool import BlockPool
from lmpool.core.effects import CancelCopy, CopyBlocks, SendBlocks
from lmpool.core.events import BlocksCopied, BlocksSent, CopyEvent, CopyFailed, SendFailed
from lmpool.core.ids import (
    MILLISECOND,
    BlockHash,
    BlockId,
    Epoch,
    Generation,
    Nanos,
    Peer,
    Rank,
    Role,
    StepNumber,
    TransferId,
    Version,
)
from lmpool.core.messages import Message
from lmpool.core.messages.transfer import (
    Confirmed,
    CopyMeans,
    Published,
    SourcePrepared,
    TransferAnswer,
    TransferDenial,
    TransferEnd,
    TransferEnded,
    TransferMode,
    TransferOrder,
    TransferRefused,
)
from lmpool.core.outbox import Outbox
from lmpool.core.prefix import chain_length, extend_chain, hash_at, pack_tokens
from lmpool.core.transfer.exchange import Exchange
from lmpool.core.transfer.inbound import TargetSide
from lmpool.core.transfer.outbound import SourceSide
from lmpool.core.transfer.transfers import Transfer, Transfers, TransferTerms

BLOCKS = 32
BLOCK_BYTES = 1000
ANSWER_NS = Nanos(100 * MILLISECOND)
COPY_NS = Nanos(400 * MILLISECOND)
LIFE_NS = Nanos(4 * ANSWER_NS + COPY_NS)
"""Of the sides."""
NOW = StepNumber(0)
"""Releases at once."""
RUBBISH = BlockHash(b"rubbish.rubbish.")

Final: TypeAlias = Published | TransferEnded | TransferRefused


def chain_of(*kinds: int) -> bytes:
    """Chains that begin with the same kinds share their beginning."""
    return extend_chain(BlockHash(b"root of a chain."), pack_tokens(kind for kind in kinds for _ in range(8)), 8)


LONG = chain_of(1, 2, 3, 4, 5, 6)


@attrs.define
class Copy:
    """A `CopyBlocks` that the driver has not answered."""

    order: CopyBlocks
    generations: tuple[Generation, ...]
    """Of the blocks that it writes."""
    done: int
    is_cancelled: bool


@attrs.define
class Sending:
    """A `SendBlocks`, answered or not: what was read is on its way."""

    order: SendBlocks
    generations: tuple[Generation, ...]
    read: list[BlockHash]
    is_over: bool


class Station:
    """One life of a rank."""

    def __init__(self, rank: int, epoch: int) -> None:
        self.peer = Peer(Role.WORKER, Rank(rank), Epoch(epoch))
        self.pool = BlockPool(BLOCKS)
        self.outbox = Outbox()
        self.exchange = Exchange(self.pool, self.outbox)
        self.bytes = [RUBBISH] * BLOCKS
        self.tables: list[list[BlockId]] = []
        """Of sequences that run."""
        self.copies: dict[TransferId, Copy] = {}
        self.sendings: dict[TransferId, Sending] = {}
        self.version = 0
        self.is_asleep = False

    def compute(self, chain: bytes) -> bool:
        """A sequence that makes the chain resident and goes on to hold it. False: no room."""
        depth = self.pool.resident_depth(chain)
        count = chain_length(chain) - depth
        if count + self.pool.unpinned(chain, depth) > self.pool.available:
            return False
        table = self.pool.pin(chain, depth) + self.pool.allocate(count)
        for position in range(depth, len(table)):
            self.bytes[table[position]] = RUBBISH
        for position in range(depth, len(table)):
            self.bytes[table[position]] = hash_at(chain, position)
            parent = table[position - 1] if position else None
            assert self.pool.publish(table[position], hash_at(chain, position), parent, NOW) == table[position]
        self.tables.append(table)
        return True

    def end_sequence(self) -> None:
        self.pool.release(self.tables.pop(0), NOW)

    def store(self, chain: bytes) -> None:
        """The chain is cached."""
        assert self.compute(chain)
        self.pool.release(self.tables.pop(), NOW)

    def depth(self, chain: bytes) -> int:
        return self.pool.resident_depth(chain)


class TransferWorld:
    def __init__(self, ranks: int) -> None:
        self.now = Nanos(1000)
        self.control = Peer(Role.CONTROL, Rank(0), Epoch(1))
        self.transfers = Transfers(self.control.epoch, ANSWER_NS)
        self.stations = [Station(rank, 1) for rank in range(ranks)]
        self.to_worker: list[deque[TransferOrder]] = [deque() for _ in range(ranks)]
        self.to_control: list[deque[TransferAnswer]] = [deque() for _ in range(ranks)]
        self.is_up = [False] * ranks
        self.heard: list[TransferOrder] = []
        """By workers, in order."""
        self.told: dict[Peer, list[TransferOrder]] = {}
        """What each life of a rank has heard."""
        self.said: list[TransferAnswer] = []
        self.begun_ns: dict[TransferId, Nanos] = {}
        self.prepared: dict[TransferId, SourcePrepared] = {}
        self.confirmed: dict[TransferId, None] = {}
        self.finals: dict[tuple[Peer, TransferId], Final] = {}
        """The last word of each side."""
        for rank in range(ranks):
            self.link(rank)

    # Control

    def begin(
        self,
        source: int,
        target: int,
        chain: bytes,
        *,
        first: int = 0,
        mode: TransferMode = TransferMode.COPY,
        means: CopyMeans = CopyMeans.READ,
        lease_ns: int = 0,
    ) -> TransferId | TransferDenial:
        peers = self.stations[source].peer, self.stations[target].peer
        terms = TransferTerms(*peers, mode, means, chain, first, COPY_NS, Nanos(lease_ns))
        if not (self.is_up[source] and self.is_up[target]):
            return TransferDenial.RANK_ABSENT
        begun = self.transfers.begin(self.now, terms)
        if isinstance(begun, TransferId):
            self.begun_ns[begun] = self.now
        self.after_control()
        return begun

    def open(self, source: int, target: int, chain: bytes, **terms: object) -> Transfer:
        begun = self.begin(source, target, chain, **terms)  # type: ignore[arg-type]
        assert isinstance(begun, TransferId), begun
        transfer = self.transfers.get(begun)
        assert transfer is not None
        return transfer

    def after_control(self) -> None:
        for send in self.transfers.take_sends():
            rank = send.peer.rank
            if self.is_up[rank] and send.peer == self.stations[rank].peer:
                self.to_worker[rank].append(send.message)  # type: ignore[arg-type]
        self.transfers.audit()

    # Links

    def link(self, rank: int) -> None:
        if not self.is_up[rank]:
            self.is_up[rank] = True
            self.stations[rank].exchange.join(self.control)
            self.after(rank)

    def cut(self, rank: int) -> None:
        """Both ends notice; what is on its way is lost."""
        if self.is_up[rank]:
            self.is_up[rank] = False
            self.to_worker[rank].clear()
            self.to_control[rank].clear()
            self.transfers.keep(self.now, self.stations[rank].peer.rank, None)
            self.after_control()
            self.stations[rank].exchange.lose_control()
            self.after(rank)

    def crash(self, rank: int) -> None:
        """And a new life begins."""
        if self.is_up[rank]:
            self.is_up[rank] = False
            self.transfers.keep(self.now, self.stations[rank].peer.rank, None)
            self.after_control()
        self.to_worker[rank].clear()
        self.to_control[rank].clear()
        self.stations[rank] = Station(rank, self.stations[rank].peer.epoch + 1)
        self.link(rank)

    def crash_control(self) -> None:
        for rank in range(len(self.stations)):
            self.to_worker[rank].clear()
            self.to_control[rank].clear()
        self.control = self.control._replace(epoch=Epoch(self.control.epoch + 1))
        self.transfers = Transfers(self.control.epoch, ANSWER_NS)
        for rank, station in enumerate(self.stations):
            self.is_up[rank] = True
            station.exchange.join(self.control)
            self.after(rank)

    # Messages

    def hear(self, rank: int, order: TransferOrder) -> None:
        self.heard.append(order)
        station = self.stations[rank]
        self.told.setdefault(station.peer, []).append(order)
        station.exchange.hear(self.now, self.control, order)
        self.after(rank)

    def told_to(self, rank: int) -> list[TransferOrder]:
        """In the present life."""
        return self.told.get(self.stations[rank].peer, [])

    def answer(self, rank: int, answer: TransferAnswer) -> None:
        self.transfers.hear(self.now, self.stations[rank].peer, answer)
        self.after_control()

    def deliver(self, rank: int) -> None:
        """Everything that is on its way to and from a rank, in order."""
        while self.to_worker[rank] or self.to_control[rank]:
            while self.to_worker[rank]:
                self.hear(rank, self.to_worker[rank].popleft())
            while self.to_control[rank]:
                self.answer(rank, self.to_control[rank].popleft())

    def settle(self) -> None:
        """Links and drivers do all that they can."""
        for _ in range(20):
            for rank in range(len(self.stations)):
                self.deliver(rank)
                self.run_driver(rank)
        assert not any((*self.to_worker, *self.to_control))

    def after(self, rank: int) -> None:
        """Performs what an exchange orders, and checks what it says."""
        station = self.stations[rank]
        for effect in station.exchange.take_effects():
            match effect:
                case CopyBlocks(transfer=transfer, target_blocks=blocks):
                    assert transfer not in station.copies, "copied twice"
                    generations = tuple(station.pool.generation(block) for block in blocks)
                    station.copies[transfer] = Copy(effect, generations, 0, False)
                case SendBlocks(transfer=transfer, blocks=blocks):
                    assert transfer not in station.sendings, "sent twice"
                    generations = tuple(station.pool.generation(block) for block in blocks)
                    station.sendings[transfer] = Sending(effect, generations, [], False)
                case CancelCopy(transfer=transfer):
                    if transfer in station.copies:
                        station.copies[transfer].is_cancelled = True
        if station.exchange.has_published:
            station.version += 1
            station.exchange.tell_published(Version(station.version))
        for send in station.outbox.take():
            assert send.peer == self.control
            self.said.append(send.message)  # type: ignore[arg-type]
            self.check_answer(station, send.message)
            if self.is_up[rank]:
                self.to_control[rank].append(send.message)  # type: ignore[arg-type]

    def check_answer(self, station: Station, answer: Message) -> None:
        match answer:
            case SourcePrepared():
                self.prepared[answer.transfer] = answer
            case Confirmed(transfer=transfer):
                told = self.prepared[transfer]
                now = tuple(station.pool.generation(block) for block in told.blocks)
                assert now == told.generations, "confirmed, and not held"
                pinned = source_side(self, station.peer.rank, transfer).pinned
                assert all(block in pinned for block in told.blocks)
                self.confirmed[transfer] = None
            case Published(transfer=transfer):
                assert transfer in self.confirmed, "published, and not confirmed"
                self.check_final(station, answer)
            case TransferEnded(transfer=transfer, blocks_freed=freed):
                published = [final for (_, of), final in self.finals.items() if of == transfer]
                assert not freed or any(isinstance(final, Published) for final in published), "freed before published"
                if answer.end is not TransferEnd.UNKNOWN:
                    self.check_final(station, answer)
            case TransferRefused():
                self.check_final(station, answer)
            case _:
                pass

    def check_final(self, station: Station, answer: Final) -> None:
        assert self.finals.setdefault((station.peer, answer.transfer), answer) == answer, "it ended twice, otherwise"

    # The driver

    def move_bytes(self, rank: int, transfer: TransferId, blocks: int) -> None:
        """Some more blocks of a copy; without an event."""
        station = self.stations[rank]
        copy = station.copies[transfer]
        order = copy.order
        source = self.stations[order.source]
        for index in range(copy.done, min(copy.done + blocks, len(order.target_blocks))):
            if order.means is CopyMeans.READ:
                value = source.bytes[order.source_blocks[index]] if source.peer.epoch == order.source_epoch else RUBBISH
            else:
                sending = source.sendings.get(transfer)
                if sending is None or len(sending.read) <= index:
                    break
                value = sending.read[index]
            station.bytes[order.target_blocks[index]] = value
            copy.done += 1

    def read_bytes(self, rank: int, transfer: TransferId, blocks: int) -> None:
        """Some more blocks of a sending; without an event."""
        station = self.stations[rank]
        sending = station.sendings[transfer]
        if not sending.is_over:
            for block in sending.order.blocks[len(sending.read) : len(sending.read) + blocks]:
                sending.read.append(station.bytes[block])

    def end_copy(self, rank: int, transfer: TransferId) -> None:
        copy = self.stations[rank].copies.pop(transfer)
        self.tell(rank, BlocksCopied(transfer, copy.done, copy.done * BLOCK_BYTES))

    def fail_copy(self, rank: int, transfer: TransferId) -> None:
        del self.stations[rank].copies[transfer]
        self.tell(rank, CopyFailed(transfer, "made to fail"))

    def end_sending(self, rank: int, transfer: TransferId) -> None:
        sending = self.stations[rank].sendings[transfer]
        if not sending.is_over:
            sending.is_over = True
            is_complete = len(sending.read) == len(sending.order.blocks)
            self.tell(rank, BlocksSent(transfer) if is_complete else SendFailed(transfer, "made to fail"))

    def tell(self, rank: int, event: CopyEvent) -> None:
        self.stations[rank].exchange.take(self.now, event)
        self.after(rank)

    def run_driver(self, rank: int) -> None:
        """Everything that a rank has to send and to copy, to the end."""
        station = self.stations[rank]
        for transfer in list(station.sendings):
            self.read_bytes(rank, transfer, BLOCKS)
            self.end_sending(rank, transfer)
        for transfer in list(station.copies):
            self.move_bytes(rank, transfer, BLOCKS)
            copy = station.copies[transfer]
            if copy.done == len(copy.order.target_blocks):
                self.end_copy(rank, transfer)
            elif copy.is_cancelled:
                self.fail_copy(rank, transfer)

    # Time

    def pass_time(self, ns: int) -> None:
        self.now = Nanos(self.now + ns)
        self.transfers.tick(self.now)
        self.after_control()
        for rank, station in enumerate(self.stations):
            if not station.is_asleep:
                station.exchange.expire(self.now)
                self.after(rank)

    def yield_blocks(self, rank: int) -> bool:
        yielded = self.stations[rank].exchange.yield_blocks()
        self.after(rank)
        return yielded

    # What must hold

    def check(self) -> None:
        self.transfers.audit()
        for station in self.stations:
            pool, exchange = station.pool, station.exchange
            exchange.audit()
            pool.audit([*station.tables, *exchange.pinned()])
            for digest in [BlockHash(pool.residents()[at : at + 16]) for at in range(0, len(pool.residents()), 16)]:
                block = pool.find(digest)
                assert block is not None
                assert station.bytes[block] == digest, "what is resident has other bytes"
            for copy in station.copies.values():
                for block, generation in zip(copy.order.target_blocks, copy.generations, strict=True):
                    assert pool.state(block) in (BlockState.RESERVED, BlockState.ABORTING), "written, and not reserved"
                    assert pool.generation(block) == generation
            for sending in station.sendings.values():
                if not sending.is_over:
                    for block, generation in zip(sending.order.blocks, sending.generations, strict=True):
                        assert pool.state(block) is BlockState.PINNED, "read, and not pinned"
                        assert pool.generation(block) == generation
            deadline = exchange.next_deadline()
            assert station.is_asleep or deadline is None or deadline > self.now, "a side outlives its deadline"
            for transfer in self.begun_ns:
                side = exchange.side(transfer)
                if side is not None and side.end is None:
                    assert transfer.control == self.control.epoch, "a side outlives its control"
                    assert station.is_asleep or self.now < self.begun_ns[transfer] + LIFE_NS
        deadline = self.transfers.next_deadline()
        assert deadline is None or deadline > self.now, "a transfer outlives its deadline"

    def assert_at_rest(self) -> None:
        """Nothing is left of any transfer, anywhere."""
        assert len(self.transfers) == 0
        for station in self.stations:
            counts = station.pool.counts()
            assert station.exchange.is_idle
            assert station.exchange.pinned() == []
            assert (counts.reserved, counts.aborting, counts.writing) == (0, 0, 0)
            pinned = len(dict.fromkeys(block for table in station.tables for block in table))
            assert counts.pinned == pinned
        self.check()


def target_side(world: TransferWorld, rank: int, transfer: TransferId) -> TargetSide:
    side = world.stations[rank].exchange.side(transfer)
    assert isinstance(side, TargetSide)
    return side


def source_side(world: TransferWorld, rank: int, transfer: TransferId) -> SourceSide:
    side = world.stations[rank].exchange.side(transfer)
    assert isinstance(side, SourceSide)
    return side
