"""The arithmetic of CUDA IPC on host memory: an engine that moves the same rectangles between two pools here."""

import ctypes
import socket

import attrs
import numpy as np
import pytest

from lmpool.gpu.kv_pool import KVPool
from lmpool.gpu.paths.checksum import OneSidedSource
from lmpool.gpu.paths.chunks import Chunk, Run
from lmpool.gpu.paths.cuda_driver import PITCH_MAX, CudaDriver, Rectangle
from lmpool.gpu.paths.cuda_ipc import CudaIPCTarget, DeviceMemory, device_memory, rectangles
from lmpool.gpu.paths.offer import receive_offer, send_offer
from lmpool.gpu.paths.planes import HostPlanes, host_planes, pool_form
from lmpool.gpu.paths.port import CopyCancelled, CopyRefused, PathError, PathKind
from tests.gpu.paths.host_engine import OFFSET, HostEngine
from tests.gpu.paths.pools import ODD, SHAPE, assert_copied, filled_pool, known_bytes, order, watch

pytestmark = pytest.mark.model


def target_of(source: KVPool, pool: KVPool, engine: HostEngine) -> CudaIPCTarget:
    return CudaIPCTarget(device_memory(source, engine), pool_form(source), pool, engine)


@pytest.mark.parametrize("shape", [SHAPE, ODD], ids=lambda shape: str(shape.dtype))
@pytest.mark.parametrize("chunk_bytes", [1, 2000, 1 << 20])
@pytest.mark.parametrize("pitch_max", [PITCH_MAX, 1])
def test_rectangles_bring_the_bytes(
    shape: object, chunk_bytes: int, pitch_max: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert isinstance(shape, type(SHAPE))
    monkeypatch.setattr("lmpool.gpu.paths.cuda_ipc.PITCH_MAX", pitch_max)
    source, target, engine = filled_pool(shape, 40, 1), filled_pool(shape, 30, 2), HostEngine()
    path = target_of(source, target, engine)
    ordered = order([4, 5, 6, 39, 8, 0], [10, 11, 12, 3, 29, 0], chunk_bytes=chunk_bytes)
    copied = path.copy(ordered, watch())
    assert_copied(ordered, host_planes(source), host_planes(target), known_bytes(shape, 30, 2))
    assert copied == OneSidedSource(HostPlanes(source)).copy(ordered, watch())
    assert path.checksum_held(ordered, watch()) == copied.checksum
    path.close()
    assert engine.opened == []
    for use in (path.copy, path.checksum_held):
        with pytest.raises(PathError, match="closed"):
            use(ordered, watch())


def test_a_run_is_one_copy_in_all_planes() -> None:
    form = pool_form(filled_pool(SHAPE, 9, 1))
    found = rectangles(Chunk(2, 3, 0, 4), Run(5, 1, 4), (10_000, form), (90_000, form))
    plane = 10 * 128
    assert found == [Rectangle(10_000 + 2 * plane + 5 * 128, plane, 90_000 + 2 * plane + 128, plane, 512, 3)]


def test_it_is_cancelled_between_chunks() -> None:
    source, target, engine = filled_pool(SHAPE, 20, 1), filled_pool(SHAPE, 20, 2), HostEngine()
    with pytest.raises(CopyCancelled):
        target_of(source, target, engine).copy(
            order(range(19, -1, -1), range(20), chunk_bytes=SHAPE.block_bytes), watch(cancel_from=4 * SHAPE.block_bytes)
        )
    assert engine.copies == 4
    assert np.array_equal(host_planes(target)[:, 4:], known_bytes(SHAPE, 20, 2)[:, 4:])


def test_another_form_and_foreign_ids_are_refused() -> None:
    source, engine = filled_pool(SHAPE, 4, 1), HostEngine()
    with pytest.raises(CopyRefused):
        target_of(source, filled_pool(attrs.evolve(SHAPE, layers=2), 4, 1), engine)
    with pytest.raises(CopyRefused):
        target_of(source, filled_pool(SHAPE, 9, 1), engine).copy(order([4], [0]), watch())


def test_memory_that_is_smaller_than_its_form_is_refused() -> None:
    source, engine = filled_pool(SHAPE, 4, 1), HostEngine()
    engine.held = OFFSET + source.size_bytes - 1
    with pytest.raises(CopyRefused, match="beyond"):
        target_of(source, filled_pool(SHAPE, 4, 2), engine)
    assert engine.opened == []


def test_the_handle_travels_in_the_offer() -> None:
    source, engine = filled_pool(SHAPE, 4, 1), HostEngine()
    left, right = socket.socketpair()
    with left, right:
        send_offer(left, PathKind.CUDA_IPC, source, engine)
        offer, descriptor = receive_offer(right)
    assert descriptor is None
    assert offer.memory == DeviceMemory((source.tensor.data_ptr() - OFFSET).to_bytes(64, "little"), OFFSET)


def test_without_a_driver_it_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> None:
        raise OSError(f"{name}: cannot open shared object file")

    monkeypatch.setattr(ctypes, "CDLL", missing)
    with pytest.raises(CopyRefused, match=r"libcuda\.so\.1"):
        CudaDriver()
