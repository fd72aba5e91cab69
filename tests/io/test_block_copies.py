"""Copies between the workers of one run, over real sockets and real memory: what arrives, what fails, what is left."""

import asyncio
import os
import socket
import threading
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import attrs
import pytest

from lmpool.core.data_path import CopyFaultError
from lmpool.core.effects import CopyBlocks, SendBlocks
from lmpool.core.events import BlocksCopied, CopyEvent, CopyFailed, SendFailed
from lmpool.core.ids import SECOND, BlockId, Epoch, Generation, Nanos, Peer, Rank, Role, TransferId
from lmpool.core.messages.transfer import CopyMeans
from lmpool.io.block_copies import NO_PATH, BlockCopies
from lmpool.io.block_links import BlockDoor, blocks_address, dial_blocks
from lmpool.io.clock import monotonic_now
from lmpool.io.link import Identity, bind_socket, socket_path
from lmpool.io.wire import Hello, HelloRefused, decode, encode
from lmpool.sim.integer_pool import IntegerPool
from tests.io.loops import Run, on_both_loops

BLOCKS, WIDTH, WAIT_S = 12, 64, 20
EPOCH = Epoch(5)


def identity(rank: int, run: str = "run-1") -> Identity:
    return Identity(run, Peer(Role.WORKER, Rank(rank), EPOCH), os.getuid())


class Side:
    """One worker's part: every byte of a block is its rank and number. Its copies go on a block at a time, as let."""

    def __init__(
        self,
        folder: Path,
        rank: int,
        *,
        run: str = "run-1",
        width: int = WIDTH,
        is_shared: bool = True,
        is_summed: bool = True,
    ) -> None:
        self.events: asyncio.Queue[CopyEvent] = asyncio.Queue()
        self.go = threading.Semaphore(BLOCKS)
        self.copied = threading.Semaphore(0)
        self.pool = IntegerPool(BLOCKS, width, Nanos(0), self._pause)
        for block in range(BLOCKS):
            self.pool.memory[block * width : (block + 1) * width] = bytes([16 * (rank + 1) + block]) * width
        pool = self.pool if is_shared else None
        self.copies = BlockCopies(identity(rank, run), str(folder), pool, self.events.put_nowait, is_summed=is_summed)

    def _pause(self, _: Nanos) -> None:
        self.copied.release()
        assert self.go.acquire(timeout=WAIT_S)

    def blocks(self) -> list[int]:
        """The number in each block, which must be in all of it."""
        found = [set(self.pool.memory[block * WIDTH : (block + 1) * WIDTH]) for block in range(BLOCKS)]
        assert all(len(values) == 1 for values in found)
        return [values.pop() for values in found]

    async def event(self) -> CopyEvent:
        return await asyncio.wait_for(self.events.get(), WAIT_S)

    async def failure(self) -> str:
        event = await self.event()
        assert isinstance(event, CopyFailed)
        return event.cause


@asynccontextmanager
async def sides(folder: Path, *, is_summed: bool = True) -> AsyncIterator[tuple[Side, Side]]:
    source, target = (Side(folder, rank, is_summed=is_summed) for rank in (0, 1))
    try:
        yield source, target
    finally:
        for side in (target, source):
            side.go.release(BLOCKS)
            await side.copies.close()


def order(counter: int, source: Sequence[int], target: Sequence[int], seconds: float = WAIT_S) -> CopyBlocks:
    """From rank 0."""
    return CopyBlocks(
        transfer=TransferId(Epoch(4), counter),
        means=CopyMeans.READ,
        source=Rank(0),
        source_epoch=EPOCH,
        source_blocks=tuple(map(BlockId, source)),
        source_generations=(Generation(1),) * len(source),
        target_blocks=tuple(map(BlockId, target)),
        deadline_ns=Nanos(monotonic_now() + round(seconds * SECOND)),
    )


async def begun(side: Side) -> None:
    """Until a block has been copied."""
    assert await asyncio.to_thread(side.copied.acquire, timeout=WAIT_S)


@on_both_loops
def test_blocks_arrive_where_they_were_ordered_and_nowhere_else(run: Run, tmp_path: Path) -> None:
    async def body() -> None:
        async with sides(tmp_path) as (source, target):
            before, theirs = target.blocks(), source.blocks()
            target.copies.copy(order(1, [3, 0, 7], [5, 6, 1]))
            assert await target.event() == BlocksCopied(TransferId(Epoch(4), 1), 3, 3 * WIDTH)
            expected = list(before)
            expected[5], expected[6], expected[1] = theirs[3], theirs[0], theirs[7]
            assert target.blocks() == expected
            assert source.blocks() == theirs

    run(body())


@on_both_loops
@pytest.mark.parametrize("is_summed", [True, False])
def test_a_byte_that_is_flipped_on_the_way_is_found_by_the_checksum_alone(
    run: Run, tmp_path: Path, is_summed: bool
) -> None:
    async def body() -> None:
        async with sides(tmp_path, is_summed=is_summed) as (_, target):
            for _ in range(BLOCKS):
                target.go.acquire()
            target.copies.copy(order(1, [3, 0, 7], [5, 6, 1]))
            await begun(target)
            target.pool.memory[5 * WIDTH + 17] ^= 1
            target.go.release(BLOCKS)
            if is_summed:
                assert await target.failure() == "what has arrived is not what the source holds"
            else:
                assert await target.event() == BlocksCopied(TransferId(Epoch(4), 1), 3, 3 * WIDTH)

    run(body())


@on_both_loops
def test_copies_wait_for_each_other_and_each_is_answered_once(run: Run, tmp_path: Path) -> None:
    async def body() -> None:
        async with sides(tmp_path) as (_, target):
            target.go.release(BLOCKS)
            for counter in range(1, 6):
                target.copies.copy(order(counter, [counter], [counter]))
            heard = [await target.event() for _ in range(5)]
            assert sorted(event.transfer.counter for event in heard) == [1, 2, 3, 4, 5]
            assert all(isinstance(event, BlocksCopied) for event in heard)
            target.copies.cancel(TransferId(Epoch(4), 1))
            await asyncio.sleep(0)
            assert target.events.empty()

    run(body())


@on_both_loops
def test_a_cancelled_copy_is_answered_when_it_touches_nothing_more(run: Run, tmp_path: Path) -> None:
    async def body() -> None:
        async with sides(tmp_path) as (_, target):
            for _ in range(BLOCKS):
                target.go.acquire()
            target.copies.copy(order(1, range(6), range(6)))
            await begun(target)
            target.copies.cancel(TransferId(Epoch(4), 1))
            target.copies.cancel(TransferId(Epoch(4), 1))
            await asyncio.sleep(0.05)
            assert target.events.empty()
            target.go.release()
            assert await target.failure() == "it was cancelled"
            assert target.blocks()[1:] == [33 + block for block in range(BLOCKS - 1)]

    run(body())


@on_both_loops
def test_a_deadline_ends_a_copy(run: Run, tmp_path: Path) -> None:
    async def body() -> None:
        async with sides(tmp_path) as (_, target):
            for _ in range(BLOCKS):
                target.go.acquire()
            target.copies.copy(order(1, range(6), range(6), seconds=0.2))
            await begun(target)
            await asyncio.sleep(0.25)
            target.go.release()
            assert await target.failure() == "it took too long"

    run(body())


@on_both_loops
def test_a_source_that_ends_ends_its_copies_and_its_memory_is_given_back(run: Run, tmp_path: Path) -> None:
    async def body() -> None:
        async with sides(tmp_path) as (source, target):
            target.copies.copy(order(1, [1], [1]))
            await target.event()
            assert borrowed(source.pool) == 1
            for _ in range(BLOCKS - 1):
                target.go.acquire()
            target.copied.acquire()
            target.copies.copy(order(2, range(6), range(6)))
            await begun(target)
            await source.copies.close()
            await asyncio.sleep(0.1)  # until the end of the stream is seen; the copy would go on otherwise
            target.go.release()
            assert await target.failure() == "the source is gone"
            async with asyncio.timeout(WAIT_S):
                while borrowed(source.pool):  # noqa: ASYNC110 (the kernel tells nobody)
                    await asyncio.sleep(0.01)
            target.copies.copy(order(3, [1], [1]))
            assert "No such file" in await target.failure()

    run(body())


def borrowed(pool: IntegerPool) -> int:
    """How often it is mapped here to be read alone."""
    address = str(os.fstat(pool.descriptor).st_ino)
    maps = [line.split() for line in Path("/proc/self/maps").read_text().splitlines()]
    return sum(words[1] == "r--s" and words[4] == address for words in maps)


@on_both_loops
def test_a_source_in_another_life_is_refused(run: Run, tmp_path: Path) -> None:
    async def body() -> None:
        async with sides(tmp_path) as (_, target):
            target.copies.copy(attrs.evolve(order(1, [1], [1]), source_epoch=Epoch(4)))
            assert await target.failure() == "another life of worker 0 is there"

    run(body())


@on_both_loops
def test_a_source_of_another_run_and_one_with_other_blocks_are_refused(run: Run, tmp_path: Path) -> None:
    async def body() -> None:
        for name, width, run_id in (("run", WIDTH, "run-2"), ("width", 2 * WIDTH, "run-1")):
            folder = tmp_path / name
            folder.mkdir()
            there, here = Side(folder, 0, run=run_id, width=width), Side(folder, 1)
            here.copies.copy(order(1, [1], [1]))
            cause = await here.failure()
            assert cause in ("it refuses us: it belongs to another run", "the source's blocks have 128 bytes, not 64")
            assert here.blocks()[1] == 33
            await here.copies.close()
            await there.copies.close()

    run(body())


@on_both_loops
def test_a_source_that_accepts_and_says_nothing_can_be_cancelled_and_times_out(run: Run, tmp_path: Path) -> None:
    async def body() -> None:
        silent = bind_socket(socket_path(blocks_address(str(tmp_path), Rank(0))))
        silent.listen()
        target = Side(tmp_path, 1)
        target.copies.copy(order(1, [1], [1]))
        target.copies.copy(order(2, [1], [1], seconds=0.1))
        await asyncio.sleep(0.05)
        target.copies.cancel(TransferId(Epoch(4), 1))
        heard = {(await target.event()).transfer.counter for _ in range(2)}
        assert heard == {1, 2}
        await target.copies.close()
        silent.close()

    run(body())


@on_both_loops
def test_what_has_no_path_fails_and_is_told_after_the_call(run: Run, tmp_path: Path) -> None:
    async def body() -> None:
        bare = Side(tmp_path, 1, is_shared=False)
        bare.copies.copy(order(1, [1], [1]))
        transfer = TransferId(Epoch(4), 2)
        bare.copies.send(SendBlocks(transfer, Rank(0), EPOCH, (BlockId(1),), Nanos(1)))
        assert bare.events.empty()
        assert await bare.event() == CopyFailed(TransferId(Epoch(4), 1), NO_PATH)
        assert await bare.event() == SendFailed(transfer, NO_PATH)
        assert os.listdir(tmp_path) == []
        await bare.copies.close()

    run(body())


@on_both_loops
def test_strangers_at_the_door_get_no_descriptor(run: Run, tmp_path: Path) -> None:
    async def body() -> None:
        source = Side(tmp_path, 0)
        hello = identity(1).hello()
        refused = "it belongs to another run", "no ingress is awaited here", "protocol version"
        wrong = (
            attrs.evolve(hello, run="run-2"),
            attrs.evolve(hello, role=Role.INGRESS),
            attrs.evolve(hello, version=hello.version + 1),
        )
        for record, reason in zip(wrong, refused, strict=True):
            answer, descriptors = await asyncio.to_thread(knock, tmp_path, encode(record))
            assert descriptors == []
            told = decode(answer)
            assert isinstance(told, HelloRefused)
            assert told.reason.startswith(reason)
        for noise in (b"GET / HTTP/1.1\r\n\r\n", b"\xff" * 64, b""):
            assert await asyncio.to_thread(knock, tmp_path, noise) == (b"", [])
        answer, descriptors = await asyncio.to_thread(knock, tmp_path, encode(hello))
        assert len(descriptors) == 1
        assert encode(identity(0).hello()) == answer[: len(encode(identity(0).hello()))]
        await source.copies.close()

    run(body())


@on_both_loops
def test_another_user_gets_no_descriptor_and_is_not_read(run: Run, tmp_path: Path) -> None:
    async def body() -> None:
        stranger = attrs.evolve(identity(0), uid=os.getuid() + 1)  # for whom everybody here is of another user
        pool = IntegerPool(BLOCKS, WIDTH, Nanos(0), lambda _: None)
        door = BlockDoor(stranger, pool, blocks_address(str(tmp_path), Rank(0)))
        answer, descriptors = await asyncio.to_thread(knock, tmp_path, encode(identity(1).hello()))
        assert descriptors == []
        assert decode(answer) == HelloRefused(f"processes of user {os.getuid()} are not welcome")
        with pytest.raises(CopyFaultError, match="refuses us"):
            await dial_blocks(identity(1), blocks_address(str(tmp_path), Rank(0)), identity(0).peer)
        await door.close()
        honest = BlockDoor(identity(0), pool, blocks_address(str(tmp_path), Rank(0)))
        with pytest.raises(CopyFaultError, match="not welcome"):
            await dial_blocks(
                attrs.evolve(identity(1), uid=os.getuid() + 1), blocks_address(str(tmp_path), Rank(0)), identity(0).peer
            )
        await honest.close()

    run(body())


def knock(folder: Path, words: bytes) -> tuple[bytes, list[int]]:
    """What the door answers until it falls silent or ends, and the descriptors that came along (closed again)."""
    answer, descriptors = b"", list[int]()
    with socket.socket(socket.AF_UNIX) as stream:
        stream.settimeout(2)
        stream.connect(socket_path(blocks_address(str(folder), Rank(0))))
        stream.sendall(words)
        if not words:
            stream.shutdown(socket.SHUT_WR)
        while not descriptors:
            try:
                data, found, _, _ = socket.recv_fds(stream, 4096, 4)
            except ConnectionResetError:  # of an end that has not read all
                break
            answer, descriptors = answer + data, descriptors + found
            if not data:
                break
    for descriptor in descriptors:
        os.close(descriptor)
    return answer, descriptors


def test_a_hello_is_what_both_ends_say() -> None:
    assert isinstance(decode(encode(identity(3).hello())), Hello)


@on_both_loops
def test_the_end_cancels_what_runs_and_removes_the_socket(run: Run, tmp_path: Path) -> None:
    async def body() -> None:
        source, target = Side(tmp_path, 0), Side(tmp_path, 1)
        for _ in range(BLOCKS):
            target.go.acquire()
        target.copies.copy(order(1, range(6), range(6)))
        await begun(target)
        closing = asyncio.get_running_loop().create_task(target.copies.close())
        await asyncio.sleep(0.1)
        target.go.release()
        await closing
        assert await target.failure() == "this worker is ending"
        await source.copies.close()
        assert os.listdir(tmp_path) == []

    run(body())
