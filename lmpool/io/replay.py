"""Feeds a recording of control (`recording.py`) to a fresh control plane and compares what comes out."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO
from zlib import crc32

import attrs
import orjson

from lmpool.core.control import ControlPlane
from lmpool.core.effects import ControlEffect
from lmpool.core.events import ControlEvent, PeerJoined, PeerLost, Received, Tick
from lmpool.core.fleet import Choice, Policy, RouteView
from lmpool.core.ids import Epoch, Peer, Rank
from lmpool.core.limits import FRAME_BYTES_MAX
from lmpool.core.messages.ingress_control import RouteAsked
from lmpool.core.route import POLICIES
from lmpool.io.recording import (
    CHECKSUM,
    FORMAT,
    FORMAT_VERSION,
    DigestRecorded,
    EffectDigest,
    EventKind,
    EventRecorded,
    RecordingBegun,
    RecordingEnd,
    RecordingEnded,
    RecordingError,
)
from lmpool.io.wire import PREFIX, PROTOCOL_VERSION, Hello, HelloRefused, WireError, decode


@attrs.frozen
class Replay:
    """What a replay has come to."""

    policy: str
    events: int
    decisions: int
    digests: int
    """Compared."""
    divergences: tuple[str, ...]
    """Where effects or state differ from those recorded, each as a line."""
    is_whole: bool
    """Control has ended the recording itself: it was not killed meanwhile."""
    is_full: bool
    """It ends because its size bound was reached."""
    choices: int
    """Made by the policy of the recording while another looked on."""
    differing: int
    """Those that the other would have made otherwise."""


def replay(path: Path, other: str | None) -> Replay:
    """`other`: a policy that looks on. Raises RecordingError for a file that is no recording, or damaged."""
    try:
        with path.open("rb") as file:
            return _replay(file, path, other)
    except OSError as error:
        raise RecordingError(f"cannot read {path}: {error.strerror}") from error


def _replay(file: BinaryIO, path: Path, other: str | None) -> Replay:
    frames = _Frames(file, path)
    begun = _begin(frames, path)
    plane = ControlPlane(begun.settings, Epoch(begun.epoch), begun.at_ns)
    onlookers: list[_Onlooker] = []
    if other is not None:

        def look_on(policy: Policy) -> Policy:
            onlookers.append(_Onlooker(policy, POLICIES[other]()))
            return onlookers[0]

        plane.wrap_policy(look_on)
    divergences: list[str] = []
    events, digests, compared, effects, end = 0, 0, 0, EffectDigest(), None
    for record in frames.records():
        match record:
            case EventRecorded():
                event = frames.event(record)
                if event is None:
                    break
                events += 1
                effects.add(_handle(plane, record, event, events))
            case DigestRecorded():
                digests += 1
                divergences += _differences(record, events, compared, effects, plane)
                compared, effects = events, EffectDigest()
            case RecordingEnded():
                end = record.end
                break
            case RecordingBegun():
                raise frames.damaged("begins a second time")
            case _:
                raise AssertionError(record)
    return Replay(
        policy=begun.settings.policy,
        events=events,
        decisions=plane.snapshot().state.decisions,
        digests=digests,
        divergences=tuple(divergences),
        is_whole=end is not None,
        is_full=end is RecordingEnd.FULL,
        choices=sum(onlooker.choices for onlooker in onlookers),
        differing=sum(onlooker.differing for onlooker in onlookers),
    )


def _handle(plane: ControlPlane, record: EventRecorded, event: ControlEvent, number: int) -> list[ControlEffect]:
    """A fault of the machine comes out with the number of the event."""
    try:
        return plane.handle(record.at_ns, event)
    except Exception as error:
        error.add_note(f"at event {number} of the recording: {event!r:.2000}")
        raise


def _differences(
    recorded: DigestRecorded, events: int, compared: int, effects: EffectDigest, plane: ControlPlane
) -> list[str]:
    where = f"events {compared + 1} to {events}"
    lines = []
    if recorded.events != events:
        lines.append(f"{where}: {recorded.events} events were recorded so far")
    if recorded.effects != effects.digest():
        lines.append(f"{where}: effects differ")
    if recorded.state != plane.digest():
        lines.append(f"{where}: states differ at the end")
    return lines


def _begin(frames: "_Frames", path: Path) -> RecordingBegun:
    frame = frames.frame()
    if frame is None:
        raise RecordingError(f"{path} is no recording of control: it has not even a first record")
    _check_versions(frame, path)
    begun = frames.record(frame)
    if not isinstance(begun, RecordingBegun):
        raise frames.damaged("does not begin with its settings")
    if begun.settings.policy not in POLICIES:
        raise RecordingError(f"{path} was recorded under the policy {begun.settings.policy!r}, which is not there")
    return begun


def _check_versions(frame: bytes, path: Path) -> None:
    """Before the fields are read, which are others in another format. Raises RecordingError."""
    _, length = PREFIX.unpack_from(frame)
    try:
        told = orjson.loads(frame[PREFIX.size : PREFIX.size + length])
    except orjson.JSONDecodeError:
        return  # a fault like any other
    if not isinstance(told, dict) or told.get("kind") != RecordingBegun.__name__:
        return
    versions = told.get("format"), told.get("protocol")
    if versions != (FORMAT_VERSION, PROTOCOL_VERSION):
        raise RecordingError(
            f"{path} was recorded by LMPool {told.get('program')!s:.40} in format {versions[0]!s:.40} of protocol "
            f"{versions[1]!s:.40}; this version reads format {FORMAT_VERSION} of protocol {PROTOCOL_VERSION}"
        )


class _Frames:
    """Of a file, with the place of the last one for what is wrong with it."""

    def __init__(self, file: BinaryIO, path: Path) -> None:
        self._file = file
        self._path = path
        self._at = 0

    def damaged(self, what: str) -> RecordingError:
        return RecordingError(f"{self._path} is damaged, or no recording of control: at byte {self._at} it {what}")

    def records(self) -> Iterator[Any]:
        """Until the end of the file; what is cut off there is left out. Raises RecordingError."""
        while frame := self.frame():
            yield self.record(frame)

    def record(self, frame: bytes) -> Any:
        """Raises RecordingError."""
        try:
            return FORMAT.decode(frame)
        except WireError as error:
            raise self.damaged(f"cannot be read ({error})") from error

    def event(self, record: EventRecorded) -> ControlEvent | None:
        """None where its message is cut off. Raises RecordingError."""
        match record.what, record.peer:
            case EventKind.TICK, None:
                return Tick()
            case EventKind.RECEIVED, Peer() as peer:
                frame = self.frame()
                return None if frame is None else Received(peer, self._message(frame))
            case EventKind.PEER_JOINED, Peer() as peer:
                return PeerJoined(peer)
            case EventKind.PEER_LOST, Peer() as peer:
                return PeerLost(peer)
            case _:
                raise self.damaged(f"has an event {record.what.value!r} of {record.peer}")

    def _message(self, frame: bytes) -> Any:
        try:
            message = decode(frame)
        except WireError as error:
            raise self.damaged(f"cannot be read ({error})") from error
        if isinstance(message, Hello | HelloRefused):
            raise self.damaged("has a handshake for a message")
        return message

    def frame(self) -> bytes | None:
        """None at the end of the file, and where the file ends in the middle of a frame."""
        self._at = self._file.tell()
        head = self._file.read(CHECKSUM.size + PREFIX.size)
        if len(head) < CHECKSUM.size + PREFIX.size:
            return None
        prefix = head[CHECKSUM.size :]
        length, _ = PREFIX.unpack(prefix)
        if length > FRAME_BYTES_MAX:
            raise self.damaged(f"has a frame of {length} bytes")
        rest = self._file.read(length)
        if len(rest) < length:
            return None
        if CHECKSUM.unpack_from(head) != (crc32(prefix + rest),):
            raise self.damaged("has another checksum than was written")
        return prefix + rest


class _Onlooker:
    """The policy of a recording, while another chooses at the same views: what it would do, and nothing follows."""

    def __init__(self, policy: Policy, other: Policy) -> None:
        self._policy = policy
        self._other = other
        self.choices = 0
        self.differing = 0

    @property
    def name(self) -> str:
        return self._policy.name

    @property
    def term_names(self) -> tuple[str, ...]:
        return self._policy.term_names

    def choose(self, view: RouteView) -> Choice:
        choice = self._policy.choose(view)
        self.choices += 1
        self.differing += self._other.choose(view).index != choice.index
        return choice

    def remember(self, asked: RouteAsked, rank: Rank) -> None:
        """Both learn what was done."""
        self._policy.remember(asked, rank)
        self._other.remember(asked, rank)

    def digest_state(self) -> str:
        """The other is no part of the machine."""
        return self._policy.digest_state()
