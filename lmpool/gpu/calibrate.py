"""Measures what steps cost on this device, and the floors that no step can beat."""

import time
from collections.abc import Callable, Sequence

import attrs
import numpy as np
import torch

from lmpool.core.ids import BlockId, Slot, StepNumber
from lmpool.core.plan import BatchPlan, Row, Runner, SequenceStart
from lmpool.core.prefix import pack_tokens
from lmpool.core.rates import Rates
from lmpool.core.sampling import greedy

PREFILL_TOKENS = (16, 256)
CONTINUED_TOKENS = 64
CONTEXT_TOKENS = 1024
DECODES = 8
"""Sizes of the steps that are measured; smaller where the pool or a limit is."""

PROBE_S_MAX = 0.4
"""No repetition of a step is begun after this time, so that large models do not wait long for their rates."""

REPETITIONS = 4

GREEDY = greedy(0)


@attrs.frozen
class Bounds:
    blocks: int
    block_size: int
    context_tokens: int
    step_tokens: int
    sequences: int


@attrs.frozen
class Probe:
    """One measured step: rows that differ only in their blocks."""

    rows: int
    start: int
    count: int

    @property
    def features(self) -> tuple[float, ...]:
        """Factors of the five `Rates`."""
        if self.count == 1:
            return (1, 0, 0, self.rows, self.rows * self.start)
        return (1, self.count, self.count * self.start + self.count * (self.count - 1) / 2, 0, 0)


@attrs.frozen
class Floors:
    """What the device does at best."""

    read_bytes_per_s: float
    matrix_flops_per_s: float


def probes(bounds: Bounds) -> list[Probe]:
    """Prefills of two lengths and one that continues a context; decodes of two batches and two contexts."""
    held = min(bounds.context_tokens, bounds.blocks * bounds.block_size)
    longest = max(2, min(PREFILL_TOKENS[1], bounds.step_tokens, held))
    continued = max(2, min(CONTINUED_TOKENS, bounds.step_tokens, held // 2))
    decodes = max(1, min(DECODES, bounds.sequences, bounds.step_tokens, bounds.blocks))
    each = min(bounds.blocks // decodes * bounds.block_size, held)
    return [
        Probe(1, 0, max(2, min(PREFILL_TOKENS[0], longest // 2))),
        Probe(1, 0, longest),
        Probe(1, min(CONTEXT_TOKENS, held - continued), continued),
        Probe(1, 0, 1),
        Probe(decodes, 0, 1),
        Probe(decodes, min(CONTEXT_TOKENS, each) - 1, 1),
    ]


def _plan(probe: Probe, step: int, block_size: int) -> BatchPlan:
    blocks = -(-(probe.start + probe.count) // block_size)
    samples = probe.count == 1
    rows = tuple(
        Row(
            slot=Slot(index),
            start=probe.start,
            tokens=(0,) * probe.count,
            blocks=tuple(BlockId(index * blocks + block) for block in range(blocks)),
            writes=True,
            samples=samples,
            uniform=0.0,
            forbids_end=False,
        )
        for index in range(probe.rows)
    )
    history = pack_tokens([0])
    slots = tuple(row.slot for row in rows)
    starts = tuple(SequenceStart(slot, GREEDY, (), history, 1, None) for slot in slots)
    return BatchPlan(StepNumber(step), slots, starts, rows)


def step_seconds(runner: Runner, probe: Probe, block_size: int) -> float:
    """The best of a few repetitions; the first one also warms up."""
    best = float("inf")
    until = time.perf_counter() + PROBE_S_MAX
    for repetition in range(REPETITIONS):
        plan = _plan(probe, repetition + 1, block_size)
        began = time.perf_counter()
        runner.launch(plan)
        runner.collect()
        ended = time.perf_counter()
        best = min(best, ended - began)
        if ended > until:
            break
    return best


def fitted(features: Sequence[Sequence[float]], seconds: Sequence[float]) -> Rates:
    """Least squares of relative errors; a rate that comes out negative is 0 and the others are fitted again."""
    weights = 1 / np.array(seconds)
    matrix = np.array(features) * weights[:, None]
    used = list(range(matrix.shape[1]))
    rates = np.zeros(matrix.shape[1])
    while used:
        solution = np.linalg.lstsq(matrix[:, used], np.ones(len(seconds)), rcond=None)[0]
        if solution.min() >= 0:
            rates[used] = solution * 1e9
            break
        used.pop(int(solution.argmin()))
    return Rates(*(float(rate) for rate in rates))


def measure_rates(runner: Runner, bounds: Bounds) -> Rates:
    """Runs about twenty small steps over whatever the pool holds, and leaves slots that the next starts replace."""
    measured = probes(bounds)
    seconds = [step_seconds(runner, probe, bounds.block_size) for probe in measured]
    return fitted([probe.features for probe in measured], seconds)


FLOOR_BYTES = 512 << 20
"""Larger than caches of usual machines, so that memory is measured."""
FLOOR_WIDTH = 2048


def measure_floors(device: torch.device, dtype: torch.dtype) -> Floors:
    """Best of several tries of reading memory once, and of one square product."""
    source = torch.ones(FLOOR_BYTES // 4, device=device)
    square = torch.ones((FLOOR_WIDTH, FLOOR_WIDTH), dtype=dtype, device=device)
    reading = _best_seconds(source.sum, device)
    product = _best_seconds(lambda: square @ square, device)
    return Floors(FLOOR_BYTES / reading, 2 * FLOOR_WIDTH**3 / product)


def _best_seconds(work: Callable[[], torch.Tensor], device: torch.device) -> float:
    best = float("inf")
    for _ in range(5):
        began = time.perf_counter()
        work()
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        best = min(best, time.perf_counter() - began)
    return best
