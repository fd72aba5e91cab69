"""The ingress machine by examples: routes, streams, ends, and what survives a loss."""

from typing import Any

import attrs
import pytest

from lmpool.core.effects import (
    AnswerQuery,
    ChoiceEnd,
    CloseRequest,
    DeliverPromptLogprobs,
    DeliverStart,
    DeliverToken,
    Outcome,
)
from lmpool.core.events import ClientGone, DrainOrdered, StopFound
from lmpool.core.ids import SECOND, Nanos, Peer, Rank, TransferId
from lmpool.core.messages.ingress_control import (
    BookingEnded,
    BookingsOffered,
    Busy,
    RouteDecided,
    StateAsked,
    StateReported,
    Unroutable,
    UnroutableReason,
)
from lmpool.core.messages.ingress_worker import (
    Abort,
    Accepted,
    CacheCleared,
    EndReason,
    Finish,
    FinishChoice,
    PromptScored,
    RefusalReason,
    Refused,
    Submit,
)
from lmpool.core.messages.transfer import Awaited, TransferDecided
from lmpool.core.messages.worker_control import DrainBegun
from lmpool.core.plan import TokenLogprobs
from lmpool.core.prefix import extend_chain, pack_tokens
from lmpool.core.sampling import StopSettings
from tests.core.front import (
    BLOCK,
    CONTROL,
    EOS,
    NAMESPACE,
    NEXT_CONTROL,
    NO_TRANSFERS,
    PROMPT,
    SETTINGS,
    W0,
    W1,
    Front,
    arrival,
    ready_front,
    request,
    streaming_front,
    submitted_front,
    tokens_produced,
    worker,
)


def refuse(front: Front, submit: Submit, peer: Any, reason: RefusalReason) -> None:
    front.hear(peer, Refused(submit.request, submit.attempt, reason, Nanos(3 * SECOND)))


def test_a_request_goes_where_control_says_and_streams_to_its_end() -> None:
    front = ready_front()
    front.feed(arrival(1))
    asked = front.asked()
    assert (asked.prompt_tokens, asked.output_tokens_max, asked.choices, asked.excluded) == (len(PROMPT), 16, 1, ())
    assert asked.chain == arrival(1).chain
    front.decide(asked, W1)
    peer, submit = front.submitted()
    assert peer == W1
    assert submit.outputs == (b"",)
    front.now = Nanos(5)
    assert front.accept(W1, submit) == [DeliverStart(request(1), 16, Nanos(5))]
    front.produce(W1, submit, 0, 0, 50)
    effects = front.hear(W1, tokens_produced((1, 0, 0, 1, EOS, Finish.END_TOKEN)))
    assert effects == [
        DeliverToken(request(1), 0, 1, EOS, None, ChoiceEnd.STOP, hidden=True),
        CloseRequest(request(1), Outcome.COMPLETE, "", Nanos(0)),
    ]
    assert front.end(W1, submit, EndReason.COMPLETE) == []
    assert front.machine.snapshot().choices == 0


def test_a_stop_token_of_the_client_is_not_hidden() -> None:
    front, _ = streaming_front()
    front.hear(W0, tokens_produced((1, 0, 0, 0, 3, Finish.END_TOKEN)))
    assert isinstance(front.effects[0], DeliverToken)
    assert not front.effects[0].hidden


def test_rows_of_other_attempts_and_repeated_ones_are_dropped_and_counted() -> None:
    front, submit = streaming_front()
    front.produce(W0, submit, 0, 0, 50)
    assert front.produce(W0, submit, 0, 0, 50) == []
    assert front.hear(W0, tokens_produced((1, 7, 0, 1, 51, None), (99, 0, 0, 0, 1, None))) == []
    assert front.hear(W1, tokens_produced((1, 0, 0, 1, 51, None))) == []
    assert front.machine.snapshot().dropped == 4
    assert front.delivered == {(1, 0): [50]}


def test_a_lost_worker_costs_the_client_nothing() -> None:
    front, submit = streaming_front(choices=2)
    for index in range(BLOCK):
        front.produce(W0, submit, 0, index, 50 + index)
    front.finish(W0, submit, 1, 0, 90)
    front.lose(W0)
    asked = front.asked()
    outputs = range(50, 50 + BLOCK)
    assert (asked.attempt, asked.choices, asked.excluded) == (1, 1, (Rank(0),))
    assert (asked.prompt_tokens, asked.output_tokens_max) == (len(PROMPT) + BLOCK, 16 - BLOCK)
    assert asked.chain == extend_chain(NAMESPACE, pack_tokens([*PROMPT, *outputs]), BLOCK)  # type: ignore[arg-type]
    front.decide(asked, W1)
    peer, again = front.submitted()
    assert (peer, again.attempt, again.choices, again.outputs) == (W1, 1, (0,), (pack_tokens(outputs),))
    assert front.accept(W1, again) == []  # it has begun once already
    assert front.produce(W0, submit, 0, BLOCK, 1) == []
    front.finish(W1, again, 0, BLOCK, 60)
    assert front.delivered[1, 0] == [*outputs, 60]
    assert front.outcome(1) is Outcome.COMPLETE
    assert front.machine.snapshot().resumed == 1


def wander(front: Front, losses: int, *, begins: bool, token: int | None) -> None:
    """Request 1 goes from one worker to the other, each lost before or after it has begun it or brought one token."""
    here, other = W0, W1
    for loss in range(losses):
        if begins:
            front.hear(here, Accepted(request(1), loss, 0, Nanos(0)))
        if token is not None:
            front.hear(here, tokens_produced((1, loss, 0, loss, token, None)))
        front.lose(here)
        if front.outcome(1) is not None:
            return
        front.decide(front.asked(), other)
        here, other = other, worker(here.rank, 10 + loss)
        front.join(other)


def test_a_request_that_loses_every_worker_is_given_up() -> None:
    front, _ = submitted_front()
    wander(front, SETTINGS.search.attempts_max, begins=True, token=None)
    assert front.outcome(1) is None
    wander_on, _ = submitted_front()
    wander(wander_on, SETTINGS.search.attempts_max + 1, begins=True, token=None)
    assert wander_on.closed[1].outcome is Outcome.FAILED
    assert "4 replicas in a row" in wander_on.closed[1].detail


def test_workers_that_are_lost_before_they_begin_a_request_count_less() -> None:
    attempts = SETTINGS.search.attempts_max * SETTINGS.search.replicas
    front, _ = submitted_front()
    wander(front, attempts, begins=False, token=None)
    assert front.outcome(1) is None
    wander_on, _ = submitted_front()
    wander(wander_on, attempts + 1, begins=False, token=None)
    assert wander_on.closed[1].outcome is Outcome.FAILED
    assert "7 replicas in a row" in wander_on.closed[1].detail


def test_losses_with_a_token_between_do_not_count() -> None:
    front, _ = submitted_front()
    wander(front, 12, begins=True, token=50)
    assert front.outcome(1) is None
    assert len(front.delivered[1, 0]) == 12


def test_with_no_replica_a_request_waits_for_one() -> None:
    front, submit = streaming_front()
    front.lose(W1)
    front.produce(W0, submit, 0, 0, 50)
    assert front.lose(W0) == []
    assert front.phase() == "waiting"
    front.wait(30 * SECOND)
    front.join(worker(0, 11))
    asked = front.asked()
    assert asked.excluded == (Rank(1),)
    front.decide(asked, worker(0, 11))
    _, again = front.submitted()
    assert again.outputs == (pack_tokens([50]),)


def test_it_waits_no_longer_than_a_bound() -> None:
    front = Front()
    front.feed(arrival(1))
    assert front.wait(SETTINGS.search.replica_wait_ns - 1) == []
    front.wait(1)
    assert front.outcome(1) is Outcome.NO_REPLICA


def test_nor_than_its_deadline() -> None:
    front = Front()
    front.feed(arrival(1, deadline_ns=Nanos(SECOND)))
    assert front.machine.next_deadline() == SETTINGS.search.retry_ns
    front.wait(SECOND)
    assert front.outcome(1) is Outcome.DEADLINE


def test_its_own_deadline_is_that_bound() -> None:
    front = Front()
    late = Nanos(3 * SETTINGS.search.replica_wait_ns)
    front.feed(arrival(1, deadline_ns=late))
    assert front.wait(late - 1) == []
    front.wait(1)
    assert front.outcome(1) is Outcome.DEADLINE


@pytest.mark.parametrize("control", ["silent", "lost"])
def test_a_deadline_passes_while_control_does_not_answer(control: str) -> None:
    front = ready_front()
    front.feed(arrival(1, deadline_ns=Nanos(SECOND // 2)))
    assert front.phase() == "routing"
    if control == "lost":
        front.lose(CONTROL)
        assert front.phase() == "submitted"
    front.wait(SECOND // 2)
    assert front.outcome(1) is (Outcome.DEADLINE if control == "silent" else None)
    front.wait(SETTINGS.abort_wait_ns)  # a worker that says nothing keeps it no longer
    assert front.outcome(1) is Outcome.DEADLINE


def test_control_knows_no_replica_yet() -> None:
    front = ready_front()
    front.feed(arrival(1))
    front.hear(CONTROL, Unroutable(request(1), 0, UnroutableReason.NO_REPLICA, 0))
    assert front.phase() == "waiting"
    front.wait(SETTINGS.search.retry_ns)
    assert front.asked().attempt == 1


def test_what_never_fits_is_told_with_its_numbers() -> None:
    front = ready_front()
    front.feed(arrival(1))
    front.hear(CONTROL, Unroutable(request(1), 0, UnroutableReason.NEVER_FITS, 17))
    close = front.closed[1]
    assert close.outcome is Outcome.NEVER_FITS
    assert "17 tokens" in close.detail
    assert f"{len(PROMPT)} tokens" in close.detail


def test_busy_is_told_with_a_time() -> None:
    front = ready_front()
    front.feed(arrival(1))
    front.hear(CONTROL, Busy(request(1), 0, Nanos(7 * SECOND)))
    assert (front.closed[1].outcome, front.closed[1].retry_after_ns) == (Outcome.BUSY, 7 * SECOND)


def test_who_has_begun_is_never_told_busy() -> None:
    front, submit = streaming_front()
    front.produce(W0, submit, 0, 0, 50)
    front.lose(W0)
    front.hear(CONTROL, Busy(request(1), 1, Nanos(7 * SECOND)))
    assert front.phase() == "waiting"


def test_a_refusal_is_asked_again_without_that_rank() -> None:
    front, submit = submitted_front()
    refuse(front, submit, W0, RefusalReason.QUEUE_FULL)
    asked = front.asked()
    assert (asked.attempt, asked.excluded) == (1, (Rank(0),))
    front.decide(asked, W1)
    _, again = front.submitted()
    refuse(front, again, W1, RefusalReason.QUEUE_FULL)
    assert front.sent(BookingEnded) == [(CONTROL, BookingEnded(request(1), 1))]
    assert (front.closed[1].outcome, front.closed[1].retry_after_ns) == (Outcome.BUSY, 3 * SECOND)


def test_refused_by_one_and_without_another_at_control_it_is_busy() -> None:
    front, submit = submitted_front()
    refuse(front, submit, W0, RefusalReason.QUEUE_FULL)
    front.hear(CONTROL, Unroutable(request(1), 1, UnroutableReason.NO_REPLICA, 0))
    assert (front.closed[1].outcome, front.closed[1].retry_after_ns) == (Outcome.BUSY, 3 * SECOND)


def test_refused_because_it_drains_and_without_another_at_control_it_waits() -> None:
    front, submit = submitted_front()
    refuse(front, submit, W0, RefusalReason.DRAINING)
    front.hear(CONTROL, Unroutable(request(1), 1, UnroutableReason.NO_REPLICA, 0))
    assert front.phase() == "waiting"


def test_who_is_no_longer_turned_away_asks_those_again_that_refused_it() -> None:
    front, submit = streaming_front()
    front.produce(W0, submit, 0, 0, 50)
    front.lose(W0)
    asked = front.asked()
    front.join(worker(0, 11))
    front.decide(asked, W1)
    refuse(front, front.submitted()[1], W1, RefusalReason.QUEUE_FULL)
    assert front.asked().excluded == (Rank(1),)
    front.hear(CONTROL, Busy(request(1), 2, Nanos(7 * SECOND)))
    front.wait(SETTINGS.search.retry_ns)
    assert front.asked().excluded == ()


def test_refusals_are_bounded() -> None:
    settings = attrs.evolve(SETTINGS, search=attrs.evolve(SETTINGS.search, replicas=8))
    front = Front(settings)
    workers = [worker(rank, 10 + rank) for rank in range(8)]
    front.join(CONTROL, *workers)
    front.feed(arrival(1))
    for rank in range(settings.search.attempts_max + 1):
        front.decide(front.asked(), workers[rank])
        _, submit = front.submitted()
        refuse(front, submit, workers[rank], RefusalReason.QUEUE_FULL)
    assert front.outcome(1) is Outcome.BUSY


def test_a_draining_replica_is_waited_for_in_its_next_life() -> None:
    front, submit = submitted_front()
    front.lose(W1)
    refuse(front, submit, W0, RefusalReason.DRAINING)
    assert front.phase() == "waiting"
    assert front.wait(SETTINGS.search.retry_ns) == []  # it is not asked again in this life
    front.lose(W0)
    front.join(worker(0, 11))
    assert front.asked().attempt == 1


@pytest.mark.parametrize(
    ("reason", "outcome"),
    [(RefusalReason.NEVER_FITS, Outcome.NEVER_FITS), (RefusalReason.NAMESPACE_UNKNOWN, Outcome.FAILED)],
)
def test_the_last_refusal_says_why(reason: RefusalReason, outcome: Outcome) -> None:
    front, submit = submitted_front()
    front.lose(W1)
    refuse(front, submit, W0, reason)
    assert front.outcome(1) is outcome


def told_never_fits(front: Front, teller: Peer) -> None:
    """Request 1 has lost its worker, and control or the other worker finds it too long."""
    front.lose(W0)
    if teller == CONTROL:
        front.hear(CONTROL, Unroutable(request(1), 1, UnroutableReason.NEVER_FITS, 17))
    else:
        front.decide(front.asked(), W1)
        refuse(front, front.submitted()[1], W1, RefusalReason.NEVER_FITS)


@pytest.mark.parametrize("teller", [CONTROL, W1])
def test_who_never_fits_is_told_so_although_a_worker_was_lost_that_was_to_begin_it(teller: Peer) -> None:
    """It waited until nobody would come in time, and asked all the while."""
    front, _ = submitted_front()
    told_never_fits(front, teller)
    assert front.outcome(1) is Outcome.NEVER_FITS


@pytest.mark.parametrize("teller", [CONTROL, W1])
def test_who_has_begun_somewhere_waits_for_a_worker_that_it_fits(teller: Peer) -> None:
    front, _ = streaming_front()
    told_never_fits(front, teller)
    assert front.phase() == "waiting"


def test_a_route_to_a_life_that_is_not_linked_is_asked_again() -> None:
    front = ready_front()
    front.feed(arrival(1))
    front.decide(front.asked(), worker(0, 77))
    asked = front.asked()
    assert (asked.attempt, asked.excluded) == (1, (Rank(0),))
    front.decide(asked, worker(1, 77))
    assert front.phase() == "waiting"
    front.wait(SETTINGS.search.retry_ns)
    assert front.asked().excluded == ()


def test_a_promise_of_blocks_goes_with_the_submit_and_not_to_another_worker() -> None:
    front = ready_front()
    front.feed(arrival(1))
    asked = front.asked()
    promised = Awaited(TransferId(CONTROL.epoch, 1), 1, Nanos(9 * SECOND))
    front.hear(CONTROL, RouteDecided(asked.request, asked.attempt, 1, W1.rank, W1.epoch, "", 0, promised))
    peer, submit = front.submitted()
    assert (peer, submit.awaits) == (W1, promised)
    refuse(front, submit, W1, RefusalReason.DRAINING)
    front.decide(front.asked(), W0)
    peer, submit = front.submitted()
    assert (peer, submit.awaits) == (W0, None)


def test_a_late_route_is_dropped() -> None:
    front = ready_front()
    front.feed(arrival(1))
    asked = front.asked()
    front.wait(SETTINGS.search.route_wait_ns)
    assert front.sent(BookingEnded) == [(CONTROL, BookingEnded(request(1), 0))]
    assert front.submitted()[1].attempt == 1
    assert front.decide(asked, W1) == []


def test_a_silent_control_is_not_waited_for_twice() -> None:
    front = ready_front()
    front.feed(arrival(1))
    front.wait(SETTINGS.search.route_wait_ns)
    ((_, probe),) = front.sent(StateAsked)
    front.feed(arrival(2))
    assert front.submitted()[1].request == request(2)
    assert front.hear(CONTROL, StateReported(probe.number, "p", (), 0, 0, 0, 0, 0, NO_TRANSFERS)) == []
    front.feed(arrival(3))
    assert front.asked().request == request(3)
    assert front.machine.snapshot().degraded == 2


def test_without_control_sessions_stay_together_within_a_bound() -> None:
    front = ready_front()
    front.lose(CONTROL)
    ranks = []
    for counter in range(1, 7):
        front.feed(arrival(counter, session="one", prompt=[counter] * 20))
        ranks.append(front.submitted()[0].rank)
    assert ranks[:2] == [ranks[0]] * 2
    assert 2 <= sum(rank == 0 for rank in ranks) <= 4
    snapshot = front.machine.snapshot()
    assert (snapshot.degraded, snapshot.is_control_heard) == (6, False)


def test_where_control_sent_a_session_is_remembered() -> None:
    front = ready_front()
    front.feed(arrival(1, session="one"))
    front.decide(front.asked(), W1)
    front.lose(CONTROL)
    front.feed(arrival(2, session="one"))
    assert front.submitted()[0] == W1


def test_without_a_session_the_first_block_decides_and_else_the_fewest_requests() -> None:
    front = ready_front()
    front.lose(CONTROL)
    front.feed(arrival(1))
    first = front.submitted()[0]
    front.feed(arrival(2, prompt=[*PROMPT, 1, 2, 3]))
    assert front.submitted()[0] == first
    for counter in (3, 4):
        front.feed(arrival(counter, prompt=[1]))
        assert front.submitted()[0] != first
    assert front.machine.snapshot().homes == 1


def test_homes_are_bounded() -> None:
    front = ready_front()
    front.lose(CONTROL)
    for counter in range(1, 9):
        front.feed(arrival(counter, session=f"s{counter}"))
    assert front.machine.snapshot().homes == SETTINGS.search.homes_max


def test_a_new_control_learns_of_bookings_and_is_asked_what_waits() -> None:
    front, submit = streaming_front()
    front.feed(arrival(2))
    front.hear(CONTROL, Unroutable(request(2), 0, UnroutableReason.NO_REPLICA, 0))
    front.lose(CONTROL)
    front.join(NEXT_CONTROL)
    offered = BookingsOffered((request(1),), (submit.attempt,), (W0.rank,), (W0.epoch,), (len(PROMPT),))
    assert front.sent(BookingsOffered) == [(NEXT_CONTROL, offered)]
    assert front.asked().request == request(2)


def test_what_was_offered_and_has_ended_is_withdrawn() -> None:
    """Its end may have been reported to the control before, or to none."""
    front, submit = streaming_front()
    front.lose(CONTROL)
    front.join(NEXT_CONTROL)
    front.finish(W0, submit, 0, 0, 50)
    assert front.outcome(1) is Outcome.COMPLETE
    assert front.sent(BookingEnded) == [(NEXT_CONTROL, BookingEnded(request(1), submit.attempt))]


def test_a_booking_that_no_worker_will_report_is_withdrawn() -> None:
    left, submit = submitted_front()
    left.feed(ClientGone(request(1)))
    left.lose(W0)
    assert left.sent(BookingEnded) == [(CONTROL, BookingEnded(request(1), submit.attempt))]
    begun, _ = streaming_front()
    begun.feed(ClientGone(request(1)))
    begun.lose(W0)
    assert begun.sent(BookingEnded) == []


def test_who_goes_elsewhere_while_control_is_silent_leaves_no_booking_behind() -> None:
    front, submit = submitted_front()
    front.feed(arrival(2))
    front.wait(SETTINGS.search.route_wait_ns)
    refuse(front, submit, W0, RefusalReason.QUEUE_FULL)
    peer, again = front.submitted()
    assert (peer, again.attempt) == (W1, 1)
    assert front.sent(BookingEnded) == [(CONTROL, BookingEnded(request(1), 0))]


def test_a_route_to_a_life_that_is_gone_leaves_no_booking_behind() -> None:
    front = ready_front()
    front.feed(arrival(1))
    asked = front.asked()
    front.lose(W0)
    front.lose(W1)
    front.decide(asked, W0)
    assert front.phase() == "waiting"
    assert front.sent(BookingEnded) == [(CONTROL, BookingEnded(request(1), 0))]


def test_questions_are_asked_again_of_a_new_control() -> None:
    settings = attrs.evolve(SETTINGS, search=attrs.evolve(SETTINGS.search, routes_degraded=False))
    front = ready_front(settings)
    front.feed(arrival(1))
    assert front.lose(CONTROL) == []
    front.join(NEXT_CONTROL)
    assert front.asked().attempt == 1


def test_a_stop_string_ends_a_choice_at_its_index() -> None:
    front, submit = streaming_front(choices=2)
    front.produce(W0, submit, 0, 0, 50)
    front.produce(W0, submit, 0, 1, 51)
    front.feed(StopFound(request(1), 0, 0))
    assert front.sent(FinishChoice) == [(W0, FinishChoice(request(1), 0, 0))]
    assert front.produce(W0, submit, 0, 2, 52) == []
    assert front.feed(StopFound(request(1), 0, 1)) == []
    front.produce(W0, submit, 1, 0, 60)
    front.feed(StopFound(request(1), 1, 0))
    assert front.outcome(1) is Outcome.COMPLETE


def test_tokens_of_a_choice_beyond_its_stop_are_dropped() -> None:
    front, submit = streaming_front(choices=2)
    front.produce(W0, submit, 0, 0, 50)
    front.feed(StopFound(request(1), 0, 0))
    for index in (1, 2, 3):
        assert front.produce(W0, submit, 0, index, 51) == []
    front.produce(W0, submit, 1, 0, 60)
    assert front.delivered == {(1, 0): [50], (1, 1): [60]}
    assert front.phase() == "streaming"


def test_a_stop_string_is_found_after_the_worker_was_lost() -> None:
    front, submit = streaming_front()
    front.produce(W0, submit, 0, 0, 50)
    front.lose(W0)
    front.feed(StopFound(request(1), 0, 0))
    assert front.sent(BookingEnded) == [(CONTROL, BookingEnded(request(1), 1))]
    assert front.outcome(1) is Outcome.COMPLETE


def test_a_client_that_leaves_is_kept_until_the_worker_lets_go() -> None:
    front, submit = streaming_front()
    front.feed(ClientGone(request(1)))
    assert front.sent(Abort) == [(W0, Abort(request(1)))]
    assert front.produce(W0, submit, 0, 0, 50) == []
    assert front.feed(ClientGone(request(1))) == []
    assert front.outcome(1) is None
    front.end(W0, submit, EndReason.ABORTED)
    assert front.outcome(1) is Outcome.CANCELLED


def test_or_is_lost_or_says_nothing() -> None:
    lost, _ = streaming_front()
    lost.feed(ClientGone(request(1)))
    lost.lose(W0)
    assert lost.outcome(1) is Outcome.CANCELLED
    silent, _ = streaming_front()
    silent.feed(ClientGone(request(1)))
    silent.wait(SETTINGS.abort_wait_ns)
    assert silent.outcome(1) is Outcome.CANCELLED


def test_a_client_that_leaves_before_it_was_submitted_ends_the_booking() -> None:
    front = ready_front()
    front.feed(arrival(1))
    front.feed(ClientGone(request(1)))
    assert front.sent(BookingEnded) == [(CONTROL, BookingEnded(request(1), 0))]
    assert front.outcome(1) is Outcome.CANCELLED


def test_a_deadline_passes_while_it_streams() -> None:
    front, submit = streaming_front(deadline_ns=Nanos(SECOND))
    front.wait(SECOND)
    assert front.sent(Abort) == [(W0, Abort(request(1)))]
    front.end(W0, submit, EndReason.ABORTED)
    assert front.outcome(1) is Outcome.DEADLINE


def test_the_worker_notices_the_deadline_first() -> None:
    front, submit = streaming_front(deadline_ns=Nanos(SECOND))
    front.end(W0, submit, EndReason.DEADLINE)
    assert front.outcome(1) is Outcome.DEADLINE


@pytest.mark.parametrize("finish", [Finish.NOT_FINITE, Finish.STEP_FAILED])
def test_a_fault_of_one_choice_fails_the_request(finish: Finish) -> None:
    front, submit = streaming_front(choices=2)
    front.hear(W0, tokens_produced((1, 0, 1, 0, -1, finish)))
    assert front.sent(Abort) == [(W0, Abort(request(1)))]
    front.end(W0, submit, EndReason.STEP_FAILED)
    assert front.outcome(1) is Outcome.FAILED
    assert front.delivered == {}


def test_too_many_choices_are_busy_at_once() -> None:
    front = ready_front()
    front.feed(arrival(1, choices=SETTINGS.requests_max - 1))
    front.feed(arrival(2, choices=2))
    assert front.outcome(2) is Outcome.BUSY
    front.feed(arrival(3))
    assert front.outcome(3) is None


def test_a_draining_ingress_takes_nothing_new_and_goes_on() -> None:
    front, submit = streaming_front()
    front.feed(DrainOrdered())
    front.feed(arrival(2))
    assert front.outcome(2) is Outcome.DRAINING
    front.finish(W0, submit, 0, 0, 50)
    assert front.outcome(1) is Outcome.COMPLETE


def scores(count: int) -> tuple[TokenLogprobs, ...]:
    return tuple(TokenLogprobs(token, -1.0, (), ()) for token in range(count))


def test_scores_of_a_prompt_come_once_whatever_is_lost() -> None:
    front, submit = streaming_front(prompt_logprobs=0, prompt=list(range(9)))
    front.hear(W0, PromptScored(request(1), 0, 1, scores(5)))
    front.lose(W0)
    front.decide(front.asked(), W1)
    _, again = front.submitted()
    assert again.prompt_logprobs == 0
    front.accept(W1, again)
    assert front.hear(W1, PromptScored(request(1), 1, 1, scores(3))) == []
    effects = front.hear(W1, PromptScored(request(1), 1, 4, scores(5)))
    assert effects == [DeliverPromptLogprobs(request(1), 6, scores(5)[2:])]
    front.lose(W1)
    front.join(worker(1, 12))
    front.wait(SETTINGS.search.route_wait_ns)
    assert submit.prompt_logprobs == 0


def test_only_scores_are_wanted() -> None:
    stop = StopSettings(0, 0, (), ())
    front, _ = streaming_front(prompt_logprobs=0, prompt=list(range(9)), stop=stop)
    front.hear(W0, PromptScored(request(1), 0, 1, scores(8)))
    assert front.outcome(1) is Outcome.COMPLETE


def test_answers_to_queries_pass() -> None:
    front = ready_front()
    state = StateReported(5, "p", (), 0, 0, 0, 0, 0, NO_TRANSFERS)
    assert front.hear(CONTROL, state) == [AnswerQuery(CONTROL, state)]
    assert front.hear(W1, CacheCleared(6, 3)) == [AnswerQuery(W1, CacheCleared(6, 3))]
    begun = TransferDecided(7, TransferId(CONTROL.epoch, 1), None)
    assert front.hear(CONTROL, begun) == [AnswerQuery(CONTROL, begun)]


def test_a_draining_worker_gets_nothing_new() -> None:
    front = ready_front()
    front.hear(W0, DrainBegun())
    front.feed(arrival(1))
    assert front.asked().excluded == (Rank(0),)


def test_a_new_life_of_a_rank_replaces_the_old_one() -> None:
    front, _ = streaming_front()
    front.join(worker(0, 12))
    assert front.machine.snapshot().linked == (0, 1)
    assert front.machine.snapshot().resumed == 1


def test_same_events_same_digest() -> None:
    first, second = streaming_front()[0], streaming_front()[0]
    assert first.machine.digest() == second.machine.digest()
    first.wait(1)
    assert first.machine.digest() != second.machine.digest()
