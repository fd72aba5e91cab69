"""specs/wire.md against lmpool/io/wire.py: each frame there, byte for byte."""

import re

import pytest

from lmpool.core.limits import FRAME_BYTES_MAX
from lmpool.io.link import HELLO_BYTES_MAX, LINK_BOUNDS
from lmpool.io.wire import decode, encode
from tests.io.wire_records import EXAMPLES, KINDS
from tests.specs.tables import SPECS

TEXT = (SPECS / "wire.md").read_text()
FRAMES = dict(re.findall(r"^### (\w+)\n```\n(.*?)\n```$", TEXT, re.MULTILINE | re.DOTALL))


def frame(block: str) -> bytes:
    prefix, text, *binary = block.split("\n")
    return bytes.fromhex(prefix) + text.encode() + bytes.fromhex("".join(binary))


def test_every_kind_has_an_example_and_no_other() -> None:
    assert sorted(FRAMES) == sorted(kind.__name__ for kind in KINDS)


@pytest.mark.parametrize("kind", FRAMES)
def test_an_example_is_read_and_written_byte_for_byte(kind: str) -> None:
    data = frame(FRAMES[kind])
    record = decode(data)
    assert type(record).__name__ == kind
    assert encode(record) == data
    assert record in EXAMPLES


def test_the_bounds_in_the_text_are_those_in_force() -> None:
    assert f"at most {FRAME_BYTES_MAX >> 20} MiB" in TEXT
    assert f"at most {HELLO_BYTES_MAX} bytes" in TEXT
    assert f"at most {LINK_BOUNDS.handshake_s:.0f} s" in TEXT
    assert f"more than {LINK_BOUNDS.outbox_bytes_max >> 20} MiB" in TEXT
    assert f"after {LINK_BOUNDS.redial_s_min * 1000:.0f} ms" in TEXT
    assert f"at most {LINK_BOUNDS.redial_s_max} s" in TEXT
