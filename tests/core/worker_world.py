"""A worker machine with the integer runner, an ingress and a control that check what they hear."""

from typing import Any

import attrs

from lmpool.core.batch import PrefillOrder
from lmpool.core.effects import CancelCopy, CopyBlocks, CopyEffect, RunStep, Send, SendBlocks
from lmpool.core.events import (
    PeerJoined,
    Received,
    StepCompleted,
    StepFailed,
    Tick,
    WorkerEvent,
)
from lmpool.core.ids import MILLISECOND, SECOND, BlockHash, Epoch, Nanos, Peer, Rank, RequestId, Role
from lmpool.core.messages import Message
from lmpool.core.messages.ingress_worker import (
    Abort,
    Accepted,
    Ended,
    EndReason,
    Finish,
    FinishChoice,
    PromptScored,
    RefusalReason,
    Refused,
    Submit,
    TokensProduced,
)
from lmpool.core.messages.worker_control import FullReport, Report
from lmpool.core.prefix import extend_chain, namespace_digest, pack_tokens, split_chain, unpack_tokens
from lmpool.core.rates import Rates
from lmpool.core.sampling import StopSettings, greedy, uniform
from lmpool.core.worker import Worker, WorkerSettings
from tests.core.integer_runner import IntegerRunner, reference

INGRESS = Peer(Role.INGRESS, Rank(0), Epoch(1))
CONTROL = Peer(Role.CONTROL, Rank(0), Epoch(2))
BASE = b"base of namespace"
NAMESPACE = namespace_digest(BASE, None, "tenant", None)
RATES = Rates(step=5e6, prefill=2e5, prefill_context=10.0, decode=1e5, decode_context=100.0)
SETTINGS = WorkerSettings(
    rank=Rank(0),
    epoch=Epoch(3),
    namespace_base=BASE,
    block_size=8,
    blocks=64,
    model_tokens_max=4096,
    step_tokens_max=64,
    sequences_max=16,
    prefill_order=PrefillOrder.SHORT_BETWEEN,
    steps_in_flight_max=1,
    waiting_requests_max=64,
    waiting_tokens_max=100_000,
    report_interval_ns=Nanos(500 * MILLISECOND),
    class_ns=Nanos(10 * SECOND),
    rates=RATES,
)
GREEDY = greedy(7)
DRAWN = attrs.evolve(GREEDY, temperature=1.0)


def prompt_of(length: int, kind: int) -> list[int]:
    """Two prompts of one kind share their first tokens; of different kinds, none."""
    return [(kind * 131 + position * 17) % 1000 for position in range(length)]


def make_submit(counter: int, prompt: list[int], **changes: Any) -> Submit:
    """Changes: any field of `Submit`, or `choices`, `outputs_of` (lists of tokens), `length`, `minimum`, `ends`."""
    length, minimum = changes.pop("length", 4), changes.pop("minimum", 0)
    ends, size = changes.pop("ends", ()), changes.pop("block_size", SETTINGS.block_size)
    choices = changes.pop("choices", (0,))
    outputs = changes.pop("outputs_of", [[] for _ in choices])
    packed = pack_tokens(prompt)
    namespace = changes.get("namespace", NAMESPACE)
    fields: dict[str, Any] = {
        "request": RequestId(INGRESS.epoch, counter),
        "attempt": 0,
        "namespace": namespace,
        "prompt": packed,
        "chain": extend_chain(BlockHash(namespace), packed, size),
        "choices": choices,
        "outputs": tuple(pack_tokens(output) for output in outputs),
        "sampling": GREEDY,
        "stop": StopSettings(length, minimum, ends, ()),
        "prompt_logprobs": None,
        "priority": 0,
        "arrived_ns": Nanos(counter),
        "deadline_ns": None,
        "awaits": None,
    }
    return Submit(**{**fields, **changes})


def expected(submit: Submit, choice: int) -> list[int]:
    stop, sampling = submit.stop, submit.sampling
    count = stop.output_tokens_max
    chances = [uniform(sampling.seed, choice, index) if sampling.temperature > 0 else 0.0 for index in range(count)]
    return reference(list(unpack_tokens(submit.prompt)), count, stop.ends, stop.output_tokens_min, chances)


class World:
    def __init__(self, **changes: Any) -> None:
        self.settings = attrs.evolve(SETTINGS, **changes)
        self.worker = Worker(self.settings, Nanos(0))
        self.runner = IntegerRunner(self.settings.blocks, self.settings.block_size)
        self.now = Nanos(0)
        self.submits: dict[RequestId, Submit] = {}
        self.outputs: dict[tuple[RequestId, int], list[int]] = {}
        self.references: dict[tuple[RequestId, int], list[int]] = {}
        """Outputs of each choice alone and without cache."""
        self.finishes: dict[tuple[RequestId, int], Finish] = {}
        self.accepted: dict[RequestId, Accepted] = {}
        self.refused: dict[RequestId, RefusalReason] = {}
        self.ended: dict[tuple[RequestId, int], EndReason] = {}
        self.scores: dict[RequestId, list[float]] = {}
        self.resident: dict[bytes, None] = {}
        """What control knows from reports."""
        self.told_live: dict[RequestId, None] = {}
        self.version = 0
        self.plans: list[Any] = []
        self.copies: list[CopyEffect] = []
        self.messages: list[tuple[Peer, Message]] = []
        self.feed(PeerJoined(INGRESS))
        self.feed(PeerJoined(CONTROL))

    def feed(self, event: WorkerEvent) -> list[Message]:
        """Time passes by a millisecond with each event."""
        self.now = Nanos(self.now + MILLISECOND)
        heard: list[Message] = []
        for effect in self.worker.handle(self.now, event):
            match effect:
                case RunStep(plan=plan):
                    self.plans.append(plan)
                    self.runner.launch(plan)
                case Send(peer=peer, message=message):
                    self.messages.append((peer, message))
                    heard.append(message)
                    self.hear(message)
                case CopyBlocks() | SendBlocks() | CancelCopy():
                    self.copies.append(effect)
        assert len(self.runner.launched) <= self.settings.steps_in_flight_max
        self.worker.audit()
        return heard

    def hear(self, message: Message) -> None:
        match message:
            case Accepted(request=request, attempt=attempt):
                assert attempt == self.submits[request].attempt
                assert request not in self.accepted
                assert (request, attempt) not in self.ended
                self.accepted[request] = message
            case Refused(request=request, reason=reason):
                self.refused[request] = reason
            case Ended(request=request, attempt=attempt, reason=end):
                assert (request, attempt) not in self.ended
                self.ended[request, attempt] = end
            case PromptScored(request=request, start=start, entries=entries):
                scores = self.scores.setdefault(request, [])
                assert start == len(scores) + 1
                scores.extend(entry.logprob for entry in entries)
            case TokensProduced():
                self.hear_tokens(message)
            case Report():
                self.hear_report(message)
            case FullReport():
                self.hear_full_report(message)
            case _:
                pass

    def hear_tokens(self, message: TokensProduced) -> None:
        for row, counter in enumerate(message.requests):
            request = RequestId(INGRESS.epoch, counter)
            choice, token = message.choices[row], message.tokens[row]
            submit = self.submits[request]
            assert message.attempts[row] == submit.attempt
            assert (request, submit.attempt) not in self.ended
            assert request in self.accepted
            assert (request, choice) not in self.finishes
            output = self.outputs[request, choice]
            assert message.output_indexes[row] == len(output)
            if token >= 0:
                output.append(token)
                assert token == self.references[request, choice][len(output) - 1]
            finish = message.finishes[row]
            if finish is not None:
                self.finishes[request, choice] = finish

    def hear_report(self, report: Report) -> None:
        assert report.version == self.version + 1
        self.version = report.version
        for digest in split_chain(report.removed):
            del self.resident[digest]
        for digest in split_chain(report.added):
            assert digest not in self.resident
            self.resident[digest] = None
        for request in report.accepted:
            self.told_live[request] = None
        for request in report.ended:
            self.told_live.pop(request, None)

    def hear_full_report(self, report: FullReport) -> None:
        if report.part == 0:
            self.resident.clear()
            assert report.version > self.version
            self.version = report.version
        self.resident.update(dict.fromkeys(split_chain(report.hashes)))
        if report.part == report.parts - 1:
            self.told_live = dict.fromkeys(report.requests)

    # What an ingress does

    def submit(self, counter: int, prompt: list[int], **changes: Any) -> Submit:
        submit = make_submit(counter, prompt, block_size=self.settings.block_size, **changes)
        return self.send_submit(submit)

    def send_submit(self, submit: Submit) -> Submit:
        before = self.submits.get(submit.request)
        if before is None or submit.attempt > before.attempt:
            self.submits[submit.request] = submit
            self.accepted.pop(submit.request, None)
            self.refused.pop(submit.request, None)
            for choice, output in zip(submit.choices, submit.outputs, strict=True):
                self.outputs[submit.request, choice] = list(unpack_tokens(output))
                self.references[submit.request, choice] = expected(submit, choice)
        self.feed(Received(INGRESS, submit))
        return submit

    def abort(self, counter: int) -> None:
        self.feed(Received(INGRESS, Abort(RequestId(INGRESS.epoch, counter))))

    def finish(self, counter: int, choice: int, output_index: int) -> None:
        self.feed(Received(INGRESS, FinishChoice(RequestId(INGRESS.epoch, counter), choice, output_index)))

    def tick(self, after: int) -> list[Message]:
        self.now = Nanos(self.now + after)
        return self.feed(Tick())

    # Steps

    def complete_step(self) -> None:
        self.feed(StepCompleted(self.runner.collect()))

    def fail_step(self) -> None:
        self.feed(StepFailed(self.runner.fail().step, "made to fail"))

    def run(self, steps_max: int) -> int:
        """Completes steps until none runs. Answers how many."""
        for step in range(steps_max):
            if not self.runner.launched:
                return step
            self.complete_step()
        assert not self.runner.launched, f"still running after {steps_max} steps"
        return steps_max

    # What is so

    def output(self, counter: int, choice: int) -> list[int]:
        return self.outputs[RequestId(INGRESS.epoch, counter), choice]

    def assert_complete(self, *submits: Submit) -> None:
        """Each has ended by itself with exactly the tokens that it gets alone and without cache."""
        for submit in submits:
            assert self.ended[submit.request, submit.attempt] is EndReason.COMPLETE
            for choice in submit.choices:
                assert self.outputs[submit.request, choice] == expected(submit, choice)

    def assert_idle(self) -> None:
        """Nothing runs or waits, every block is free or cached, and control knows just what is so."""
        snapshot = self.worker.snapshot()
        assert (snapshot.waiting, snapshot.running, snapshot.requests) == (0, 0, 0)
        assert snapshot.waiting_tokens == 0
        assert snapshot.blocks.free + snapshot.blocks.cached == self.settings.blocks
        self.tick(self.settings.report_interval_ns)
        assert len(self.resident) == self.worker.snapshot().blocks.cached
        assert self.told_live == {}
