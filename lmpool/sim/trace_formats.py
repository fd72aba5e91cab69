"""Readers of traces. `specs/trace.md` describes each format; every error names the file, the line and the fault."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeAlias

from lmpool.core.ids import MILLISECOND, SECOND, Nanos
from lmpool.sim.trace import CONTENTS_MAX, PRIVATE_FIRST, Part, Trace, TraceError, TraceRequest

FORMAT = "lmpool-trace"
VERSION = 1
MOONCAKE_BLOCK = 512
BAILIAN_BLOCK = 16

Json: TypeAlias = "dict[str, Json] | list[Json] | str | int | float | bool | None"


class _Line:
    """One JSON object of a file, which is asked for its fields."""

    __slots__ = ("_fields", "_place")

    def __init__(self, path: Path, number: int, text: str) -> None:
        self._place = f"{path}:{number}"
        try:
            fields: Json = json.loads(text)
        except ValueError as error:
            raise self.fault(f"is not JSON: {error}") from error
        if not isinstance(fields, dict):
            raise self.fault("is not a JSON object")
        self._fields = fields

    def fault(self, what: str) -> TraceError:
        return TraceError(f"{self._place}: {what}")

    def __contains__(self, name: str) -> bool:
        return name in self._fields

    def number(self, name: str, least: float) -> float:
        value = self._fields.get(name)
        if isinstance(value, bool) or not isinstance(value, int | float) or not value >= least or value == float("inf"):
            raise self.fault(f"{name} is {value!r} and should be a number of at least {least:g}")
        return value

    def integer(self, name: str, least: int) -> int:
        value = self._fields.get(name)
        if isinstance(value, bool) or not isinstance(value, int) or value < least:
            raise self.fault(f"{name} is {value!r} and should be a whole number of at least {least}")
        return value

    def text(self, name: str) -> str:
        value = self._fields.get(name, "")
        if not isinstance(value, str):
            raise self.fault(f"{name} is {value!r} and should be a text")
        return value

    def listed(self, name: str) -> list[Json]:
        value = self._fields.get(name)
        if not isinstance(value, list):
            raise self.fault(f"{name} is {value!r} and should be a list")
        return value


class _Contents:
    """Dense content numbers for the block ids of a file, in the order in which they come."""

    __slots__ = ("_private", "_whole")

    def __init__(self) -> None:
        self._whole: dict[int | str, Part] = {}
        self._private = PRIVATE_FIRST

    def parts(self, line: _Line, block_size: int) -> tuple[Part, ...]:
        """Of `input_length` and `hash_ids`. A last block that is not complete is nobody else's."""
        tokens, ids = line.integer("input_length", 1), line.listed("hash_ids")
        needed = -(-tokens // block_size)
        if len(ids) != needed:
            raise line.fault(
                f"there are {len(ids)} hash_ids for {tokens} tokens, and blocks of {block_size} would be {needed}"
            )
        parts: list[Part] = []
        for block in ids[: tokens // block_size]:
            if isinstance(block, bool) or not isinstance(block, int | str):
                raise line.fault(f"{block!r} in hash_ids should be a whole number or a text")
            part = self._whole.get(block)
            if part is None:
                part = self._whole[block] = Part(len(self._whole), block_size)
            parts.append(part)
        if tokens % block_size:
            parts.append(Part(self._private, tokens % block_size))
            self._private += 1
        return tuple(parts)


def read_trace(path: Path, block_size: int | None) -> Trace:
    """`block_size`: of the file's hash ids, where it is not the usual one of its format. Raises TraceError."""
    lines = _lines(path)
    first = next(lines, None)
    if first is None:
        raise TraceError(f"{path}: there is no line in it")
    if "format" in first:
        return _read_own(path, first, lines)
    if "chat_id" in first:
        return _read_recorded(path, block_size or BAILIAN_BLOCK, first, lines, _bailian_request)
    if "hash_ids" in first:
        return _read_recorded(path, block_size or MOONCAKE_BLOCK, first, lines, _mooncake_request)
    raise first.fault("has neither format nor chat_id nor hash_ids: it is of no known trace format")


def _lines(path: Path) -> Iterator[_Line]:
    try:
        with path.open(encoding="utf-8") as file:
            for number, text in enumerate(file, start=1):
                if text.strip():
                    yield _Line(path, number, text)
    except (OSError, UnicodeDecodeError) as error:
        raise TraceError(f"{path}: {error}") from error


class _Sessions:
    """Names of sessions by chat: that of the first chat that can be followed."""

    __slots__ = ("_names",)

    def __init__(self) -> None:
        self._names: dict[int, str] = {}

    def name(self, chat: int, parent: int) -> str:
        name = self._names.get(parent, str(parent if parent >= 0 else chat))
        self._names[chat] = name
        return name


Recorded: TypeAlias = Callable[[_Line, _Contents, _Sessions, int], TraceRequest]


def _read_recorded(path: Path, block_size: int, first: _Line, lines: Iterator[_Line], request: Recorded) -> Trace:
    contents, sessions = _Contents(), _Sessions()
    requests = [request(line, contents, sessions, block_size) for line in (first, *lines)]
    requests.sort(key=lambda made: made.at_ns or 0)
    return Trace(path.name, block_size, tuple(requests))


def _mooncake_request(line: _Line, contents: _Contents, _sessions: _Sessions, block_size: int) -> TraceRequest:
    at_ns = Nanos(round(line.number("timestamp", 0) * MILLISECOND))
    outputs = line.integer("output_length", 0)
    return TraceRequest("", at_ns, Nanos(0), None, contents.parts(line, block_size), max(outputs, 1))


def _bailian_request(line: _Line, contents: _Contents, sessions: _Sessions, block_size: int) -> TraceRequest:
    at_ns = Nanos(round(line.number("timestamp", 0) * SECOND))
    session = sessions.name(line.integer("chat_id", 0), line.integer("parent_chat_id", -1))
    outputs = line.integer("output_length", 0)
    return TraceRequest(session, at_ns, Nanos(0), None, contents.parts(line, block_size), max(outputs, 1))


def _read_own(path: Path, header: _Line, lines: Iterator[_Line]) -> Trace:
    if header.text("format") != FORMAT or header.integer("version", 1) != VERSION:
        raise header.fault(f"should say format {FORMAT!r}, version {VERSION}")
    requests: list[TraceRequest] = []
    last = Nanos(0)
    for line in lines:
        request = _own_request(line, len(requests))
        if request.at_ns is not None:
            if request.at_ns < last:
                raise line.fault("its at_ms is before that of an earlier line")
            last = request.at_ns
        if requests and request.stage < requests[-1].stage:
            raise line.fault("its stage is before that of the line above")
        requests.append(request)
    if not requests:
        raise header.fault("is followed by no request")
    in_flight_max = header.integer("in_flight_max", 1) if "in_flight_max" in header else None
    return Trace(header.text("name") or path.name, None, tuple(requests), in_flight_max)


def _own_request(line: _Line, number: int) -> TraceRequest:
    continues = None
    if "continues" in line:
        continues = line.integer("continues", 0)
        if continues >= number:
            raise line.fault(f"continues request {continues}, which is not an earlier one (this is {number})")
    at_ns = pause_ns = None
    if "at_ms" in line:
        at_ns = Nanos(round(line.number("at_ms", 0) * MILLISECOND))
    if "pause_ms" in line:
        pause_ns = Nanos(round(line.number("pause_ms", 0) * MILLISECOND))
    if (at_ns is None) == (pause_ns is None):
        raise line.fault("should have either at_ms or pause_ms")
    if pause_ns is not None and continues is None:
        raise line.fault("has pause_ms and does not say which request it continues")
    parts = tuple(_part(line, part) for part in line.listed("parts"))
    if not parts:
        raise line.fault("parts is empty")
    return TraceRequest(
        line.text("session"),
        at_ns,
        pause_ns or Nanos(0),
        continues,
        parts,
        line.integer("output_tokens", 1),
        line.integer("stage", 0) if "stage" in line else 0,
    )


def _part(line: _Line, part: Json) -> Part:
    match part:
        case [int(content), int(tokens)] if 0 <= content < CONTENTS_MAX and tokens > 0:
            return Part(content, tokens)
        case _:
            raise line.fault(f"{part!r} in parts should be [content, tokens], content below 2^31 and tokens above 0")


def write_trace(trace: Trace, path: Path) -> None:
    """In our own format. Contents are numbered anew where they are private to a recorded trace."""
    shared = max((part.content for request in trace.requests for part in request.parts if _is_shared(part)), default=-1)
    with path.open("w", encoding="utf-8") as file:
        header: dict[str, Json] = {"format": FORMAT, "version": VERSION, "name": trace.name}
        if trace.in_flight_max is not None:
            header["in_flight_max"] = trace.in_flight_max
        file.write(json.dumps(header) + "\n")
        for request in trace.requests:
            file.write(json.dumps(_own_fields(request, shared + 1)) + "\n")


def _is_shared(part: Part) -> bool:
    return part.content < PRIVATE_FIRST


def _own_fields(request: TraceRequest, private: int) -> dict[str, Json]:
    fields: dict[str, Json] = {}
    if request.session:
        fields["session"] = request.session
    if request.continues is not None:
        fields["continues"] = request.continues
    if request.at_ns is not None:
        fields["at_ms"] = request.at_ns / MILLISECOND
    else:
        fields["pause_ms"] = request.pause_ns / MILLISECOND
    numbers = [part.content if _is_shared(part) else part.content - PRIVATE_FIRST + private for part in request.parts]
    fields["parts"] = [[number, part.tokens] for number, part in zip(numbers, request.parts, strict=True)]
    fields["output_tokens"] = request.output_tokens
    if request.stage:
        fields["stage"] = request.stage
    return fields
