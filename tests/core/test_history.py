"""What the ingress remembers of requests, in the words that explanations use."""

import attrs

from lmpool.core.effects import Outcome
from lmpool.core.history import VISITS_KEPT, History, HistoryLog, Visits
from lmpool.core.ids import MILLISECOND, Epoch, Nanos, Rank, RequestId
from lmpool.core.limits import HISTORIES_KEPT
from lmpool.core.messages.ingress_worker import Accepted, EndReason, RefusalReason, Refused
from tests.core.front import (
    CONTROL,
    SETTINGS,
    W0,
    W1,
    Front,
    arrival,
    ready_front,
    request,
    streaming_front,
    submitted_front,
)

MS = MILLISECOND


def history_of(front: Front, counter: int) -> History:
    history = front.machine.history(request(counter))
    assert history is not None
    return history


def test_a_request_that_ends_well_has_one_visit_with_its_times() -> None:
    front, submit = submitted_front(arrived_ns=Nanos(0))
    front.now = Nanos(5 * MS)
    front.hear(W0, Accepted(submit.request, submit.attempt, 16, Nanos(3 * MS)))
    front.now = Nanos(9 * MS)
    front.produce(W0, submit, 0, 0, 7)
    front.now = Nanos(12 * MS)
    front.finish(W0, submit, 0, 1, 8)
    history = history_of(front, 1)
    (visit,) = history.visits
    assert (history.phase, history.outcome, history.output_tokens, history.ended_ns) == (
        "closed",
        Outcome.COMPLETE,
        2,
        12 * MS,
    )
    assert (visit.attempt, visit.rank, visit.cached_tokens, visit.waited_ns) == (0, W0.rank, 16, 3 * MS)
    assert (visit.submitted_ns, visit.begun_ns, visit.first_token_ns) == (0, 5 * MS, 9 * MS)
    assert visit.end == "complete"


def test_an_open_request_shows_its_phase_and_a_visit_without_end() -> None:
    front, _ = streaming_front()
    history = history_of(front, 1)
    assert (history.phase, history.outcome, history.ended_ns) == ("streaming", None, None)
    assert [visit.end for visit in history.visits] == [""]


def test_each_attempt_is_a_visit_and_says_how_it_ended() -> None:
    front, submit = streaming_front()
    front.produce(W0, submit, 0, 0, 7)
    front.lose(W0)
    front.decide(front.asked(), W1)
    _, second = front.submitted()
    front.hear(W1, Refused(second.request, second.attempt, RefusalReason.QUEUE_FULL, Nanos(0)))
    history = history_of(front, 1)
    assert [(visit.rank, visit.end) for visit in history.visits] == [(0, "worker lost"), (1, "refused: queue full")]
    assert history.visits[0].first_token_ns is not None
    assert history.visits[1].begun_ns is None


def test_a_route_without_control_is_marked() -> None:
    front = ready_front()
    front.lose(CONTROL)
    front.feed(arrival(1))
    assert [visit.is_degraded for visit in history_of(front, 1).visits] == [True]


def test_a_fault_of_the_worker_ends_the_visit_with_the_outcome() -> None:
    front, submit = streaming_front()
    front.end(W0, submit, EndReason.STEP_FAILED)
    history = history_of(front, 1)
    assert history.visits[-1].end == Outcome.FAILED.value
    assert history.detail


def test_a_request_that_is_turned_away_at_the_door_has_a_history_too() -> None:
    front = ready_front(attrs.evolve(SETTINGS, requests_max=1))
    front.feed(arrival(1))
    front.feed(arrival(2))
    history = history_of(front, 2)
    assert (history.outcome, history.visits) == (Outcome.BUSY, ())


def test_histories_are_bounded_and_the_oldest_goes() -> None:
    front = Front(attrs.evolve(SETTINGS, requests_max=0))
    for counter in range(1, HISTORIES_KEPT + 2):
        front.feed(arrival(counter))
    assert front.machine.history(request(1)) is None
    assert len(front.machine.requests_of("tenant")) == HISTORIES_KEPT
    assert history_of(front, HISTORIES_KEPT + 1).outcome is Outcome.BUSY


def test_requests_are_found_by_tenant_open_ones_too() -> None:
    front = ready_front()
    front.feed(arrival(1, tenant="red"))
    front.feed(arrival(2, tenant="blue"))
    front.feed(arrival(3, tenant="red"))
    assert front.machine.requests_of("red") == (request(1), request(3))
    assert front.machine.requests_of("nobody") == ()


def test_an_id_of_another_life_is_unknown() -> None:
    front, _ = streaming_front()
    assert front.machine.history(RequestId(Epoch(99), 1)) is None


def test_histories_are_part_of_the_digest() -> None:
    digests = []
    for tenant in ("red", "blue"):
        front = Front(attrs.evolve(SETTINGS, requests_max=0))
        front.feed(arrival(1, tenant=tenant))
        digests.append(front.machine.digest())
    assert digests[0] != digests[1]


def test_of_many_visits_the_first_and_the_latest_are_kept() -> None:
    visits = Visits([])
    for attempt in range(VISITS_KEPT + 5):
        visits.begin(Nanos(attempt), attempt, Rank(0), Epoch(1), is_degraded=False)
        visits.end("worker lost")
    attempts = [visit.attempt for visit in visits.all()]
    assert attempts == [0, *range(6, VISITS_KEPT + 5)]


def test_a_log_keeps_what_it_is_told_to() -> None:
    front, _ = streaming_front()
    log, history = HistoryLog(2), history_of(front, 1)
    for counter in (1, 2, 3):
        log.append(attrs.evolve(history, request=request(counter)))
    assert [log.get(request(counter)) is not None for counter in (1, 2, 3)] == [False, True, True]
