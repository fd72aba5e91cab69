"""Which decode rows of a step are attended together: by a common beginning of their block tables, or by length."""

import attrs
import numpy as np
import numpy.typing as npt

Table = npt.NDArray[np.int64]

SHARED_BLOCKS_MIN = 32
"""A common beginning is worth its own attention pass when it saves this many gathered blocks a layer: gathering and
attending a block of a 3-head bfloat16 model took 2.7 microseconds; the extra pass and merge are estimated at 80."""

GROUP_BLOCKS = 12
"""Padding, in blocks, that costs as much as one more group (30 microseconds)."""


@attrs.frozen
class Cluster:
    """Rows `first` to `first + count` of an order begin with the same `common` blocks."""

    first: int
    count: int
    common: int

    @property
    def saved(self) -> int:
        return (self.count - 1) * self.common


def common_blocks(left: Table, right: Table) -> int:
    shortest = min(len(left), len(right))
    differing = np.flatnonzero(left[:shortest] != right[:shortest])
    return int(differing[0]) if len(differing) else shortest


def clusters(tables: list[Table], complete: list[int]) -> list[Cluster]:
    """Partitions rows, sorted by table, so that merging neighbours as long as it saves more.

    `complete[row]` bounds what that row may share: the blocks before the one that it writes. Clusters that save
    less than `SHARED_BLOCKS_MIN` are returned as single rows with nothing in common.
    """
    found = [Cluster(row, 1, complete[row]) for row in range(len(tables))]
    common = [common_blocks(tables[row], tables[row + 1]) for row in range(len(tables) - 1)]
    of_row = list(found)
    for edge in sorted(range(len(common)), key=lambda row: (-common[row], row)):
        left, right = of_row[edge], of_row[edge + 1]
        merged = Cluster(left.first, left.count + right.count, min(left.common, right.common, common[edge]))
        if merged.saved > left.saved + right.saved:
            of_row[merged.first : merged.first + merged.count] = [merged] * merged.count
    result: list[Cluster] = []
    row = 0
    while row < len(of_row):
        cluster = of_row[row]
        if cluster.saved >= SHARED_BLOCKS_MIN:
            result.append(cluster)
        else:
            result.extend(Cluster(single, 1, 0) for single in range(row, row + cluster.count))
        row += cluster.count
    return result


def length_groups(lengths: list[int], blocks_max: int) -> list[int]:
    """Sizes of runs of `lengths` (descending) that are padded to their first, so that padding stays cheap.

    A run holds at most `blocks_max` blocks with its padding, but at least one row.
    """
    sizes: list[int] = []
    longest = waste = 0
    for length in lengths:
        if sizes and waste + longest - length <= GROUP_BLOCKS and (sizes[-1] + 1) * longest <= blocks_max:
            waste += longest - length
            sizes[-1] += 1
        else:
            sizes.append(1)
            longest, waste = length, 0
    return sizes
