"""One step from plan to result: the rows that a runner gets, and what is remembered of them while it runs."""

from collections.abc import Iterable
from typing import NamedTuple

import attrs

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


def plan_decodes(
    owned: Iterable[tuple[LiveRequest, Sequence]], step: StepNumber, rows: list[Row], planned: list[PlannedRow]
) -> int:
    """Adds rows for last tokens, known or still being sampled, that have a place in the sequences' blocks.

    Returns the sum of the tokens before each.
    """
    # What the constructors of named tuples call in the end: theirs, written in Python, take as long again.
    new = tuple.__new__  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]
    context = 0
    for request, sequence in owned:
        history, start, slot = sequence.history, sequence.planned, sequence.slot
        end = start + 1
        tokens = (history[start],) if start < len(history) else ()
        sampling = sequence.sampling
        index = len(history) - sequence.prompt_tokens + sampling
        submit = request.submit
        chance = _chance(request, sequence, index) if submit.sampling.temperature > 0 else 0.0
        is_early = index < submit.stop.output_tokens_min
        rows.append(new(Row, (slot, start, tokens, sequence.table, True, True, chance, is_early)))
        planned.append(new(PlannedRow, (request, sequence, sequence.life, end, True, slot, 0, start)))
        sequence.planned = end
        sequence.sampling = sampling + 1
        sequence.in_flight += 1
        sequence.last_step = step
        context += start
    return context


def plan_prefill(
    request: LiveRequest, sequence: Sequence, tokens: int, block_size: int, step: StepNumber
) -> tuple[Row, PlannedRow]:
    """A row for the next `tokens` prefill tokens; the last one samples.

    Where everything was cached, its one token is in a shared block already and is not written again.
    """
    start, end = sequence.planned, sequence.planned + tokens
    samples = end == sequence.prefill_end and len(sequence.history) < sequence.tokens_max
    index = sequence.outputs
    submit = request.submit
    row = Row(
        sequence.slot,
        start,
        sequence.history[start:end],
        sequence.table[: -(-end // block_size)],
        start >= sequence.published * block_size,
        samples,
        _chance(request, sequence, index) if samples and submit.sampling.temperature > 0 else 0.0,
        index < submit.stop.output_tokens_min,
    )
    sequence.planned = end
    sequence.sampling += samples
    sequence.in_flight += 1
    sequence.last_step = step
    return row, PlannedRow(request, sequence, sequence.life, end, samples, row.slot, tokens, start)


def _chance(request: LiveRequest, sequence: Sequence, output_index: int) -> float:
    """Greedy sequences need none."""
    return uniform(request.submit.sampling.seed, sequence.id.choice, output_index)
