"""The channel between the supervisor and a child: one record of `orders.py` a line, as strict JSON."""

from typing import Any, TypeAlias, get_args

import orjson
from cattrs import BaseValidationError

from lmpool.io.orders import Drain, Notice, Order
from lmpool.io.records import explain, strict_converter

Record: TypeAlias = Order | Notice | Drain


class ChannelError(Exception):
    """The other end wrote what it never writes; processes of two versions are mixed, or it is broken."""


_CONVERTER = strict_converter()


class Lines:
    """Cuts a stream into lines, without their ends. A line over the bound is cut into several."""

    def __init__(self, line_bytes_max: int) -> None:
        self._line_bytes_max = line_bytes_max
        self._pending = bytearray()

    def feed(self, data: bytes) -> list[bytes]:
        """The lines that `data` completes."""
        self._pending += data
        *whole, rest = self._pending.split(b"\n")
        self._pending = rest
        lines = [bytes(piece) for line in whole for piece in self._pieces(line)]
        while len(self._pending) > self._line_bytes_max:
            lines.append(bytes(self._pending[: self._line_bytes_max]))
            del self._pending[: self._line_bytes_max]
        return lines

    def rest(self) -> bytes:
        """What no end of a line has followed."""
        rest = bytes(self._pending)
        self._pending.clear()
        return rest

    def _pieces(self, line: bytearray) -> list[bytearray]:
        width = self._line_bytes_max
        return [line[start : start + width] for start in range(0, max(1, len(line)), width)]


def encode_line(record: Record) -> bytes:
    """With the end of the line."""
    fields = {"kind": type(record).__name__, **_CONVERTER.unstructure(record)}
    return orjson.dumps(fields, option=orjson.OPT_APPEND_NEWLINE)


def decode_order(line: bytes) -> Order | Drain:
    """What a child may be told. Raises ChannelError."""
    record: Order | Drain = _decode(line, (*get_args(Order), Drain))
    return record


def decode_notice(line: bytes) -> Notice:
    """What a child may note. Raises ChannelError."""
    record: Notice = _decode(line, get_args(Notice))
    return record


def _decode(line: bytes, kinds: tuple[Any, ...]) -> Any:
    try:
        fields = orjson.loads(line)
    except orjson.JSONDecodeError as error:
        raise ChannelError(f"not JSON: {error}") from error
    name = fields.pop("kind", None) if type(fields) is dict else None
    kind = next((kind for kind in kinds if kind.__name__ == name), None)
    if kind is None:
        raise ChannelError(f"unknown kind {name!r:.80}")
    try:
        return _CONVERTER.structure(fields, kind)
    except BaseValidationError as error:
        raise ChannelError(f"{name}: {explain(error)}") from error
