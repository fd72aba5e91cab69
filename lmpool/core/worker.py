"""The worker machine: one rank's requests, blocks and steps behind one door.

It plans a step whenever fewer than `steps_in_flight_max` run and there is something to compute (`batch.py`), carried
through in `execution.py`. What happens to a sequence is in `sequence.py`, to a block in `block.py`.
"""

from hashlib import blake2b
from typing import assert_never

import attrs

from lmpool.core.batch import PrefillOrder
from lmpool.core.block_pool import BlockCounts, BlockPool
from lmpool.core.deadlines import Deadlines
from lmpool.core.effects import RunStep, WorkerEffect
from lmpool.core.events import (
    BlocksCopied,
    BlocksSent,
    CopyFailed,
    DrainOrdered,
    PeerJoined,
    PeerLost,
    Received,
    SendFailed,
    StepCompleted,
    StepFailed,
    StepsCompleted,
    Tick,
    WorkerEvent,
)
from lmpool.core.execution import Execution
from lmpool.core.ids import Epoch, Nanos, Peer, Rank, RequestId, Role
from lmpool.core.live_request import LiveRequest, fits, has_its_chain, sequences_of
from lmpool.core.messages import Message
from lmpool.core.messages.ingress_worker import (
    Abort,
    CacheCleared,
    ClearCache,
    Ended,
    EndReason,
    FinishChoice,
    RefusalReason,
    Refused,
    Submit,
)
from lmpool.core.messages.transfer import TransferOrder
from lmpool.core.messages.worker_control import DrainBegun, ReportWanted, Totals, WorkerJoined
from lmpool.core.outbox import Outbox
from lmpool.core.prefix import TOKEN_BYTES
from lmpool.core.rates import Rates
from lmpool.core.report import Reporter
from lmpool.core.schedule import Schedule
from lmpool.core.step_cost import StepWork, predict
from lmpool.core.transfer.exchange import Exchange, ExchangeSnapshot


@attrs.frozen
class WorkerSettings:
    rank: Rank
    epoch: Epoch
    namespace_base: bytes
    block_size: int
    blocks: int
    model_tokens_max: int
    """Longest context that the model and the operator allow; in force is what the pool can hold, if that is less."""
    step_tokens_max: int
    sequences_max: int
    prefill_order: PrefillOrder
    steps_in_flight_max: int
    waiting_requests_max: int
    """Sequences in the queue; a request too large for that is taken when the queue is empty."""
    waiting_tokens_max: int
    """Prefill tokens that they have to compute, likewise."""
    report_interval_ns: Nanos
    class_ns: Nanos
    """What a priority class is worth in waiting: after so much more of it, a request goes before the next class."""
    rates: Rates


@attrs.frozen
class WorkerSnapshot:
    blocks: BlockCounts
    blocks_reclaimed: int
    waiting: int
    waiting_tokens: int
    running: int
    requests: int
    """Live."""
    requests_taken: int
    requests_refused: int
    steps_in_flight: int
    totals: Totals
    messages_stray: int
    """Of a kind that no worker expects, or about a request of another ingress; dropped."""
    is_draining: bool
    rates: Rates
    exchange: ExchangeSnapshot


class Worker:
    __slots__ = (
        "_control",
        "_deadlines",
        "_exchange",
        "_execution",
        "_is_draining",
        "_live",
        "_outbox",
        "_peers",
        "_refused",
        "_report_due_ns",
        "_reporter",
        "_settings",
        "_strays",
        "_taken",
        "_tokens_max",
    )

    def __init__(self, settings: WorkerSettings, now: Nanos) -> None:
        assert settings.steps_in_flight_max in (1, 2)
        assert settings.sequences_max <= settings.step_tokens_max
        pool = BlockPool(settings.blocks)
        self._outbox = Outbox()
        self._exchange = Exchange(pool, self._outbox)
        slots, order = settings.sequences_max, settings.prefill_order
        schedule = Schedule(pool, settings.block_size, settings.step_tokens_max, slots, order)
        self._settings = settings
        self._tokens_max = min(settings.model_tokens_max, settings.blocks * settings.block_size)
        self._execution = Execution(pool, schedule, self._exchange, settings.block_size, settings.rates, self._outbox)
        self._live: dict[RequestId, LiveRequest] = {}
        self._deadlines = Deadlines()
        self._reporter = Reporter()
        self._report_due_ns = Nanos(now + settings.report_interval_ns)
        self._peers: dict[Peer, None] = {}
        self._control: Peer | None = None
        self._is_draining = False
        self._taken = 0
        self._refused = 0
        self._strays = 0

    def handle(self, now: Nanos, event: WorkerEvent) -> list[WorkerEffect]:
        exchange = self._exchange
        if exchange.has_deadlines:
            exchange.expire(now)
        self._hear(now, event)
        for request in self._deadlines.expired(now):
            self._end(self._live[request], EndReason.DEADLINE)
        if exchange.has_published or exchange.waiters.has_woken:
            self._execution.take_arrivals()
        effects = self._launch(now)
        has_stepped = isinstance(event, StepCompleted | StepFailed)
        if (
            now >= self._report_due_ns
            or exchange.has_published
            or (has_stepped and self._reporter.has_news(self._execution.pool, self._execution.tally))
        ):
            self._report(now)
            exchange.tell_published(self._reporter.version)
        return [*effects, *self._outbox.take(), *exchange.take_effects()]

    def _hear(self, now: Nanos, event: WorkerEvent) -> None:
        match event:
            case StepCompleted(result=result):
                self._end_complete(self._execution.complete(now, result))
            case Received(peer=peer, message=message):
                self._receive(now, peer, message)
            case Tick():
                pass
            case PeerJoined(peer=peer):
                self._join(peer)
            case PeerLost(peer=peer):
                self._lose(peer)
            case StepFailed(step=step):
                self._end_complete(self._execution.fail(now, step))
            case DrainOrdered():
                self._drain()
            case StepsCompleted(ends_ns=ends_ns, tokens=tokens):
                self._execution.complete_streak(ends_ns, tokens)
            case BlocksCopied() | CopyFailed() | BlocksSent() | SendFailed():
                self._exchange.take(now, event)
            case _:
                assert_never(event)

    def _launch(self, now: Nanos) -> list[WorkerEffect]:
        launched: list[WorkerEffect] = []
        while self._execution.steps_in_flight < self._settings.steps_in_flight_max:
            plan = self._execution.plan(now)
            if plan is None:
                break
            launched.append(RunStep(plan))
        return launched

    def streak(self) -> int:
        """How many steps a `StepsCompleted` may stand for now."""
        execution = self._execution
        return 0 if self._reporter.has_news(execution.pool, execution.tally) else execution.streak()

    def next_deadline(self) -> Nanos:
        earliest = self._deadlines.earliest()
        deadline = self._report_due_ns if earliest is None else min(earliest, self._report_due_ns)
        if self._exchange.has_deadlines:
            return min(deadline, self._exchange.next_deadline() or deadline)
        return deadline

    def snapshot(self) -> WorkerSnapshot:
        execution = self._execution
        schedule = execution.schedule
        return WorkerSnapshot(
            execution.pool.counts(),
            execution.pool.reclaimed,
            schedule.waiting,
            schedule.waiting_tokens,
            len(schedule.running),
            len(self._live),
            self._taken,
            self._refused,
            execution.steps_in_flight,
            execution.tally.totals(),
            self._strays + self._exchange.strays,
            self._is_draining,
            execution.rates,
            self._exchange.snapshot(),
        )

    def digest(self) -> bytes:
        """Of the whole state: equal for equal histories, whatever the hash seed."""
        parts = (
            self._execution.digest_parts(),
            [request.digest_parts() for request in self._live.values()],
            self._deadlines.digest_parts(),
            self._reporter.digest_parts(),
            (self._report_due_ns, list(self._peers), self._control, self._is_draining),
            (self._taken, self._refused, self._strays),
            self._exchange.digest_parts(),
        )
        return blake2b(repr(parts).encode(), digest_size=16).digest()

    def audit(self) -> None:
        """Asserts the laws of everything that the machine owns: for tests."""
        self._execution.schedule.audit(self._exchange.pinned())
        self._exchange.audit()
        assert all(request.open_sequences for request in self._live.values())

    # Messages

    def _receive(self, now: Nanos, peer: Peer, message: Message) -> None:
        match message:
            case Submit(request=request) | Abort(request=request) | FinishChoice(request=request) if (
                peer.role is not Role.INGRESS or request.ingress != peer.epoch
            ):
                self._strays += 1
            case Submit():
                self._take(now, peer, message)
            case Abort(request=request):
                if (live := self._live.get(request)) is not None:
                    self._end(live, EndReason.ABORTED)
            case FinishChoice(request=request, choice=choice, output_index=output_index):
                self._finish_choice(request, choice, output_index)
            case ClearCache(number=number):
                self._outbox.say(peer, CacheCleared(number, self._execution.pool.clear()))
            case ReportWanted():
                self._tell_everything(peer)
            case _ if isinstance(message, TransferOrder):
                self._exchange.hear(now, peer, message)
            case _:
                self._strays += 1

    def _take(self, now: Nanos, peer: Peer, submit: Submit) -> None:
        if (before := self._live.get(submit.request)) is not None:
            if submit.attempt <= before.submit.attempt:
                return
            self._end(before, EndReason.ABORTED)
        reason = self._why_refused(submit)
        if reason is not None:
            self._refused += 1
            retry = self._queue_ns() if reason is RefusalReason.QUEUE_FULL else Nanos(0)
            self._outbox.say(peer, Refused(submit.request, submit.attempt, reason, retry))
            return
        settings = self._settings
        sequences = sequences_of(submit, settings.block_size, self._tokens_max, settings.class_ns)
        request = LiveRequest(submit, peer, now, sequences, False, False, None)
        self._taken += 1
        self._live[submit.request] = request
        self._reporter.note_accepted(submit.request)
        if submit.deadline_ns is not None:
            self._deadlines.set(submit.request, submit.deadline_ns)
        self._execution.enqueue(now, request)
        if not request.open_sequences:
            self._end(request, EndReason.COMPLETE)

    def _why_refused(self, submit: Submit) -> RefusalReason | None:
        settings, schedule = self._settings, self._execution.schedule
        if self._is_draining:
            return RefusalReason.DRAINING
        if not fits(submit, self._tokens_max):
            return RefusalReason.NEVER_FITS
        if not has_its_chain(submit, settings.block_size):
            return RefusalReason.NAMESPACE_UNKNOWN
        tokens = len(submit.prompt) // TOKEN_BYTES
        is_full = (
            schedule.waiting + len(submit.choices) > settings.waiting_requests_max
            or schedule.waiting_tokens + tokens > settings.waiting_tokens_max
        )
        return RefusalReason.QUEUE_FULL if is_full and schedule.waiting else None

    def _queue_ns(self) -> Nanos:
        """Time to compute what is queued, in full steps."""
        tokens = self._execution.schedule.waiting_tokens
        steps = -(-tokens // self._settings.step_tokens_max)
        rates = self._execution.rates
        return Nanos(int(predict(rates, StepWork(tokens, 0, 0, 0)) + rates.step * (steps - 1)))

    def _finish_choice(self, request: RequestId, choice: int, output_index: int) -> None:
        live = self._live.get(request)
        if live is None:
            return
        for sequence in live.open_sequences:
            if sequence.id.choice == choice:
                self._execution.finish(sequence, output_index + 1)
        self._end_complete([live])

    # Requests end

    def _end_complete(self, touched: list[LiveRequest]) -> None:
        """Ends those of the requests that are live and have no open choice."""
        for request in touched:
            if self._live.get(request.id) is request and not request.open_sequences:
                self._end(request, EndReason.STEP_FAILED if request.has_failed else EndReason.COMPLETE)

    def _end(self, request: LiveRequest, reason: EndReason) -> None:
        for sequence in request.open_sequences:
            self._execution.close(sequence)
        del self._live[request.id]
        self._execution.prefilling.pop(request.id, None)
        self._deadlines.drop(request.id)
        self._reporter.note_ended(request.id)
        if request.peer in self._peers:
            self._outbox.say(request.peer, Ended(request.id, request.submit.attempt, reason))

    # Peers

    def _join(self, peer: Peer) -> None:
        self._peers[peer] = None
        if peer.role is Role.WORKER:
            return
        settings = self._settings
        self._outbox.say(
            peer,
            WorkerJoined(
                settings.namespace_base,
                settings.block_size,
                settings.blocks,
                self._tokens_max,
                settings.step_tokens_max,
                settings.sequences_max,
                self._execution.rates,
            ),
        )
        if self._is_draining:
            self._outbox.say(peer, DrainBegun())
        if peer.role is Role.CONTROL:
            self._control = peer
            self._exchange.join(peer)
            self._tell_everything(peer)

    def _lose(self, peer: Peer) -> None:
        self._peers.pop(peer, None)
        if peer == self._control:
            self._control = None
            self._exchange.lose_control()
        for request in [request for request in self._live.values() if request.peer == peer]:
            self._end(request, EndReason.ABORTED)

    def _drain(self) -> None:
        if not self._is_draining:
            self._is_draining = self._exchange.is_draining = True
            for peer in self._peers:
                self._outbox.say(peer, DrainBegun())

    # Reports

    def _report(self, now: Nanos) -> None:
        self._report_due_ns = Nanos(now + self._settings.report_interval_ns)
        execution = self._execution
        totals = execution.tally.totals()
        if self._control is None:
            self._reporter.forget(execution.pool, totals)
            return
        load = execution.load()
        report = self._reporter.changes(execution.pool, execution.prefilling, load, execution.rates, totals)
        self._outbox.say(self._control, report)

    def _tell_everything(self, peer: Peer) -> None:
        if peer != self._control:
            self._strays += 1
            return
        execution = self._execution
        load, totals = execution.load(), execution.tally.totals()
        for part in self._reporter.everything(execution.pool, self._live, load, execution.rates, totals):
            self._outbox.say(peer, part)
