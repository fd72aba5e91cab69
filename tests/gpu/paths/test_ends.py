import socket
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import attrs
import pytest

from lmpool.gpu.kv_pool import KVPool, allocate_cpu_pool
from lmpool.gpu.paths.ends import open_source, open_target
from lmpool.gpu.paths.planes import host_planes
from lmpool.gpu.paths.port import Copied, CopyRefused, DataPath, PathError, PathKind, PathSettings
from tests.gpu.paths.host_engine import HostEngine
from tests.gpu.paths.pools import SHAPE, assert_copied, filled_pool, known_bytes, order, watch

pytestmark = pytest.mark.model


@contextmanager
def opened(folder: Path, kind: PathKind, source: KVPool, target: KVPool) -> Iterator[tuple[DataPath, DataPath]]:
    engine = HostEngine()
    settings = PathSettings(kind, folder, "0-1")
    left, right = socket.socketpair()
    with (
        closing(open_source(settings, left, source, engine)) as at_source,
        closing(open_target(settings, right, target, engine)) as at_target,
    ):
        yield at_source, at_target


@pytest.mark.parametrize("kind", [PathKind.SHARED_MEMORY, PathKind.GLOO, PathKind.CUDA_IPC])
def test_both_ends_of_every_kind_are_given_one_order_and_agree(tmp_path: Path, kind: PathKind) -> None:
    source, target = filled_pool(SHAPE, 20, seed=1), filled_pool(SHAPE, 12, seed=2)
    ordered = order([7, 8, 19, 0], [3, 4, 11, 5])
    sent: list[Copied] = []
    with opened(tmp_path, kind, source, target) as (at_source, at_target):
        thread = threading.Thread(target=lambda: sent.append(at_source.copy(ordered, watch())))
        thread.start()
        copied = at_target.copy(ordered, watch())
        thread.join()
    assert sent == [copied]
    assert copied.checksum is not None
    assert_copied(ordered, host_planes(source), host_planes(target), known_bytes(SHAPE, 12, 2))


@pytest.mark.parametrize("kind", [PathKind.SHARED_MEMORY, PathKind.GLOO, PathKind.CUDA_IPC])
def test_a_pool_of_another_form_is_refused_before_any_copy(tmp_path: Path, kind: PathKind) -> None:
    other = filled_pool(attrs.evolve(SHAPE, layers=2), 4, seed=1)
    with pytest.raises(CopyRefused, match="do not fit"), opened(tmp_path, kind, other, allocate_cpu_pool(SHAPE, 4)):
        pass


def test_two_kinds_do_not_meet(tmp_path: Path) -> None:
    left, right = socket.socketpair()
    pool = filled_pool(SHAPE, 4, seed=1)
    source = open_source(PathSettings(PathKind.GLOO, tmp_path, "0-1"), left, pool, None)
    with pytest.raises(CopyRefused, match="offers gloo and shm is expected"):
        open_target(PathSettings(PathKind.SHARED_MEMORY, tmp_path, "0-1"), right, pool, None)
    assert right.fileno() == -1
    source.close()


def test_a_source_that_is_gone_is_told(tmp_path: Path) -> None:
    left, right = socket.socketpair()
    left.close()
    with pytest.raises(PathError):
        open_target(PathSettings(PathKind.SHARED_MEMORY, tmp_path, "0-1"), right, filled_pool(SHAPE, 4, 1), None)
    assert right.fileno() == -1
