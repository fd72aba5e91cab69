import numpy as np
import pytest
import torch

from lmpool.gpu.paths.planes import host_planes
from lmpool.gpu.paths.trial import ColdCaches, KnownBytes, PlainCopies, PoolOrder, clear, cold_bytes, known_pool
from tests.gpu.paths.pools import assert_copied, order

pytestmark = pytest.mark.model

ORDER = PoolOrder(layers=3, block_size=8, kv_heads=2, head_dim=4, dtype="bfloat16", blocks=20, device="cpu")


def test_pools_are_equal_in_all_processes_and_differ_by_seed() -> None:
    assert np.array_equal(host_planes(known_pool(ORDER, 1)), host_planes(known_pool(ORDER, 1)))
    assert not np.array_equal(host_planes(known_pool(ORDER, 1)), host_planes(known_pool(ORDER, 2)))


@pytest.mark.parametrize("bit", [1, 128])
def test_one_other_bit_is_found_and_no_number_equals_itself(bit: int) -> None:
    one, other = known_pool(ORDER, 1), known_pool(ORDER, 2)
    one.tensor[0, 0, 3] = torch.nan
    known = KnownBytes(one)
    other.tensor[:, :, [4, 6]] = one.tensor[:, :, [3, 5]]
    assert known.are_in(other, [4, 6], [3, 5])
    assert not known.are_in(other, [6, 4], [3, 5])
    host_planes(other)[5, 4, 127] ^= bit
    assert not known.are_in(other, [4, 6], [3, 5])


def test_cleared_blocks_hold_nothing_and_others_what_they_held() -> None:
    pool = known_pool(ORDER, 1)
    expected = host_planes(pool).copy()
    expected[:, [3, 7]] = 0
    clear(pool, [3, 7])
    assert np.array_equal(host_planes(pool), expected)


@pytest.mark.parametrize("arm", ["index_select, index_copy_", "copy_ a block", "numpy a block"])
def test_plain_copies_bring_the_same_bytes(arm: str) -> None:
    source, target = known_pool(ORDER, 1), known_pool(ORDER, 2)
    copies = PlainCopies(source, target)
    copied = order([4, 5, 19, 0], [9, 1, 0, 11])
    copies.run(lambda: copies.indexed[arm](copied.source_blocks, copied.target_blocks))
    assert_copied(copied, host_planes(source), host_planes(target), host_planes(known_pool(ORDER, 2)))


@pytest.mark.parametrize("arm", ["copy_", "numpy"])
def test_flat_copies_bring_as_many_bytes(arm: str) -> None:
    source, target = known_pool(ORDER, 1), known_pool(ORDER, 2)
    expected = host_planes(target).reshape(-1).copy()
    expected[3 * 768 : 7 * 768] = host_planes(source).reshape(-1)[5 * 768 : 9 * 768]
    PlainCopies(source, target).flat[arm](5, 3, 4)
    assert np.array_equal(host_planes(target).reshape(-1), expected)


def test_what_is_read_for_cold_caches_is_larger_than_each_of_them() -> None:
    assert 1 << 20 < cold_bytes() <= 1 << 30
    ColdCaches(1 << 20).evict()
