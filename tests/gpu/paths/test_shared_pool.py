"""A pool that another worker reads: logits do not depend on which replica computed the blocks."""

import os
import socket
import time
from collections.abc import Sequence
from pathlib import Path

import attrs
import pytest
import torch
from typing_extensions import override

from lmpool.core.data_path import BlockReader, BlockReading, CopyFaultError
from lmpool.core.ids import SECOND, BlockId, Epoch, Nanos, TransferId
from lmpool.core.plan import ReplicaError
from lmpool.gpu.kv_pool import KVPool, allocate_cpu_pool
from lmpool.gpu.model import Decoder, load_decoder
from lmpool.gpu.paths import shared_memory, shared_pool
from lmpool.gpu.paths.planes import Move, host_planes, move
from lmpool.gpu.paths.port import PathError, PathKind
from lmpool.gpu.paths.shared_pool import ReadablePool, readable_pool
from lmpool.gpu.runner import TorchRunner
from tests.gpu.paths.host_engine import HostEngine
from tests.gpu.paths.pools import SHAPE, filled_pool
from tests.gpu.plans import Steps, row, sampling, start
from tests.gpu.tiny_models import FAMILIES, VOCABULARY, write_tiny_model

pytestmark = pytest.mark.model

SIZE, BLOCKS = 8, 40
TOLERANCE = 1e-3
ALL = sampling(logprobs=VOCABULARY)


def readable(pool: KVPool, kind: PathKind = PathKind.SHARED_MEMORY) -> ReadablePool:
    return ReadablePool(pool, kind, HostEngine() if kind is PathKind.CUDA_IPC else None)


def reader(source: KVPool, target: KVPool, kind: PathKind = PathKind.SHARED_MEMORY) -> BlockReader:
    left, right = socket.socketpair()
    readable(source, kind).offer(left.detach())
    return readable(target, kind).attach(right.detach())


def reading(source: list[int], target: list[int], seconds: float = 20, *, is_summed: bool = True) -> BlockReading:
    blocks = tuple(map(BlockId, source)), tuple(map(BlockId, target))
    return BlockReading(
        TransferId(Epoch(1), 2), *blocks, Nanos(time.monotonic_ns() + round(seconds * SECOND)), is_summed
    )


class Replica:
    """A runner over a pool in which nobody has written."""

    def __init__(self, decoder: Decoder) -> None:
        self.pool = allocate_cpu_pool(decoder.facts.block_shape(SIZE), BLOCKS)
        self.pool.tensor[:, :, :BLOCKS] = float("nan")
        self.steps = Steps(TorchRunner(decoder, self.pool))

    def logprobs(self, prompt: list[int], table: list[int], cached: int) -> torch.Tensor:
        """After the prompt, of which `cached` tokens are in their blocks."""
        rows = [row(0, cached, prompt[cached:], table)]
        (entry,) = self.steps(rows, [start(0, prompt, settings=ALL)]).logprobs
        assert entry is not None
        found = torch.empty(VOCABULARY)
        found[list(entry.top_tokens)] = torch.tensor(entry.top_logprobs)
        return found


@pytest.mark.parametrize("kind", [PathKind.SHARED_MEMORY, PathKind.CUDA_IPC], ids=lambda kind: kind.value)
@pytest.mark.parametrize("family", list(FAMILIES))
def test_logits_on_blocks_that_arrived_are_those_of_a_replica_that_computed_them(
    tmp_path: Path, family: str, kind: PathKind
) -> None:
    """CUDA IPC with the arithmetic of its copies alone, on host memory."""
    decoder = load_decoder(write_tiny_model(tmp_path, family), torch.float32, torch.device("cpu"), lambda _: None)
    source, target, alone = (Replica(decoder) for _ in range(3))
    prompt = torch.randint(0, VOCABULARY, (61,), generator=torch.Generator().manual_seed(7)).tolist()
    there, here = [9, 4, 31, 2, 17, 5, 6, 8], [0, 39, 12, 13, 14, 3, 30, 20]
    computed = source.logprobs(prompt, there, 0)
    bytes_copied = reader(source.pool, target.pool, kind).read(reading(there[:7], here[:7]), lambda: False)
    assert bytes_copied == 7 * source.pool.shape.block_bytes
    arrived = target.logprobs(prompt, here, 56)
    again = alone.logprobs(prompt, here, 0)
    assert bool(torch.isfinite(arrived).all())
    assert float((arrived - again).abs().max()) <= TOLERANCE
    assert float((arrived - computed).abs().max()) <= TOLERANCE


def test_one_missing_block_would_show(tmp_path: Path) -> None:
    family = next(iter(FAMILIES))
    decoder = load_decoder(write_tiny_model(tmp_path, family), torch.float32, torch.device("cpu"), lambda _: None)
    source, target = Replica(decoder), Replica(decoder)
    prompt = list(range(61))
    source.logprobs(prompt, list(range(8)), 0)
    reader(source.pool, target.pool).read(reading([0, 1, 2, 3, 4, 5], [0, 1, 2, 3, 4, 5]), lambda: False)
    with pytest.raises(AssertionError):
        assert bool(torch.isfinite(target.logprobs(prompt, list(range(8)), 56)).all())


def test_a_byte_that_is_flipped_on_the_way_is_found_by_the_checksum_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    source, target = filled_pool(SHAPE, 8, seed=1), filled_pool(SHAPE, 8, seed=2)

    def flips(moves: Sequence[Move]) -> None:
        move(moves)
        moves[-1][0][-1, -1, 5] ^= 1

    path = reader(source, target)
    assert path.read(reading([1, 2, 5], [0, 3, 4]), lambda: False) == 3 * SHAPE.block_bytes
    monkeypatch.setattr(shared_memory, "move", flips)
    with pytest.raises(CopyFaultError, match="checksum"):
        path.read(reading([1, 2, 5], [0, 3, 4]), lambda: False)
    assert path.read(reading([1, 2, 5], [0, 3, 4], is_summed=False), lambda: False) == 3 * SHAPE.block_bytes


@pytest.mark.parametrize("kind", [PathKind.SHARED_MEMORY, PathKind.CUDA_IPC], ids=lambda kind: kind.value)
def test_a_source_that_writes_while_it_is_read_is_found_by_the_checksum(kind: PathKind) -> None:
    source, target = filled_pool(SHAPE, 8, seed=1), filled_pool(SHAPE, 8, seed=2)
    looks = 0

    def write() -> bool:
        """Before its first chunk nothing; then everything has been copied, and is about to be read again."""
        nonlocal looks
        looks += 1
        if looks == 2:
            host_planes(source)[2, 6, 3] ^= 1
        return False

    with pytest.raises(CopyFaultError, match="checksum"):
        reader(source, target, kind).read(reading([1, 6], [0, 3]), write)
    assert looks == 2


def test_reading_again_ends_with_its_copy() -> None:
    source, target = filled_pool(SHAPE, 8, seed=1), filled_pool(SHAPE, 8, seed=2)
    answers = iter([False, True])
    with pytest.raises(CopyFaultError, match="cancelled"):
        reader(source, target).read(reading([1], [0]), lambda: next(answers))


def test_what_cannot_be_copied_is_one_kind_of_fault() -> None:
    source, target = filled_pool(SHAPE, 8, seed=1), filled_pool(SHAPE, 8, seed=2)
    path = reader(source, target)
    with pytest.raises(CopyFaultError, match="outside"):
        path.read(reading([8], [0]), lambda: False)
    with pytest.raises(CopyFaultError, match="cancelled"):
        path.read(reading([1], [0]), lambda: True)
    with pytest.raises(CopyFaultError, match="longer than"):
        path.read(reading([1], [0], seconds=0), lambda: False)
    path.close()
    with pytest.raises(CopyFaultError, match="closed"):
        path.read(reading([1], [0]), lambda: False)
    with pytest.raises(CopyFaultError, match="do not fit"):
        reader(filled_pool(attrs.evolve(SHAPE, layers=2), 8, seed=1), target)


def test_descriptors_are_given_back_whatever_happens() -> None:
    source, target = filled_pool(SHAPE, 8, seed=1), filled_pool(SHAPE, 8, seed=2)
    before = len(os.listdir("/proc/self/fd"))
    reader(source, target).close()
    left, right = socket.socketpair()
    left.close()
    with pytest.raises(CopyFaultError):
        readable(source).offer(right.detach())
    left, right = socket.socketpair()
    left.close()
    with pytest.raises(CopyFaultError):
        readable(target).attach(right.detach())
    assert len(os.listdir("/proc/self/fd")) == before


def test_who_offers_another_path_is_refused() -> None:
    source, target = filled_pool(SHAPE, 8, seed=1), filled_pool(SHAPE, 8, seed=2)
    left, right = socket.socketpair()
    readable(source, PathKind.CUDA_IPC).offer(left.detach())
    with pytest.raises(CopyFaultError, match="offers cuda-ipc and shm is expected"):
        readable(target).attach(right.detach())


def test_memory_that_cannot_be_given_away_is_told_at_once() -> None:
    class Expandable(HostEngine):
        @override
        def memory_handle(self, address: int) -> tuple[bytes, int]:
            raise PathError("cuIpcGetMemHandle: invalid argument (1)")

    with pytest.raises(CopyFaultError, match="cuIpcGetMemHandle"):
        ReadablePool(filled_pool(SHAPE, 8, seed=1), PathKind.CUDA_IPC, Expandable())


def test_a_path_of_cuda_is_refused_on_the_cpu() -> None:
    pool = filled_pool(SHAPE, 8, seed=1)
    assert readable_pool(pool, "auto") is not None
    with pytest.raises(ReplicaError, match="--transfer-path cuda-ipc is for replicas on CUDA"):
        readable_pool(pool, "cuda-ipc")


def device_pool() -> KVPool:
    """What makes it one for its readers is that it has no descriptor."""
    pool = filled_pool(SHAPE, 8, seed=1)
    return KVPool(pool.shape, pool.blocks, pool.tensor, None)


def test_on_cuda_a_path_is_used_only_if_it_is_wanted(monkeypatch: pytest.MonkeyPatch) -> None:
    pool = device_pool()
    assert readable_pool(pool, "auto") is None
    monkeypatch.setattr(shared_pool, "CudaDriver", HostEngine)
    found = readable_pool(pool, "cuda-ipc")
    assert found is not None
    left, right = socket.socketpair()
    found.offer(left.detach())
    there = readable(filled_pool(SHAPE, 8, seed=2), PathKind.CUDA_IPC).attach(right.detach())
    assert there.read(reading([1], [0]), lambda: False) == SHAPE.block_bytes


def test_without_a_driver_the_replica_is_refused_with_the_flag(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing() -> None:
        raise PathError("the CUDA driver cannot be loaded: no such file")

    monkeypatch.setattr(shared_pool, "CudaDriver", missing)
    with pytest.raises(ReplicaError, match="--transfer-path cuda-ipc: the CUDA driver cannot be loaded"):
        readable_pool(device_pool(), "cuda-ipc")
