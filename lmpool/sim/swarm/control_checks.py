"""What must hold of control after each of its events. It looks into the machine, and asks it nothing."""

from lmpool.core.booking import BookingState
from lmpool.core.control import ControlPlane
from lmpool.core.effects import Send
from lmpool.core.ids import BlockHash, Nanos, Peer, Rank, RequestId, Role
from lmpool.core.messages.ingress_control import Busy, RouteDecided, Unroutable
from lmpool.core.prefix import HASH_BYTES, split_chain
from lmpool.sim.swarm.exchange_checks import TransferWords
from lmpool.sim.swarm.told import Told
from lmpool.sim.swarm.transfer_checks import TransferChecks


class ControlChecks:
    """Of one life."""

    def __init__(self, machine: ControlPlane, words: TransferWords) -> None:
        self._machine = machine
        self._told = Told(machine._settings)
        self._was_settling = True
        """Before the event. One that comes when settling is over may overflow the queue first."""
        self.transfers = TransferChecks(machine, words)

    def before(self, now: Nanos, event: object) -> None:
        self._was_settling = self._machine._settle_at is not None
        self._told.expire(now)
        self._told.take(now, event)

    def after(self, now: Nanos, effects: list[object]) -> None:
        for effect in effects:
            match effect:
                case Send(message=RouteDecided() as decided):
                    self._check_route(now, decided)
                    self._told.route(now, decided)
                case Send(message=Busy(request=request)):
                    takers = self._takers(now, request)
                    is_full = len(self._told.bookings) >= self._machine._settings.bookings_max
                    assert takers or is_full or self._was_settling, "busy, and there is nobody who could be"
                    self._told.answer(request)
                case Send(message=Unroutable(request=request, reason=reason)):
                    takers = self._takers(now, request)
                    assert not takers, f"{reason.value}, and {takers} could have taken it"
                    self._told.answer(request)
                case _:
                    pass
        self._check_bookings()
        self.transfers.after(now, effects)
        deadline = self._machine.next_deadline()
        assert deadline is None or deadline > now, "its next deadline has passed"

    def _takers(self, now: Nanos, request: RequestId) -> list[Rank]:
        """Who may be routed to, by what control was told and was asked."""
        asked, told = self._told.asked.get(request), self._told
        assert asked is not None, "an answer to no question"
        tokens = asked.prompt_tokens + min(asked.output_tokens_max, 1)
        return [
            rank
            for rank, known in told.ranks.items()
            if not told.why_not(rank, now)
            and rank not in asked.excluded
            and known.facts is not None
            and known.facts.model_tokens_max >= tokens
        ]

    def _check_route(self, now: Nanos, decided: RouteDecided) -> None:
        told, rank = self._told, decided.rank
        asked = told.asked.get(decided.request)
        assert asked is not None, "an answer to no question"
        assert asked.attempt == decided.attempt
        assert rank not in asked.excluded, f"rank {rank} is excluded by the request"
        why_not = told.why_not(rank, now)
        assert not why_not, f"routed to rank {rank}, which is {why_not}"
        known = told.ranks[rank]
        assert known.peer.epoch == decided.epoch, f"routed to another life of rank {rank}"
        assert known.facts is not None
        assert known.facts.model_tokens_max >= asked.prompt_tokens, "it does not fit"
        assert known.hashes is not None
        self.transfers.check_promise(asked.chain, decided)
        chain = split_chain(asked.chain)
        assert decided.ready_blocks == _run(chain, 0, known.hashes), "ready blocks are not those reported"
        (decision,) = self._machine._router.decisions((decided.request,), 1)
        coming: dict[bytes, None] = {}
        for request, booking in told.bookings.items():
            if booking.rank == rank and booking.epoch == decided.epoch and request != decided.request:
                coming.update(dict.fromkeys(split_chain(booking.chain)))
        (candidate,) = [candidate for candidate in decision.candidates if candidate.rank == rank]
        arriving = _run(chain, decided.ready_blocks, coming)
        assert candidate.arriving_blocks <= arriving, "credit for blocks that nobody there will write"

    def _check_bookings(self) -> None:
        ledger, told = self._machine._ledger, self._told.bookings
        assert len(ledger) == len(told), f"{len(ledger)} bookings, and there should be {len(told)}"
        for request, expected in told.items():
            booking = ledger.booking(request)
            assert booking is not None, f"the booking of {request} is lost"
            placement = booking.placement
            assert (placement.rank, placement.epoch) == (expected.rank, expected.epoch), (
                f"{request} is booked elsewhere"
            )
            assert (booking.state is BookingState.SEEN) == expected.is_seen, f"{request} is {booking.state.value}"
            writer = booking.writer
            assert writer is None or booking.estimate is None or writer in told or writer in self._told.prefilled, (
                f"{request} counts on {writer}, which is gone"
            )

    @property
    def booked(self) -> list[tuple[RequestId, Peer, bool]]:
        """Requests, where they are booked, and whether a report has named them."""
        return [
            (request, Peer(Role.WORKER, booking.rank, booking.epoch), booking.is_seen)
            for request, booking in self._told.bookings.items()
        ]

    @property
    def is_at_rest(self) -> bool:
        machine = self._machine
        roster = machine._roster
        is_settled = roster.table.is_clean and roster.is_settled
        return len(machine._ledger) == 0 and is_settled and self.transfers.is_at_rest

    def audit(self) -> None:
        """Sums and page table."""
        self._machine.audit()
        roster = self._machine._roster
        table = roster.table
        for member in roster._members:
            feed = member.feed
            told = self._told.ranks.get(member.rank)
            held = None if told is None else told.hashes
            if feed is None or feed.residency is None:
                assert held is None, f"what rank {member.rank} reported is lost"
                continue
            assert held is not None, f"rank {member.rank} counts as a holder"
            holder = feed.residency.holder
            assert table.size(holder) == len(held), (
                f"{table.size(holder)} hashes of rank {member.rank}, not {len(held)}"
            )
            for digest in held:
                assert table._shards[digest[0]].get(digest, 0) & holder, f"a hash of rank {member.rank} is missing"

    def check_rest(self, residents: dict[int, bytes]) -> None:
        """When everything has ended; `residents` are packed hashes in the pools, by rank."""
        machine = self._machine
        assert len(machine._ledger) == 0, f"bookings are left: {list(machine._ledger._bookings)}"
        assert not machine._waiting, "questions are left"
        self.transfers.check_rest()
        assert machine._roster.table.is_clean, "marks of lost ranks are left"
        holders = 0
        for member in machine._roster._members:
            assert member.feed is not None
            assert member.feed.residency is not None
            holder = member.feed.residency.holder
            holders |= holder
            truth = residents[member.rank]
            assert machine._roster.table.size(holder) == len(truth) // HASH_BYTES
            for digest in split_chain(truth):
                assert machine._roster.table._shards[digest[0]].get(digest, 0) & holder
        for shard in machine._roster.table._shards:
            assert not any(mask & ~holders for mask in shard.values()), "marks of nobody are left"


def _run(chain: list[BlockHash], first: int, known: dict[bytes, None]) -> int:
    """How many blocks of the chain from `first` on are known."""
    count = 0
    for digest in chain[first:]:
        if digest not in known:
            break
        count += 1
    return count
