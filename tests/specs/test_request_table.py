"""Brings a request into each phase, and lets each event happen to it."""

from collections.abc import Callable

import pytest

from lmpool.core.effects import Send
from lmpool.core.events import ClientGone, StopFound
from lmpool.core.ids import SECOND, Nanos
from lmpool.core.messages.ingress_control import (
    Busy,
    RouteDecided,
    Unroutable,
    UnroutableReason,
)
from lmpool.core.messages.ingress_worker import (
    Accepted,
    Ended,
    EndReason,
    Finish,
    RefusalReason,
    Refused,
    TokensProduced,
)
from lmpool.core.open_request import PHASE_NAMES
from tests.core.front import (
    CONTROL,
    NEXT_CONTROL,
    SETTINGS,
    W0,
    W1,
    Front,
    arrival,
    ready_front,
    request,
    tokens_produced,
    worker,
)
from tests.specs.tables import read_rows

ROWS = read_rows("request.md", "A request at the ingress")
ROWS_AGAIN = read_rows("request.md", "A request that had begun before its worker was lost")
DEADLINE = Nanos(SETTINGS.search.replica_wait_ns + 30 * SECOND)


def routing(deadline_ns: Nanos | None = DEADLINE) -> Front:
    front = ready_front()
    front.feed(arrival(1, deadline_ns=deadline_ns))
    return front


def waiting(deadline_ns: Nanos | None = DEADLINE) -> Front:
    front = routing(deadline_ns)
    front.hear(CONTROL, Unroutable(request(1), 0, UnroutableReason.NO_REPLICA, 0))
    return front


def submitted(deadline_ns: Nanos | None = DEADLINE) -> Front:
    front = routing(deadline_ns)
    front.decide(front.asked(), W0)
    return front


def streaming(deadline_ns: Nanos | None = DEADLINE) -> Front:
    front = submitted(deadline_ns)
    front.hear(W0, Accepted(request(1), 0, 0, Nanos(0)))
    front.hear(W0, tokens_produced((1, 0, 0, 0, 50, None)))
    return front


def leaving(deadline_ns: Nanos | None = DEADLINE) -> Front:
    front = streaming(deadline_ns)
    front.feed(ClientGone(request(1)))
    return front


PHASES: dict[str, Callable[[Nanos | None], Front]] = {
    "routing": routing,
    "waiting": waiting,
    "submitted": submitted,
    "streaming": streaming,
    "leaving": leaving,
}


def route(rank: int, epoch: int) -> RouteDecided:
    peer = worker(rank, epoch)
    return RouteDecided(request(1), 0, 1, peer.rank, peer.epoch, "least time", 0, None)


def row(front: Front, token: int, finish: Finish | None) -> TokensProduced:
    """The next token of choice 0."""
    return tokens_produced((1, 0, 0, len(front.delivered.get((1, 0), [])), token, finish))


def refused(front: Front) -> None:
    front.hear(W0, Refused(request(1), 0, RefusalReason.QUEUE_FULL, Nanos(0)))


def refused_by_the_last(front: Front) -> None:
    front.lose(W1)
    refused(front)


def refused_and_no_other(front: Front) -> None:
    refused(front)
    front.hear(CONTROL, Unroutable(request(1), 1, UnroutableReason.NO_REPLICA, 0))


def pause(front: Front) -> None:
    """Until the phase has lasted too long; a request that is at work has no such time."""
    deadline = front.machine.next_deadline()
    assert deadline is not None
    front.wait(0 if deadline == DEADLINE else deadline - front.now)


def search_too_long(front: Front) -> None:
    """Only without a deadline. Of one that leaves, nothing is searched."""
    is_leaving = front.phase() == "leaving"
    front.wait(0 if is_leaving else SETTINGS.search.replica_wait_ns)


def deadline_passed(front: Front) -> None:
    """One that leaves has another outcome already."""
    is_leaving = front.phase() == "leaving"
    front.wait(0 if is_leaving else DEADLINE)


EVENTS: dict[str, Callable[[Front], object]] = {
    "route decided": lambda front: front.hear(CONTROL, route(0, 3)),
    "route decided (to a life without a link)": lambda front: front.hear(CONTROL, route(0, 77)),
    "route decided (older attempt)": lambda front: front.hear(
        CONTROL, RouteDecided(request(1), -1, 1, W0.rank, W0.epoch, "", 0, None)
    ),
    "busy": lambda front: front.hear(CONTROL, Busy(request(1), 0, Nanos(0))),
    "unroutable (no replica)": lambda front: front.hear(
        CONTROL, Unroutable(request(1), 0, UnroutableReason.NO_REPLICA, 0)
    ),
    "unroutable (never fits)": lambda front: front.hear(
        CONTROL, Unroutable(request(1), 0, UnroutableReason.NEVER_FITS, 9)
    ),
    "accepted": lambda front: front.hear(W0, Accepted(request(1), 0, 0, Nanos(0))),
    "token": lambda front: front.hear(W0, row(front, 51, None)),
    "last token": lambda front: front.hear(W0, row(front, 51, Finish.LENGTH)),
    "token (older attempt)": lambda front: front.hear(W0, tokens_produced((1, -1, 0, 0, 51, None))),
    "fault": lambda front: front.hear(W0, row(front, -1, Finish.NOT_FINITE)),
    "refused": refused,
    "refused (no other is left)": refused_by_the_last,
    "refused (control has no other)": refused_and_no_other,
    "ended": lambda front: front.hear(W0, Ended(request(1), 0, EndReason.ABORTED)),
    "stop found": lambda front: front.feed(StopFound(request(1), 0, 0)),
    "client gone": lambda front: front.feed(ClientGone(request(1))),
    "worker lost": lambda front: front.lose(W0),
    "worker ready": lambda front: front.join(worker(1, 12)),
    "control lost": lambda front: front.lose(CONTROL),
    "control joined": lambda front: front.join(NEXT_CONTROL),
    "pause over": pause,
    "search too long": search_too_long,
    "deadline": deadline_passed,
}

REFUSALS = ("refused", "refused (no other is left)", "refused (control has no other)")
IMPOSSIBLE = [
    # The text of a token that never came completes nothing.
    *((phase, "stop found") for phase in ("routing", "waiting", "submitted")),
    # A worker accepts before it brings tokens, and does not refuse what it has accepted.
    *(("submitted", event) for event in ("token", "last token")),
    *(("streaming", event) for event in ("accepted", *REFUSALS)),
    *(("leaving", event) for event in REFUSALS if event != "refused"),
]


def again(phase: Callable[[Nanos | None], Front]) -> Callable[[], Front]:
    """A request with one token that lost its worker, which is back in its next life."""

    def make() -> Front:
        front = streaming()
        front.lose(W0)
        front.join(worker(0, 13))
        if phase is waiting:
            front.hear(CONTROL, Unroutable(request(1), 1, UnroutableReason.NO_REPLICA, 0))
        elif phase is submitted:
            front.hear(CONTROL, RouteDecided(request(1), 1, 2, W1.rank, W1.epoch, "least time", 0, None))
        return front

    return make


def refused_again(front: Front) -> None:
    front.lose(worker(0, 13))
    front.hear(W1, Refused(request(1), 1, RefusalReason.QUEUE_FULL, Nanos(0)))


def refused_again_and_no_other(front: Front) -> None:
    front.hear(W1, Refused(request(1), 1, RefusalReason.QUEUE_FULL, Nanos(0)))
    front.hear(CONTROL, Unroutable(request(1), 2, UnroutableReason.NO_REPLICA, 0))


EVENTS_AGAIN: dict[str, Callable[[Front], object]] = {
    "busy": lambda front: front.hear(CONTROL, Busy(request(1), 1, Nanos(0))),
    "unroutable (never fits)": lambda front: front.hear(
        CONTROL, Unroutable(request(1), 1, UnroutableReason.NEVER_FITS, 9)
    ),
    "stop found": EVENTS["stop found"],
    "accepted": lambda front: front.hear(W1, Accepted(request(1), 1, 0, Nanos(0))),
    "refused (no other is left)": refused_again,
    "refused (control has no other)": refused_again_and_no_other,
}


def check(row: dict[str, str], front: Front, happen: Callable[[Front], object]) -> None:
    happen(front)
    outcome = front.outcome(1)
    assert (front.phase() if outcome is None else f"closed: {outcome.value}") == row["next"]
    names = [type(effect.message if isinstance(effect, Send) else effect).__name__ for effect in front.effects]
    assert ", ".join(names) == row["effects"]


def test_every_phase_and_event_is_in_the_table() -> None:
    assert sorted(PHASES) == sorted(PHASE_NAMES.values())
    assert [row["phase"] for row in ROWS if row["event"] == "*"] == list(PHASES)
    named = {row["event"] for row in ROWS} - {"*"}
    assert named <= EVENTS.keys()
    assert {row["event"] for row in ROWS_AGAIN} == EVENTS_AGAIN.keys()


@pytest.mark.parametrize("event", EVENTS)
@pytest.mark.parametrize("phase", PHASES)
def test_the_machine_agrees(phase: str, event: str) -> None:
    if (phase, event) in IMPOSSIBLE:
        return
    rows = [row for row in ROWS if row["phase"] == phase]
    row = next((row for row in rows if row["event"] == event), rows[-1])
    deadline_ns = None if event == "search too long" else DEADLINE
    check(row, PHASES[phase](deadline_ns), EVENTS[event])


@pytest.mark.parametrize("row", ROWS_AGAIN, ids=lambda row: f"{row['phase']} {row['event']}")
def test_the_machine_agrees_after_a_loss(row: dict[str, str]) -> None:
    check(row, again(PHASES[row["phase"]])(), EVENTS_AGAIN[row["event"]])
