import os
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import attrs
import numpy as np
import pytest
import torch

from lmpool.gpu.kv_pool import KVPool
from lmpool.gpu.paths.frames import Frame, FrameKind, encode_frame
from lmpool.gpu.paths.group import PairGroup
from lmpool.gpu.paths.pair_source import PairSource, TargetStopped
from lmpool.gpu.paths.pair_target import PairTarget
from lmpool.gpu.paths.planes import host_planes
from lmpool.gpu.paths.port import (
    Copied,
    CopyCancelled,
    CopyOrder,
    CopyRefused,
    CopyWatch,
    PathError,
    PathKind,
    PathSettings,
)
from tests.gpu.paths.pools import ODD, SHAPE, WIDE, assert_copied, filled_pool, known_bytes, order, watch
from tests.gpu.paths.source_process import Source, running_source

pytestmark = pytest.mark.model

BLOCKS = 40
LONG = order(range(BLOCKS), range(BLOCKS), chunk_bytes=SHAPE.block_bytes)


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Source]:
    with running_source(tmp_path_factory.mktemp("source")) as process:
        yield process


def target_of(source: Source, name: str, pool: KVPool) -> PairTarget:
    return PairTarget(PathSettings(PathKind.GLOO, source.folder, name), source.pair(name), pool)


class Ends:
    """Both ends in this process, each copying on a thread of its own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.source_pool = filled_pool(SHAPE, BLOCKS, seed=1)
        self.target_pool = filled_pool(SHAPE, BLOCKS, seed=2)
        left, right = socket.socketpair()
        settings = PathSettings(PathKind.GLOO, folder, "0-1")
        self.source = PairSource(settings, left, self.source_pool)
        self.target = PairTarget(settings, right, self.target_pool)

    def copy(
        self, source_order: CopyOrder, source_watch: CopyWatch, target_order: CopyOrder, target_watch: CopyWatch
    ) -> tuple[Copied | PathError, Copied | PathError]:
        """How it ended at the source and at the target."""
        at_source: list[Copied | PathError] = []
        thread = threading.Thread(
            target=lambda: at_source.append(outcome(lambda: self.source.copy(source_order, source_watch)))
        )
        thread.start()
        at_target = outcome(lambda: self.target.copy(target_order, target_watch))
        thread.join(30)
        return at_source[0], at_target

    def assert_usable(self, counter: int) -> None:
        ordered = order([7, 3, 9], [30, 2, 31], counter=counter)
        before = host_planes(self.target_pool).copy()
        at_source, at_target = self.copy(ordered, watch(), ordered, watch())
        assert isinstance(at_source, Copied)
        assert at_source == at_target
        assert_copied(ordered, host_planes(self.source_pool), host_planes(self.target_pool), before)


@pytest.fixture
def ends(tmp_path: Path) -> Iterator[Ends]:
    both = Ends(tmp_path)
    yield both
    both.source.close()
    both.target.close()


@pytest.fixture
def meetings(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """Where groups have met since, once for each end."""
    met: list[Path] = []

    class Counted(PairGroup):
        def __init__(self, kind: PathKind, meeting: Path, own: int, stream: torch.cuda.Stream | None) -> None:
            met.append(meeting)
            super().__init__(kind, meeting, own, stream)

    monkeypatch.setattr("lmpool.gpu.paths.pair_link.PairGroup", Counted)
    return met


def outcome(copy: Callable[[], Copied]) -> Copied | PathError:
    try:
        return copy()
    except PathError as error:
        return error


@pytest.mark.parametrize("shape", [SHAPE, ODD, WIDE], ids=lambda shape: str(shape.dtype))
def test_what_arrives_is_bit_for_bit_the_sources(source: Source, shape: object) -> None:
    assert isinstance(shape, type(SHAPE))
    source.fill(shape, BLOCKS, 1)
    target = filled_pool(shape, 30, seed=2)
    path = target_of(source, f"bytes-{shape.dtype}", target)
    orders = [
        order([5], [9], counter=1),
        order([7, 3, 39, 0, 20], [1, 2, 0, 29, 17], counter=2, chunk_bytes=1),
        order(range(10, 22), range(3, 15), counter=3),
        order(range(29, -1, -1), range(30), counter=4, chunk_bytes=1 << 20),
    ]
    for ordered in orders:
        before = host_planes(target).copy()
        source.begin_copy(ordered)
        copied = path.copy(ordered, watch())
        assert_copied(ordered, known_bytes(shape, BLOCKS, 1), host_planes(target), before)
        assert copied == source.copied() == source.stated(ordered)
    path.close()


def test_a_group_is_kept_from_copy_to_copy_and_leaves_no_file(ends: Ends, meetings: list[Path]) -> None:
    for counter in range(1, 4):
        ends.assert_usable(counter)
    assert len(meetings) == 2
    assert list(ends.folder.iterdir()) == []


def test_a_targets_cancel_ends_both_ends_and_keeps_the_group(ends: Ends, meetings: list[Path]) -> None:
    at_source, at_target = ends.copy(LONG, watch(), LONG, watch(cancel_from=5 * SHAPE.block_bytes))
    assert isinstance(at_target, CopyCancelled)
    assert isinstance(at_source, TargetStopped)
    untouched = host_planes(ends.target_pool)[:, 10:]
    assert np.array_equal(untouched, known_bytes(SHAPE, BLOCKS, 2)[:, 10:])
    ends.assert_usable(2)
    assert len(meetings) == 2


def test_a_sources_cancel_ends_both_ends(ends: Ends) -> None:
    at_source, at_target = ends.copy(LONG, watch(cancel_from=5 * SHAPE.block_bytes), LONG, watch())
    assert isinstance(at_source, CopyCancelled)
    assert isinstance(at_target, PathError)
    ends.assert_usable(2)


def test_a_cancel_ends_the_wait_for_the_other_end(ends: Ends) -> None:
    for end in (ends.source, ends.target):
        with pytest.raises(CopyCancelled):
            end.copy(LONG, watch(cancel_from=0))


def test_rests_of_a_copy_that_one_end_never_began_are_dropped(ends: Ends) -> None:
    with pytest.raises(PathError, match="longer than"):
        ends.target.copy(attrs.evolve(LONG, timeout_s=0.2), watch())
    with pytest.raises(CopyCancelled):
        ends.target.copy(order([0], [0], counter=2), watch(cancel_from=0))
    ends.assert_usable(3)


def test_ids_that_make_no_sense_are_refused_by_the_end_that_knows(ends: Ends) -> None:
    beyond = order([BLOCKS], [0])
    at_source, at_target = ends.copy(beyond, watch(), beyond, watch())
    assert isinstance(at_source, CopyRefused)
    assert "ended" in str(at_target)
    beyond = order([0], [BLOCKS], counter=2, timeout_s=3600)
    at_source, at_target = ends.copy(beyond, watch(), beyond, watch())
    assert isinstance(at_target, CopyRefused)
    assert "another order" in str(at_source)
    ends.assert_usable(3)


def test_b53_two_orders_that_differ_end_at_both_ends_and_the_next_works(ends: Ends) -> None:
    at_source, at_target = ends.copy(order([1, 2], [1, 2]), watch(), order([1, 2, 3], [1, 2, 3]), watch())
    assert "another order" in str(at_source)
    assert "ended" in str(at_target)
    ends.assert_usable(2)


def test_b53_ids_that_differ_end_at_their_deadline_and_the_next_works(ends: Ends) -> None:
    began = time.monotonic()
    first, second = order([1], [1], counter=1, timeout_s=0.5), order([1], [1], counter=2, timeout_s=0.5)
    at_source, at_target = ends.copy(first, watch(), second, watch())
    assert "longer than 0.5 s" in str(at_source)
    assert "longer than 0.5 s" in str(at_target)
    assert time.monotonic() - began < 20
    ends.assert_usable(3)


def test_b58_bytes_that_change_on_their_way_are_found(ends: Ends, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lmpool.gpu.paths.pair_source.summed", lambda packed, before: before + 1)
    at_source, at_target = ends.copy(LONG, watch(), LONG, watch())
    assert "other bytes" in str(at_target)
    assert isinstance(at_source, PathError)
    monkeypatch.undo()
    ends.assert_usable(2)


def test_broken_groups_leave_no_descriptor_no_thread_and_no_file(ends: Ends) -> None:
    ends.assert_usable(1)
    before = held()
    for counter in range(2, 7):
        broken = attrs.evolve(LONG, transfer=(7, counter))
        ends.copy(broken, watch(cancel_from=5 * SHAPE.block_bytes), broken, watch())
        ends.assert_usable(counter + 10)
    descriptors, threads = held()
    assert descriptors <= before[0] + 1  # five groups would have left five at least; one may be on its way out
    assert threads <= before[1] + 1
    assert list(ends.folder.iterdir()) == []


def held() -> tuple[int, int]:
    """Descriptors and threads of this process."""
    return len(list(Path("/proc/self/fd").iterdir())), len(list(Path("/proc/self/task").iterdir()))


@pytest.mark.parametrize(
    "said",
    [
        b"\0" * 40,
        encode_frame(Frame(FrameKind.CHUNK, LONG.transfer, 0, 0, 0)),
        encode_frame(Frame(FrameKind.BEGIN, LONG.transfer, 0, 1 << 60, 0)),
    ],
    ids=["garbage", "out of turn", "another size"],
)
@pytest.mark.parametrize("end", ["source", "target"])
def test_a_peer_that_says_what_makes_no_sense_ends_the_copy(tmp_path: Path, said: bytes, end: str) -> None:
    own, peer = socket.socketpair()
    settings = PathSettings(PathKind.GLOO, tmp_path, "0-1")
    pool = filled_pool(SHAPE, BLOCKS, seed=1)
    path = PairSource(settings, own, pool) if end == "source" else PairTarget(settings, own, pool)
    peer.sendall(said)
    with pytest.raises(PathError, match=r"frames of a pair|another order"):
        path.copy(LONG, watch())
    path.close()
    peer.close()


def test_nccl_wants_pools_on_devices() -> None:
    left, right = socket.socketpair()
    with left, right, pytest.raises(CopyRefused, match="host memory"):
        PairTarget(PathSettings(PathKind.NCCL, Path(), "0-1"), left, filled_pool(SHAPE, 2, seed=1))


@pytest.mark.parametrize("after_bytes", [0, 9 * SHAPE.block_bytes])
def test_b53_a_killed_source_ends_the_copy_at_once_and_its_successor_serves(tmp_path: Path, after_bytes: int) -> None:
    target = filled_pool(SHAPE, BLOCKS, seed=2)
    with running_source(tmp_path) as source:
        source.fill(SHAPE, BLOCKS, 1)
        path = target_of(source, "0.1-1.1", target)
        if after_bytes == 0:
            source.process.kill()
        else:
            source.begin_copy(LONG, die=(after_bytes, signal.SIGKILL))
        began = time.monotonic()
        with pytest.raises(PathError):
            path.copy(attrs.evolve(LONG, timeout_s=60), watch())
        assert time.monotonic() - began < 30
        with pytest.raises(PathError, match="gone"):
            path.copy(attrs.evolve(LONG, transfer=(7, 2), timeout_s=60), watch())
        path.close()
    (tmp_path / "source.sock").unlink()
    with running_source(tmp_path) as successor:
        successor.fill(SHAPE, BLOCKS, 3)
        path = target_of(successor, "0.2-1.1", target)
        successor.begin_copy(LONG)
        path.copy(LONG, watch())
        assert np.array_equal(host_planes(target)[:, :BLOCKS], known_bytes(SHAPE, BLOCKS, 3)[:, :BLOCKS])
        path.close()


def test_b53_a_stopped_source_ends_the_copy_at_its_deadline_and_serves_again_later(tmp_path: Path) -> None:
    target = filled_pool(SHAPE, BLOCKS, seed=2)
    with running_source(tmp_path) as source:
        source.fill(SHAPE, BLOCKS, 1)
        path = target_of(source, "0-1", target)
        source.begin_copy(LONG)
        path.copy(LONG, watch())  # has made the group, which may take seconds
        assert not isinstance(source.copied(), str)
        source.begin_copy(LONG, die=(9 * SHAPE.block_bytes, signal.SIGSTOP))
        with pytest.raises(PathError):
            path.copy(attrs.evolve(LONG, timeout_s=4), watch())
        assert source.process.pid is not None
        os.waitid(os.P_PID, source.process.pid, os.WSTOPPED | os.WNOWAIT)
        os.kill(source.process.pid, signal.SIGCONT)
        assert isinstance(source.copied(), str)
        again = attrs.evolve(LONG, transfer=(7, 2))
        source.begin_copy(again)
        assert path.copy(again, watch()) == source.copied()
        assert np.array_equal(host_planes(target)[:, :BLOCKS], known_bytes(SHAPE, BLOCKS, 1)[:, :BLOCKS])
        path.close()
