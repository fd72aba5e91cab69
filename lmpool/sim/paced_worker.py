"""A worker machine with a device that computes and copies nothing, and takes as long as the rates say.

To its node it is a machine whose deadlines include the ends of steps and copies. A run of steps that only decode and
end nothing (a streak) is one event, unless somebody else's event comes in between: then the machine is told first of
the steps that have ended by then. So every event finds the machine as single steps would have left it.
"""

from collections.abc import Sequence
from typing import assert_never

import attrs

from lmpool.core.effects import CancelCopy, CopyBlocks, CopyEffect, RunStep, Send, SendBlocks, WorkerEffect
from lmpool.core.events import (
    BlocksCopied,
    BlocksSent,
    CopyEvent,
    CopyFailed,
    SendFailed,
    StepCompleted,
    StepsCompleted,
    Tick,
    WorkerEvent,
)
from lmpool.core.ids import Nanos, Slot, TransferId
from lmpool.core.plan import BatchPlan, StepResult
from lmpool.core.rates import Rates
from lmpool.core.worker import Worker
from lmpool.sim.copy_time import CopyRates, copy_ns
from lmpool.sim.prompts import filler
from lmpool.sim.trace import END_TOKEN

OFF = "it is off"


@attrs.define
class _Streak:
    """The running step, and those that will follow it with the same rows if nothing happens."""

    result: StepResult
    """Of the running step, if it ends alone."""
    ends_ns: list[Nanos]


@attrs.frozen
class _Copy:
    """A copy or a sending that is not over."""

    ends_ns: Nanos
    answer: CopyEvent


class PacedWorker:
    """A `core.machine.Machine`. Requests carry their number in the trace as seed, so that their length is known here
    and nowhere else."""

    __slots__ = (
        "_answers",
        "_copies",
        "_copy_rates",
        "_last_inputs",
        "_outputs",
        "_rates",
        "_running",
        "_streak_max",
        "events",
        "worker",
    )

    def __init__(
        self, worker: Worker, rates: Rates, copy_rates: CopyRates, outputs: Sequence[int], streak_max: int
    ) -> None:
        """`rates`, `copy_rates`: what steps and copies really take. `outputs`: tokens of each request's answer.
        `streak_max`: 1 for single steps."""
        self.worker = worker
        self._rates = rates
        self._copy_rates = copy_rates
        self._copies: dict[TransferId, _Copy] = {}
        self._outputs = outputs
        self._streak_max = streak_max
        self.events = 0
        """That the machine was told, which is what a run costs."""
        self._running: _Streak | None = None
        self._last_inputs: dict[int, int] = {}
        """By slot: inputs after which the end token is sampled."""
        self._answers: dict[int, int] = {}
        """By slot: the token sampled before."""

    def handle(self, now: Nanos, event: WorkerEvent) -> list[Send]:
        sends: list[Send] = []
        self._elapse(now, sends)
        if not isinstance(event, Tick) or self.worker.next_deadline() <= now:
            self._tell(now, event, sends)
        running = self._running
        if running is not None and len(running.ends_ns) > 1:
            del running.ends_ns[max(1, self.worker.streak()) :]
        return sends

    def next_deadline(self) -> Nanos:
        deadline = self.worker.next_deadline()
        if self._running is not None:
            deadline = min(deadline, self._running.ends_ns[-1])
        return min(deadline, *[copy.ends_ns for copy in self._copies.values()]) if self._copies else deadline

    def _elapse(self, now: Nanos, sends: list[Send]) -> None:
        """Steps and copies that have ended by now; no copy ends before now, as its end is a deadline."""
        while self._running is not None and self._running.ends_ns[0] <= now:
            running, self._running = self._running, None
            ends_ns = running.ends_ns
            if len(ends_ns) == 1:
                self._tell(ends_ns[0], StepCompleted(running.result), sends)
            else:
                ended = tuple([end_ns for end_ns in ends_ns if end_ns <= now])
                tokens = tuple([(token,) * len(ended) for token in running.result.tokens])
                self._tell(ended[-1], StepsCompleted(ended, tokens), sends)
        if self._copies:
            for transfer, copy in list(self._copies.items()):
                if copy.ends_ns <= now:
                    del self._copies[transfer]
                    self._tell(now, copy.answer, sends)

    def _tell(self, now: Nanos, event: WorkerEvent, sends: list[Send]) -> None:
        self.events += 1
        effects: list[WorkerEffect] = self.worker.handle(now, event)
        for effect in effects:
            match effect:
                case RunStep(plan=plan):
                    self._launch(now, plan)
                case Send():
                    sends.append(effect)
                case CopyBlocks() | SendBlocks() | CancelCopy():
                    self._copy(now, effect)

    def _copy(self, now: Nanos, effect: CopyEffect) -> None:
        """What is off ends at once, but in an event of its own. Both ends of a transfer last as long."""
        transfer = effect.transfer
        match effect:
            case CopyBlocks(target_blocks=blocks):
                ends_ns = Nanos(now + copy_ns(self._copy_rates, len(blocks)))
                self._copies[transfer] = _Copy(
                    ends_ns, BlocksCopied(transfer, len(blocks), len(blocks) * self._copy_rates.block_bytes)
                )
            case SendBlocks(blocks=blocks):
                ends_ns = Nanos(now + copy_ns(self._copy_rates, len(blocks)))
                self._copies[transfer] = _Copy(ends_ns, BlocksSent(transfer))
            case CancelCopy():
                copy = self._copies.get(transfer)
                if copy is not None:
                    is_sending = isinstance(copy.answer, BlocksSent | SendFailed)
                    answer = SendFailed(transfer, OFF) if is_sending else CopyFailed(transfer, OFF)
                    self._copies[transfer] = _Copy(Nanos(now + 1), answer)
            case _:
                assert_never(effect)

    def _launch(self, now: Nanos, plan: BatchPlan) -> None:
        assert self._running is None, "one step at a time"
        for start in plan.starts:
            number = start.sampling.seed
            self._last_inputs[start.slot] = start.prompt_tokens + self._outputs[number] - 1
            self._answers[start.slot] = filler(number)
        rates, last_inputs, answers = self._rates, self._last_inputs, self._answers
        slots: list[Slot] = []
        sampled: list[int] = []
        prefill = pairs = decode = context = 0
        before_end = self._streak_max
        for slot, begin, tokens, _, _, samples, _, _ in plan.rows:
            count = len(tokens)
            if count > 1:
                prefill += count
                pairs += count * begin + count * (count - 1) // 2
            else:
                count = 1
                decode += 1
                context += begin
            if samples:
                left = last_inputs[slot] - begin - count
                before_end = min(before_end, left)
                slots.append(slot)
                sampled.append(answers[slot] if left else END_TOKEN)
        result = StepResult(plan.step, tuple(slots), tuple(sampled), (None,) * len(slots), ())
        fixed = rates.step + rates.prefill * prefill + rates.prefill_context * pairs + rates.decode * decode
        ends_ns = [Nanos(now + round(fixed + rates.decode_context * context))]
        if not prefill and before_end > 1:
            for _ in range(1, min(self.worker.streak(), before_end)):
                context += decode
                ends_ns.append(Nanos(ends_ns[-1] + round(fixed + rates.decode_context * context)))
        self._running = _Streak(result, ends_ns)
