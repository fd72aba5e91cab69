"""The sequences in work on one rank: from the queue through steps to their last token.

Owned by the worker machine, which knows requests, peers and time limits; here are blocks, slots and steps.
"""

from collections import deque

import attrs

from lmpool.core.batch import BatchDecision, LeftOut, choose
from lmpool.core.block_pool import BlockPool
from lmpool.core.cost import prefill_pairs
from lmpool.core.ids import Nanos, RequestId, SequenceId, StepNumber
from lmpool.core.live_request import LiveRequest
from lmpool.core.messages.ingress_worker import Accepted, Finish, PromptScored
from lmpool.core.messages.worker_control import Load
from lmpool.core.outbox import Outbox
from lmpool.core.plan import NOT_FINITE, BatchPlan, PromptLogprobs, Row, SequenceStart, StepResult, TokenLogprobs
from lmpool.core.prefix import chain_length
from lmpool.core.rates import Rates
from lmpool.core.report import Tally, load_of
from lmpool.core.schedule import Schedule
from lmpool.core.sequence import Sequence, SequenceEvent, SequenceState
from lmpool.core.step import PlannedRow, RunningStep, plan_decodes, plan_prefill, start_of
from lmpool.core.step_cost import StepWork, correct, predict
from lmpool.core.transfer.exchange import Exchange

FAILURES_MAX = 3
"""Lost steps in a row before a sequence is held to be the cause and ends."""


class Execution:
    __slots__ = (
        "_block_size",
        "_completed_ns",
        "_outbox",
        "_sequences",
        "_step",
        "_steps",
        "exchange",
        "pool",
        "prefilling",
        "rates",
        "schedule",
        "tally",
    )

    def __init__(
        self,
        pool: BlockPool,
        schedule: Schedule,
        exchange: Exchange,
        block_size: int,
        rates: Rates,
        outbox: Outbox,
    ) -> None:
        self.pool = pool
        self.exchange = exchange
        self.schedule = schedule
        self.rates = rates
        self.tally = Tally()
        self.prefilling: dict[RequestId, LiveRequest] = {}
        """All that have prefill tokens left, and some that had: whoever reads it drops those that are done."""
        self._block_size = block_size
        self._outbox = outbox
        self._sequences: dict[SequenceId, tuple[LiveRequest, Sequence]] = {}
        self._steps: deque[RunningStep] = deque()
        self._step = StepNumber(0)
        self._completed_ns = Nanos(0)
        """When the last step completed: a step launched before began only then."""

    @property
    def steps_in_flight(self) -> int:
        return len(self._steps)

    def load(self) -> Load:
        began = max(self._steps[0].launched_ns, self._completed_ns) if self._steps else None
        return load_of(self.pool, self.schedule, self._steps[0] if self._steps else None, began)

    # Sequences come and go

    def enqueue(self, now: Nanos, request: LiveRequest) -> None:
        """Later choices will find all complete blocks of the prompt, which the first computes."""
        first = True
        self.prefilling[request.id] = request
        for sequence in request.open_sequences:
            self._sequences[sequence.id] = (request, sequence)
            coming = self.schedule.reach(sequence) if first else sequence.prompt_tokens // self._block_size
            self.schedule.enqueue(sequence, coming)
            first = False
            self._await_arrival(now, request, sequence)

    def _await_arrival(self, now: Nanos, request: LiveRequest, sequence: Sequence) -> None:
        awaits = request.submit.awaits
        if awaits is None or sequence.is_scoring:
            return
        blocks = min(awaits.blocks, chain_length(sequence.chain))
        if self.pool.resident_depth(sequence.chain) < blocks and self.exchange.expect(now, sequence.id, awaits):
            self.schedule.begin_arrival(sequence, max(blocks, self.schedule.reach(sequence)))

    def take_arrivals(self) -> None:
        """What transfers have made resident, and who waits for them no longer."""
        for chain in self.exchange.arrived:
            self.schedule.relieve(chain)
        for sequence_id in self.exchange.waiters.take_woken():
            self.schedule.end_arrival(self._sequences[sequence_id][1])

    def finish(self, sequence: Sequence, output_tokens: int) -> None:
        """The sequence has come to its own end, of which `output_tokens` count."""
        self.tally.outputs += 1
        self.tally.output_tokens += output_tokens
        self.close(sequence)

    def close(self, sequence: Sequence) -> None:
        """The sequence ends here and now; legal in every state but the last."""
        if sequence.is_running:
            self.schedule.leave(sequence)
        else:
            self.schedule.dequeue(sequence)
        sequence.move(SequenceEvent.ENDED)
        self.exchange.leave(sequence.id)
        del self._sequences[sequence.id]

    # Steps

    def plan(self, now: Nanos) -> BatchPlan | None:
        """The next step, or None if there is nothing to compute. Preempts where blocks are short."""
        if self.schedule.is_idle:
            return None
        decision = self._decide()
        if not self.schedule.decoding and not decision.decodes and not decision.prefills:
            return None
        self._step = StepNumber(self._step + 1)
        starts = self._begin(decision, now)
        rows, planned, work = self._rows(decision)
        self._steps.append(RunningStep(self._step, now, tuple(planned), work, Nanos(int(predict(self.rates, work)))))
        return BatchPlan(self._step, self.schedule.take_departures(), starts, rows)

    def _decide(self) -> BatchDecision:
        """Where blocks are short, transfers give theirs up first, one after another; then a sequence is preempted."""
        while True:
            view = self.schedule.view()
            if self.exchange.is_releasing:
                view = attrs.evolve(view, is_releasing=True)
            decision = choose(view)
            if isinstance(decision, BatchDecision) and not self._is_stuck(decision):
                return decision
            if self.exchange.yield_blocks():
                self.take_arrivals()
            elif isinstance(decision, BatchDecision):
                return decision
            else:
                self._preempt(self._sequences[decision.victim][1])

    def _is_stuck(self, decision: BatchDecision) -> bool:
        """Whether nothing runs or will, and somebody in the queue lacks blocks."""
        is_empty = not self._steps and not self.schedule.running and not decision.prefills
        return is_empty and any(reason is LeftOut.NO_BLOCKS for _, reason in decision.left_out)

    def _begin(self, decision: BatchDecision, now: Nanos) -> tuple[SequenceStart, ...]:
        starts: list[SequenceStart] = []
        for sequence_id in decision.begins:
            request, sequence = self._sequences[sequence_id]
            cached = min(self.schedule.begin(sequence), sequence.prompt_tokens)
            self.exchange.use(sequence_id, sequence.chain)
            starts.append(start_of(request, sequence))
            if not sequence.has_begun:
                sequence.has_begun = True
                self.tally.tokens_cached += cached
            if not request.is_accepted:
                request.is_accepted = True
                waited = Nanos(now - request.received_ns)
                self._outbox.say(request.peer, Accepted(request.id, request.submit.attempt, cached, waited))
        return tuple(starts)

    def _rows(self, decision: BatchDecision) -> tuple[tuple[Row, ...], list[PlannedRow], StepWork]:
        rows: list[Row] = []
        planned: list[PlannedRow] = []
        owned = self._sequences
        decodes = [owned[sequence.id] for sequence in self.schedule.decoding]
        for sequence_id in decision.decodes:
            owned[sequence_id][1].table += tuple(self.pool.allocate(1))
            decodes.append(owned[sequence_id])
        context = plan_decodes(decodes, self._step, rows, planned)
        tokens = pairs = 0
        for portion in decision.prefills:
            request, sequence = self._sequences[portion.sequence]
            row, memory = plan_prefill(request, sequence, portion.tokens, self._block_size, self._step)
            rows.append(row)
            planned.append(memory)
            tokens += portion.tokens
            pairs += prefill_pairs(portion.tokens, row.start)
        return tuple(rows), planned, StepWork(tokens, pairs, len(decodes), context)

    def _preempt(self, sequence: Sequence) -> None:
        assert len(self.schedule.running) > 1, "one sequence alone fits in the pool"
        self.schedule.leave(sequence)
        sequence.move(SequenceEvent.PREEMPTED)
        sequence.preemptions += 1
        self.tally.preemptions += 1
        self._requeue(sequence)

    def _requeue(self, sequence: Sequence) -> None:
        request = self._sequences[sequence.id][0]
        self.prefilling[request.id] = request
        sequence.extend_chain(self._block_size)
        self.schedule.enqueue(sequence, self.schedule.reach(sequence))

    def complete(self, now: Nanos, result: StepResult) -> list[LiveRequest]:
        """Takes what the oldest running step brought. Answers the requests of sequences in it that have ended.

        Keys and values are in their blocks now; what is complete becomes resident, whoever has left meanwhile.
        """
        step = self._steps.popleft()
        assert result.step == step.number
        self.rates = correct(self.rates, step.work, now - max(step.launched_ns, self._completed_ns))
        self._completed_ns = now
        self.tally.steps += 1
        self.tally.tokens_computed += step.work.prefill
        self._tell_scores(step, result.prompt_logprobs)
        samples = zip(result.slots, result.tokens, result.logprobs, strict=True)
        ended: list[LiveRequest] = []
        size, decoding, over = self._block_size, SequenceState.DECODING, SequenceState.ENDED
        for row in step.rows:
            request, sequence, life, end, is_sampling, row_slot, _, _ = row
            sequence.in_flight -= 1
            token, logprobs = 0, None
            if is_sampling:
                slot, token, logprobs = next(samples)
                assert slot == row_slot
            if token == NOT_FINITE:
                self._fault(row, Finish.NOT_FINITE)
            elif life == sequence.life:
                sequence.failures = 0
                sequence.sampling -= is_sampling
                sequence.computed = max(sequence.computed, end)
                if sequence.computed >= (sequence.published + 1) * size:
                    self.schedule.publish(sequence)
                if sequence.state is not decoding:
                    self._end_prefill(sequence)
                if is_sampling and sequence.state is not over:
                    self._take_token(request, sequence, token, logprobs)
            if sequence.state is not decoding:
                self._settle(sequence)
                if sequence.state is over:
                    ended.append(request)
        self.pool.complete(step.number)
        return ended

    def streak(self) -> int:
        """How many steps from the running one on will only decode what runs now, without completing or taking a block
        and before any choice is at its length, if nothing but their completion happens."""
        if len(self._steps) != 1 or self.schedule.waiting or self.pool.is_releasing:
            return 0
        step, size = self._steps[0], self._block_size
        if step.work.prefill or step.work.decode != len(self.schedule.running):
            return 0
        ends = [row.end for row in step.rows]
        to_length = [row.sequence.tokens_max - row.end for row in step.rows]
        return min(min(to_length) - 1, size - 1 - max([(end - 1) % size for end in ends])) if ends else 0

    def complete_streak(self, ends_ns: tuple[Nanos, ...], tokens: tuple[tuple[int, ...], ...]) -> None:
        """`StepsCompleted`: what as many calls of `complete`, with `plan` between them, would leave."""
        assert len(ends_ns) <= self.streak()
        step = self._steps.popleft()
        work, launched_ns = step.work, step.launched_ns
        for end_ns in ends_ns:
            self.rates = correct(self.rates, work, end_ns - max(launched_ns, self._completed_ns))
            self._completed_ns = launched_ns = end_ns
            work = StepWork(0, 0, work.decode, work.decode_context + work.decode)
        later = len(ends_ns) - 1
        self.tally.steps += later + 1
        self._step = StepNumber(step.number + later)
        for row, taken in zip(step.rows, tokens, strict=True):
            sequence = row.sequence
            self._outbox.put_tokens(row.request, sequence.id.choice, sequence.outputs, taken)
            sequence.history.extend(taken)
            sequence.in_flight = sequence.sampling = sequence.failures = 0
            sequence.computed = sequence.planned = row.end + later
            sequence.last_step = self._step
        self.pool.complete(self._step)

    def fail(self, now: Nanos, number: StepNumber) -> list[LiveRequest]:
        """The oldest running step raised: its sequences compute again what is not resident. Answers as `complete`."""
        step = self._steps.popleft()
        assert number == step.number
        self._completed_ns = now
        self.tally.steps_failed += 1
        for row in step.rows:
            row.sequence.in_flight -= 1
            self._lose_row(row)
            self._settle(row.sequence)
        self.pool.complete(number)
        return [row.request for row in step.rows if row.sequence.state is SequenceState.ENDED]

    def _end_prefill(self, sequence: Sequence) -> None:
        if sequence.state is SequenceState.PREFILLING and sequence.computed == sequence.prefill_end:
            sequence.move(SequenceEvent.PREFILLED)
            if len(sequence.history) == sequence.tokens_max:
                self.close(sequence)

    def _take_token(self, request: LiveRequest, sequence: Sequence, token: int, logprobs: TokenLogprobs | None) -> None:
        history, stop = sequence.history, request.submit.stop
        index = len(history) - sequence.prompt_tokens
        history.append(token)
        finish = None
        if token in stop.ends and index >= stop.output_tokens_min:
            finish = Finish.END_TOKEN
        elif len(history) == sequence.tokens_max:
            finish = Finish.LENGTH
        self._outbox.put_token(request, sequence.id.choice, index, token, logprobs, finish)
        if finish is not None:
            self.finish(sequence, sequence.outputs)
        elif not sequence.is_running:
            sequence.extend_chain(self._block_size)
            self.schedule.expect(sequence)

    def _lose_row(self, row: PlannedRow) -> None:
        sequence = row.sequence
        if row.life != sequence.life:
            return
        sequence.failures += 1
        if sequence.failures == FAILURES_MAX or sequence.state is SequenceState.ENDED:
            self._fault(row, Finish.STEP_FAILED)
            return
        sequence.life += 1
        sequence.sampling = 0
        was_running = sequence.is_running
        if was_running:
            self.schedule.leave(sequence)
        sequence.move(SequenceEvent.STEP_LOST)
        if was_running:
            self._requeue(sequence)

    def _fault(self, row: PlannedRow, finish: Finish) -> None:
        """Ends the sequence with a row without token. What it wrote last, and what still runs of it, counts nothing."""
        sequence = row.sequence
        if row.life != sequence.life:
            return
        sequence.life += 1
        if sequence.state is SequenceState.ENDED:
            return
        row.request.has_failed |= finish is Finish.STEP_FAILED
        self._outbox.put_token(row.request, sequence.id.choice, sequence.outputs, NOT_FINITE, None, finish)
        self.close(sequence)

    def _settle(self, sequence: Sequence) -> None:
        """Once no step runs for a sequence that has left, nobody needs to wait for its blocks."""
        if not sequence.in_flight and not sequence.is_running:
            self.schedule.disown(sequence, sequence.published)

    def _tell_scores(self, step: RunningStep, runs: tuple[PromptLogprobs, ...]) -> None:
        """Each position once, in order, although a resumed sequence scores its prompt again."""
        if not runs:
            return
        by_slot = {row.slot: row for row in step.rows}
        for run in runs:
            row = by_slot[run.slot]
            scored, end = row.sequence.scored, run.start + len(run.entries)
            if row.life != row.sequence.life or row.sequence.state is SequenceState.ENDED:
                continue
            assert scored is not None
            assert run.start <= scored
            if scored < end:
                submit = row.request.submit
                entries = run.entries[scored - run.start :]
                self._outbox.say(row.request.peer, PromptScored(submit.request, submit.attempt, scored, entries))
                row.sequence.scored = end

    def digest_parts(self) -> tuple[object, ...]:
        return (
            self.pool.digest_parts(),
            self.schedule.digest_parts(),
            [sequence.digest_parts() for _, sequence in self._sequences.values()],
            [
                (step.number, step.launched_ns, step.predicted_ns, [(row[2:], row.sequence.id) for row in step.rows])
                for step in self._steps
            ],
            (self._step, self._completed_ns, self.rates, attrs.astuple(self.tally)),
        )
