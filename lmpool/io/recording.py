"""What one life of control was told, on disk, so that it can be replayed (`specs/recording.md`).

Hashes, lengths, session names and times are in it; prompts and answers never reach control, and are not.
"""

import os
import struct
from enum import Enum
from hashlib import blake2b
from io import FileIO
from pathlib import Path
from typing import TypeAlias, assert_never, get_args
from zlib import crc32

import attrs

from lmpool.core.control import ControlPlane, ControlSettings
from lmpool.core.effects import ControlEffect
from lmpool.core.events import ControlEvent, PeerJoined, PeerLost, Received, Tick
from lmpool.core.ids import Nanos, Peer
from lmpool.io.log import get_log
from lmpool.io.wire import PROTOCOL_VERSION, FrameFormat, encode

FORMAT_VERSION = 2
DIGEST_EVENTS = 4096
"""Events between two digests, at least: a digest of a full log of decisions takes some 20 ms."""
DIGEST_HASHES = 4
"""One event more for so many known hashes, of which each takes half a microsecond to digest."""
LAST_BYTES = 1 << 10
"""Kept free for the last record."""

_log = get_log("recording")


class EventKind(Enum):
    RECEIVED = "received"
    """The frame of the message follows."""
    TICK = "tick"
    PEER_JOINED = "peer joined"
    PEER_LOST = "peer lost"


class RecordingEnd(Enum):
    CLOSED = "closed"
    FULL = "full"


@attrs.frozen
class RecordingBegun:
    """First record: everything that the machine is made of."""

    format: int
    protocol: int
    program: str
    """Version of LMPool."""
    epoch: int
    at_ns: Nanos
    settings: ControlSettings


@attrs.frozen
class EventRecorded:
    at_ns: Nanos
    what: EventKind
    peer: Peer | None
    """None for a tick."""


@attrs.frozen
class DigestRecorded:
    events: int
    """So far."""
    effects: bytes
    """Of all effects since the last digest."""
    state: bytes
    """Of the machine."""


@attrs.frozen
class RecordingEnded:
    """Last record; absent where control was killed."""

    end: RecordingEnd


Recorded: TypeAlias = RecordingBegun | EventRecorded | DigestRecorded | RecordingEnded

FORMAT = FrameFormat(get_args(Recorded))

CHECKSUM = struct.Struct("<I")
"""CRC-32 of the frame that follows: what a disk has changed is not taken for a fault of control."""


def seal(frame: bytes) -> bytes:
    return CHECKSUM.pack(crc32(frame)) + frame


class RecordingError(Exception):
    """One line for the operator."""


class EffectDigest:
    """Of effects in order."""

    __slots__ = ("_state",)

    def __init__(self) -> None:
        self._state = blake2b(digest_size=16)

    def add(self, effects: list[ControlEffect]) -> None:
        for effect in effects:
            self._state.update(repr(effect.peer).encode())
            self._state.update(encode(effect.message))

    def digest(self) -> bytes:
        return self._state.digest()


def open_recording(path: Path) -> FileIO:
    """A new file that nobody else may read. Unbuffered, so that a killed process leaves all that it was told.
    Raises RecordingError."""
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    except FileExistsError:
        raise RecordingError(f"{path} is there already, and no recording is written over") from None
    except OSError as error:
        raise RecordingError(f"cannot record to {path}: {error.strerror}") from error
    return os.fdopen(descriptor, "wb", buffering=0)


class RecordedPlane:
    """A control plane, of which every event is written before it is handled. Full or failing, it goes on unwritten."""

    def __init__(self, plane: ControlPlane, file: FileIO, bytes_max: int, begun: RecordingBegun) -> None:
        """`file` is closed here."""
        self._plane = plane
        self._file: FileIO | None = file
        self._bytes_left = bytes_max - LAST_BYTES
        self._events = 0
        self._digest_at = DIGEST_EVENTS
        self._effects = EffectDigest()
        self._write(seal(FORMAT.encode(begun)))

    def handle(self, now: Nanos, event: ControlEvent) -> list[ControlEffect]:
        if self._file is None:
            return self._plane.handle(now, event)
        self._write(b"".join(map(seal, event_frames(now, event))))
        effects = self._plane.handle(now, event)
        self._events += 1
        self._effects.add(effects)
        if self._events >= self._digest_at:
            self._write_digest()
        return effects

    def next_deadline(self) -> Nanos | None:
        return self._plane.next_deadline()

    def close(self) -> None:
        if self._file is not None:
            self._write_digest()
            self._end(RecordingEnd.CLOSED)

    def _write_digest(self) -> None:
        digest = DigestRecorded(self._events, self._effects.digest(), self._plane.digest())
        self._effects = EffectDigest()
        hashes = self._plane.snapshot().state.page_table_hashes
        self._digest_at = self._events + DIGEST_EVENTS + hashes // DIGEST_HASHES
        self._write(seal(FORMAT.encode(digest)))

    def _write(self, frames: bytes) -> None:
        if self._file is None:
            return
        self._bytes_left -= len(frames)
        if self._bytes_left < 0:
            _log.warning("the recording is full and ends here", events=self._events)
            self._end(RecordingEnd.FULL)
            return
        try:
            if self._file.write(frames) < len(frames):
                self._give_up("a write was cut short")
        except OSError as error:
            self._give_up(str(error))

    def _end(self, end: RecordingEnd) -> None:
        file, self._file = self._file, None
        assert file is not None
        try:
            file.write(seal(FORMAT.encode(RecordingEnded(end))))
            file.close()
        except OSError as error:
            self._give_up(str(error))

    def _give_up(self, cause: str) -> None:
        self._file = None
        _log.warning("the recording cannot be written and ends here", events=self._events, cause=cause)


def event_frames(now: Nanos, event: ControlEvent) -> list[bytes]:
    match event:
        case Received(peer=peer, message=message):
            return [FORMAT.encode(EventRecorded(now, EventKind.RECEIVED, peer)), encode(message)]
        case Tick():
            return [FORMAT.encode(EventRecorded(now, EventKind.TICK, None))]
        case PeerJoined(peer=peer):
            return [FORMAT.encode(EventRecorded(now, EventKind.PEER_JOINED, peer))]
        case PeerLost(peer=peer):
            return [FORMAT.encode(EventRecorded(now, EventKind.PEER_LOST, peer))]
        case _:
            assert_never(event)


def recording_begun(settings: ControlSettings, epoch: int, program: str, now: Nanos) -> RecordingBegun:
    return RecordingBegun(FORMAT_VERSION, PROTOCOL_VERSION, program, epoch, now, settings)
