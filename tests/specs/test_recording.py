"""specs/recording.md against the code that writes and reads recordings."""

from io import FileIO
from pathlib import Path
from typing import get_args
from zlib import crc32

from lmpool.core.control import ControlPlane, ControlSettings
from lmpool.core.events import PeerJoined, Received, Tick
from lmpool.core.ids import MILLISECOND, SECOND, Epoch, Nanos, Peer, Rank, RequestId, Role
from lmpool.core.messages.ingress_control import BookingEnded
from lmpool.io.recording import (
    CHECKSUM,
    DIGEST_EVENTS,
    DIGEST_HASHES,
    EventKind,
    Recorded,
    RecordedPlane,
    open_recording,
    recording_begun,
)
from lmpool.io.replay import replay
from lmpool.io.settings.tree import RoutingSettings
from lmpool.io.wire import PREFIX
from tests.specs.tables import SPECS, read_rows

TEXT = (SPECS / "recording.md").read_text()
EXAMPLE = TEXT.split("## Example\n")[1].split("```\n")[1]
INGRESS = Peer(Role.INGRESS, Rank(0), Epoch(2))
SETTINGS = ControlSettings(
    policy="marginal-time",
    replicas=2,
    wait_max_ns=Nanos(60 * SECOND),
    suspect_after_ns=Nanos(3 * SECOND),
    settle_ns=Nanos(300 * MILLISECOND),
    report_wait_ns=SECOND,
    booking_ns=Nanos(30 * SECOND),
    bookings_max=65_536,
    waiting_routes_max=4_096,
    sweep_hashes=4_096,
    decisions_kept=1_024,
    transfer_answer_ns=SECOND,
    placement=None,
)


def write_example(file: FileIO) -> None:
    began = Nanos(5 * SECOND)
    plane = RecordedPlane(
        ControlPlane(SETTINGS, Epoch(1), began), file, 1 << 20, recording_begun(SETTINGS, 1, "0.1.0", began)
    )
    plane.handle(Nanos(began + 10), PeerJoined(INGRESS))
    plane.handle(Nanos(began + 20), Received(INGRESS, BookingEnded(RequestId(Epoch(2), 7), 0)))
    plane.handle(Nanos(began + 30), Tick())
    plane.close()


def sealed_frames(data: bytes) -> list[bytes]:
    frames, start = [], 0
    while start < len(data):
        end = start + CHECKSUM.size + PREFIX.size + PREFIX.unpack_from(data, start + CHECKSUM.size)[0]
        frames.append(data[start:end])
        start = end
    return frames


def shown(sealed: bytes) -> str:
    head = CHECKSUM.size + PREFIX.size
    _, length = PREFIX.unpack_from(sealed, CHECKSUM.size)
    binary = [sealed[head + length :].hex()] if sealed[head + length :] else []
    return "\n".join([sealed[:head].hex(), sealed[head : head + length].decode(), *binary])


def without_digests(block: str) -> str:
    """The digest of the state follows every change of the machine's inside: not the business of this page."""
    return block.split("\n")[1] if "DigestRecorded" in block else block


def test_the_example_is_written_byte_for_byte(tmp_path: Path) -> None:
    write_example(open_recording(tmp_path / "r"))
    written = [shown(frame) for frame in sealed_frames((tmp_path / "r").read_bytes())]
    assert list(map(without_digests, written)) == list(map(without_digests, EXAMPLE.strip().split("\n\n")))


def test_the_example_is_read(tmp_path: Path) -> None:
    frames = []
    for block in EXAMPLE.strip().split("\n\n"):
        head, text, *binary = block.split("\n")
        frames.append(bytes.fromhex(head) + text.encode() + bytes.fromhex("".join(binary)))
        assert CHECKSUM.unpack_from(frames[-1]) == (crc32(frames[-1][CHECKSUM.size :]),)
    (tmp_path / "r").write_bytes(b"".join(frames))
    result = replay(tmp_path / "r", None)
    assert (result.events, result.digests, result.is_whole) == (3, 1, True)
    assert not any("effects differ" in line for line in result.divergences)


def test_records_and_events_are_those_of_the_code() -> None:
    assert [row["record"] for row in read_rows("recording.md", "File")] == [
        kind.__name__ for kind in get_args(Recorded)
    ]
    events = TEXT.split("| event | peer | means |")[1].split("\n\n")[0].splitlines()[2:]
    assert [line.split("`")[1] for line in events] == [kind.value for kind in EventKind]


def test_the_bounds_in_the_text_are_those_in_force() -> None:
    assert f"at least {DIGEST_EVENTS} events" in TEXT
    assert f"every {DIGEST_HASHES} hashes" in TEXT
    assert f"default {RoutingSettings().record_control_size >> 20} MiB" in TEXT
