"""A simulated device runs one step after the other; what fails leaves what real devices may leave."""

from random import Random

import attrs

from lmpool.core.events import StepCompleted, StepFailed
from lmpool.core.ids import BlockId, Nanos, Slot, StepNumber
from lmpool.core.plan import NOT_FINITE, BatchPlan, Row, SequenceStart
from lmpool.core.prefix import pack_tokens
from lmpool.core.rates import Rates
from lmpool.core.sampling import greedy
from lmpool.sim.integer_model import IntegerRunner, fresh_slots
from lmpool.sim.swarm.device import PACE, RAN, Device
from lmpool.sim.swarm.knobs import FaultKnobs, draw_knobs
from lmpool.sim.timeline import Timeline

RATES = Rates(step=1000.0, prefill=10.0, prefill_context=0.0, decode=100.0, decode_context=0.0)
FINE = draw_knobs(0).healed
PROMPT = (1, 2, 3)
SEEDS = range(40)


class Bench:
    """One sequence in slot 0: its prompt, then decodes."""

    def __init__(self, seed: int) -> None:
        self.timeline = Timeline(Nanos(0))
        self.runner = IntegerRunner(8, fresh_slots(8, 4), 1000, RATES, pause=lambda _: None)
        self.ends: list[tuple[int, StepCompleted | StepFailed]] = []
        self.device = Device(self.timeline, Random(seed), self.runner, RATES, self.collect)
        self.steps = 0

    def collect(self) -> None:
        self.ends.append((self.timeline.now, self.device.collect()))

    def prefill(self, faults: FaultKnobs) -> bool:
        start = SequenceStart(Slot(0), greedy(1), (), pack_tokens(PROMPT), len(PROMPT), None)
        departures = (Slot(0),) if self.steps else ()
        return self.run(departures, (start,), Row(Slot(0), 0, PROMPT, (BlockId(0),), True, True, 0.0, False), faults)

    def decode(self, position: int) -> bool:
        return self.run((), (), Row(Slot(0), position, (), (BlockId(0),), True, True, 0.0, False), FINE)

    def run(
        self, departures: tuple[Slot, ...], starts: tuple[SequenceStart, ...], row: Row, faults: FaultKnobs
    ) -> bool:
        self.steps += 1
        return self.device.run(BatchPlan(StepNumber(self.steps), departures, starts, (row,)), faults)

    def finish(self) -> None:
        while self.timeline.advance():
            pass


def test_steps_follow_each_other_and_take_their_time() -> None:
    bench = Bench(3)
    assert not bench.prefill(FINE)
    assert not bench.decode(3)
    bench.finish()
    (first, one), (second, two) = bench.ends
    assert isinstance(one, StepCompleted)
    assert isinstance(two, StepCompleted)
    assert (one.result.step, two.result.step) == (1, 2)
    assert PACE[0] * 1030 <= first <= PACE[1] * 1030
    assert PACE[0] * 1100 <= second - first <= PACE[1] * 1100


def test_a_step_that_fails_brings_nothing_and_what_goes_on_from_it_may_fail_too() -> None:
    causes: list[str] = []
    for seed in SEEDS:
        bench = Bench(seed)
        assert bench.prefill(attrs.evolve(FINE, step_fails=1.0))
        follower_fails = bench.decode(3)
        bench.finish()
        first, second = (end for _, end in bench.ends)
        assert isinstance(first, StepFailed)
        causes.append(first.cause)
        assert follower_fails == isinstance(second, StepFailed) == (first.cause != RAN)
        assert not bench.prefill(FINE)
        bench.finish()
        assert isinstance(bench.ends[-1][1], StepCompleted)
    assert len(dict.fromkeys(causes)) == 2


def test_one_row_may_sample_nothing() -> None:
    bench = Bench(1)
    assert bench.prefill(attrs.evolve(FINE, step_not_finite=1.0))
    bench.finish()
    ((_, end),) = bench.ends
    assert isinstance(end, StepCompleted)
    assert end.result.tokens == (NOT_FINITE,)
