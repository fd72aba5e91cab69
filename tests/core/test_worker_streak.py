"""`StepsCompleted` leaves what as many single steps leave: the simulator may use it wherever `streak` allows."""

from collections.abc import Sequence

import attrs
from hypothesis import given
from hypothesis import strategies as st

from lmpool.core.effects import RunStep, Send, WorkerEffect
from lmpool.core.events import PeerJoined, Received, StepCompleted, StepsCompleted, Tick, WorkerEvent
from lmpool.core.ids import MILLISECOND, Nanos, RequestId
from lmpool.core.messages.ingress_worker import Abort, Submit, TokensProduced
from lmpool.core.messages.worker_control import Report
from lmpool.core.plan import BatchPlan, Row, StepResult
from lmpool.core.worker import Worker
from tests.core.worker_world import CONTROL, INGRESS, SETTINGS, make_submit, prompt_of


@attrs.frozen
class Arrival:
    at_ns: Nanos
    message: Submit | Abort


def token_of(row: Row, index: int) -> int:
    """Any rule will do, as long as both ways to complete steps follow it."""
    return 3 + (row.slot * 7 + row.start + row.length + index) % 500


class Clockwork:
    """Runs a worker through arrivals. A step lasts what its number says."""

    def __init__(self, block_size: int, takes_streaks: bool) -> None:
        self._worker = Worker(attrs.evolve(SETTINGS, blocks=64, block_size=block_size), Nanos(0))
        self._takes_streaks = takes_streaks
        self._now = Nanos(0)
        self._began = Nanos(0)
        self._plan: BatchPlan | None = None
        self.tokens: dict[tuple[int, int], list[int]] = {}
        self.others: list[object] = []
        """Everything said but tokens, and reports with the time."""
        self.shortcuts = 0
        self.feed(PeerJoined(CONTROL))
        self.feed(PeerJoined(INGRESS))

    def feed(self, event: WorkerEvent) -> None:
        for effect in self._worker.handle(self._now, event):
            self._perform(effect)

    def _perform(self, effect: WorkerEffect) -> None:
        if isinstance(effect, RunStep):
            self._plan, self._began = effect.plan, self._now
        else:
            assert isinstance(effect, Send)
            message = effect.message
            if isinstance(message, TokensProduced):
                rows = zip(message.requests, message.choices, message.output_indexes, message.tokens, strict=True)
                for request, choice, index, token in rows:
                    produced = self.tokens.setdefault((request, choice), [])
                    assert index == len(produced)
                    produced.append(token)
            else:
                self.others.append((self._now, message) if isinstance(message, Report) else message)

    def _end_of(self, number: int) -> Nanos:
        return Nanos(self._began + (3 + number % 5) * MILLISECOND)

    def run_until(self, limit: Nanos) -> None:
        """Completes all steps that end before `limit`, and lets alarms ring in between."""
        while True:
            alarm = self._worker.next_deadline()
            end = None if self._plan is None else self._end_of(self._plan.step)
            if min(alarm, limit, *([end] if end is not None else [])) >= limit:
                self._now = limit
                return
            if end is None or alarm < end:
                self._now = alarm
                self.feed(Tick())
            else:
                self._complete(min(limit - 1, alarm))

    def _complete(self, last: int) -> None:
        """The running step, and with streaks those after it that end at `last` or before."""
        plan = self._plan
        assert plan is not None
        self._plan = None
        ends = [self._end_of(plan.step)]
        if self._takes_streaks:
            self._began = ends[0]
            while len(ends) < self._worker.streak() and self._end_of(plan.step + len(ends)) <= last:
                ends.append(self._end_of(plan.step + len(ends)))
                self._began = ends[-1]
        self._now = ends[-1]
        if len(ends) > 1:
            self.shortcuts += 1
            tokens = tuple(tuple(token_of(row, index) for index in range(len(ends))) for row in plan.rows)
            self.feed(StepsCompleted(tuple(ends), tokens))
        else:
            sampling = [row for row in plan.rows if row.samples]
            result = tuple(token_of(row, 0) for row in sampling)
            slots = tuple(row.slot for row in sampling)
            self.feed(StepCompleted(StepResult(plan.step, slots, result, (None,) * len(slots), ())))

    def digest(self) -> bytes:
        return self._worker.digest()


def play(arrivals: Sequence[Arrival], block_size: int, takes_streaks: bool) -> Clockwork:
    clockwork = Clockwork(block_size, takes_streaks)
    for arrival in arrivals:
        clockwork.run_until(arrival.at_ns)
        clockwork.feed(Received(INGRESS, arrival.message))
    clockwork.run_until(Nanos(arrivals[-1].at_ns + 3000 * MILLISECOND))
    return clockwork


@st.composite
def arrivals(draw: st.DrawFn) -> list[Arrival]:
    found: list[Arrival] = []
    at_ns = 0
    for counter in range(draw(st.integers(1, 6))):
        at_ns += draw(st.integers(0, 60)) * MILLISECOND
        prompt = prompt_of(draw(st.integers(1, 60)), draw(st.integers(0, 2)))
        submit = make_submit(counter, prompt, length=draw(st.integers(1, 80)), block_size=draw(st.just(32)))
        found.append(Arrival(Nanos(at_ns), submit))
        if draw(st.booleans()):
            at_ns += draw(st.integers(0, 60)) * MILLISECOND
            found.append(Arrival(Nanos(at_ns), Abort(RequestId(INGRESS.epoch, draw(st.integers(0, counter))))))
    return found


@given(arrivals())
def test_streaks_and_single_steps_leave_the_same(events: list[Arrival]) -> None:
    single, streaks = play(events, 32, takes_streaks=False), play(events, 32, takes_streaks=True)
    assert streaks.tokens == single.tokens
    assert streaks.others == single.others
    assert streaks.digest() == single.digest()


def test_a_long_answer_alone_is_a_few_streaks() -> None:
    submit = make_submit(1, prompt_of(5, 1), length=300, block_size=32)
    clockwork = play([Arrival(Nanos(0), submit)], 32, takes_streaks=True)
    assert len(clockwork.tokens[1, 0]) == 300
    assert 300 // 32 <= clockwork.shortcuts <= 300 // 32 + 6


def test_no_streak_with_a_prefill_a_queue_or_nothing() -> None:
    worker = Worker(attrs.evolve(SETTINGS, block_size=32, sequences_max=1), Nanos(0))
    assert worker.streak() == 0
    worker.handle(Nanos(0), PeerJoined(INGRESS))
    effects = worker.handle(Nanos(0), Received(INGRESS, make_submit(1, prompt_of(5, 1), length=50, block_size=32)))
    assert worker.streak() == 0
    plan = next(effect.plan for effect in effects if isinstance(effect, RunStep))
    worker.handle(Nanos(1), StepCompleted(StepResult(plan.step, (plan.rows[0].slot,), (9,), (None,), ())))
    assert worker.streak() == 26, "up to the end of the block"
    worker.handle(Nanos(1), Received(INGRESS, make_submit(2, prompt_of(5, 2), length=50, block_size=32)))
    assert worker.streak() == 0
