"""The device of one life of a worker: runs its plans one after the other. Some steps go wrong."""

from collections import deque
from collections.abc import Callable
from random import Random
from typing import TypeAlias

from lmpool.core.events import StepCompleted, StepFailed
from lmpool.core.ids import Nanos
from lmpool.core.plan import NOT_FINITE, BatchPlan, StepResult
from lmpool.core.rates import Rates
from lmpool.sim.integer_model import IntegerRunner, step_cost
from lmpool.sim.swarm.knobs import FaultKnobs
from lmpool.sim.timeline import Timeline

StepEnd: TypeAlias = StepCompleted | StepFailed

PACE = (0.7, 1.6)
"""A step takes this much of what its rates say."""
RAN = "it ran and failed"
LAUNCH_FAILS = 0.3
"""Share of the steps that fail that do so before they begin anything."""


class Device:
    def __init__(
        self, timeline: Timeline, chance: Random, runner: IntegerRunner, rates: Rates, ring: Callable[[], None]
    ) -> None:
        """`ring` is called when a step is over, which is then to be collected."""
        self._timeline = timeline
        self._chance = chance
        self._runner = runner
        self._rates = rates
        self._ring = ring
        self._free_at = Nanos(0)
        self._ends: deque[StepEnd] = deque()
        self._lost = 0
        """Steps not collected that did not run: those launched after them may find nothing to go on from."""

    def run(self, plan: BatchPlan, faults: FaultKnobs) -> bool:
        """Answers whether it will go wrong."""
        end = self._compute(plan, faults)
        cost = step_cost(self._rates, plan) * self._chance.uniform(*PACE)
        self._free_at = Nanos(max(self._free_at, self._timeline.now) + int(cost))
        self._ends.append(end)
        self._timeline.at(self._free_at, self._ring)
        return isinstance(end, StepFailed) or NOT_FINITE in end.result.tokens

    def collect(self) -> StepEnd:
        """The oldest step that runs is over."""
        end = self._ends.popleft()
        if isinstance(end, StepFailed) and end.cause != RAN:
            self._lost -= 1
        return end

    def _compute(self, plan: BatchPlan, faults: FaultKnobs) -> StepEnd:
        fails = self._chance.random() < faults.step_fails
        if fails and self._chance.random() < LAUNCH_FAILS:
            self._lost += 1
            self._launch(BatchPlan(plan.step, plan.departures, (), ()))
            return StepFailed(plan.step, "it was not launched")
        result = self._launch(plan)
        if result is None:
            self._lost += 1
            return StepFailed(plan.step, "a step before it did not run")
        if fails:
            self._runner.spoil(plan)
            return StepFailed(plan.step, RAN)
        if faults.step_not_finite and result.tokens and self._chance.random() < faults.step_not_finite:
            result = _not_finite(result, self._chance.randrange(len(result.tokens)))
        return StepCompleted(result)

    def _launch(self, plan: BatchPlan) -> StepResult | None:
        """None: it goes on from something that was to come of a step that did not run."""
        try:
            self._runner.launch(plan)
        except (KeyError, AssertionError):
            if not self._lost:
                raise
            return None
        return self._runner.collect()


def _not_finite(result: StepResult, index: int) -> StepResult:
    tokens = (*result.tokens[:index], NOT_FINITE, *result.tokens[index + 1 :])
    return StepResult(result.step, result.slots, tokens, result.logprobs, result.prompt_logprobs)
