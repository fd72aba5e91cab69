"""What clients ask for, and when: requests whose prompts are lists of parts, so that sharing is exact.

All tokens of a part are made of its content number: two prompts share tokens exactly as far as they have the same
parts. Readers are in `trace_formats.py`, generators in `workload.py`.
"""

import random
from collections.abc import Callable, Sequence
from hashlib import blake2b

import attrs

from lmpool.core.ids import SECOND, Nanos

CONTENTS_MAX = 1 << 31
"""Content numbers of parts that may be shared are below; the token of a part is its content number."""
PRIVATE_FIRST = CONTENTS_MAX
"""From here on: contents of parts that nobody shares."""
ANSWER_FIRST = 3 << 30
"""From here on: the answer of each request, by its number."""
END_TOKEN = (1 << 32) - 1
"""The last token of every answer."""
TICK_MAX_NS = 3 * SECOND
"""Width of a tick of arrivals, at most, when they are spread."""


class TraceError(Exception):
    """One line: which file, which line, what is wrong."""


@attrs.frozen
class Part:
    content: int
    tokens: int
    """A shorter part of the same content is a beginning of a longer one."""


@attrs.frozen
class TraceRequest:
    session: str
    """Empty: none named."""
    at_ns: Nanos | None
    """None: `pause_ns` after the end of the answer to `continues` (closed loop)."""
    pause_ns: Nanos
    continues: int | None
    """Number of an earlier request, whose prompt and answer come before the parts."""
    parts: tuple[Part, ...]
    output_tokens: int
    """At least 1. The last one is `END_TOKEN`."""
    stage: int = 0
    """Comes only after the end of all requests of earlier stages, which stand before it."""


@attrs.frozen
class Trace:
    name: str
    block_size: int | None
    """In which sharing was recorded; None: in tokens."""
    requests: tuple[TraceRequest, ...]
    """The number of a request is its place here. Open-loop arrivals do not go back in time."""
    in_flight_max: int | None = None
    """Requests with an arrival wait until fewer than so many are under way. None: they come at their time."""

    @property
    def fingerprint(self) -> str:
        digest = blake2b(digest_size=8)
        if self.in_flight_max is not None:
            digest.update(f"in flight {self.in_flight_max}".encode())
        for request in self.requests:
            digest.update(repr(attrs.astuple(request, filter=_is_said)).encode())
        return digest.hexdigest()

    @property
    def span_ns(self) -> int:
        """From the first to the last open-loop arrival."""
        arrivals = [request.at_ns for request in self.requests if request.at_ns is not None]
        return arrivals[-1] - arrivals[0]

    @property
    def outputs_longest(self) -> int:
        return max(request.output_tokens for request in self.requests)


def _is_said(field: "attrs.Attribute[object]", value: object) -> bool:
    """The first stage goes without saying, so that traces without stages keep their fingerprints."""
    return field.name != "stage" or value != 0


def check_block_size(trace: Trace, block_size: int) -> None:
    """Raises TraceError. Blocks that divide the trace's, or are made of whole ones, share exactly what was recorded."""
    recorded = trace.block_size
    if recorded is not None and recorded % block_size and block_size % recorded:
        raise TraceError(
            f"{trace.name}: it was recorded in blocks of {recorded} tokens, which blocks of {block_size} "
            f"neither divide nor are made of; take one that does, as {recorded}"
        )


def prompt_lengths(trace: Trace) -> list[int]:
    """In tokens, by request."""
    lengths: list[int] = []
    for request in trace.requests:
        before = request.continues
        history = lengths[before] + trace.requests[before].output_tokens if before is not None else 0
        lengths.append(history + sum(part.tokens for part in request.parts))
    return lengths


def window(trace: Trace, start: int, requests: int) -> Trace:
    """Requests from number `start` on, at most so many, from time 0. Those that continue an earlier one are left out.

    Raises TraceError.
    """
    kept: list[TraceRequest] = []
    places: dict[int, int] = {}
    begin: Nanos | None = None
    for number in range(start, min(start + requests, len(trace.requests))):
        request = trace.requests[number]
        if request.continues is not None and request.continues not in places:
            continue
        if begin is None:
            begin = request.at_ns
        places[number] = len(kept)
        kept.append(_moved(request, begin or Nanos(0), places))
    if not kept:
        raise TraceError(f"{trace.name}: there is no request from number {start} on that begins a session")
    return attrs.evolve(trace, requests=tuple(kept))


def _moved(request: TraceRequest, begin: Nanos, places: dict[int, int]) -> TraceRequest:
    at_ns, continues = request.at_ns, request.continues
    return attrs.evolve(
        request,
        at_ns=Nanos(at_ns - begin) if at_ns is not None else None,
        continues=places[continues] if continues is not None else None,
    )


def at_speed(trace: Trace, speed: float) -> Trace:
    """Open-loop arrivals `speed` times as dense. Pauses stay as they are."""
    return _with_arrivals(
        trace,
        [None if request.at_ns is None else Nanos(round(request.at_ns / speed)) for request in trace.requests],
    )


def scaled(trace: Trace, factor: float) -> Trace:
    """All lengths times `factor`, at least 1; what was shared is shared. Times stay, and no block size is left."""
    if factor == 1:
        return trace
    requests = tuple(
        attrs.evolve(
            request,
            parts=tuple(Part(part.content, max(1, round(part.tokens * factor))) for part in request.parts),
            output_tokens=max(1, round(request.output_tokens * factor)),
        )
        for request in trace.requests
    )
    return attrs.evolve(trace, block_size=None, requests=requests)


def with_pauses(trace: Trace, factor: float) -> Trace:
    """Pauses of closed loops times `factor`."""
    paced = (attrs.evolve(request, pause_ns=Nanos(round(request.pause_ns * factor))) for request in trace.requests)
    return attrs.evolve(trace, requests=tuple(paced))


def part_of(trace: Trace, keeps: Callable[[int], bool]) -> tuple[Trace, list[int]]:
    """The requests whose numbers are kept, and those numbers; what continues a request goes with it. Times stay."""
    kept: list[TraceRequest] = []
    places: dict[int, int] = {}
    for number, request in enumerate(trace.requests):
        if keeps(number) and (request.continues is None or request.continues in places):
            places[number] = len(kept)
            kept.append(_moved(request, Nanos(0), places))
    return attrs.evolve(trace, requests=tuple(kept)), list(places)


def until(trace: Trace, end_ns: Nanos) -> Trace:
    """Without what arrives at `end_ns` or later, and what continues that. Raises TraceError."""

    def is_early(number: int) -> bool:
        at_ns = trace.requests[number].at_ns
        return at_ns is None or at_ns < end_ns

    cut, numbers = part_of(trace, is_early)
    if not numbers:
        raise TraceError(f"{trace.name}: nothing arrives before {end_ns / SECOND:g} s")
    return cut


def in_bursts(trace: Trace, size: int) -> Trace:
    """Open-loop arrivals by so many at a time, each with the first of its burst; the rate stays."""
    moments = [request.at_ns for request in trace.requests if request.at_ns is not None]
    firsts = iter([moments[place - place % size] for place in range(len(moments))])
    return _with_arrivals(trace, [None if request.at_ns is None else next(firsts) for request in trace.requests])


def in_order(trace: Trace) -> Trace:
    """By arrival; what continues a request stays behind it."""
    return _with_arrivals(trace, [request.at_ns for request in trace.requests])


def jittered(trace: Trace, seed: int) -> Trace:
    """Open-loop arrivals of one moment spread evenly until the next moment that has any, at most over a tick.

    Where a bound in flight decides when they come, there is nothing to spread.
    """
    if trace.in_flight_max is not None:
        return trace
    chance = random.Random(seed)
    moments = sorted({request.at_ns for request in trace.requests if request.at_ns is not None})
    widths = {
        moment: min(later - moment, TICK_MAX_NS)
        for moment, later in zip(moments, [*moments[1:], moments[-1] + TICK_MAX_NS], strict=True)
    }
    arrivals: list[Nanos | None] = []
    for request in trace.requests:
        at_ns = request.at_ns
        arrivals.append(None if at_ns is None else Nanos(at_ns + int(chance.random() * widths[at_ns])))
    return _with_arrivals(trace, arrivals)


def _with_arrivals(trace: Trace, arrivals: Sequence[Nanos | None]) -> Trace:
    order: list[tuple[Nanos, int]] = []
    keys: list[Nanos] = []
    for number, (request, at_ns) in enumerate(zip(trace.requests, arrivals, strict=True)):
        before = keys[request.continues] if request.continues is not None else Nanos(0)
        keys.append(before if at_ns is None else max(at_ns, before))
        order.append((keys[number], number))
    order.sort()
    places = {number: place for place, (_, number) in enumerate(order)}
    first = min((at_ns for at_ns in arrivals if at_ns is not None), default=Nanos(0))
    requests = [
        _moved(attrs.evolve(trace.requests[number], at_ns=arrivals[number]), first, places) for _, number in order
    ]
    return attrs.evolve(trace, requests=tuple(requests))
