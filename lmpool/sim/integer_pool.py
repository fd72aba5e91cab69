"""The slots of the exact integer model in memory that other processes can read, as a real pool's are."""

import mmap
import os
import socket
import struct
import time
import weakref
from collections.abc import Callable

from lmpool.core.data_path import BlockReader, BlockReading, CopyFaultError
from lmpool.core.ids import Nanos

_OFFER = struct.Struct("<QQ")
OFFER_S = 10.0
"""How long either end waits for the other."""


class IntegerPool:
    """`core.data_path.SharedPool`. A block takes `copy_block_ns` to be copied, as a step takes what it costs."""

    def __init__(self, blocks: int, block_bytes: int, copy_block_ns: Nanos, pause: Callable[[Nanos], None]) -> None:
        self._blocks = blocks
        self._block_bytes = block_bytes
        self._copy_block_ns = copy_block_ns
        self._pause = pause
        self.descriptor = os.memfd_create("lmpool-integers", os.MFD_CLOEXEC)
        weakref.finalize(self, os.close, self.descriptor)
        os.ftruncate(self.descriptor, blocks * block_bytes)
        self.memory = mmap.mmap(self.descriptor, blocks * block_bytes)

    def offer(self, connected: int) -> None:
        with socket.socket(fileno=connected) as stream:
            stream.settimeout(OFFER_S)
            readable = os.open(f"/proc/self/fd/{self.descriptor}", os.O_RDONLY | os.O_CLOEXEC)
            try:
                socket.send_fds(stream, [_OFFER.pack(self._blocks, self._block_bytes)], [readable])
            except OSError as error:
                raise CopyFaultError(f"the offer was not sent: {error}") from error
            finally:
                os.close(readable)

    def attach(self, connected: int) -> BlockReader:
        descriptors: list[int] = []
        with socket.socket(fileno=connected) as stream:
            stream.settimeout(OFFER_S)
            try:
                offer, descriptors, _, _ = socket.recv_fds(stream, _OFFER.size, 1)
                if len(offer) != _OFFER.size or len(descriptors) != 1:
                    raise CopyFaultError("the source has ended before it offered its pool")
                blocks, block_bytes = _OFFER.unpack(offer)
                if block_bytes != self._block_bytes:
                    raise CopyFaultError(f"the source's blocks have {block_bytes} bytes, not {self._block_bytes}")
                theirs = mmap.mmap(descriptors[0], blocks * block_bytes, prot=mmap.PROT_READ)
            except (OSError, ValueError) as error:
                raise CopyFaultError(f"the source's pool cannot be read: {error}") from error
            finally:
                for descriptor in descriptors:
                    os.close(descriptor)
        return _IntegerReader(theirs, self.memory, self._block_bytes, lambda: self._pause(self._copy_block_ns))


class _IntegerReader:
    def __init__(self, source: mmap.mmap, target: mmap.mmap, block_bytes: int, pause: Callable[[], None]) -> None:
        self._source = source
        self._target = target
        self._block_bytes = block_bytes
        self._pause = pause

    def read(self, reading: BlockReading, is_cancelled: Callable[[], bool]) -> int:
        width = self._block_bytes
        for source, target in zip(reading.source_blocks, reading.target_blocks, strict=True):
            if is_cancelled():
                raise CopyFaultError("it was cancelled")
            if time.monotonic_ns() > reading.deadline_ns:
                raise CopyFaultError("it took too long")
            if not (0 <= source < len(self._source) // width and 0 <= target < len(self._target) // width):
                raise CopyFaultError("a block outside of the pool")
            self._target[target * width : (target + 1) * width] = self._source[source * width : (source + 1) * width]
            self._pause()
        if reading.is_summed and not self._are_equal(reading):
            raise CopyFaultError("what has arrived is not what the source holds")
        return len(reading.target_blocks) * width

    def _are_equal(self, reading: BlockReading) -> bool:
        width = self._block_bytes
        return all(
            self._target[target * width : (target + 1) * width] == self._source[source * width : (source + 1) * width]
            for source, target in zip(reading.source_blocks, reading.target_blocks, strict=True)
        )

    def close(self) -> None:
        self._source.close()
