"""What the two ends of a pair say to each other, by frames of fixed size on a Unix stream socket.

| frame | from | number | means |
| --- | --- | --- | --- |
| begin | target | group that it has, 0: none | here I am for this transfer |
| begin | source | group to use | so am I; if you have another group, meet me for this one |
| ask | target | chunk | send this; at most `WINDOW` are asked for and have not arrived |
| chunk | source | chunk | its payload follows by the group |
| stop | target | | no more: what was asked for before is still received |
| ended | source | | no more: the answer to a stop, or the source's own wish |

Frames of other transfers are left over from one that broke, and dropped.
"""

import socket
import struct
from enum import IntEnum

import attrs

from lmpool.gpu.paths.deadline import Deadline
from lmpool.gpu.paths.port import CopyCancelled, CopyWatch, PathError

WINDOW = 2
"""One chunk travels while the one before is put into its blocks."""
LOOK_S = 0.05
"""How often a wait looks at the cancel flag."""

_FORM = struct.Struct("<4sHHQQIIQ")
_MAGIC = b"LMKV"
_VERSION = 1
FRAME_BYTES = _FORM.size


class FrameKind(IntEnum):
    BEGIN = 1
    ASK = 2
    STOP = 3
    CHUNK = 4
    ENDED = 5


@attrs.frozen
class Frame:
    kind: FrameKind
    transfer: tuple[int, int]
    number: int
    size_bytes: int
    """Of the payload behind a chunk frame; of all payloads in a begin."""
    checksum: int
    """Of all payloads up to and with this one; 0 where none is wanted."""


def encode_frame(frame: Frame) -> bytes:
    return _FORM.pack(_MAGIC, _VERSION, frame.kind, *frame.transfer, frame.number, frame.checksum, frame.size_bytes)


def decode_frame(data: bytes) -> Frame:
    """Raises PathError."""
    magic, version, kind, epoch, counter, number, checksum, size = _FORM.unpack(data)
    if (magic, version) != (_MAGIC, _VERSION) or kind not in tuple(FrameKind):
        raise PathError(f"the peer does not speak version {_VERSION} of the frames of a pair")
    return Frame(FrameKind(kind), (epoch, counter), number, size, checksum)


class FrameSocket:
    """Frames over one connected socket, whose end is the peer's end."""

    def __init__(self, connected: socket.socket) -> None:
        self._socket = connected
        self._socket.settimeout(LOOK_S)
        self._begun = b""
        """The frame that has arrived in part."""

    def send(self, frame: Frame, deadline: Deadline) -> None:
        """Raises PathError. The few frames of a window always find room, unless the peer has stopped reading."""
        rest = memoryview(encode_frame(frame))
        while rest:
            deadline.check()
            try:
                rest = rest[self._socket.send(rest) :]
            except TimeoutError:
                continue
            except OSError as error:
                raise PathError(f"the peer is gone: {error.strerror}") from error

    def receive(self, transfer: tuple[int, int], deadline: Deadline, watch: CopyWatch) -> Frame:
        """The next frame of `transfer`. Raises PathError, and CopyCancelled if asked while it waits."""
        while True:
            frame = self._next(deadline, watch)
            if frame.transfer == transfer:
                return frame

    def close(self) -> None:
        self._socket.close()

    def _next(self, deadline: Deadline, watch: CopyWatch) -> Frame:
        while len(self._begun) < FRAME_BYTES:
            if watch.is_cancelled():
                raise CopyCancelled("cancelled while it waited for the peer")
            deadline.check()
            try:
                arrived = self._socket.recv(FRAME_BYTES - len(self._begun))
            except TimeoutError:
                continue
            except OSError as error:
                raise PathError(f"the peer is gone: {error.strerror}") from error
            if not arrived:
                raise PathError("the peer is gone")
            self._begun += arrived
        whole, self._begun = self._begun, b""
        return decode_frame(whole)
