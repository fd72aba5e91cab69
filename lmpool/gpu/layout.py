"""One step as tensors: built once a step, read by every layer.

Rows are put in an order of their own: rows of several tokens (prefills) first, then rows of one token (decodes),
neighbours where they are attended together.
"""

from collections.abc import Sequence
from typing import Protocol

import attrs
import numpy as np
import torch

from lmpool.core.plan import Row
from lmpool.gpu.kv_pool import KVPool
from lmpool.gpu.sharing import Cluster, Table, clusters, length_groups
from lmpool.gpu.staging import upload

GATHER_BYTES_MAX = 256 << 20
"""Keys (and as much again of values) that one group of decode rows may gather."""


@attrs.frozen
class Gathered:
    """Blocks to gather, and where to: `into` holds keys and values `[blocks, block_size, kv_heads, head_dim]`.

    `keys` and `values` are the same memory as `[rows, kv_heads, tokens, head_dim]`.
    """

    blocks: torch.Tensor
    into: tuple[torch.Tensor, torch.Tensor]
    keys: torch.Tensor
    values: torch.Tensor


@attrs.frozen
class PrefillPart:
    """One row of several tokens: queries `first` to `first + count`."""

    first: int
    count: int
    gathered: Gathered | None
    """None: nothing is cached, the step's own keys and values are all there are."""
    mask: torch.Tensor | None
    """`[count, keys]`, added to scores. None: plainly causal."""


@attrs.frozen
class DecodePart:
    """Rows of one token each, padded to one length."""

    first: int
    count: int
    gathered: Gathered
    mask: torch.Tensor
    """`[count, 1, 1, keys]`, added to scores."""


@attrs.frozen
class DecodeCluster:
    """Decode rows with a common beginning, attended once for all; `parts` hold what each has of its own."""

    first: int
    count: int
    shared: Gathered
    parts: tuple[DecodePart, ...]


@attrs.frozen
class Parts:
    """How the layers with one window attend."""

    prefills: tuple[PrefillPart, ...]
    clusters: tuple[DecodeCluster, ...]
    decodes: tuple[DecodePart, ...]


class Workspace:
    """The memory that blocks are gathered into, kept from step to step: fresh pages would cost more than the copy."""

    def __init__(self, pool: KVPool) -> None:
        self._pool = pool
        self._buffers = self._allocated(1)

    def _allocated(self, blocks: int) -> tuple[torch.Tensor, torch.Tensor]:
        keys = self._pool.layers[0][0]
        empty = keys.new_empty((blocks, *keys.shape[1:]))
        return empty, torch.empty_like(empty)

    def gathered(self, blocks: torch.Tensor, rows: int) -> Gathered:
        """`blocks` is flat: as many for each of `rows`. What is gathered is valid until the next gathering."""
        count = blocks.numel()
        if count > self._buffers[0].shape[0]:
            self._buffers = self._allocated(max(count, self._buffers[0].shape[0] * 2))
        into = (self._buffers[0][:count], self._buffers[1][:count])
        shape = self._pool.shape
        keys, values = (half.view(rows, -1, shape.kv_heads, shape.head_dim).transpose(1, 2) for half in into)
        return Gathered(blocks, into, keys, values)


@attrs.frozen
class DecodeRow:
    """A row of one token: its place in the plan, its position and its block table."""

    index: int
    position: int
    table: Table


def _begun_block(row: Row, table: Table, block_size: int) -> int | None:
    """The block that `row` writes from its first slot on, but not to its last."""
    end = row.start + row.length
    begin = end // block_size * block_size
    return int(table[end // block_size]) if row.writes and row.start <= begin < end else None


class StepTensors(Protocol):
    """What a forward pass reads of a step."""

    pool: KVPool
    tokens: torch.Tensor
    positions: torch.Tensor
    slots: torch.Tensor

    def parts(self, window: int | None) -> Parts: ...


class StepLayout:
    """Tensors of one step. `tokens` and `positions` are `[1, tokens]`; `slots` says where each token is written."""

    def __init__(self, rows: Sequence[Row], pool: KVPool, workspace: Workspace, *, shares: bool) -> None:
        assert rows
        self.pool = pool
        self._workspace = workspace
        self._device = pool.tensor.device
        self._parts: dict[int | None, Parts] = {}
        self.shares = shares
        tables = [np.array(row.blocks, dtype=np.int64) for row in rows]
        self._prefills = [(index, rows[index], tables[index]) for index in range(len(rows)) if rows[index].length > 1]
        singles = [DecodeRow(i, row.start, tables[i]) for i, row in enumerate(rows) if row.length == 1]
        self._decodes, self._clusters = self._arranged(singles)
        self.order = [index for index, _, _ in self._prefills] + [row.index for row in self._decodes]
        self._flatten([rows[index] for index in self.order], [tables[index] for index in self.order])

    def _arranged(self, rows: list[DecodeRow]) -> tuple[list[DecodeRow], list[Cluster]]:
        """The decode rows in order, clusters first; and the clusters, counted from the first decode row."""
        size = self.pool.shape.block_size
        singles = rows
        arranged: list[DecodeRow] = []
        found: list[Cluster] = []
        if self.shares:
            by_table = sorted(rows, key=lambda row: row.table.tolist())
            singles = []
            for cluster in clusters([row.table for row in by_table], [row.position // size for row in by_table]):
                members = by_table[cluster.first : cluster.first + cluster.count]
                if cluster.common == 0:
                    singles += members
                else:
                    found.append(Cluster(len(arranged), cluster.count, cluster.common))
                    arranged += sorted(members, key=lambda row: -row.position)
        return arranged + sorted(singles, key=lambda row: -row.position), found

    def _flatten(self, rows: list[Row], tables: list[Table]) -> None:
        shape = self.pool.shape
        counts = [row.length for row in rows]
        ends = np.cumsum(counts)
        positions = np.concatenate([np.arange(row.start, row.start + row.length) for row in rows])
        slots = np.empty_like(positions)
        for row, table, end in zip(rows, tables, ends, strict=True):
            where = positions[end - row.length : end]
            assert len(table) * shape.block_size > where[-1]
            block = table[where // shape.block_size] if row.writes else self.pool.scratch
            slots[end - row.length : end] = block * shape.block_size + where % shape.block_size
        tokens = [token for row in rows for token in (row.tokens or (0,))]
        self.count = len(tokens)
        self.tokens = self._tensor(np.array(tokens)).unsqueeze(0)
        self.positions = self._tensor(positions).unsqueeze(0)
        self.slots = self._tensor(slots)
        begun = [_begun_block(row, table, shape.block_size) for row, table in zip(rows, tables, strict=True)]
        fresh = [block for block in begun if block is not None]
        self.fresh = self._tensor(np.array(fresh)) if fresh else None
        """Blocks that this step begins and does not fill."""
        self.firsts = [0] * len(rows)
        """Parallel to the plan's rows: where a row's tokens begin."""
        for index, end, count in zip(self.order, ends.tolist(), counts, strict=True):
            self.firsts[index] = end - count

    def _tensor(self, array: np.ndarray) -> torch.Tensor:
        return upload(array, self._device)

    @property
    def decodes_only(self) -> bool:
        return not self._prefills

    def decode_tables(self) -> list[Table]:
        """Of the rows of one token, in the order of their tokens, up to the block of each token."""
        size = self.pool.shape.block_size
        return [row.table[: row.position // size + 1] for row in self._decodes]

    def clear_fresh(self) -> None:
        """A masked key weighs 0, but 0 times the NaN that another sequence may have left there is not 0."""
        if self.fresh is not None:
            self.pool.tensor.index_fill_(2, self.fresh, 0)

    def parts(self, window: int | None) -> Parts:
        """How layers attend that see the last `window` tokens (None: all)."""
        if window not in self._parts:
            self._parts[window] = self._windowed(window)
        return self._parts[window]

    def _windowed(self, window: int | None) -> Parts:
        first = 0
        prefills: list[PrefillPart] = []
        for _, row, table in self._prefills:
            prefills.append(self._prefill(row, table, first, window))
            first += row.length
        longest = max((row.position + 1 for row in self._decodes), default=0)
        if window is not None and window < longest:
            return Parts(tuple(prefills), (), tuple(self._groups(self._decodes, first, 0, window)))
        shared: list[DecodeCluster] = []
        for cluster in self._clusters:
            begin = first + cluster.first
            members = self._decodes[cluster.first : cluster.first + cluster.count]
            blocks = self._tensor(members[0].table[: cluster.common].copy())
            parts = tuple(self._groups(members, begin, cluster.common, None))
            shared.append(DecodeCluster(begin, cluster.count, self._workspace.gathered(blocks, 1), parts))
        clustered = sum(cluster.count for cluster in self._clusters)
        alone = self._groups(self._decodes[clustered:], first + clustered, 0, None)
        return Parts(tuple(prefills), tuple(shared), tuple(alone))

    def _prefill(self, row: Row, table: Table, first: int, window: int | None) -> PrefillPart:
        size = self.pool.shape.block_size
        end = row.start + row.length
        lowest = 0 if window is None else max(0, row.start - window + 1)
        if row.start == 0 and (window is None or window >= end):
            return PrefillPart(first, row.length, None, None)
        queries = np.arange(row.start, end)[:, None]
        block = 0 if row.start == 0 else lowest // size
        keys = np.arange(end) if row.start == 0 else np.arange(block * size, -(-end // size) * size)
        seen = keys <= queries if window is None else (keys <= queries) & (keys > queries - window)
        mask = self._mask(seen)
        if row.start == 0:
            return PrefillPart(first, row.length, None, mask)
        blocks = self._tensor(table[block : -(-end // size)].copy())
        return PrefillPart(first, row.length, self._workspace.gathered(blocks, 1), mask)

    def _groups(self, rows: list[DecodeRow], first: int, skipped: int, window: int | None) -> list[DecodePart]:
        """`rows` in descending order of position, without their first `skipped` blocks."""
        shape = self.pool.shape
        begins = [skipped if window is None else max(0, row.position - window + 1) // shape.block_size for row in rows]
        lengths = [row.position // shape.block_size + 1 - begin for row, begin in zip(rows, begins, strict=True)]
        blocks_max = GATHER_BYTES_MAX * shape.layers * 2 // shape.block_bytes
        parts: list[DecodePart] = []
        row = 0
        for count in length_groups(lengths, blocks_max):
            width = max(lengths[row : row + count])
            blocks = np.empty((count, width), dtype=np.int64)
            for place, (member, begin) in enumerate(
                zip(rows[row : row + count], begins[row : row + count], strict=True)
            ):
                own = member.table[begin : member.position // shape.block_size + 1]
                blocks[place, : len(own)] = own
                blocks[place, len(own) :] = own[-1]
            starts = np.array(begins[row : row + count])[:, None] * shape.block_size
            last = np.array([member.position for member in rows[row : row + count]])[:, None]
            keys = starts + np.arange(width * shape.block_size)
            seen = keys <= last if window is None else (keys <= last) & (keys > last - window)
            gathered = self._workspace.gathered(self._tensor(blocks.reshape(-1)), count)
            parts.append(DecodePart(first + row, count, gathered, self._mask(seen)[:, None, None, :]))
            row += count
        return parts

    def _mask(self, seen: np.ndarray) -> torch.Tensor:
        """0 where seen, minus infinity elsewhere, in the type of the queries."""
        mask = np.where(seen, np.float32(0), np.float32("-inf"))
        return self._tensor(mask).to(self.pool.shape.dtype)
