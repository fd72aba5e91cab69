"""How a list of blocks is cut into chunks, and a chunk into runs. Both ends cut alike, from the order alone.

A pool is `[planes, blocks, piece]`. A chunk is some blocks in all planes. It is some blocks in some planes where one
block is larger than a chunk may be, and where the whole order is one run: that stays as long as it can be, for longer
copies are faster. The payload of a chunk is packed as `[planes, blocks, piece]`.
"""

from collections.abc import Sequence

import attrs

from lmpool.gpu.paths.port import CopyOrder, PoolForm


@attrs.frozen
class Chunk:
    first_plane: int
    planes: int
    first: int
    """Index into the lists of the order."""
    count: int


@attrs.frozen
class Run:
    """`count` blocks that follow each other at both ends."""

    source: int
    target: int
    count: int


def chunks(form: PoolForm, order: CopyOrder) -> list[Chunk]:
    blocks, pieces = len(order.target_blocks), max(1, order.chunk_bytes // form.piece_bytes)
    if len(runs(order.source_blocks, order.target_blocks)) == 1:
        count = min(blocks, pieces)
    else:
        count = max(1, pieces // form.planes)
    planes = pieces // count
    return [
        Chunk(plane, min(planes, form.planes - plane), first, min(count, blocks - first))
        for first in range(0, blocks, count)
        for plane in range(0, form.planes, planes)
    ]


def chunk_bytes(form: PoolForm, chunk: Chunk) -> int:
    return chunk.planes * chunk.count * form.piece_bytes


def chunk_blocks(chunk: Chunk, blocks: Sequence[int]) -> Sequence[int]:
    """Those of an order's list that are in the chunk."""
    return blocks[chunk.first : chunk.first + chunk.count]


def runs(source: Sequence[int], target: Sequence[int]) -> list[Run]:
    found: list[Run] = []
    begin = 0
    for end in range(1, len(source) + 1):
        if end == len(source) or source[end] != source[end - 1] + 1 or target[end] != target[end - 1] + 1:
            found.append(Run(source[begin], target[begin], end - begin))
            begin = end
    return found
