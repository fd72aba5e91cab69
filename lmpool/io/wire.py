"""Frames on a link (`specs/wire.md`): one record each, JSON in front and its `bytes` behind.

What a peer sends is checked here once. Anything wrong in it is the peer's fault and raises WireError, never anything
else; a record of ours that cannot be written is a bug and fails an assert.
"""

import struct
from collections.abc import Iterable, Iterator
from typing import Any, TypeAlias, get_args, get_origin, get_type_hints

import attrs
import orjson
from cattrs import BaseValidationError

from lmpool.core.ids import Epoch, Rank, Role
from lmpool.core.limits import FRAME_BYTES_MAX
from lmpool.core.messages import Message
from lmpool.io.message_bounds import check_bounds
from lmpool.io.records import explain, strict_converter

PROTOCOL_VERSION = 2
"""Rises with every change of a frame's meaning. The frames `Hello` and `HelloRefused` never change."""

PREFIX = struct.Struct("<II")
"""Bytes that follow the prefix; bytes of JSON among them. What remains is the binary part."""


class WireError(Exception):
    """The peer has sent what no peer of this version sends; its link ends."""


@attrs.frozen
class Hello:
    """First frame of each side of a link."""

    version: int
    run: str
    role: Role
    rank: Rank
    epoch: Epoch


@attrs.frozen
class HelloRefused:
    """Last frame of a side that will not have this peer."""

    reason: str


Handshake: TypeAlias = Hello | HelloRefused
Framed: TypeAlias = Message | Handshake


@attrs.frozen
class _Shape:
    """How one kind of record is written."""

    kind: Any
    single: tuple[str, ...]
    """Fields that are `bytes`, in the order of the record."""
    several: tuple[str, ...]
    """Fields that are `tuple[bytes, ...]`, after those."""
    unstructure: Any
    structure: Any


_CONVERTER = strict_converter()


def _has_bytes(kind: Any) -> bool:
    """Whether a value of this type holds bytes anywhere in it."""
    if attrs.has(kind):
        return any(_has_bytes(hint) for hint in get_type_hints(kind).values())
    return kind is bytes or any(_has_bytes(item) for item in get_args(kind))


def _shape(kind: Any) -> _Shape:
    hints = {field.name: get_type_hints(kind)[field.name] for field in attrs.fields(kind)}
    single = tuple(name for name, hint in hints.items() if hint is bytes)
    several = tuple(
        name for name, hint in hints.items() if get_origin(hint) is tuple and get_args(hint) == (bytes, Ellipsis)
    )
    inside = [name for name, hint in hints.items() if name not in single + several and _has_bytes(hint)]
    assert not inside, f"{kind.__name__}: bytes inside {inside} have no place in a frame"
    unstructure = _CONVERTER.get_unstructure_hook(kind)
    return _Shape(kind, single, several, unstructure, _CONVERTER.get_structure_hook(kind))


class FrameFormat:
    """How records of some kinds stand in frames."""

    __slots__ = ("_shapes",)

    def __init__(self, kinds: Iterable[Any]) -> None:
        self._shapes = {kind.__name__: _shape(kind) for kind in kinds}

    def encode(self, record: Any) -> bytes:
        """One frame."""
        return _encode(record, self._shapes[type(record).__name__])

    def decode(self, frame: bytes) -> Any:
        """The record of one whole frame. Raises WireError."""
        fields, end = _read(frame)
        kind = fields.pop("kind", None)
        shape = self._shapes.get(kind) if type(kind) is str else None
        if shape is None:
            raise WireError(f"unknown kind {kind!r:.80}")
        _put_bytes(fields, shape, _Binary(frame, end))
        try:
            return shape.structure(fields, shape.kind)
        except BaseValidationError as error:
            raise WireError(f"{kind}: {explain(error)}") from error


def _encode(record: Any, shape: _Shape) -> bytes:
    kind = type(record).__name__
    fields = {"kind": kind, **shape.unstructure(record)}
    binary: list[bytes] = []
    for name in shape.single:
        binary.append(fields[name])
        fields[name] = len(fields[name])
    for name in shape.several:
        binary.extend(fields[name])
        fields[name] = [len(part) for part in fields[name]]
    text = orjson.dumps(fields)
    length = len(text) + sum(map(len, binary))
    assert length <= FRAME_BYTES_MAX, f"{kind} of {length} bytes"
    return b"".join((PREFIX.pack(length, len(text)), text, *binary))


class _Binary:
    """Hands out the binary part of a frame piece by piece."""

    def __init__(self, frame: bytes, start: int) -> None:
        self._frame = frame
        self._at = start

    def take(self, length: object) -> bytes:
        if type(length) is not int or not 0 <= length <= len(self._frame) - self._at:
            raise WireError(f"no binary field of length {length!r:.40} fits into the frame")
        self._at += length
        return self._frame[self._at - length : self._at]

    def assert_empty(self) -> None:
        if self._at != len(self._frame):
            raise WireError(f"{len(self._frame) - self._at} bytes of the binary part belong to no field")


def _put_bytes(fields: dict[str, Any], shape: _Shape, binary: _Binary) -> None:
    for name in shape.single:
        fields[name] = binary.take(fields.get(name))
    for name in shape.several:
        lengths = fields.get(name)
        if type(lengths) is not list:
            raise WireError(f"{shape.kind.__name__}.{name} is not an array of lengths")
        fields[name] = [binary.take(length) for length in lengths]
    binary.assert_empty()


def _parse(text: bytes) -> dict[str, Any]:
    try:
        fields = orjson.loads(text)
    except orjson.JSONDecodeError as error:
        raise WireError(f"not JSON: {error}") from error
    if type(fields) is not dict:
        raise WireError("not a JSON object")
    return fields


def _read(frame: bytes) -> tuple[dict[str, Any], int]:
    """The JSON of a frame, and where it ends."""
    if len(frame) < PREFIX.size:
        raise WireError(f"a frame of {len(frame)} bytes")
    length, text_length = PREFIX.unpack_from(frame)
    end = PREFIX.size + text_length
    if len(frame) != PREFIX.size + length or text_length > length:
        raise WireError(f"lengths {length} and {text_length} in a frame of {len(frame)} bytes")
    return _parse(frame[PREFIX.size : end]), end


_FORMAT = FrameFormat(get_args(Framed))


def encode(record: Framed) -> bytes:
    """One frame."""
    return _FORMAT.encode(record)


def decode(frame: bytes) -> Framed:
    """The record of one whole frame, with its bounds checked. Raises WireError."""
    record: Framed = _FORMAT.decode(frame)
    try:
        if not isinstance(record, Hello | HelloRefused):
            check_bounds(record)
    except ValueError as error:
        raise WireError(f"{type(record).__name__}: {error}") from error
    return record


class FrameSplitter:
    """Cuts what a stream brings into whole frames."""

    def __init__(self, frame_bytes_max: int) -> None:
        self.frame_bytes_max = frame_bytes_max
        """A longer frame raises WireError as soon as its prefix is there. A link raises this after the handshake."""
        self._pending = bytearray()

    def split(self, data: bytes) -> Iterator[bytes]:
        """The frames that `data` completes; to be read to its end. Raises WireError after the last good one."""
        if not self._pending and len(data) >= PREFIX.size and self._length(data, 0) == len(data):
            yield data
            return
        self._pending += data
        start = 0
        while len(self._pending) - start >= PREFIX.size:
            end = start + self._length(self._pending, start)
            if end > len(self._pending):
                break
            yield bytes(memoryview(self._pending)[start:end])
            start = end
        del self._pending[:start]

    def _length(self, data: bytes | bytearray, start: int) -> int:
        length, _ = PREFIX.unpack_from(data, start)
        if length > self.frame_bytes_max:
            raise WireError(f"a frame of {length} bytes; {self.frame_bytes_max} are allowed")
        return PREFIX.size + int(length)
