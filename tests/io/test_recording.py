"""Recordings of control: what is written is replayed to the same effects and state; what is broken is told."""

import stat
from collections.abc import Iterator
from pathlib import Path

import attrs
import pytest

from lmpool.bench.replay import main, replay_lines
from lmpool.core.control import ControlPlane, ControlSettings
from lmpool.core.events import ControlEvent, PeerJoined, PeerLost, Received, Tick
from lmpool.core.ids import MILLISECOND, Epoch, Nanos, RequestId, Version
from lmpool.core.messages.worker_control import FullReport
from lmpool.core.policies.marginal_time import MarginalTime
from lmpool.io.recording import (
    CHECKSUM,
    DIGEST_EVENTS,
    FORMAT,
    LAST_BYTES,
    DigestRecorded,
    RecordedPlane,
    RecordingBegun,
    RecordingError,
    open_recording,
    recording_begun,
    seal,
)
from lmpool.io.replay import replay
from lmpool.io.wire import PREFIX, PROTOCOL_VERSION
from tests.core.plane import FACTS, IDLE, INGRESS, RATES, SETTINGS, chain, question, report, worker

PLENTY = 64 << 20
BEGUN = recording_begun(SETTINGS, 2, "1.2.3", Nanos(5))
FACTS_16 = attrs.evolve(FACTS, namespace_base=bytes(16))
MARGINAL = attrs.evolve(SETTINGS, decisions_kept=8)


def full_report(hashes: bytes) -> FullReport:
    load, totals = IDLE, report(1, IDLE).totals
    return FullReport(Version(1), 0, 1, hashes, (), (), load, RATES, totals)


def story(questions: int) -> Iterator[tuple[Nanos, ControlEvent]]:
    """Two ranks, of which one holds a chain that half of the questions ask for."""
    known, now = chain(("known", 20)), 10
    yield Nanos(now), PeerJoined(INGRESS)
    for rank in range(2):
        peer = worker(rank, 3 + rank)
        yield Nanos(now), PeerJoined(peer)
        yield Nanos(now), Received(peer, FACTS_16)
        yield Nanos(now), Received(peer, full_report(known if rank else b""))
    for counter in range(questions):
        now += MILLISECOND
        asked = question(counter, known if counter % 2 else chain((f"new {counter}", 3)), 340)
        yield Nanos(now), Received(INGRESS, asked)
        yield Nanos(now + 5), Tick()
    yield Nanos(now + 9), PeerLost(worker(0, 3))


def record(path: Path, bytes_max: int, questions: int, settings: ControlSettings = MARGINAL) -> RecordedPlane:
    """Not closed."""
    began = Nanos(5)
    plane = ControlPlane(settings, Epoch(2), began)
    recorded = RecordedPlane(plane, open_recording(path), bytes_max, recording_begun(settings, 2, "1.2.3", began))
    for now, event in story(questions):
        recorded.handle(now, event)
    return recorded


def closed(path: Path, questions: int) -> Path:
    record(path, PLENTY, questions).close()
    return path


def test_a_recording_is_replayed_to_the_same_effects_and_state(tmp_path: Path) -> None:
    result = replay(closed(tmp_path / "r", 40), None)
    assert (result.events, result.decisions, result.digests) == (len(list(story(40))), 40, 1)
    assert result.divergences == ()
    assert (result.is_whole, result.is_full) == (True, False)


def test_digests_come_at_intervals_too(tmp_path: Path) -> None:
    result = replay(closed(tmp_path / "r", DIGEST_EVENTS), None)
    assert result.events == 2 * DIGEST_EVENTS + 8
    assert result.digests == 3
    assert result.divergences == ()


def test_only_its_owner_may_read_it_and_nothing_is_written_over(tmp_path: Path) -> None:
    path = closed(tmp_path / "r", 1)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    with pytest.raises(RecordingError, match="is there already"):
        open_recording(path)
    with pytest.raises(RecordingError, match="cannot record to"):
        open_recording(tmp_path / "nowhere" / "r")


def test_a_machine_that_decides_otherwise_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = closed(tmp_path / "r", 40)
    monkeypatch.setattr("lmpool.core.policies.marginal_time.DECODE_WEIGHT", 0.5)
    monkeypatch.setattr("lmpool.core.policies.marginal_time.TIE_SHARE", 1e9)
    result = replay(path, None)
    assert any("effects differ" in line or "states differ" in line for line in result.divergences)
    assert main(["--replay", str(path)]) == 1


def test_a_digest_of_another_state_is_found(tmp_path: Path) -> None:
    path = closed(tmp_path / "r", 3)
    data = path.read_bytes()
    digest = next(frame for frame in sealed_frames(data) if b'"DigestRecorded"' in frame)
    told = FORMAT.decode(digest[CHECKSUM.size :])
    assert isinstance(told, DigestRecorded)
    for change, words in (
        ({"state": bytes(16)}, ["states differ"]),
        ({"effects": bytes(16)}, ["effects differ"]),
        ({"events": 1}, ["1 events were recorded"]),
    ):
        path.write_bytes(data.replace(digest, seal(FORMAT.encode(attrs.evolve(told, **change)))))
        lines = replay(path, None).divergences
        assert len(lines) == 1
        assert all(word in lines[0] for word in words)


def sealed_frames(data: bytes) -> Iterator[bytes]:
    start = 0
    while start < len(data):
        end = start + CHECKSUM.size + PREFIX.size + PREFIX.unpack_from(data, start + CHECKSUM.size)[0]
        yield data[start:end]
        start = end


def test_a_recording_that_was_cut_off_is_replayed_as_far_as_it_goes(tmp_path: Path) -> None:
    data = closed(tmp_path / "whole", 10).read_bytes()
    path = tmp_path / "cut"
    first = len(next(sealed_frames(data)))
    whole = replay(tmp_path / "whole", None).events
    for length in range(first, len(data), 97):
        path.write_bytes(data[:length])
        result = replay(path, None)
        assert result.events <= whole
        assert not result.is_whole
        assert result.divergences == ()
    path.write_bytes(data[:-1])
    result = replay(path, None)
    assert result.events == whole
    assert "control was killed" in "\n".join(replay_lines(result, None, 1.0))


@pytest.mark.parametrize("at", [0, 3, 15, 60])
def test_a_damaged_beginning_is_told_in_one_line(tmp_path: Path, at: int, capsys: pytest.CaptureFixture[str]) -> None:
    path = closed(tmp_path / "r", 2)
    data = bytearray(path.read_bytes())
    data[at] ^= 0xFF
    path.write_bytes(data)
    assert main(["--replay", str(path)]) == 2
    told = capsys.readouterr()
    assert told.out == ""
    assert str(path) in told.err
    assert len(told.err.splitlines()) == 1


def test_damage_anywhere_is_told_and_never_raises_anything_else(tmp_path: Path) -> None:
    data = closed(tmp_path / "whole", 4).read_bytes()
    path, failed = tmp_path / "damaged", 0
    for at in range(0, len(data), 41):
        path.write_bytes(data[:at] + bytes([data[at] ^ 0x80]) + data[at + 1 :])
        try:
            assert not replay(path, None).is_whole  # a longer frame than there is looks like one that is cut off
        except RecordingError:
            failed += 1
    assert failed > 10


@pytest.mark.parametrize("content", [b"", b"{}", b"\0" * 8, b"not a recording, and long enough for a prefix" * 4])
def test_what_is_no_recording_is_named(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "r"
    path.write_bytes(content)
    with pytest.raises(RecordingError, match="no recording of control"):
        replay(path, None)


def test_a_file_that_is_not_there_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--replay", str(tmp_path / "r")]) == 2
    assert "cannot read" in capsys.readouterr().err


@pytest.mark.parametrize("begun", [attrs.evolve(BEGUN, format=3), attrs.evolve(BEGUN, protocol=99)])
def test_another_format_is_refused_with_both_versions(tmp_path: Path, begun: RecordingBegun) -> None:
    path = tmp_path / "r"
    path.write_bytes(seal(FORMAT.encode(begun)))
    with pytest.raises(RecordingError, match=r"recorded by LMPool 1\.2\.3 in format .* this version reads format 2"):
        replay(path, None)


def test_a_file_of_an_earlier_format_is_refused_for_its_format_and_not_for_the_fields_that_it_lacks(
    tmp_path: Path,
) -> None:
    path, later = tmp_path / "r", b',"transfer_answer_ns":1000000000'
    frame = FORMAT.encode(attrs.evolve(BEGUN, format=1))
    text = frame[PREFIX.size :].replace(later, b"")
    assert len(text) == len(frame) - PREFIX.size - len(later)
    path.write_bytes(seal(PREFIX.pack(len(text), len(text)) + text))
    with pytest.raises(RecordingError, match=r"recorded by LMPool 1\.2\.3 in format 1 of protocol"):
        replay(path, None)


def test_a_first_record_that_is_no_record_is_damage(tmp_path: Path) -> None:
    path = tmp_path / "r"
    for text in (b"{", b"[1]", b'{"kind":"RecordingBegun","format":2,"protocol":%d}' % PROTOCOL_VERSION):
        path.write_bytes(seal(PREFIX.pack(len(text), len(text)) + text))
        with pytest.raises(RecordingError, match="is damaged, or no recording"):
            replay(path, None)


def test_a_recording_ends_at_its_bound_and_control_goes_on(tmp_path: Path) -> None:
    path = tmp_path / "r"
    recorded = record(path, 20_000, 200)
    assert len(recorded.handle(Nanos(1 << 40), Received(INGRESS, question(999, b"", 20)))) == 1
    recorded.close()
    assert 20_000 - LAST_BYTES - 2_000 < path.stat().st_size <= 20_000
    result = replay(path, None)
    assert (result.is_whole, result.is_full) == (True, True)
    assert 0 < result.decisions < 200
    assert "ends at its size bound" in "\n".join(replay_lines(result, None, 1.0))


class _FullDisk:
    def write(self, _: bytes) -> int:
        raise OSError(28, "No space left on device")

    def close(self) -> None: ...


def test_a_disk_that_is_full_ends_the_recording_and_not_control() -> None:
    recorded = RecordedPlane(ControlPlane(MARGINAL, Epoch(2), Nanos(5)), _FullDisk(), PLENTY, BEGUN)  # type: ignore[arg-type]
    effects = [recorded.handle(now, event) for now, event in story(5)]
    recorded.close()
    assert sum(map(len, effects)) >= 5


def test_another_policy_looks_on_and_changes_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = closed(tmp_path / "r", 40)
    same = replay(path, MarginalTime.name)
    assert (same.choices, same.differing, same.divergences) == (40, 0, ())
    other = replay(path, "round-robin")
    assert (other.choices, other.divergences) == (40, ())
    assert 0 < other.differing < 40
    assert main(["--replay", str(path), "--policy", "round-robin"]) == 0
    told = capsys.readouterr().out
    assert f"round-robin would have chosen otherwise in {other.differing} of 40 choices" in told
    assert "not in a recording" in told


def test_a_policy_that_is_not_there_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(["--replay", str(tmp_path / "r"), "--policy", "best"])
    assert "invalid choice: 'best'" in capsys.readouterr().err


def test_a_fault_of_the_machine_comes_out_with_its_event(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = closed(tmp_path / "r", 3)

    def fail(*_: object) -> None:
        raise AssertionError("planted")

    monkeypatch.setattr("lmpool.core.control.ControlPlane.decide", fail)
    with pytest.raises(AssertionError, match="planted") as caught:
        replay(path, None)
    assert "at event 8 of the recording" in caught.value.__notes__[0]
    assert repr(RequestId(Epoch(1), 0)) in caught.value.__notes__[0]
