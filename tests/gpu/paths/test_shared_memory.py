import mmap
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import attrs
import numpy as np
import pytest
import torch

from lmpool.gpu.kv_pool import BlockShape, allocate_cpu_pool
from lmpool.gpu.paths.offer import PoolOffer, receive_offer
from lmpool.gpu.paths.planes import host_planes, pool_form
from lmpool.gpu.paths.port import CopyCancelled, CopyRefused, CopyWatch, PathError
from lmpool.gpu.paths.shared_memory import SharedMemoryTarget, mapped_planes, readable_descriptor
from tests.gpu.paths.pools import ODD, SHAPE, WIDE, assert_copied, filled_pool, known_bytes, order, watch
from tests.gpu.paths.source_process import Source, running_source

pytestmark = pytest.mark.model

BLOCKS = 40


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Source]:
    with running_source(tmp_path_factory.mktemp("source")) as process:
        yield process


def offered(source: Source, shape: BlockShape, seed: int) -> tuple[PoolOffer, int]:
    source.fill(shape, BLOCKS, seed)
    with source.offer() as connected:
        offer, descriptor = receive_offer(connected)
    assert descriptor is not None
    return offer, descriptor


def mappings() -> int:
    return Path("/proc/self/maps").read_text().count("memfd:lmpool-kv")


@pytest.mark.parametrize("shape", [SHAPE, ODD, WIDE], ids=lambda shape: str(shape.dtype))
@pytest.mark.parametrize("chunk_bytes", [1, 2000, 1 << 20])
@pytest.mark.parametrize(
    ("source_blocks", "target_blocks"),
    [
        ([5], [9]),
        (range(10, 22), range(3, 15)),
        ([7, 3, 39, 0, 20], [1, 2, 0, 29, 17]),
        ([4, 5, 6, 30, 31, 8], [10, 11, 2, 3, 4, 29]),
        ([9, 9, 8], [4, 5, 6]),
        (range(29, -1, -1), range(30)),
    ],
    ids=["one", "run", "scattered", "mixed", "twice", "backwards"],
)
def test_what_arrives_is_bit_for_bit_the_sources(
    source: Source, shape: BlockShape, chunk_bytes: int, source_blocks: list[int], target_blocks: list[int]
) -> None:
    offer, descriptor = offered(source, shape, seed=1)
    target = filled_pool(shape, 30, seed=2)
    path = SharedMemoryTarget(descriptor, offer.form, target)
    os.close(descriptor)
    ordered = order(source_blocks, target_blocks, chunk_bytes=chunk_bytes)
    copied = path.copy(ordered, watch())
    assert_copied(ordered, known_bytes(shape, BLOCKS, 1), host_planes(target), known_bytes(shape, 30, 2))
    assert copied == source.stated(ordered)
    assert copied.size_bytes == len(source_blocks) * shape.block_bytes


def test_a_checksum_tells_other_bytes_and_another_order(source: Source) -> None:
    offer, descriptor = offered(source, SHAPE, seed=1)
    path = SharedMemoryTarget(descriptor, offer.form, allocate_cpu_pool(SHAPE, 30))
    os.close(descriptor)
    right = path.copy(order([3, 4, 5], [0, 1, 2]), watch())
    assert source.stated(order([3, 4, 5], [7, 8, 9])) == right
    assert source.stated(order([4, 3, 5], [0, 1, 2])) != right
    source.fill(SHAPE, BLOCKS, seed=99)
    assert source.stated(order([3, 4, 5], [0, 1, 2])) != right
    unsummed = attrs.evolve(order([3], [0]), is_summed=False)
    assert path.copy(unsummed, watch()).checksum is None
    assert source.stated(unsummed).checksum is None


def test_a_target_cannot_write_into_the_sources_pool() -> None:
    pool = filled_pool(SHAPE, 4, seed=1)
    descriptor = readable_descriptor(pool)
    planes = mapped_planes(descriptor, pool_form(pool))
    with pytest.raises(ValueError, match="read-only"):
        planes[0, 0, 0] = 1
    with pytest.raises(PermissionError):
        mmap.mmap(descriptor, pool.size_bytes, prot=mmap.PROT_READ | mmap.PROT_WRITE)
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.write(descriptor, b"x")
    os.close(descriptor)


@pytest.mark.parametrize(
    "other",
    [
        attrs.evolve(SHAPE, layers=4),
        attrs.evolve(SHAPE, block_size=16),
        attrs.evolve(SHAPE, kv_heads=1, head_dim=8),
        attrs.evolve(SHAPE, dtype=torch.float16),
    ],
    ids=["layers", "block size", "heads", "dtype"],
)
def test_a_pool_of_another_form_is_refused(other: BlockShape) -> None:
    pool = allocate_cpu_pool(SHAPE, 4)
    assert pool.descriptor is not None
    with pytest.raises(CopyRefused, match="do not fit"):
        SharedMemoryTarget(pool.descriptor, pool_form(pool), allocate_cpu_pool(other, 4))


def test_memory_that_is_smaller_than_its_form_is_refused() -> None:
    pool = allocate_cpu_pool(SHAPE, 4)
    assert pool.descriptor is not None
    with pytest.raises(CopyRefused, match="has 3840 bytes"):
        mapped_planes(pool.descriptor, attrs.evolve(pool_form(pool), blocks=400))
    reading, writing = os.pipe()
    with pytest.raises(CopyRefused):
        mapped_planes(reading, pool_form(pool))
    os.close(reading)
    os.close(writing)


@pytest.mark.parametrize(
    ("source_blocks", "target_blocks"),
    [
        ([4], [0]),
        ([-1], [0]),
        ([0], [5]),
        ([0], [-1]),
        ([0, 1], [0]),
        ([], []),
        ([0, 1], [2, 2]),
    ],
)
def test_ids_that_make_no_sense_are_refused_and_nothing_is_written(
    source_blocks: list[int], target_blocks: list[int]
) -> None:
    pool = filled_pool(SHAPE, 4, seed=1)
    target = filled_pool(SHAPE, 5, seed=2)
    assert pool.descriptor is not None
    path = SharedMemoryTarget(pool.descriptor, pool_form(pool), target)
    with pytest.raises(CopyRefused):
        path.copy(order(source_blocks, target_blocks), watch())
    assert np.array_equal(host_planes(target), known_bytes(SHAPE, 5, 2))


def test_a_cancel_ends_it_between_two_chunks_and_the_path_stays_usable() -> None:
    pool = filled_pool(SHAPE, 20, seed=1)
    target = filled_pool(SHAPE, 20, seed=2)
    assert pool.descriptor is not None
    path = SharedMemoryTarget(pool.descriptor, pool_form(pool), target)
    ordered = order(range(19, -1, -1), range(20), chunk_bytes=3 * SHAPE.block_bytes)
    with pytest.raises(CopyCancelled):
        path.copy(ordered, watch(cancel_from=6 * SHAPE.block_bytes))
    changed = (host_planes(target) != known_bytes(SHAPE, 20, 2)).any(axis=(0, 2))
    assert np.flatnonzero(changed).tolist() == list(range(6))
    path.copy(ordered, watch())
    assert_copied(ordered, host_planes(pool), host_planes(target), known_bytes(SHAPE, 20, 2))


def test_no_chunk_is_larger_than_ordered_and_each_is_told() -> None:
    pool = filled_pool(SHAPE, 20, seed=1)
    assert pool.descriptor is not None
    path = SharedMemoryTarget(pool.descriptor, pool_form(pool), allocate_cpu_pool(SHAPE, 20))
    told = [0]
    path.copy(order(range(20), range(20), chunk_bytes=2000), watch(advanced=told.append))
    steps = [after - before for before, after in pairwise(told)]
    assert max(steps) <= 2000
    assert sum(steps) == 20 * SHAPE.block_bytes


def test_a_copy_ends_at_its_deadline() -> None:
    pool = allocate_cpu_pool(SHAPE, 4)
    assert pool.descriptor is not None
    path = SharedMemoryTarget(pool.descriptor, pool_form(pool), allocate_cpu_pool(SHAPE, 4))
    with pytest.raises(PathError, match="longer than 0 s"):
        path.copy(order([0], [0], timeout_s=0), watch())


def test_b49_a_killed_sources_memory_stays_readable_and_goes_with_its_last_user(tmp_path: Path) -> None:
    before = mappings()
    with running_source(tmp_path) as source:
        offer, descriptor = offered(source, SHAPE, seed=5)
        target = filled_pool(SHAPE, 30, seed=2)
        path = SharedMemoryTarget(descriptor, offer.form, target)
        os.close(descriptor)
        assert source.process.pid is not None
        os.kill(source.process.pid, signal.SIGKILL)
        source.process.join()
    ordered = order([7, 3], [1, 2])
    path.copy(ordered, watch())
    assert_copied(ordered, known_bytes(SHAPE, BLOCKS, 5), host_planes(target), known_bytes(SHAPE, 30, 2))
    assert mappings() == before + 2
    path.close()
    assert mappings() == before + 1
    with pytest.raises(PathError, match="closed"):
        path.copy(ordered, watch())


def test_other_threads_run_while_a_chunk_is_copied() -> None:
    """No thread is made to give way here: only what lets go by itself lets another run."""
    shape = attrs.evolve(SHAPE, kv_heads=16, head_dim=1024)
    pool, target = allocate_cpu_pool(shape, 40), allocate_cpu_pool(shape, 40)
    assert pool.descriptor is not None
    path = SharedMemoryTarget(pool.descriptor, pool_form(pool), target)
    ordered = attrs.evolve(order(range(40), range(40), chunk_bytes=1 << 30), is_summed=False)
    ticks = [0]
    ended = threading.Event()

    def tick() -> None:
        while not ended.is_set():
            ticks[0] += 1
            time.sleep(0)

    def ticks_in_a_chunk() -> int:
        seen: list[int] = []

        def is_cancelled() -> bool:
            seen.append(ticks[0])
            return False

        path.copy(ordered, CopyWatch(is_cancelled, lambda _: seen.append(ticks[0])))
        return seen[1] - seen[0]

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1000)
    try:
        thread = threading.Thread(target=tick)
        thread.start()
        assert any(ticks_in_a_chunk() for _ in range(50))
    finally:
        sys.setswitchinterval(interval)
        ended.set()
    thread.join()
