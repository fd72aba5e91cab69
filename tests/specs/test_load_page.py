import re
from pathlib import Path

import lmpool.bench.load
from lmpool.bench.load.measured import Measured, token_gaps_ns
from lmpool.bench.load.stream import Stream
from lmpool.core.ids import MILLISECOND, Nanos
from tests.bench.load.virtual import counts_event, role_event, text_event
from tests.specs.tables import read_rows

PAGE = "load.md"


def _told(events: str, tokens: int) -> Measured:
    stream = Stream()
    listed = [event.split() for event in events.split(", ")]
    last = max(place for place, (_, what) in enumerate(listed) if what not in ("role", "counts"))
    counted = 0
    for place, (at_ms, what) in enumerate(listed):
        finish = "length" if place == last else None
        at_ns = Nanos(int(at_ms) * MILLISECOND)
        match what:
            case "role":
                stream.feed(role_event(), at_ns)
            case "counts":
                stream.feed(counts_event(tokens), at_ns)
            case "?":
                stream.feed(text_event("x", finish), at_ns)
            case _:
                stream.feed(text_event("x" * (int(what) - counted), finish, int(what)), at_ns)
                counted = int(what)
    stream.close()
    pieces, end = tuple(stream.pieces), stream.pieces[-1].at_ns
    return Measured(0, "", Nanos(0), Nanos(0), pieces, end, 1, 0, tokens, tokens, stream.fault, "")


def test_examples_of_the_page_come_out() -> None:
    rows = read_rows(PAGE, "Examples")
    assert len(rows) == 5
    for row in rows:
        one = _told(row["events"], int(row["output tokens"]))
        gaps = token_gaps_ns(one.gaps)
        told = [gap.duration_ns for gap in one.gaps] if gaps is None else gaps
        assert one.fault == ""
        assert one.ttft_ns == int(row["TTFT ms"]) * MILLISECOND
        assert one.e2e_ns == int(row["E2E ms"]) * MILLISECOND
        assert ("none" if one.tpot_ns is None else f"{one.tpot_ns / MILLISECOND:g}") == row["TPOT ms"]
        assert (" ".join(f"{gap / MILLISECOND:g}" for gap in told) or "none") == row["gaps ms"]


def test_kinds_of_failures_of_the_page_are_those_of_the_code() -> None:
    source = "".join(path.read_text() for path in Path(lmpool.bench.load.__path__[0]).glob("*.py"))
    assigned = re.compile(r'fault(?:, [a-z.]*detail)? = (f?)"([a-z ]+)')
    found = [*assigned.findall(source), *(("", name) for name in re.findall(r'_FAULT = "([a-z ]+)"', source))]
    fixed = {name for form, name in found if not form}
    begun = {name.strip() for form, name in found if form}
    kinds = [row["kind"] for row in read_rows(PAGE, "Failures")]
    assert {kind for kind in kinds if kind.islower()} == fixed
    assert {kind.split()[0] for kind in kinds if not kind.islower()} == begun
