"""The end of a pair that gathers blocks into packed payloads and sends them, as the target asks for them."""

import socket
from contextlib import suppress

from lmpool.gpu.kv_pool import KVPool
from lmpool.gpu.paths.checksum import summed
from lmpool.gpu.paths.chunks import chunk_blocks, chunk_bytes, chunks
from lmpool.gpu.paths.deadline import Deadline
from lmpool.gpu.paths.frames import WINDOW, Frame, FrameKind
from lmpool.gpu.paths.group import SOURCE, PairGroup
from lmpool.gpu.paths.pair_link import PairLink
from lmpool.gpu.paths.port import Copied, CopyCancelled, CopyOrder, CopyWatch, PathError, PathSettings, check_order


class TargetStopped(CopyCancelled):
    """It was the target's wish, and the group is left without rests."""


class PairSource:
    """`DataPath`."""

    def __init__(self, settings: PathSettings, connected: socket.socket, pool: KVPool) -> None:
        """Takes the socket over. Raises CopyRefused."""
        self._link = PairLink(settings, connected, pool, SOURCE)

    def copy(self, order: CopyOrder, watch: CopyWatch) -> Copied:
        deadline = Deadline(order)
        try:
            check_order(order, self._link.planes.form.blocks, None)
            return _Sending(self._link, order, watch, deadline).run()
        except PathError:
            with suppress(PathError):  # so that the target need not wait for its deadline
                self._link.send(Frame(FrameKind.ENDED, order.transfer, 0, 0, 0), deadline)
            raise

    def close(self) -> None:
        self._link.close()


class _Sending:
    def __init__(self, link: PairLink, order: CopyOrder, watch: CopyWatch, deadline: Deadline) -> None:
        self._link = link
        self._order = order
        self._watch = watch
        self._deadline = deadline
        self._form = link.planes.form
        self._cut = chunks(self._form, order)
        self._size = len(order.source_blocks) * self._form.block_bytes

    def run(self) -> Copied:
        try:
            group = self._begin()
            return self._send(group)
        except TargetStopped:
            raise
        except PathError:
            self._link.drop()
            raise

    def _begin(self) -> PairGroup:
        begun = self._link.receive(self._order, self._deadline, self._watch)
        if begun.kind is not FrameKind.BEGIN or begun.size_bytes != self._size:
            raise PathError(f"the target has another order for transfer {self._order.transfer}")
        number = self._link.usable
        if number == 0 or number != begun.number:
            number = max(self._link.number, begun.number) + 1
        self._say(FrameKind.BEGIN, number, self._size, 0)
        return self._link.meet(number)

    def _send(self, group: PairGroup) -> Copied:
        planes, order = self._link.planes, self._order
        stages = self._link.stages(max(chunk_bytes(self._form, chunk) for chunk in self._cut))
        checksum = done = 0
        for number, chunk in enumerate(self._cut):
            asked = self._link.receive(order, self._deadline, self._watch)
            if asked.kind is FrameKind.STOP:
                return self._stop(group)
            if (asked.kind, asked.number) != (FrameKind.ASK, number):
                raise PathError(f"the target asks for chunk {asked.number} instead of {number}")
            if group.pending == WINDOW:
                group.finish(self._deadline)
            packed = stages[number % WINDOW][: chunk_bytes(self._form, chunk)]
            planes.gather(chunk, chunk_blocks(chunk, order.source_blocks), packed)
            checksum = summed(packed, checksum) if order.is_summed else 0
            self._say(FrameKind.CHUNK, number, packed.numel(), checksum)
            group.begin_send(packed)
            done += packed.numel()
            self._watch.advanced(done)
        self._finish(group)
        return Copied(done, checksum if order.is_summed else None)

    def _stop(self, group: PairGroup) -> Copied:
        """The target takes in what it had asked for, so that the group is left without rests."""
        self._finish(group)
        raise TargetStopped(f"the target has stopped transfer {self._order.transfer}")

    def _finish(self, group: PairGroup) -> None:
        while group.pending:
            group.finish(self._deadline)

    def _say(self, kind: FrameKind, number: int, size_bytes: int, checksum: int) -> None:
        self._link.send(Frame(kind, self._order.transfer, number, size_bytes, checksum), self._deadline)
