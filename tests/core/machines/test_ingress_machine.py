"""Answers, losses, refusals, repeats and departures in any order: what clients get stays whole, nothing piles up."""

from collections.abc import Callable

import attrs
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from typing_extensions import override

from lmpool.core.effects import Outcome, Send
from lmpool.core.events import ClientGone, PeerJoined, StopFound
from lmpool.core.ids import MILLISECOND, SECOND, Epoch, Nanos, Peer, Rank, Role
from lmpool.core.messages import Message
from lmpool.core.messages.ingress_control import (
    BookingEnded,
    BookingsOffered,
    Busy,
    RouteAsked,
    RouteDecided,
    StateAsked,
    StateReported,
    Unroutable,
    UnroutableReason,
)
from lmpool.core.messages.ingress_worker import (
    Abort,
    Accepted,
    Ended,
    EndReason,
    Finish,
    FinishChoice,
    RefusalReason,
    Refused,
    Submit,
    TokensProduced,
)
from lmpool.core.prefix import TOKEN_BYTES, extend_chain, pack_tokens, unpack_tokens
from lmpool.core.sampling import StopSettings
from tests.core.front import BLOCK, FACTS, NAMESPACE, NO_TRANSFERS, SETTINGS, Front, arrival, worker

OUTPUTS = 12
STOP = StopSettings(OUTPUTS, 0, (), ())
REPLICAS = 3


def reference(counter: int, choice: int, index: int) -> int:
    """What any replica samples there."""
    return (counter * 7919 + choice * 104_729 + index * 31) % 1000


@attrs.define
class Job:
    """A request at a scripted worker: its choices, and how many tokens each has."""

    submit: Submit
    outputs: dict[int, int]
    is_accepted: bool = False
    is_aborted: bool = False


@attrs.define
class Replica:
    peer: Peer
    jobs: dict[int, Job] = attrs.field(factory=dict)


class IngressMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.settings = attrs.evolve(SETTINGS, search=attrs.evolve(SETTINGS.search, replicas=REPLICAS))
        self.front = Front(self.settings)
        self.twin = Front(self.settings)
        self.epoch = 10
        self.arrived: dict[int, int] = {}
        """Choices by counter."""
        self.replicas: dict[int, Replica] = {}
        self.control: Peer | None = None
        self.questions: dict[int, RouteAsked] = {}
        self.bookings: dict[int, int] = {}
        """Attempts by counter, as a control without reports would count them."""
        self.stopped: dict[tuple[int, int], int] = {}
        self.left: dict[int, None] = {}
        self.past: list[tuple[Rank, Message]] = []
        """What workers and control have said, for repeats."""

    @initialize()
    def begin_whole(self) -> None:
        self.toggle_control()
        for rank in range(REPLICAS - 1):
            self.join_worker(rank)

    def act(self, happen: Callable[[Front], object]) -> None:
        happen(self.front)
        happen(self.twin)
        self.twin.now = self.front.now
        for effect in self.front.effects:
            if isinstance(effect, Send):
                self.carry(effect.peer, effect.message)

    def carry(self, peer: Peer, message: Message) -> None:
        """To whom it is sent, if that peer is there."""
        if peer.role is Role.CONTROL:
            assert peer == self.control
            self.hear_question(message)
            return
        replica = self.replicas.get(peer.rank)
        assert replica is not None
        assert replica.peer == peer
        match message:
            case Submit(request=request, choices=choices, outputs=outputs):
                assert request.counter not in replica.jobs
                for choice, output in zip(choices, outputs, strict=True):
                    tokens = list(unpack_tokens(output))
                    assert tokens == [reference(request.counter, choice, index) for index in range(len(tokens))]
                lengths = {choice: len(output) // TOKEN_BYTES for choice, output in zip(choices, outputs, strict=True)}
                replica.jobs[request.counter] = Job(message, lengths)
            case Abort(request=request):
                if request.counter in replica.jobs:
                    replica.jobs[request.counter].is_aborted = True
            case FinishChoice(request=request, choice=choice):
                job = replica.jobs[request.counter]
                del job.outputs[choice]
                if not job.outputs:
                    del replica.jobs[request.counter]
            case _:
                raise AssertionError(message)

    def hear_question(self, message: Message) -> None:
        match message:
            case RouteAsked():
                counter = message.request.counter
                longest = max(
                    (self.front.delivered.get((counter, choice), []) for choice in self.open_choices(counter)), key=len
                )
                tokens = pack_tokens([*unpack_tokens(arrival(counter).prompt), *longest])
                assert message.chain == extend_chain(NAMESPACE, tokens, BLOCK)  # type: ignore[arg-type]
                self.questions[counter] = message
                self.bookings.pop(counter, None)
            case BookingEnded(request=request):
                self.questions.pop(request.counter, None)
                self.bookings.pop(request.counter, None)
            case BookingsOffered() | StateAsked():
                pass
            case _:
                raise AssertionError(message)

    def open_choices(self, counter: int) -> list[int]:
        ended = [choice for of, choice in self.stopped if of == counter]
        delivered = self.front.delivered
        return [
            choice
            for choice in range(self.arrived[counter])
            if choice not in ended and len(delivered.get((counter, choice), [])) < OUTPUTS
        ]

    def say(self, rank: int, message: Message) -> None:
        peer = self.replicas[rank].peer
        self.past.append((peer.rank, message))
        self.act(lambda front: front.hear(peer, message))

    def jobs(self) -> list[tuple[int, int]]:
        return [(rank, counter) for rank, replica in self.replicas.items() for counter in replica.jobs]

    @rule(choices=st.integers(1, 3), session=st.sampled_from(["", "a", "b"]), has_deadline=st.booleans())
    def arrive(self, choices: int, session: str, has_deadline: bool) -> None:
        counter = len(self.arrived) + 1
        self.arrived[counter] = choices
        deadline = Nanos(self.front.now + 20 * SECOND) if has_deadline else None
        fields = {"choices": choices, "session": session, "stop": STOP, "deadline_ns": deadline}
        self.act(lambda front: front.feed(arrival(counter, **fields)))

    @rule(rank=st.integers(0, REPLICAS - 1))
    def join_worker(self, rank: int) -> None:
        if rank in self.replicas:
            return
        self.epoch += 1
        peer = worker(rank, self.epoch)
        self.replicas[rank] = Replica(peer)
        self.act(lambda front: front.feed(PeerJoined(peer)))
        self.act(lambda front: front.hear(peer, FACTS))

    @rule(rank=st.integers(0, REPLICAS - 1))
    def lose_worker(self, rank: int) -> None:
        replica = self.replicas.pop(rank, None)
        if replica is not None:
            peer = replica.peer
            self.act(lambda front: front.lose(peer))

    @rule()
    def toggle_control(self) -> None:
        self.questions.clear()
        self.bookings.clear()
        control = self.control
        if control is not None:
            self.control = None
            self.act(lambda front: front.lose(control))
        else:
            self.epoch += 1
            joined = self.control = Peer(Role.CONTROL, Rank(0), Epoch(self.epoch))
            self.act(lambda front: front.feed(PeerJoined(joined)))

    @precondition(lambda self: self.questions)
    @rule(data=st.data(), kind=st.integers(0, 9), rank=st.integers(0, REPLICAS - 1))
    def answer(self, data: st.DataObject, kind: int, rank: int) -> None:
        counter = data.draw(st.sampled_from(sorted(self.questions)))
        asked = self.questions.pop(counter)
        number, attempt = asked.request, asked.attempt
        replica = self.replicas.get(rank)
        message: Message
        if kind == 0:
            message = Busy(number, attempt, Nanos(SECOND))
        elif kind == 1:
            reason = UnroutableReason.NO_REPLICA
            message = Unroutable(number, attempt, reason, 0)
        elif replica is None or Rank(rank) in asked.excluded:
            message = RouteDecided(number, attempt, 1, Rank(rank), Epoch(1), "", 0, None)
        else:
            self.bookings[counter] = attempt
            message = RouteDecided(number, attempt, 1, Rank(rank), replica.peer.epoch, "", 0, None)
        control = self.control
        assert control is not None
        self.act(lambda front: front.hear(control, message))

    @precondition(lambda self: self.control)
    @rule()
    def control_speaks(self) -> None:
        control = self.control
        assert control is not None
        self.act(lambda front: front.hear(control, StateReported(0, "", (), 0, 0, 0, 0, 0, NO_TRANSFERS)))

    @precondition(lambda self: self.jobs())
    @rule(data=st.data(), refuses=st.booleans(), reason=st.sampled_from(RefusalReason))
    def begin(self, data: st.DataObject, refuses: bool, reason: RefusalReason) -> None:
        rank, counter = data.draw(st.sampled_from(self.jobs()))
        job = self.replicas[rank].jobs[counter]
        if job.is_accepted:
            return
        if refuses:
            del self.replicas[rank].jobs[counter]
            self.say(rank, Refused(job.submit.request, job.submit.attempt, reason, Nanos(0)))
        else:
            job.is_accepted = True
            self.say(rank, Accepted(job.submit.request, job.submit.attempt, 0, Nanos(0)))

    @precondition(lambda self: self.jobs())
    @rule(data=st.data(), steps=st.integers(1, OUTPUTS))
    def produce(self, data: st.DataObject, steps: int) -> None:
        rank, counter = data.draw(st.sampled_from(self.jobs()))
        job = self.replicas[rank].jobs[counter]
        if not job.is_accepted:
            return
        if job.is_aborted:
            del self.replicas[rank].jobs[counter]
            self.say(rank, Ended(job.submit.request, job.submit.attempt, EndReason.ABORTED))
            return
        for _ in range(steps):
            if counter in self.replicas[rank].jobs:
                self.step(rank, counter, job)

    def step(self, rank: int, counter: int, job: Job) -> None:
        """One token for each open choice."""
        choices = list(job.outputs)
        indexes = list(job.outputs.values())
        count = len(choices)
        finishes = tuple(Finish.LENGTH if index == OUTPUTS - 1 else None for index in indexes)
        for choice, finish in zip(choices, finishes, strict=True):
            job.outputs[choice] += 1
            if finish is not None:
                del job.outputs[choice]
        tokens = tuple(reference(counter, choice, index) for choice, index in zip(choices, indexes, strict=True))
        attempts = (job.submit.attempt,) * count
        row = TokensProduced((counter,) * count, attempts, tuple(choices), tuple(indexes), tokens, (), finishes)
        if not job.outputs:
            del self.replicas[rank].jobs[counter]
        self.say(rank, row)

    @precondition(lambda self: self.front.delivered)
    @rule(data=st.data())
    def stop(self, data: st.DataObject) -> None:
        counter, choice = data.draw(st.sampled_from(sorted(self.front.delivered)))
        index = len(self.front.delivered[counter, choice]) - 1
        if counter not in self.front.closed and (counter, choice) not in self.stopped:
            if choice in self.open_choices(counter):
                self.stopped[counter, choice] = index
            number = arrival(counter).request
            self.act(lambda front: front.feed(StopFound(number, choice, index)))

    @precondition(lambda self: self.arrived)
    @rule(data=st.data())
    def leave(self, data: st.DataObject) -> None:
        counter = data.draw(st.sampled_from(sorted(self.arrived)))
        self.left[counter] = None
        self.act(lambda front: front.feed(ClientGone(arrival(counter).request)))

    @precondition(lambda self: self.past)
    @rule(data=st.data())
    def repeat(self, data: st.DataObject) -> None:
        """Something old comes again, from whatever life the rank is in. An attempt that is still live is no repeat."""
        rank, message = data.draw(st.sampled_from(self.past))
        replica = self.replicas.get(rank)
        if replica is None:
            return
        match message:
            case TokensProduced():
                pass
            case Accepted(request=request) | Refused(request=request) | Ended(request=request):
                if request.counter not in self.front.closed:
                    return
            case _:
                return
        self.act(lambda front: front.hear(replica.peer, message))

    @rule(wait=st.sampled_from([1, 250 * MILLISECOND, SECOND, 3 * SECOND, 61 * SECOND]))
    def wait(self, wait: int) -> None:
        self.act(lambda front: front.wait(wait))

    @invariant()
    def streams_are_whole(self) -> None:
        for (counter, choice), tokens in self.front.delivered.items():
            assert tokens == [reference(counter, choice, index) for index in range(len(tokens))]

    @invariant()
    def a_complete_request_is_complete(self) -> None:
        for counter, close in self.front.closed.items():
            if close.outcome is Outcome.COMPLETE:
                assert self.open_choices(counter) == []

    @invariant()
    def nothing_piles_up(self) -> None:
        snapshot = self.front.machine.snapshot()
        still_open = [counter for counter in self.arrived if counter not in self.front.closed]
        assert sum(count for _, count in snapshot.phases) == len(still_open)
        assert snapshot.choices == sum(self.arrived[counter] for counter in still_open) <= self.settings.requests_max
        assert sum(count for _, count in snapshot.outcomes) == len(self.front.closed)
        assert snapshot.homes <= self.settings.search.homes_max
        assert all(counter not in self.front.closed for counter in self.bookings_not_at_workers())

    def bookings_not_at_workers(self) -> list[int]:
        """What a control would count for ever: workers report the end of the others."""
        at_work = [counter for _, counter in self.jobs()]
        return [counter for counter in self.questions if counter not in at_work]

    @invariant()
    def both_agree(self) -> None:
        assert self.front.machine.digest() == self.twin.machine.digest()

    @override
    def teardown(self) -> None:
        """Everything is healed: what is open then ends, and well."""
        going_on = [counter for counter in self.arrived if counter not in {**self.front.closed, **self.left}]
        for rank in range(REPLICAS):
            self.join_worker(rank)
        if self.control is None:
            self.toggle_control()
        for _ in range(20):
            self.heal()
        assert self.front.closed.keys() == self.arrived.keys()
        assert self.front.machine.next_deadline() is None
        assert not self.questions
        for counter in going_on:
            assert self.front.outcome(counter) in (Outcome.COMPLETE, Outcome.DEADLINE, Outcome.NO_REPLICA)

    def heal(self) -> None:
        """A moment in which all do their work."""
        control = self.control
        assert control is not None
        self.act(lambda front: front.hear(control, StateReported(0, "", (), 0, 0, 0, 0, 0, NO_TRANSFERS)))
        for counter, asked in list(self.questions.items()):
            del self.questions[counter]
            rank = next(rank for rank in range(REPLICAS) if rank not in asked.excluded)
            epoch = self.replicas[rank].peer.epoch
            answer = RouteDecided(asked.request, asked.attempt, 1, Rank(rank), epoch, "", 0, None)
            self.act(lambda front, answer=answer: front.hear(control, answer))  # type: ignore[misc]
        for rank, counter in self.jobs():
            job = self.replicas[rank].jobs[counter]
            if job.is_aborted:
                del self.replicas[rank].jobs[counter]
                self.say(rank, Ended(job.submit.request, job.submit.attempt, EndReason.ABORTED))
            elif not job.is_accepted:
                job.is_accepted = True
                self.say(rank, Accepted(job.submit.request, job.submit.attempt, 0, Nanos(0)))
            else:
                self.step(rank, counter, job)
        self.act(lambda front: front.wait(SETTINGS.search.retry_ns))


TestIngressMachine = IngressMachine.TestCase
