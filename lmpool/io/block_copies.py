"""The copies that one worker carries out: blocks of others into its own pool, and its pool for others to read.

What the machine orders is begun on the event loop, where the source is dialled; bytes move on a thread of their own.
Each order is answered once, when nothing of it can touch a block any more.
"""

import asyncio
import os
import socket
import threading
from collections.abc import Callable

import attrs

from lmpool.core.data_path import BlockReader, BlockReading, CopyFaultError, SharedPool
from lmpool.core.effects import CopyBlocks, SendBlocks
from lmpool.core.events import BlocksCopied, CopyEvent, CopyFailed, SendFailed
from lmpool.core.ids import SECOND, Peer, Rank, Role, TransferId
from lmpool.core.messages.transfer import CopyMeans
from lmpool.io.block_links import BlockDoor, blocks_address, dial_blocks
from lmpool.io.clock import monotonic_now
from lmpool.io.copy_thread import CopyThread
from lmpool.io.link import Identity
from lmpool.io.log import get_log
from lmpool.io.wire import WireError

NO_PATH = "this worker has no path to another's blocks"
END_S = 2.0
"""How long the end waits for a copy that was cancelled: a chunk takes some milliseconds."""

_log = get_log("blocks")


@attrs.define(eq=False)
class _Copy:
    order: CopyBlocks
    cause: str = ""
    """Why it was cancelled."""
    cancelled: threading.Event = attrs.field(factory=threading.Event)
    dialling: asyncio.Timeout | None = None


@attrs.define(eq=False)
class _Source:
    """Another worker's pool in this process's memory."""

    worker: Peer
    stream: socket.socket
    """Ends with that worker's life."""
    reader: BlockReader


class BlockCopies:
    """Must be made on a running event loop; `close` it on the same one."""

    def __init__(
        self,
        identity: Identity,
        run_folder: str,
        pool: SharedPool | None,
        told: Callable[[CopyEvent], None],
        *,
        is_summed: bool,
    ) -> None:
        """`told` is called from the event loop, never from within a call. `is_summed`: whether blocks that have arrived
        are compared with the source's. Raises OSError."""
        self._identity = identity
        self._run_folder = run_folder
        self._pool = pool
        self._told = told
        self._is_summed = is_summed
        self._loop = asyncio.get_running_loop()
        self._open: dict[TransferId, _Copy] = {}
        self._tasks: dict[asyncio.Task[None], None] = {}
        self._sources: dict[Rank, _Source] = {}
        self._thread = CopyThread()
        address = blocks_address(run_folder, identity.peer.rank)
        self._door = None if pool is None else BlockDoor(identity, pool, address)

    def copy(self, order: CopyBlocks) -> None:
        if self._pool is None or order.means is not CopyMeans.READ:
            self._loop.call_soon(self._told, CopyFailed(order.transfer, NO_PATH))
            return
        assert order.transfer not in self._open
        copy = self._open[order.transfer] = _Copy(order)
        task = self._loop.create_task(self._carry_out(copy, self._pool))
        self._tasks[task] = None
        task.add_done_callback(self._tasks.pop)

    def send(self, order: SendBlocks) -> None:
        """There is no path on which a source sends."""
        self._loop.call_soon(self._told, SendFailed(order.transfer, NO_PATH))

    def cancel(self, transfer: TransferId) -> None:
        """Harmless for what is over."""
        copy = self._open.get(transfer)
        if copy is not None:
            self._stop(copy, "it was cancelled")

    async def close(self) -> None:
        """Cancels everything; nothing is told any more of what has not ended in a while."""
        if self._door is not None:
            await self._door.close()
        for copy in self._open.values():
            self._stop(copy, "this worker is ending")
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=END_S)
        for task in self._tasks:
            task.cancel()
        for source in list(self._sources.values()):
            self._drop(source)
        await self._thread.end(END_S)

    def _stop(self, copy: _Copy, cause: str) -> None:
        copy.cause = copy.cause or cause
        copy.cancelled.set()
        if copy.dialling is not None and not copy.dialling.expired():
            copy.dialling.reschedule(self._loop.time())

    async def _carry_out(self, copy: _Copy, pool: SharedPool) -> None:
        transfer, blocks = copy.order.transfer, len(copy.order.target_blocks)
        event: CopyEvent
        try:
            source = await self._source(copy, pool)
            event = BlocksCopied(transfer, blocks, await self._read(copy, source))
        except (CopyFaultError, OSError, WireError, TimeoutError) as error:
            event = self._failure(copy, error)
        except Exception as error:  # of a library's: the blocks are not there, and the worker goes on
            _log.exception("a copy failed")
            event = self._failure(copy, error)
        del self._open[transfer]
        self._told(event)

    def _failure(self, copy: _Copy, error: Exception) -> CopyFailed:
        cause = copy.cause or str(error) or type(error).__name__
        _log.info("copy failed", transfer=tuple(copy.order.transfer), source=copy.order.source, cause=cause)
        return CopyFailed(copy.order.transfer, cause)

    async def _source(self, copy: _Copy, pool: SharedPool) -> _Source:
        """Raises OSError, WireError, CopyFaultError, TimeoutError."""
        order = copy.order
        worker = Peer(Role.WORKER, order.source, order.source_epoch)
        known = self._known(worker)
        if known is not None:
            return known
        address = blocks_address(self._run_folder, order.source)
        async with asyncio.timeout(_left_s(order)) as copy.dialling:
            if copy.cancelled.is_set():
                raise CopyFaultError("it was cancelled")
            stream = await dial_blocks(self._identity, address, worker)
        copy.dialling = None
        return await self._attach(worker, stream, pool)

    async def _attach(self, worker: Peer, stream: socket.socket, pool: SharedPool) -> _Source:
        try:
            descriptor = os.dup(stream.fileno())
            reader = await self._thread.run(lambda: pool.attach(descriptor))
        except BaseException:
            stream.close()
            raise
        known = self._known(worker)
        if known is not None:  # another copy was quicker
            stream.close()
            self._thread.run(reader.close)
            return known
        source = self._sources[worker.rank] = _Source(worker, stream, reader)
        self._loop.add_reader(stream.fileno(), self._lose, source)
        return source

    def _known(self, worker: Peer) -> _Source | None:
        """Forgets another life of it."""
        known = self._sources.get(worker.rank)
        if known is not None and known.worker != worker:
            self._drop(known)
            return None
        return known

    async def _read(self, copy: _Copy, source: _Source) -> int:
        """Raises CopyFaultError."""
        order = copy.order
        reading = BlockReading(
            order.transfer, order.source_blocks, order.target_blocks, order.deadline_ns, self._is_summed
        )
        return await self._thread.run(lambda: source.reader.read(reading, copy.cancelled.is_set))

    def _lose(self, source: _Source) -> None:
        """Its process is gone, or speaks where it has nothing to say."""
        self._drop(source)
        for copy in self._open.values():
            if copy.order.source == source.worker.rank and copy.order.source_epoch == source.worker.epoch:
                self._stop(copy, "the source is gone")

    def _drop(self, source: _Source) -> None:
        """Its memory is given back once no copy reads it."""
        if self._sources.get(source.worker.rank) is source:
            del self._sources[source.worker.rank]
            self._loop.remove_reader(source.stream.fileno())
            source.stream.close()
            self._thread.run(source.reader.close)


def _left_s(order: CopyBlocks) -> float:
    return max(0.0, (order.deadline_ns - monotonic_now()) / SECOND)
