import gc
import mmap
import os

import attrs
import pytest
import torch

from lmpool.core.plan import ReplicaError
from lmpool.gpu.kv_pool import (
    BlockShape,
    PoolSize,
    SizeOrder,
    allocate_cpu_pool,
    check_room,
    cpu_pool_size,
    cuda_pool_size,
    layout_name,
)
from lmpool.gpu.memory import HostMemory, host_memory, size_text

pytestmark = pytest.mark.model

GIB = 1 << 30
SHAPE = BlockShape(layers=3, block_size=8, kv_heads=2, head_dim=4, dtype=torch.bfloat16)
LARGE = BlockShape(layers=32, block_size=16, kv_heads=8, head_dim=128, dtype=torch.bfloat16)
"""2 MiB a block."""
FREE = SizeOrder(kv_blocks=None, kv_bytes=None, sequences_max=64, context_tokens=8192)
MEMORY = HostMemory(total=64 * GIB, free=60 * GIB)


def test_slots_and_layers_are_the_same_memory() -> None:
    pool = allocate_cpu_pool(SHAPE, 5)
    assert pool.tensor.shape == (3, 2, 6, 8, 2, 4)
    assert pool.size_bytes == 6 * SHAPE.block_bytes
    pool.key_slots[1][pool.scratch * 8 + 3] = 7
    assert bool((pool.layers[1][0, 5, 3] == 7).all())
    assert float(pool.tensor.float().sum()) == 7 * 8


def test_memory_is_really_allocated_and_shared_by_its_descriptor() -> None:
    pool = allocate_cpu_pool(SHAPE, 100)
    assert pool.descriptor is not None
    status = os.fstat(pool.descriptor)
    assert status.st_size == pool.size_bytes
    assert status.st_blocks * 512 >= pool.size_bytes
    pool.tensor[2, 1, 99] = 3
    with mmap.mmap(pool.descriptor, pool.size_bytes) as other:
        offset = pool.tensor[2, 1, 99].storage_offset() * 2
        assert torch.frombuffer(bytearray(other[offset : offset + 2]), dtype=torch.bfloat16).item() == 3


def test_the_mapping_lives_as_long_as_a_view_of_it() -> None:
    pool = allocate_cpu_pool(SHAPE, 100)
    view = pool.tensor[1, 0, 50:60]
    view.fill_(2)
    del pool
    gc.collect()
    assert float(view.float().sum()) == 2 * view.numel()


def test_the_descriptor_does_not_outlive_an_exec() -> None:
    pool = allocate_cpu_pool(SHAPE, 1)
    assert pool.descriptor is not None
    assert not os.get_inheritable(pool.descriptor)


def test_default_size_on_the_cpu() -> None:
    size = cpu_pool_size(LARGE, FREE, MEMORY, replicas=2)
    assert size.blocks * LARGE.block_bytes == GIB
    long = attrs.evolve(FREE, context_tokens=16384)
    assert cpu_pool_size(LARGE, long, MEMORY, replicas=2).blocks * 16 == 16384
    longer = attrs.evolve(FREE, context_tokens=1 << 20)
    assert cpu_pool_size(LARGE, longer, MEMORY, replicas=2).blocks * LARGE.block_bytes == 4 * GIB
    assert cpu_pool_size(LARGE, longer, MEMORY, replicas=16).blocks * LARGE.block_bytes == GIB
    few = attrs.evolve(FREE, sequences_max=2, context_tokens=100)
    assert cpu_pool_size(LARGE, few, MEMORY, replicas=2).blocks == 14
    assert "64.0 GiB over 2 replicas" in size.reason


def test_default_size_on_cuda() -> None:
    size = cuda_pool_size(LARGE, FREE, free_bytes=40 * GIB, sharers=2)
    assert size.blocks == int(40 * GIB * 0.85) // 2 // LARGE.block_bytes
    assert "85%" in size.reason


def test_ordered_sizes_are_taken_as_they_are() -> None:
    blocks = attrs.evolve(FREE, kv_blocks=77)
    memory = attrs.evolve(FREE, kv_bytes=GIB + 5)
    for size in (cpu_pool_size(LARGE, blocks, MEMORY, 2), cuda_pool_size(LARGE, blocks, GIB, 1)):
        assert (size.blocks, size.reason) == (77, "as ordered by --kv-blocks")
    assert cpu_pool_size(LARGE, memory, MEMORY, 2).blocks == 512
    with pytest.raises(ReplicaError, match=r"holds no block of 2\.0 MiB"):
        cpu_pool_size(LARGE, attrs.evolve(FREE, kv_bytes=1000), MEMORY, 2)


def test_b83_what_does_not_fit_is_refused_with_figures_and_a_flag_that_works() -> None:
    wanted = PoolSize(4096, "as ordered by --kv-blocks")
    with pytest.raises(ReplicaError) as raised:
        check_room(LARGE, wanted, free_bytes=3 * GIB, weight_bytes=2 * GIB)
    assert "8.0 GiB" in raised.value.what
    assert "3.0 GiB free after 2.0 GiB of weights" in raised.value.what
    blocks = int(raised.value.hint.split("--kv-blocks ")[1].split()[0])
    assert f"up to {blocks * 16} tokens" in raised.value.hint
    check_room(LARGE, attrs.evolve(wanted, blocks=blocks), free_bytes=3 * GIB, weight_bytes=2 * GIB)
    with pytest.raises(ReplicaError, match="smaller model"):
        check_room(LARGE, wanted, free_bytes=GIB // 2, weight_bytes=2 * GIB)


def test_layout_name_tells_shapes_apart() -> None:
    assert layout_name(SHAPE) == "layers.kv.blocks.tokens.heads.dim/3x2x2x4"
    assert layout_name(SHAPE) != layout_name(LARGE)


def test_host_memory_is_plausible() -> None:
    memory = host_memory()
    assert 0 < memory.free <= memory.total
    assert [size_text(size) for size in (5, 2048, 3 << 20, 5 * GIB // 2)] == ["5 B", "2.0 KiB", "3.0 MiB", "2.5 GiB"]
