import attrs

from lmpool.core.events import PeerJoined, PeerLost, Received, Tick
from lmpool.core.ids import MILLISECOND, SECOND, Epoch, Nanos, Peer, Rank, Role, Version
from lmpool.core.messages.ingress_control import (
    BookingEnded,
    BookingsOffered,
    Busy,
    DecisionsAsked,
    DecisionsReported,
    RouteDecided,
    Unroutable,
    UnroutableReason,
)
from lmpool.core.messages.ingress_worker import Abort
from lmpool.core.messages.worker_control import NOTHING_DONE, DrainBegun, FullReport, ReportWanted
from tests.core.plane import (
    BLOCK_SIZE,
    FACTS,
    IDLE,
    INGRESS,
    RATES,
    SETTINGS,
    Plane,
    chain,
    question,
    ready_plane,
    report,
    request,
    worker,
)

DOCUMENT = chain(("document", 40))
HALF = DOCUMENT[: len(DOCUMENT) // 2]
PROMPT = 40 * BLOCK_SIZE + 5


def test_a_request_goes_where_its_prefix_is() -> None:
    plane = ready_plane(SETTINGS, b"", DOCUMENT, HALF)
    answer = plane.ask(question(1, DOCUMENT, PROMPT))
    assert isinstance(answer, RouteDecided)
    assert (answer.rank, answer.epoch, answer.ready_blocks) == (1, 1, 40)
    decision = plane.decision()
    assert (decision.number, decision.rank, decision.reason) == (answer.decision, 1, answer.reason)
    assert [candidate.ready_blocks for candidate in decision.candidates] == [0, 40, 20]
    assert [candidate.uncached_tokens for candidate in decision.candidates] == [PROMPT, 5, PROMPT - 320]
    assert all(candidate.eligible for candidate in decision.candidates)
    for candidate in decision.candidates:
        assert len(candidate.terms) == len(decision.term_names)
        assert sum(candidate.terms) == candidate.cost


def test_a_rank_is_live_only_after_its_whole_first_report() -> None:
    plane = Plane(attrs.evolve(SETTINGS, replicas=1))
    plane.connect()
    plane.join(0, 1, FACTS)
    plane.pass_time(400 * MILLISECOND)
    answer = plane.ask(question(1, DOCUMENT, PROMPT))
    assert isinstance(answer, Unroutable)
    assert (answer.reason, answer.tokens_max) == (UnroutableReason.NO_REPLICA, 0)
    plane.tell(0, FullReport(Version(1), 0, 2, HALF, (), (), IDLE, RATES, NOTHING_DONE))
    assert isinstance(plane.ask(question(2, DOCUMENT, PROMPT)), Unroutable)
    plane.tell(0, FullReport(Version(1), 1, 2, DOCUMENT[len(HALF) :], (), (), IDLE, RATES, NOTHING_DONE))
    answer = plane.ask(question(3, DOCUMENT, PROMPT))
    assert isinstance(answer, RouteDecided)
    assert answer.ready_blocks == 40


def test_questions_wait_for_the_first_full_reports() -> None:
    plane = Plane(SETTINGS)
    plane.connect()
    assert plane.feed(Received(INGRESS, question(1, DOCUMENT, PROMPT))) == []
    plane.bring(0, b"")
    assert plane.state().decisions == 0
    plane.join(1, 1, FACTS)
    (answer,) = plane.report_fully(1, 1, DOCUMENT, {})
    assert isinstance(answer, RouteDecided)
    assert answer.rank == 1


def test_questions_wait_no_longer_than_the_bound() -> None:
    plane = Plane(SETTINGS)
    plane.connect()
    plane.bring(0, b"")
    assert plane.feed(Received(INGRESS, question(1, DOCUMENT, PROMPT))) == []
    assert plane.machine.next_deadline() == 300 * MILLISECOND
    assert plane.pass_time(299 * MILLISECOND) == []
    (answer,) = plane.pass_time(MILLISECOND)
    assert isinstance(answer, RouteDecided)
    assert answer.rank == 0


def test_waiting_questions_are_bounded_replaced_and_withdrawn() -> None:
    plane = Plane(attrs.evolve(SETTINGS, waiting_routes_max=2))
    plane.connect()
    for counter in (1, 2):
        assert plane.feed(Received(INGRESS, question(counter, b"", 10))) == []
    assert isinstance(plane.ask(question(3, b"", 10)), Busy)
    plane.end(1, 0)
    assert plane.feed(Received(INGRESS, attrs.evolve(question(2, b"", 10), attempt=1))) == []
    assert plane.machine.snapshot().waiting_routes == 1
    plane.bring(0, b"")
    answers = plane.pass_time(300 * MILLISECOND)
    assert [(answer.request, answer.attempt) for answer in answers if isinstance(answer, RouteDecided)] == [
        (request(2), 1)
    ]
    assert plane.state().bookings == 1


def test_waiting_questions_of_a_lost_ingress_are_forgotten() -> None:
    plane = Plane(SETTINGS)
    plane.connect()
    plane.feed(Received(INGRESS, question(1, b"", 10)))
    plane.feed(PeerLost(INGRESS))
    plane.bring(0, b"")
    assert plane.pass_time(SECOND) == []


def test_a_question_may_wait_while_a_report_names_its_request() -> None:
    """A worker has it still, of an attempt before, or already, because the ingress waited no longer."""
    plane = Plane(SETTINGS)
    plane.connect()
    assert plane.feed(Received(INGRESS, question(1, DOCUMENT, PROMPT))) == []
    plane.join(0, 1, FACTS)
    plane.report_fully(0, 1, b"", {request(1): 60})
    plane.join(1, 1, FACTS)
    (answer,) = plane.report_fully(1, 1, DOCUMENT, {})
    assert isinstance(answer, RouteDecided)
    assert [rank.booked for rank in plane.state().ranks] == [0, 1]


def test_a_namespace_that_differs_from_the_first_is_never_eligible() -> None:
    plane = Plane(SETTINGS)
    plane.connect()
    plane.bring(0, b"")
    plane.join(1, 1, attrs.evolve(FACTS, namespace_base=b"other"))
    plane.report_fully(1, 1, DOCUMENT, {})
    assert plane.route(1, DOCUMENT, PROMPT) == 0
    other = plane.decision().candidates[1]
    assert not other.eligible
    assert "namespace" in other.reason
    assert plane.machine.snapshot().why_not == ("", other.reason)
    assert plane.state().ranks[1].membership == "rejected"
    plane.lose(1)
    plane.lose(0)
    plane.join(1, 2, attrs.evolve(FACTS, namespace_base=b"other"))  # now it is the first
    plane.report_fully(1, 1, DOCUMENT, {})
    assert plane.route(2, DOCUMENT, PROMPT) == 1


def test_a_rank_that_claims_more_hashes_than_blocks_is_rejected() -> None:
    plane = Plane(attrs.evolve(SETTINGS, replicas=1))
    plane.connect()
    plane.join(0, 1, attrs.evolve(FACTS, blocks=39))
    plane.report_fully(0, 1, DOCUMENT, {})
    assert plane.state().ranks[0].membership == "rejected"
    assert isinstance(plane.ask(question(1, DOCUMENT, PROMPT)), Unroutable)


def test_silence_makes_a_rank_suspect_and_a_report_brings_it_back() -> None:
    plane = ready_plane(SETTINGS, DOCUMENT, b"")
    plane.pass_time(2_900 * MILLISECOND)
    plane.report(1)
    plane.pass_time(200 * MILLISECOND)
    assert plane.route(1, DOCUMENT, PROMPT) == 1
    assert plane.decision().candidates[0].reason == "suspect"
    plane.report(0)
    assert plane.route(2, DOCUMENT, PROMPT) == 0


def test_a_draining_rank_gets_nothing_new_and_keeps_its_bookings() -> None:
    plane = ready_plane(SETTINGS, DOCUMENT, b"")
    assert plane.route(1, DOCUMENT, PROMPT) == 0
    plane.tell(0, DrainBegun())
    assert plane.route(2, DOCUMENT, PROMPT) == 1
    assert [rank.booked for rank in plane.state().ranks] == [1, 1]
    plane.report(0, accepted=(request(1),), ended=(request(1),))
    assert [rank.booked for rank in plane.state().ranks] == [0, 1]


def test_a_gap_asks_once_for_a_full_report_and_changes_no_hash() -> None:
    plane = ready_plane(SETTINGS, HALF)
    plane.versions[0] = 5
    (wanted,) = plane.report(0, added=DOCUMENT[len(HALF) :])
    assert isinstance(wanted, ReportWanted)
    assert plane.report(0) == []
    assert (plane.wanted(), plane.state().resyncs) == (1, 1)
    answer = plane.ask(question(1, DOCUMENT, PROMPT))
    assert isinstance(answer, RouteDecided)
    assert answer.ready_blocks == 20
    plane.report_fully(0, 8, DOCUMENT, {})
    answer = plane.ask(question(2, DOCUMENT, PROMPT))
    assert isinstance(answer, RouteDecided)
    assert answer.ready_blocks == 40
    assert plane.report(0) == []
    plane.pass_time(2 * SECOND)
    assert plane.wanted() == 1


def test_a_full_report_that_does_not_come_is_asked_for_again() -> None:
    plane = ready_plane(SETTINGS, HALF)
    plane.versions[0] = 5
    plane.report(0)
    plane.pass_time(1_100 * MILLISECOND)
    assert plane.wanted() == 2


def test_a_worker_that_joins_and_does_not_report_is_asked() -> None:
    plane = Plane(SETTINGS)
    plane.join(0, 1, FACTS)
    assert plane.wanted() == 0
    plane.pass_time(1_100 * MILLISECOND)
    assert plane.wanted() == 1


def test_while_a_full_report_arrives_in_parts_the_old_hashes_stand() -> None:
    plane = ready_plane(SETTINGS, DOCUMENT)
    plane.tell(0, FullReport(Version(4), 0, 2, chain(("new", 3)), (), (), IDLE, RATES, NOTHING_DONE))
    answer = plane.ask(question(1, DOCUMENT, PROMPT))
    assert isinstance(answer, RouteDecided)
    assert answer.ready_blocks == 40
    plane.tell(0, FullReport(Version(4), 1, 2, b"", (), (), IDLE, RATES, NOTHING_DONE))
    answer = plane.ask(question(2, DOCUMENT, PROMPT))
    assert isinstance(answer, RouteDecided)
    assert answer.ready_blocks == 0
    plane.versions[0] = 4
    assert plane.report(0) == []


def test_old_versions_and_parts_out_of_order_are_dropped_and_counted() -> None:
    plane = ready_plane(SETTINGS, HALF)
    plane.tell(0, attrs.evolve(report(1, IDLE), removed=HALF))
    plane.tell(0, FullReport(Version(0), 0, 1, b"", (), (), IDLE, RATES, NOTHING_DONE))
    plane.tell(0, FullReport(Version(3), 1, 2, b"", (), (), IDLE, RATES, NOTHING_DONE))
    state = plane.state()
    assert (state.stale_dropped, state.ranks[0].resident_hashes) == (3, 20)


def test_a_lost_worker_is_masked_out_at_once_and_swept_later() -> None:
    plane = ready_plane(SETTINGS, DOCUMENT, b"")
    assert plane.route(1, DOCUMENT, PROMPT) == 0
    plane.lose(0)
    assert plane.state().bookings == 0
    assert plane.route(2, DOCUMENT, PROMPT) == 1
    assert plane.decision().candidates[0].reason == "down"
    assert plane.state().page_table_hashes == 40
    plane.pass_time(SECOND)
    assert plane.state().page_table_hashes == 0
    assert plane.machine.snapshot().is_swept


def test_a_worker_that_comes_back_starts_clean() -> None:
    plane = ready_plane(SETTINGS, DOCUMENT, b"")
    plane.lose(0)
    plane.join(0, 2, FACTS)
    plane.report_fully(0, 1, HALF, {})
    answer = plane.ask(question(1, DOCUMENT, PROMPT))
    assert isinstance(answer, RouteDecided)
    assert (answer.rank, answer.epoch, answer.ready_blocks) == (0, 2, 20)


def test_a_new_life_replaces_the_old_before_its_link_is_known_to_be_lost() -> None:
    plane = ready_plane(SETTINGS, DOCUMENT)
    assert plane.route(1, DOCUMENT, PROMPT) == 0
    plane.join(0, 2, FACTS)
    assert plane.state().bookings == 0
    plane.feed(PeerLost(worker(0, 1)))
    plane.report_fully(0, 1, b"", {})
    assert plane.state().ranks[0].membership == "live"


def test_strangers_are_dropped_and_counted() -> None:
    plane = ready_plane(SETTINGS, DOCUMENT)
    plane.feed(PeerJoined(worker(5, 1)))
    plane.feed(Received(worker(5, 1), FACTS))
    plane.feed(Received(Peer(Role.INGRESS, Rank(0), Epoch(9)), question(1, b"", 1)))
    plane.feed(PeerJoined(Peer(Role.CONTROL, Rank(0), Epoch(9))))
    plane.feed(Received(INGRESS, Abort(request(1))))
    plane.tell(0, Abort(request(1)))
    assert plane.state().stale_dropped == 6


def test_the_same_request_asked_again_has_one_booking() -> None:
    plane = ready_plane(SETTINGS, DOCUMENT, b"")
    assert plane.route(1, DOCUMENT, PROMPT) == 0
    answer = plane.ask(attrs.evolve(question(1, DOCUMENT, PROMPT), attempt=1, excluded=(Rank(0),)))
    assert isinstance(answer, RouteDecided)
    assert answer.rank == 1
    assert [rank.booked for rank in plane.state().ranks] == [0, 1]
    assert plane.decision().candidates[0].reason == "excluded by the request"
    assert plane.feed(Received(INGRESS, question(1, DOCUMENT, PROMPT))) == []  # the older attempt, late


def test_for_a_request_that_excludes_all_that_fit_there_is_no_replica() -> None:
    """Nothing says that they are busy: it may have no link with them."""
    plane = ready_plane(SETTINGS, b"")
    answer = plane.ask(attrs.evolve(question(1, b"", 10), excluded=(Rank(0),)))
    assert answer == Unroutable(request(1), 0, UnroutableReason.NO_REPLICA, FACTS.model_tokens_max)
    assert plane.decision().reason == "no replica"
    assert plane.state().bookings == 0


def test_only_never_fitting_excludes_a_rank() -> None:
    plane = Plane(SETTINGS)
    plane.connect()
    plane.bring(0, DOCUMENT)
    plane.join(1, 1, attrs.evolve(FACTS, model_tokens_max=16_384))
    plane.loads[1] = attrs.evolve(IDLE, blocks_free=0, blocks_cached=0)
    plane.report_fully(1, 1, b"", {})
    assert plane.route(1, DOCUMENT, 8_192) == 1  # no room for a token beside the prompt on rank 0
    assert plane.decision().candidates[0].reason == "too small"
    answer = plane.ask(question(2, b"", 16_384))
    assert isinstance(answer, Unroutable)
    assert (answer.reason, answer.tokens_max) == (UnroutableReason.NEVER_FITS, 16_384)
    scored = plane.ask(attrs.evolve(question(3, b"", 16_384), output_tokens_max=0))
    assert isinstance(scored, RouteDecided)


def test_too_long_a_wait_everywhere_is_busy_and_books_nothing() -> None:
    plane = ready_plane(attrs.evolve(SETTINGS, wait_max_ns=Nanos(SECOND // 2)), b"", b"")
    answers = [plane.ask(question(counter, b"", 6_000)) for counter in range(5)]
    assert [isinstance(answer, RouteDecided) for answer in answers] == [True, True, False, False, False]
    busy = answers[-1]
    assert isinstance(busy, Busy)
    assert busy.retry_after_ns >= SECOND
    assert plane.state().bookings == 2
    decision = plane.decision()
    assert (decision.rank, len(decision.candidates)) == (None, 2)
    assert "busy" in decision.reason
    assert (plane.machine.snapshot().routed, plane.machine.snapshot().busy) == (2, 3)


def test_the_table_of_bookings_is_bounded() -> None:
    plane = ready_plane(attrs.evolve(SETTINGS, bookings_max=2), b"")
    assert [isinstance(plane.ask(question(counter, b"", 1)), Busy) for counter in range(3)] == [False, False, True]


def test_an_unseen_booking_ends_at_its_deadline() -> None:
    plane = ready_plane(SETTINGS, b"")
    plane.route(1, b"", 10)
    assert plane.machine.snapshot().unseen == 1
    plane.pass_time(10 * SECOND)
    assert plane.state().bookings == 0


def test_a_new_control_counts_a_request_known_to_worker_and_ingress_once() -> None:
    offered = BookingsOffered(
        requests=(request(1), request(2), request(3), request(4)),
        attempts=(0, 1, 0, 0),
        ranks=(Rank(0), Rank(1), Rank(1), Rank(7)),
        epochs=(Epoch(1), Epoch(1), Epoch(9), Epoch(1)),
        prompt_tokens=(100, 200, 300, 400),
    )
    for ingress_first in (True, False):
        plane = Plane(SETTINGS)
        plane.connect()
        if ingress_first:
            plane.feed(Received(INGRESS, offered))
        for rank, live in ((0, {request(1): 60}), (1, {request(5): 7})):
            plane.join(rank, 1, FACTS)
            plane.report_fully(rank, 1, b"", live)
        if not ingress_first:
            plane.feed(Received(INGRESS, offered))
        ranks = plane.state().ranks
        assert [rank.booked for rank in ranks] == [1, 2]
        assert [rank.prefill_tokens for rank in ranks] == [60, 207]


def test_what_an_ingress_routed_alone_is_adopted_from_reports() -> None:
    plane = ready_plane(SETTINGS, b"")
    plane.report(0, accepted=(request(4), request(5)), prefill={request(4): 90})
    assert [(rank.booked, rank.prefill_tokens) for rank in plane.state().ranks] == [(2, 90)]
    plane.end(5, 3)
    plane.report(0, ended=(request(4),))
    assert plane.state().bookings == 0


def test_decisions_are_kept_in_a_bounded_ring() -> None:
    plane = ready_plane(attrs.evolve(SETTINGS, decisions_kept=3), b"")
    for counter in range(5):
        plane.route(counter, b"", 1)
    (message,) = plane.feed(Received(INGRESS, DecisionsAsked(1, None, 10)))
    assert isinstance(message, DecisionsReported)
    assert [decision.request.counter for decision in message.decisions] == [4, 3, 2]
    (message,) = plane.feed(Received(INGRESS, DecisionsAsked(2, (request(3),), 10)))
    assert isinstance(message, DecisionsReported)
    assert ([decision.number for decision in message.decisions], message.number) == ([4], 2)
    assert plane.state().decisions == 5


def test_ticks_at_any_moment_are_harmless() -> None:
    plane = ready_plane(SETTINGS, DOCUMENT, b"")
    plane.route(1, DOCUMENT, PROMPT)
    for _ in range(3):
        assert plane.feed(Tick()) == []
    plane.now = Nanos(plane.now + 3_600 * SECOND)
    plane.feed(Tick())
    assert [rank.membership for rank in plane.state().ranks] == ["suspect", "suspect"]
    assert plane.machine.next_deadline() is None


def test_a_booking_that_was_refused_frees_its_share() -> None:
    plane = ready_plane(SETTINGS, b"")
    plane.route(1, DOCUMENT, PROMPT)
    plane.feed(Received(INGRESS, BookingEnded(request(1), 0)))
    state = plane.state()
    assert (state.bookings, state.ranks[0].prefill_tokens, state.ranks[0].routed) == (0, 0, 1)


def test_a_full_pool_that_exchanges_its_blocks_needs_no_resync() -> None:
    plane = Plane(attrs.evolve(SETTINGS, replicas=1))
    plane.connect()
    plane.join(0, 1, attrs.evolve(FACTS, blocks=40))
    plane.report_fully(0, 1, DOCUMENT, {})
    assert plane.report(0, added=chain(("other", 40)), removed=DOCUMENT) == []
    (wanted,) = plane.report(0, added=DOCUMENT[:16])  # more hashes than blocks: something was lost
    assert isinstance(wanted, ReportWanted)
    assert plane.state().ranks[0].resident_hashes == 40
