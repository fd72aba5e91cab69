"""The end of a pair that asks for chunks, receives their payloads and scatters them into its blocks."""

import socket
from contextlib import suppress

import attrs
import torch

from lmpool.gpu.kv_pool import KVPool
from lmpool.gpu.paths.checksum import summed
from lmpool.gpu.paths.chunks import Chunk, chunk_blocks, chunk_bytes, chunks
from lmpool.gpu.paths.deadline import Deadline
from lmpool.gpu.paths.frames import WINDOW, Frame, FrameKind
from lmpool.gpu.paths.group import TARGET, PairGroup
from lmpool.gpu.paths.pair_link import PairLink, SourceEnded
from lmpool.gpu.paths.port import Copied, CopyCancelled, CopyOrder, CopyWatch, PathError, PathSettings, check_order

STOP_S = 5.0
"""How long a target that stops takes in what it has asked for; then it lets the group go."""


class PairTarget:
    """`DataPath`."""

    def __init__(self, settings: PathSettings, connected: socket.socket, pool: KVPool) -> None:
        """Takes the socket over. Raises CopyRefused."""
        self._link = PairLink(settings, connected, pool, TARGET)

    def copy(self, order: CopyOrder, watch: CopyWatch) -> Copied:
        receiving = _Receiving(self._link, order, watch)
        try:
            check_order(order, None, self._link.planes.form.blocks)
            return receiving.run()
        except CopyCancelled:
            receiving.stop()
            raise
        except PathError:
            self._link.drop()
            receiving.tell_stop()
            raise

    def close(self) -> None:
        self._link.close()


class _Receiving:
    def __init__(self, link: PairLink, order: CopyOrder, watch: CopyWatch) -> None:
        self._link = link
        self._order = order
        self._watch = watch
        self._deadline = Deadline(order)
        self._cut: list[Chunk] = []
        self._sizes: list[int] = []
        self._stages: list[torch.Tensor] = []
        self._group: PairGroup | None = None
        self._checksum = 0
        self._done = 0

    def run(self) -> Copied:
        """Of an order that was checked."""
        form = self._link.planes.form
        self._cut = chunks(form, self._order)
        self._sizes = [chunk_bytes(form, chunk) for chunk in self._cut]
        group = self._begin()
        self._stages = self._link.stages(max(self._sizes))
        for number in range(min(WINDOW, len(self._cut))):
            self._say(FrameKind.ASK, number, 0)
        before: tuple[Chunk, torch.Tensor] | None = None
        for number, chunk in enumerate(self._cut):
            frame = self._expect(number)
            packed = self._stages[number % WINDOW][: self._sizes[number]]
            group.begin_receive(packed)
            if before is not None:
                self._put(*before)
            group.finish(self._deadline)
            self._check(frame, packed)
            if number + WINDOW < len(self._cut):
                self._say(FrameKind.ASK, number + WINDOW, 0)
            before = chunk, packed
        assert before is not None
        self._put(*before)
        return Copied(self._done, self._checksum if self._order.is_summed else None)

    def tell_stop(self) -> None:
        """So that the source need not wait for its deadline."""
        self._deadline = Deadline(attrs.evolve(self._order, timeout_s=STOP_S))
        with suppress(PathError):
            self._say(FrameKind.STOP, 0, 0)

    def stop(self) -> None:
        """Leaves the group without rests where the source answers in time, and else without the group."""
        self.tell_stop()
        self._watch = CopyWatch(lambda: False, lambda _: None)
        if self._group is None:
            return
        try:
            while True:  # ends with the source's last word, which `receive` raises
                frame = self._link.receive(self._order, self._deadline, self._watch)
                if not self._is_chunk(frame):
                    raise PathError(f"the source says {frame} to a stop")
                self._group.begin_receive(self._stages[frame.number % WINDOW][: frame.size_bytes])
                self._group.finish(self._deadline)
        except SourceEnded:
            pass
        except PathError:
            self._link.drop()

    def _begin(self) -> PairGroup:
        self._say(FrameKind.BEGIN, self._link.usable, sum(self._sizes))
        answer = self._link.receive(self._order, self._deadline, self._watch)
        if answer.kind is not FrameKind.BEGIN or answer.size_bytes != sum(self._sizes):
            raise PathError(f"the source has another order for transfer {self._order.transfer}")
        self._group = self._link.meet(answer.number)
        return self._group

    def _expect(self, number: int) -> Frame:
        frame = self._link.receive(self._order, self._deadline, self._watch)
        if frame.number != number or not self._is_chunk(frame):
            raise PathError(f"chunk {number} of {self._sizes[number]} bytes was asked for, and {frame} has come")
        return frame

    def _is_chunk(self, frame: Frame) -> bool:
        return frame.kind is FrameKind.CHUNK and self._sizes[frame.number : frame.number + 1] == [frame.size_bytes]

    def _check(self, frame: Frame, packed: torch.Tensor) -> None:
        if not self._order.is_summed:
            return
        self._checksum = summed(packed, self._checksum)
        if self._checksum != frame.checksum:
            raise PathError(f"chunk {frame.number} of transfer {self._order.transfer} has arrived with other bytes")

    def _put(self, chunk: Chunk, packed: torch.Tensor) -> None:
        blocks = chunk_blocks(chunk, self._order.target_blocks)
        self._link.planes.scatter(chunk, blocks, packed)
        self._done += packed.numel()
        self._watch.advanced(self._done)

    def _say(self, kind: FrameKind, number: int, size_bytes: int) -> None:
        self._link.send(Frame(kind, self._order.transfer, number, size_bytes, 0), self._deadline)
