"""Random histories of a worker: every law after every event, and every token that of a request alone."""

from typing import Any

import attrs
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule
from typing_extensions import override

from lmpool.core.events import DrainOrdered, PeerJoined, PeerLost, Received
from lmpool.core.ids import MILLISECOND, SECOND, Nanos, RequestId
from lmpool.core.messages.ingress_worker import ClearCache, EndReason, Finish, Submit
from lmpool.core.messages.worker_control import ReportWanted
from lmpool.core.prefix import pack_tokens
from tests.core.worker_world import CONTROL, DRAWN, GREEDY, INGRESS, World, expected, prompt_of

COUNTERS = st.integers(0, 30)
STEPS_TO_IDLE = 4000


class WorkerMachine(RuleBasedStateMachine):
    @initialize(
        in_flight=st.sampled_from([1, 2]),
        blocks=st.integers(6, 24),
        step_tokens=st.integers(5, 40),
        sequences=st.integers(2, 5),
    )
    def begin(self, in_flight: int, blocks: int, step_tokens: int, sequences: int) -> None:
        self.world = World(
            steps_in_flight_max=in_flight,
            blocks=blocks,
            step_tokens_max=step_tokens,
            sequences_max=sequences,
            waiting_requests_max=12,
            class_ns=Nanos(20 * MILLISECOND),
        )
        self.counter = 0
        self.finished: dict[tuple[RequestId, int], None] = {}

    @rule(
        kind=st.integers(1, 3),
        size=st.integers(1, 90),
        length=st.integers(1, 40),
        choices=st.integers(1, 3),
        priority=st.integers(-2, 2),
        is_drawn=st.booleans(),
        is_scored=st.booleans(),
        patience_ns=st.none() | st.integers(1, 60).map(lambda ms: ms * MILLISECOND),
        ends=st.sampled_from([(), tuple(range(0, 1000, 13))]),
    )
    def submit(self, kind: int, size: int, length: int, choices: int, **rest: Any) -> None:
        world = self.world
        self.counter += 1
        patience = rest["patience_ns"]
        world.submit(
            self.counter,
            prompt_of(size, kind),
            length=length,
            minimum=length // 4,
            ends=rest["ends"],
            choices=tuple(range(choices)),
            sampling=DRAWN if rest["is_drawn"] else GREEDY,
            prompt_logprobs=0 if rest["is_scored"] else None,
            priority=rest["priority"],
            arrived_ns=world.now,
            deadline_ns=None if patience is None else Nanos(world.now + patience),
        )

    @precondition(lambda self: self.counter > 0)
    @rule(data=st.data(), share=st.integers(0, 4))
    def submit_newer_attempt(self, data: st.DataObject, share: int) -> None:
        """As after the loss of a worker: with part of the outputs, whether or not the old attempt is still live."""
        world = self.world
        counter = data.draw(st.integers(1, self.counter))
        submit = world.submits[RequestId(INGRESS.epoch, counter)]
        open_choices = [choice for choice in submit.choices if len(expected(submit, choice)) > 1]
        if open_choices:
            outputs = [expected(submit, choice) for choice in open_choices]
            outputs = [output[: min(share * 3, len(output) - 1)] for output in outputs]
            for choice in open_choices:
                world.finishes.pop((submit.request, choice), None)
            world.scores.pop(submit.request, None)
            world.send_submit(
                attrs.evolve(
                    submit,
                    attempt=submit.attempt + 1,
                    choices=tuple(open_choices),
                    outputs=tuple(pack_tokens(output) for output in outputs),
                    deadline_ns=None,
                )
            )

    @rule(counter=COUNTERS)
    def abort(self, counter: int) -> None:
        self.world.abort(counter)

    @rule(counter=COUNTERS, choice=st.integers(0, 3))
    def finish_choice(self, counter: int, choice: int) -> None:
        output = self.world.outputs.get((RequestId(INGRESS.epoch, counter), choice), [])
        self.finished[RequestId(INGRESS.epoch, counter), choice] = None
        self.world.finish(counter, choice, max(len(output) - 1, 0))

    @precondition(lambda self: self.world.runner.launched)
    @rule(count=st.integers(1, 8))
    def complete(self, count: int) -> None:
        for _ in range(count):
            if self.world.runner.launched:
                self.world.complete_step()

    @precondition(lambda self: self.world.runner.launched)
    @rule()
    def fail(self) -> None:
        self.world.fail_step()

    @precondition(lambda self: self.world.runner.launched)
    @rule(data=st.data())
    def not_finite(self, data: st.DataObject) -> None:
        slots = [row.slot for row in self.world.runner.launched[0].rows if row.samples]
        if slots:
            self.world.runner.not_finite.add(data.draw(st.sampled_from(slots)))
            self.world.complete_step()

    @rule(after_ms=st.integers(0, 700))
    def wait(self, after_ms: int) -> None:
        self.world.tick(after_ms * MILLISECOND)

    @rule()
    def clear_cache(self) -> None:
        self.world.feed(Received(INGRESS, ClearCache(5)))

    @rule()
    def lose_ingress(self) -> None:
        world = self.world
        world.feed(PeerLost(INGRESS))
        for submit in world.submits.values():
            world.ended.setdefault((submit.request, submit.attempt), EndReason.ABORTED)
        assert world.worker.snapshot().requests == 0
        world.feed(PeerJoined(INGRESS))

    @rule()
    def lose_control(self) -> None:
        self.world.feed(PeerLost(CONTROL))
        self.world.tick(SECOND)
        self.world.feed(PeerJoined(CONTROL))

    @rule()
    def want_report(self) -> None:
        self.world.feed(Received(CONTROL, ReportWanted()))

    @override
    def teardown(self) -> None:
        if not hasattr(self, "world"):
            return
        world = self.world
        world.feed(DrainOrdered())
        world.run(STEPS_TO_IDLE)
        world.assert_idle()
        for submit in world.submits.values():
            self.check_end(submit)

    def check_end(self, submit: Submit) -> None:
        """Refused or ended; and complete choices are as long as they should be, unless their client finished them."""
        world = self.world
        if submit.request in world.refused:
            assert submit.request not in world.accepted
            return
        end = world.ended[submit.request, submit.attempt]
        for choice in submit.choices:
            output, reference = (table[submit.request, choice] for table in (world.outputs, world.references))
            finish = world.finishes.get((submit.request, choice))
            if finish in (Finish.END_TOKEN, Finish.LENGTH):
                assert output == reference or len(submit.prompt) // 4 + len(output) == world.settings.blocks * 8
            assert finish is not None or end is not EndReason.COMPLETE or (submit.request, choice) in self.finished


TestWorkerMachine = WorkerMachine.TestCase
