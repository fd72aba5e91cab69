"""Decode steps as captured CUDA graphs: one launch instead of hundreds.

A graph has fixed shapes, so rows and block tables are padded to powers of two, and captured once per pair. The
padded step is an ordinary layout (`PaddedDecode`) that also runs, and is tested, without a graph. Capture follows
the notes on CUDA graphs in torch's documentation: a warm-up on a side stream, then `torch.cuda.graph` with one
memory pool for all, and inputs that are copied into the same tensors before every replay. The captures themselves
have not been run on hardware yet.
"""

import attrs
import numpy as np
import torch

from lmpool.gpu.kv_pool import KVPool
from lmpool.gpu.layout import DecodePart, Parts, StepLayout, Workspace
from lmpool.gpu.model import Decoder
from lmpool.gpu.staging import upload

ROWS_MAX = 256
BLOCKS_MAX = 1 << 15
"""Rows times padded blocks; larger steps are long enough to hide their launches."""


def padded_size(count: int) -> int:
    return 1 << (count - 1).bit_length()


class PaddedDecode:
    """A step of `rows` single tokens over tables of `width` blocks, always in the same tensors.

    Rows that are not used read and write the scratch block.
    """

    def __init__(self, pool: KVPool, rows: int, width: int) -> None:
        device = pool.tensor.device
        self.pool = pool
        self.tokens = torch.zeros((1, rows), dtype=torch.int64, device=device)
        self.positions = torch.zeros((1, rows), dtype=torch.int64, device=device)
        self.slots = torch.empty(rows, dtype=torch.int64, device=device)
        self._width = width
        self._gathered = Workspace(pool).gathered(torch.empty(rows * width, dtype=torch.int64, device=device), rows)
        self._parts: dict[int | None, Parts] = {}

    def fill(self, layout: StepLayout) -> None:
        """Takes over the inputs of a step that only decodes."""
        size = self.pool.shape.block_size
        rows = self.slots.shape[0]
        blocks = np.full((rows, self._width), self.pool.scratch, dtype=np.int64)
        for place, table in enumerate(layout.decode_tables()):
            blocks[place, : len(table)] = table
            blocks[place, len(table) :] = table[-1]
        self.slots.fill_(self.pool.scratch * size)
        self.slots[: layout.count].copy_(layout.slots)
        self.tokens.zero_()[:, : layout.count].copy_(layout.tokens)
        self.positions.zero_()[:, : layout.count].copy_(layout.positions)
        self._gathered.blocks.copy_(upload(blocks.reshape(-1), self.slots.device))

    def parts(self, window: int | None) -> Parts:
        """Masks are computed from the positions, so that a replay computes them anew."""
        if window not in self._parts:
            last = self.positions[0].unsqueeze(1)
            keys = torch.arange(self._width * self.pool.shape.block_size, device=last.device)
            seen = keys <= last if window is None else (keys <= last) & (keys > last - window)
            mask = torch.zeros(seen.shape, dtype=self.pool.shape.dtype, device=last.device)
            mask = mask.masked_fill(~seen, float("-inf"))[:, None, None, :]
            part = DecodePart(0, self.slots.shape[0], self._gathered, mask)
            self._parts[window] = Parts((), (), (part,))
        return self._parts[window]

    def forget_masks(self) -> None:
        self._parts.clear()


@attrs.frozen
class Captured:
    graph: torch.cuda.CUDAGraph
    step: PaddedDecode
    hidden: torch.Tensor


class DecodeGraphs:
    """Captures on first use of a size; every capture keeps its tensors."""

    def __init__(self, decoder: Decoder, pool: KVPool) -> None:
        self._decoder = decoder
        self._pool = pool
        self._memory = torch.cuda.graph_pool_handle()
        self._captured: dict[tuple[int, int], Captured] = {}

    def takes(self, layout: StepLayout) -> bool:
        if not layout.decodes_only or layout.count > ROWS_MAX:
            return False
        rows, width = self._sizes(layout)
        return rows * width <= BLOCKS_MAX

    def hidden(self, layout: StepLayout) -> torch.Tensor:
        """What `Decoder.hidden` gives for the same step; valid until the next call."""
        sizes = self._sizes(layout)
        if sizes not in self._captured:
            self._captured[sizes] = self._capture(layout, *sizes)
        captured = self._captured[sizes]
        layout.clear_fresh()
        captured.step.fill(layout)
        captured.graph.replay()
        return captured.hidden[: layout.count]

    def _sizes(self, layout: StepLayout) -> tuple[int, int]:
        return padded_size(layout.count), padded_size(max(len(table) for table in layout.decode_tables()))

    def _capture(self, layout: StepLayout, rows: int, width: int) -> Captured:
        step = PaddedDecode(self._pool, rows, width)
        step.fill(layout)
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            self._decoder.body(step)
        torch.cuda.current_stream().wait_stream(side)
        step.forget_masks()
        graph = torch.cuda.CUDAGraph()
        # not "global": a capture would fail if a copy's thread opened a peer's memory meanwhile
        with torch.cuda.graph(graph, pool=self._memory, capture_error_mode="thread_local"):
            hidden = self._decoder.body(step)
        return Captured(graph, step, hidden)
