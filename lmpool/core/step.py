"""One step from plan to result: the rows that a runner gets, and what is remembered of them while it runs."""

from typing import NamedTuple

import attrs

from lmpool.core.block_pool import BlockPool
from lmpool.core.cost import prefill_pairs
from lmpool.core.ids import Nanos, Slot, StepNumber
from lmpool.core.live_request import LiveRequest
from lmpool.core.plan import Row, SequenceStart
from lmpool.core.prefix import pack_tokens
from lmpool.core.sampling import uniform
from lmpool.core.sequence import Sequence
from lmpool.core.step_cost import StepWork


class PlannedRow(NamedTuple):
    request: LiveRequest
    sequence: Sequence
    life: int
    """Of the sequence, when the row was planned."""
    end: int
    """Position after the last input."""
    samples: bool
    slot: Slot
    prefill: int
    """Prefill tokens; 0 in a decode row."""
    context: int
    """Tokens before the first input."""


@attrs.frozen
class RunningStep:
    number: StepNumber
    launched_ns: Nanos
    rows: tuple[PlannedRow, ...]
    work: StepWork
    predicted_ns: Nanos


def start_of(request: LiveRequest, sequence: Sequence) -> SequenceStart:
    submit = request.submit
    return SequenceStart(
        sequence.slot,
        submit.sampling,
        submit.stop.ends,
        pack_tokens(sequence.history),
        sequence.prompt_tokens,
        submit.prompt_logprobs if sequence.is_scoring else None,
    )


def plan_decode(
    request: LiveRequest, sequence: Sequence, pool: BlockPool, block_size: int, step: StepNumber
) -> tuple[Row, PlannedRow]:
    """A row for the last token, known or still being sampled; takes a block where its place begins one."""
    start = sequence.planned
    if start == len(sequence.table) * block_size:
        sequence.table += pool.allocate(1)
    known = start < len(sequence.history)
    tokens = (sequence.history[start],) if known else ()
    index = sequence.outputs + sequence.sampling
    chance, minimum = _chance(request, sequence, index), request.submit.stop.output_tokens_min
    row = Row(sequence.slot, start, tokens, tuple(sequence.table), True, True, chance, index < minimum)
    sequence.planned = start + 1
    sequence.sampling += 1
    sequence.in_flight += 1
    sequence.last_step = step
    return row, PlannedRow(request, sequence, sequence.life, start + 1, True, row.slot, 0, start)


def plan_prefill(
    request: LiveRequest, sequence: Sequence, tokens: int, block_size: int, step: StepNumber
) -> tuple[Row, PlannedRow]:
    """A row for the next `tokens` prefill tokens; the last one samples.

    Where everything was cached, its one token is in a shared block already and is not written again.
    """
    start, end = sequence.planned, sequence.planned + tokens
    samples = end == sequence.prefill_end and len(sequence.history) < sequence.tokens_max
    index = sequence.outputs
    row = Row(
        sequence.slot,
        start,
        sequence.history[start:end],
        tuple(sequence.table[: -(-end // block_size)]),
        start >= sequence.published * block_size,
        samples,
        _chance(request, sequence, index) if samples else 0.0,
        index < request.submit.stop.output_tokens_min,
    )
    sequence.planned = end
    sequence.sampling += samples
    sequence.in_flight += 1
    sequence.last_step = step
    return row, PlannedRow(request, sequence, sequence.life, end, samples, row.slot, tokens, start)


def work_of(rows: list[PlannedRow]) -> StepWork:
    decode = [row.context for row in rows if not row.prefill]
    return StepWork(
        sum(row.prefill for row in rows),
        sum(prefill_pairs(row.prefill, row.context) for row in rows if row.prefill),
        len(decode),
        sum(decode),
    )


def _chance(request: LiveRequest, sequence: Sequence, output_index: int) -> float:
    """Greedy sequences need none."""
    sampling = request.submit.sampling
    return uniform(sampling.seed, sequence.id.choice, output_index) if sampling.temperature > 0 else 0.0
