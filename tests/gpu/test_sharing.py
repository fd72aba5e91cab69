import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lmpool.gpu.sharing import SHARED_BLOCKS_MIN, Cluster, clusters, common_blocks, length_groups

pytestmark = pytest.mark.model


def table(*parts: range) -> np.ndarray:
    return np.array([block for part in parts for block in part], dtype=np.int64)


def test_common_blocks() -> None:
    assert common_blocks(table(range(5)), table(range(3), range(9, 12))) == 3
    assert common_blocks(table(range(5)), table(range(5), range(20, 30))) == 5
    assert common_blocks(table(range(5)), table(range(6, 8))) == 0


def test_rows_behind_one_prefix_are_one_cluster() -> None:
    tables = [table(range(20), range(100 + 10 * row, 102 + 10 * row)) for row in range(4)]
    assert clusters(tables, [20] * 4) == [Cluster(0, 4, 20)]


def test_a_short_common_beginning_does_not_hide_longer_ones() -> None:
    """All rows share 2 blocks, two pairs share 40: two clusters of 40."""
    tables = [table(range(2), range(10, 48), range(n, n + 1)) for n in (200, 201)]
    tables += [table(range(2), range(50, 88), range(n, n + 1)) for n in (202, 203)]
    assert clusters(tables, [40] * 4) == [Cluster(0, 2, 40), Cluster(2, 2, 40)]


def test_what_saves_too_little_stays_apart() -> None:
    shared = SHARED_BLOCKS_MIN // 2 - 1
    tables = [table(range(shared), range(n, n + 3)) for n in (100, 200, 300)]
    assert clusters(tables, [shared] * 3) == [Cluster(row, 1, 0) for row in range(3)]


def test_no_row_shares_the_block_that_it_writes() -> None:
    same = table(range(41))
    assert clusters([same, same], [40, 40]) == [Cluster(0, 2, 40)]


TABLES = st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=60), min_size=1, max_size=12)


@given(TABLES)
def test_clusters_partition_rows_and_members_really_share(tables: list[list[int]]) -> None:
    arrays = [np.array(each, dtype=np.int64) for each in sorted(tables)]
    found = clusters(arrays, [len(each) - 1 for each in arrays])
    assert [row for cluster in found for row in range(cluster.first, cluster.first + cluster.count)] == list(
        range(len(arrays))
    )
    for cluster in found:
        assert cluster.count == 1 or cluster.saved >= SHARED_BLOCKS_MIN
        members = arrays[cluster.first : cluster.first + cluster.count]
        assert all(len(each) > cluster.common for each in members)
        assert all((each[: cluster.common] == members[0][: cluster.common]).all() for each in members)


@given(st.lists(st.integers(1, 200), max_size=40), st.integers(1, 1000))
def test_length_groups_cover_all_within_bounds(lengths: list[int], blocks_max: int) -> None:
    lengths.sort(reverse=True)
    sizes = length_groups(lengths, blocks_max)
    assert sum(sizes) == len(lengths)
    row = 0
    for size in sizes:
        assert size >= 1
        assert size == 1 or size * lengths[row] <= blocks_max
        row += size


def test_one_long_row_does_not_make_all_pay() -> None:
    assert length_groups([500, 20, 20, 19, 18], 10_000) == [1, 4]
