"""What control has promised: one booking a request, from the decision until its worker is done with it.

Sums per rank follow from the bookings and nothing else (`audit`).
"""

from collections.abc import Iterable, Sequence
from itertools import takewhile

from lmpool.core.booking import (
    NEXT,
    Account,
    Booking,
    BookingEvent,
    BookingState,
    Placement,
    count_booking,
    no_bookings,
    remaining,
)
from lmpool.core.ids import Epoch, Nanos, Rank, RequestId
from lmpool.core.prefix import HASH_BYTES, common_blocks


def _cover(chain: bytes, ready: int, others: Iterable[tuple[RequestId, bytes]]) -> tuple[int, RequestId | None]:
    """Leading blocks of `chain` that are among the first `ready` or in one of the other chains, and whose it is."""
    blocks, writer = ready, None
    start = blocks * HASH_BYTES
    wanted = chain[start : start + HASH_BYTES]
    if not wanted:
        return blocks, writer
    for request, other in others:
        if other[start : start + HASH_BYTES] == wanted:
            blocks, writer = common_blocks(chain, other, blocks), request
            start = blocks * HASH_BYTES
            wanted = chain[start : start + HASH_BYTES]
            if not wanted:
                break
    return blocks, writer


class Ledger:
    """Open bookings. Every change of one goes through `_apply` or `_revise`, which keep the sums."""

    __slots__ = ("_accounts", "_arriving", "_bookings", "_unseen", "revision", "revisions")

    def __init__(self, ranks: int) -> None:
        self._bookings: dict[RequestId, Booking] = {}
        self._accounts = [no_bookings() for _ in range(ranks)]
        self._arriving: list[dict[RequestId, bytes]] = [{} for _ in range(ranks)]
        """Per rank, oldest first: chains whose last blocks are still to be computed."""
        self.revisions = [0] * ranks
        """Each rises with every change of that rank's account. Read only."""
        self.revision = 0
        """Rises with every change of any account."""
        self._unseen: dict[RequestId, Nanos] = {}
        """Deadlines of bookings that no report has named, earliest first."""

    def __len__(self) -> int:
        return len(self._bookings)

    @property
    def unseen(self) -> int:
        """Bookings that no report has named."""
        return len(self._unseen)

    def account(self, rank: Rank) -> Account:
        """Read only."""
        return self._accounts[rank]

    def booking(self, request: RequestId) -> Booking | None:
        """Read only."""
        return self._bookings.get(request)

    def arriving(
        self, chain: bytes, ranks: Sequence[Rank], ready: Sequence[int]
    ) -> tuple[list[int], list[RequestId | None]]:
        """On each of the ranks: blocks of a packed chain after the first `ready` that an open booking will make
        resident there, and whose booking that is."""
        blocks = [0] * len(ranks)
        writers: list[RequestId | None] = [None] * len(ranks)
        for index, rank in enumerate(ranks):
            others = self._arriving[rank]
            if others:
                covered, writers[index] = _cover(chain, ready[index], others.items())
                blocks[index] = covered - ready[index]
        return blocks, writers

    def tokens_before(self, request: RequestId) -> int:
        """Prefill tokens of all that were booked on its rank before it. 0 if its worker has begun it."""
        booking = self._bookings[request]
        placement = booking.placement
        if remaining(booking) < placement.prompt_tokens - placement.ready_tokens - placement.arriving_tokens:
            return 0
        earlier = takewhile(lambda other: other != request, self._arriving[placement.rank])
        return sum([remaining(self._bookings[other]) for other in earlier])

    def next_deadline(self) -> Nanos | None:
        return next(iter(self._unseen.values()), None)

    def book(self, placement: Placement, deadline: Nanos) -> None:
        """Deadlines must not fall from one call to the next. The request must have no open booking."""
        self._open(Booking(placement, BookingState.BOOKED, placement.writer, placement.uncached, None))
        self._unseen[placement.request] = deadline

    def adopt(self, placement: Placement, tokens: int) -> None:
        """A request that its worker reports and nobody here has booked."""
        self._open(Booking(placement, BookingState.SEEN, None, None, tokens))

    def restore(self, placement: Placement, deadline: Nanos) -> None:
        """A booking that an ingress made with an earlier control. What is known here already counts once."""
        booking = self._bookings.get(placement.request)
        if booking is None:
            self.book(placement, deadline)
        elif booking.placement.rank == placement.rank and booking.placement.epoch == placement.epoch:
            if booking.placement.prompt_tokens < placement.prompt_tokens:
                self._place(booking, placement, booking.estimate)
        elif booking.placement.attempt < placement.attempt:
            self._apply(booking, BookingEvent.ASKED_AGAIN)
            self.book(placement, deadline)

    def _open(self, booking: Booking) -> None:
        placement = booking.placement
        assert placement.request not in self._bookings
        self._bookings[placement.request] = booking
        self._count(booking, 1)
        self._note_arriving(booking)

    def accept(self, rank: Rank, epoch: Epoch, request: RequestId) -> bool:
        """A report names it. False: no booking of this life of the rank."""
        booking = self._of(rank, epoch, request)
        if booking is None:
            return False
        self._apply(booking, BookingEvent.ACCEPTED)
        return True

    def progress(self, rank: Rank, epoch: Epoch, request: RequestId, tokens: int) -> bool:
        """A report says how many prefill tokens are left. False: no booking of this life of the rank."""
        booking = self._of(rank, epoch, request)
        if booking is None:
            return False
        self._apply(booking, BookingEvent.ACCEPTED)
        estimate = booking.estimate
        self._revise(booking, None if estimate is None or tokens <= estimate else estimate, tokens)
        return True

    def miss(self, placement: Placement) -> None:
        """The request computes what a transfer was to bring: it is as if placed like this from the beginning."""
        booking = self._of(placement.rank, placement.epoch, placement.request)
        if booking is not None and booking.placement.attempt == placement.attempt:
            self._place(booking, placement, None if booking.estimate is None else placement.uncached)

    def end(self, rank: Rank, epoch: Epoch, request: RequestId) -> None:
        """A report says that it is gone."""
        booking = self._of(rank, epoch, request)
        if booking is not None:
            self._apply(booking, BookingEvent.ENDED)

    def abandon(self, request: RequestId, attempt: int) -> bool:
        """False: that attempt has no open booking."""
        booking = self._bookings.get(request)
        if booking is None or booking.placement.attempt > attempt:
            return False
        self._apply(booking, BookingEvent.ABANDONED)
        return True

    def ask_again(self, request: RequestId) -> None:
        booking = self._bookings.get(request)
        if booking is not None:
            self._apply(booking, BookingEvent.ASKED_AGAIN)

    def lose_ingress(self, ingress: Epoch) -> None:
        for booking in [booking for request, booking in self._bookings.items() if request.ingress == ingress]:
            self._apply(booking, BookingEvent.INGRESS_LOST)

    def lose_rank(self, rank: Rank, kept: Epoch | None) -> None:
        """Every life of the rank is over but the one that is kept, if any."""
        for booking in self._at(rank):
            if booking.placement.epoch != kept:
                self._apply(booking, BookingEvent.RANK_LOST)

    def expire(self, now: Nanos) -> None:
        deadline_next = self.next_deadline()
        if deadline_next is None or now < deadline_next:
            return
        late: list[Booking] = []
        for request, deadline in self._unseen.items():
            if deadline > now:
                break
            late.append(self._bookings[request])
        for booking in late:
            self._apply(booking, BookingEvent.LATE)

    def reconcile(self, rank: Rank, epoch: Epoch, listed: dict[RequestId, int]) -> list[RequestId]:
        """A full report names all live requests of a rank and their prefill left. Returns those not booked here."""
        for booking in self._at(rank):
            if booking.placement.epoch == epoch:
                known = booking.placement.request in listed
                self._apply(booking, BookingEvent.LISTED if known else BookingEvent.UNLISTED)
        return [request for request, tokens in listed.items() if not self.progress(rank, epoch, request, tokens)]

    def _of(self, rank: Rank, epoch: Epoch, request: RequestId) -> Booking | None:
        booking = self._bookings.get(request)
        if booking is None or booking.placement.rank != rank or booking.placement.epoch != epoch:
            return None
        return booking

    def _at(self, rank: Rank) -> list[Booking]:
        return [booking for booking in self._bookings.values() if booking.placement.rank == rank]

    def _apply(self, booking: Booking, event: BookingEvent) -> None:
        state = NEXT[booking.state][event]
        if state is booking.state:
            return
        request, rank = booking.placement.request, booking.placement.rank
        self._count(booking, -1)
        booking.state = state
        self._unseen.pop(request, None)
        if state is not BookingState.ENDED:
            self._count(booking, 1)
            return
        del self._bookings[request]
        if self._arriving[rank].pop(request, None) is not None:
            self._withdraw(rank, request)

    def _count(self, booking: Booking, sign: int) -> None:
        rank = booking.placement.rank
        count_booking(self._accounts[rank], booking, sign)
        self.revisions[rank] += 1
        self.revision += 1

    def _place(self, booking: Booking, placement: Placement, estimate: int | None) -> None:
        """On the same rank. One that was adopted has had no chain until now."""
        self._count(booking, -1)
        booking.placement, booking.estimate = placement, estimate
        self._count(booking, 1)
        self._note_arriving(booking)

    def _revise(self, booking: Booking, estimate: int | None, reported: int | None) -> None:
        self._count(booking, -1)
        booking.estimate, booking.reported = estimate, reported
        self._count(booking, 1)
        self._note_arriving(booking)

    def _note_arriving(self, booking: Booking) -> None:
        placement = booking.placement
        arriving = self._arriving[placement.rank]
        if placement.chain and remaining(booking):
            arriving[placement.request] = placement.chain
        else:
            arriving.pop(placement.request, None)

    def _withdraw(self, rank: Rank, writer: RequestId) -> None:
        """A writer went before it was done: who counted on it counts on one before itself, or computes alone."""
        earlier: list[tuple[RequestId, bytes]] = []
        for request, chain in self._arriving[rank].items():
            booking = self._bookings[request]
            placement = booking.placement
            if booking.writer == writer and booking.estimate is not None:
                most = placement.ready_tokens + placement.arriving_tokens
                blocks, booking.writer = _cover(chain, placement.ready_tokens // placement.block_size, earlier)
                estimate = max(placement.prompt_tokens - min(blocks * placement.block_size, most), 1)
                self._revise(booking, estimate, booking.reported)
            earlier.append((request, chain))

    def audit(self) -> None:
        """Asserts that every sum and index follows from the open bookings."""
        accounts = [no_bookings() for _ in self._accounts]
        arriving: list[dict[RequestId, bytes]] = [{} for _ in self._accounts]
        for request, booking in self._bookings.items():
            assert booking.placement.request == request
            assert booking.state is not BookingState.ENDED
            assert (booking.state is BookingState.BOOKED) == (request in self._unseen)
            count_booking(accounts[booking.placement.rank], booking, 1)
            if remaining(booking) and booking.placement.chain:
                arriving[booking.placement.rank][request] = booking.placement.chain
        assert accounts == self._accounts
        assert arriving == self._arriving
        assert list(self._unseen.values()) == sorted(self._unseen.values())
        assert all(request in self._bookings for request in self._unseen)

    def digest_state(self) -> str:
        return repr((self._bookings, self._unseen))
