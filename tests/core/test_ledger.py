import attrs
import pytest

from lmpool.core.booking import BookingState, Placement
from lmpool.core.ids import Epoch, Nanos, Rank, RequestId
from lmpool.core.ledger import Ledger
from tests.core.plane import BLOCK_SIZE, chain

ONE, TWO = Epoch(1), Epoch(2)
R0, R1 = Rank(0), Rank(1)


def request(counter: int) -> RequestId:
    return RequestId(ONE, counter)


def placement(counter: int, blocks: bytes, prompt_tokens: int) -> Placement:
    return Placement(request(counter), 0, R0, ONE, blocks, prompt_tokens, 100, 1, 0, 0, None, BLOCK_SIZE)


def following(ledger: Ledger, counter: int, blocks: bytes, prompt_tokens: int) -> Placement:
    """With what is arriving there."""
    (arriving,), (writer,) = ledger.arriving(blocks, [R0], [0])
    return attrs.evolve(placement(counter, blocks, prompt_tokens), arriving_tokens=arriving * BLOCK_SIZE, writer=writer)


def left(ledger: Ledger) -> int:
    ledger.audit()
    return ledger.account(R0).prefill_tokens


def test_a_booking_counts_until_its_worker_has_ended_it() -> None:
    ledger = Ledger(2)
    ledger.book(placement(1, b"", 100), Nanos(10))
    account = ledger.account(R0)
    assert (account.requests, account.prefill_tokens, account.unseen_tokens, account.prefilling) == (1, 100, 100, 1)
    assert ledger.accept(R0, ONE, request(1))
    assert (account.requests, account.prefill_tokens, account.unseen_tokens) == (1, 100, 0)
    assert ledger.progress(R0, ONE, request(1), 40)
    assert left(ledger) == 40
    assert account.prefill_pairs == sum(range(60, 100))
    ledger.progress(R0, ONE, request(1), 0)
    assert (account.requests, account.prefill_tokens, account.prefilling, account.decoding_lengths) == (1, 0, 0, 200)
    ledger.end(R0, ONE, request(1))
    assert (len(ledger), account.requests, account.decoding_lengths) == (0, 0, 0)
    ledger.audit()


def test_who_has_not_begun_waits_for_all_that_was_booked_before_it() -> None:
    ledger = Ledger(2)
    for counter, tokens in enumerate((100, 60, 40), 1):
        ledger.book(placement(counter, chain((f"{counter}", tokens // 16)), tokens), Nanos(10))
    assert [ledger.tokens_before(request(counter)) for counter in (1, 2, 3)] == [0, 100, 160]
    ledger.progress(R0, ONE, request(1), 30)
    ledger.progress(R0, ONE, request(3), 40)
    assert [ledger.tokens_before(request(counter)) for counter in (1, 2, 3)] == [0, 30, 90]
    ledger.progress(R0, ONE, request(3), 39)
    assert ledger.tokens_before(request(3)) == 0


def test_what_an_adopted_request_makes_resident_is_known_with_its_chain() -> None:
    """By a transfer that did not come, or by the ingress that tells its bookings."""
    whole = placement(1, chain(("a", 6)), 100)
    missed, restored = Ledger(1), Ledger(1)
    for ledger in (missed, restored):
        ledger.adopt(placement(1, b"", 60), 60)
        assert ledger.arriving(whole.chain, [R0], [0]) == ([0], [None])
    missed.miss(whole)
    restored.restore(whole, Nanos(10))
    for ledger in (missed, restored):
        assert left(ledger) == 60
        assert ledger.arriving(whole.chain, [R0], [0]) == ([6], [request(1)])


def test_what_a_transfer_did_not_bring_is_counted_again() -> None:
    ledger = Ledger(1)
    alone = placement(1, chain(("a", 6)), 100)
    ledger.book(attrs.evolve(alone, ready_tokens=96), Nanos(10))
    assert left(ledger) == 4
    ledger.miss(alone)
    assert left(ledger) == 100
    ledger.progress(R0, ONE, request(1), 60)
    ledger.miss(alone)
    assert left(ledger) == 60


def test_a_transfer_that_a_later_attempt_does_not_await_changes_nothing() -> None:
    ledger = Ledger(1)
    alone = placement(1, b"", 100)
    ledger.miss(alone)
    ledger.book(attrs.evolve(alone, attempt=1, ready_tokens=96), Nanos(10))
    ledger.miss(alone)
    assert left(ledger) == 4


def test_a_transfer_that_is_awaited_elsewhere_by_now_changes_nothing() -> None:
    """Its ingress gave the booking up and routed by itself; the other rank's report told of it."""
    ledger = Ledger(2)
    alone = placement(1, b"", 100)
    ledger.adopt(attrs.evolve(alone, rank=R1), 30)
    ledger.miss(alone)
    booking = ledger.booking(request(1))
    assert booking is not None
    assert booking.placement.rank == R1
    assert left(ledger) == 0
    assert ledger.account(R1).prefill_tokens == 30


def test_reports_of_other_ranks_and_lives_change_nothing() -> None:
    ledger = Ledger(2)
    ledger.book(placement(1, b"", 100), Nanos(10))
    assert not ledger.accept(R1, ONE, request(1))
    assert not ledger.accept(R0, TWO, request(1))
    assert not ledger.progress(R1, ONE, request(1), 3)
    ledger.end(R1, ONE, request(1))
    assert left(ledger) == 100


def test_a_burst_of_siblings_sees_the_first_at_once() -> None:
    ledger = Ledger(1)
    for counter in range(16):
        blocks = chain(("shared", 10), (f"own {counter}", 2))
        ledger.book(following(ledger, counter, blocks, 12 * BLOCK_SIZE), Nanos(10))
    assert left(ledger) == 12 * BLOCK_SIZE + 15 * 2 * BLOCK_SIZE


def test_a_burst_of_equals_computes_one_token_each() -> None:
    ledger = Ledger(1)
    for counter in range(3):
        ledger.book(following(ledger, counter, chain(("shared", 10)), 10 * BLOCK_SIZE), Nanos(10))
    assert left(ledger) == 160 + 1 + 1


def test_the_credit_goes_with_its_writer_to_the_oldest_waiter() -> None:
    ledger = Ledger(1)
    for counter in range(3):
        blocks = chain(("shared", 10), (f"own {counter}", 2))
        ledger.book(following(ledger, counter, blocks, 12 * BLOCK_SIZE), Nanos(10))
    assert ledger.abandon(request(0), 0)
    assert left(ledger) == 12 * BLOCK_SIZE + 2 * BLOCK_SIZE
    ledger.ask_again(request(1))
    assert left(ledger) == 12 * BLOCK_SIZE
    assert ledger.arriving(chain(("shared", 10), ("own 9", 1)), [R0], [0])[0] == [10]
    ledger.abandon(request(2), 0)
    assert ledger.arriving(chain(("shared", 10)), [R0], [0]) == ([0], [None])


def test_a_writer_that_is_done_takes_no_credit_away() -> None:
    ledger = Ledger(1)
    for counter in range(2):
        ledger.book(following(ledger, counter, chain(("shared", 10)), 10 * BLOCK_SIZE + 4), Nanos(10))
    ledger.accept(R0, ONE, request(0))
    ledger.progress(R0, ONE, request(0), 0)
    assert left(ledger) == 4
    ledger.end(R0, ONE, request(0))
    assert left(ledger) == 4


def test_a_waiting_sibling_is_not_charged_for_blocks_that_another_writes() -> None:
    ledger = Ledger(1)
    for counter in range(2):
        ledger.book(following(ledger, counter, chain(("shared", 10)), 10 * BLOCK_SIZE + 4), Nanos(10))
    assert ledger.progress(R0, ONE, request(1), 164)  # the worker names the whole prompt of one that waits
    assert left(ledger) == 164 + 4
    ledger.progress(R0, ONE, request(1), 2)
    assert left(ledger) == 164 + 2
    ledger.progress(R0, ONE, request(1), 30)  # begun, then preempted: now the report is right
    assert left(ledger) == 164 + 30


def test_arriving_counts_from_what_is_ready_and_takes_the_longest() -> None:
    ledger = Ledger(1)
    for counter, blocks in enumerate((chain(("a", 4)), chain(("a", 4), ("b", 9)), chain(("a", 6)), chain(("c", 5)))):
        ledger.book(placement(counter, blocks, 999), Nanos(10))
    assert ledger.arriving(chain(("a", 4), ("b", 7)), [R0], [2]) == ([9], [request(1)])
    assert ledger.arriving(chain(("a", 5)), [R0], [5]) == ([0], [None])
    assert ledger.arriving(chain(("a", 8)), [R0], [4]) == ([2], [request(2)])
    assert ledger.arriving(b"", [R0], [0]) == ([0], [None])


def test_unseen_bookings_end_at_their_deadline_and_seen_ones_do_not() -> None:
    ledger = Ledger(1)
    for counter, deadline in ((1, 10), (2, 20), (3, 30)):
        ledger.book(placement(counter, b"", 10), Nanos(deadline))
    ledger.accept(R0, ONE, request(1))
    assert ledger.next_deadline() == 20
    ledger.expire(Nanos(19))
    assert len(ledger) == 3
    ledger.expire(Nanos(30))
    assert (len(ledger), ledger.unseen, ledger.next_deadline()) == (1, 0, None)
    ledger.audit()


def test_a_lost_ingress_ends_what_no_worker_has_seen() -> None:
    ledger = Ledger(1)
    ledger.book(placement(1, b"", 10), Nanos(10))
    ledger.book(placement(2, b"", 10), Nanos(10))
    ledger.book(attrs.evolve(placement(3, b"", 10), request=RequestId(TWO, 3)), Nanos(10))
    ledger.accept(R0, ONE, request(2))
    ledger.lose_ingress(ONE)
    assert ledger.booking(request(1)) is None
    assert ledger.booking(request(2)) is not None
    assert ledger.booking(RequestId(TWO, 3)) is not None
    ledger.audit()


def test_a_lost_rank_ends_all_of_its_lives_but_the_kept_one() -> None:
    ledger = Ledger(2)
    ledger.book(placement(1, b"", 10), Nanos(10))
    ledger.book(attrs.evolve(placement(2, b"", 10), epoch=TWO), Nanos(10))
    ledger.book(attrs.evolve(placement(3, b"", 10), rank=R1), Nanos(10))
    ledger.lose_rank(R0, TWO)
    assert [ledger.booking(request(counter)) is not None for counter in (1, 2, 3)] == [False, True, True]
    ledger.lose_rank(R0, None)
    assert [ledger.booking(request(counter)) is not None for counter in (1, 2, 3)] == [False, False, True]
    ledger.audit()


def test_abandoning_an_older_attempt_leaves_the_newer() -> None:
    ledger = Ledger(1)
    ledger.book(attrs.evolve(placement(1, b"", 10), attempt=2), Nanos(10))
    assert not ledger.abandon(request(1), 1)
    assert len(ledger) == 1
    assert ledger.abandon(request(1), 2)
    assert not ledger.abandon(request(1), 2)
    assert len(ledger) == 0


def test_a_full_report_settles_what_is_seen() -> None:
    ledger = Ledger(1)
    for counter in (1, 2, 3):
        ledger.book(placement(counter, b"", 10), Nanos(10))
    ledger.accept(R0, ONE, request(1))
    ledger.accept(R0, ONE, request(2))
    assert ledger.reconcile(R0, ONE, {request(2): 4, request(9): 7}) == [request(9)]
    assert ledger.booking(request(1)) is None
    second, third = ledger.booking(request(2)), ledger.booking(request(3))
    assert second is not None
    assert third is not None
    assert (second.state, third.state) == (BookingState.SEEN, BookingState.BOOKED)
    assert left(ledger) == 4 + 10


@pytest.mark.parametrize("worker_first", [True, False])
def test_a_booking_known_to_worker_and_ingress_counts_once(worker_first: bool) -> None:
    ledger = Ledger(1)
    unknown = attrs.evolve(placement(1, b"", 40), output_tokens_max=0, block_size=1)
    known = attrs.evolve(placement(1, b"", 100), attempt=3)
    if worker_first:
        ledger.adopt(unknown, 40)
        ledger.restore(known, Nanos(10))
    else:
        ledger.restore(known, Nanos(10))
        ledger.accept(R0, ONE, request(1))
        ledger.progress(R0, ONE, request(1), 40)
    assert left(ledger) == 40
    assert (len(ledger), ledger.account(R0).requests) == (1, 1)
    assert ledger.account(R0).prefill_pairs == sum(range(60, 100))


def test_an_offer_of_an_older_attempt_elsewhere_changes_nothing() -> None:
    ledger = Ledger(2)
    ledger.book(attrs.evolve(placement(1, b"", 10), attempt=2), Nanos(10))
    ledger.restore(attrs.evolve(placement(1, b"", 10), attempt=1, rank=R1), Nanos(10))
    assert ledger.account(R1).requests == 0
    ledger.restore(attrs.evolve(placement(1, b"", 10), attempt=3, rank=R1), Nanos(10))
    assert (ledger.account(R0).requests, ledger.account(R1).requests) == (0, 1)
    ledger.audit()
