"""The control plane against a naive model: joins, losses, reports, gaps, questions, in any order."""

import os
import subprocess
import sys

import attrs
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from lmpool.core.control import ControlPlane
from lmpool.core.events import PeerJoined, PeerLost, Received, Tick
from lmpool.core.ids import MILLISECOND, SECOND, Epoch, Nanos, Peer, Rank, RequestId, Role, Version
from lmpool.core.messages.ingress_control import (
    BookingEnded,
    BookingsOffered,
    Busy,
    DecisionsAsked,
    DecisionsReported,
    RouteAsked,
    RouteDecided,
    StateAsked,
    StateReported,
    Unroutable,
)
from lmpool.core.messages.worker_control import NOTHING_DONE, DrainBegun, FullReport, ReportWanted
from lmpool.core.prefix import HASH_BYTES
from tests.core.plane import BLOCK_SIZE, CONTROL_EPOCH, FACTS, IDLE, RATES, SETTINGS, chain, question, report

RANKS = 3
CHAINS = [chain(("root", 2), (branch, 6)) for branch in "abc"] + [chain(("other", 5))]
COUNTERS = st.integers(0, 5)
PICK = st.integers(0, RANKS - 1)
SELDOM = st.sampled_from([False, False, False, True])
POLICIES = ["marginal-time", "session-bounded", "longest-prefix", "lmpool-paper", "random"]


def head(index: int, blocks: int) -> bytes:
    return CHAINS[index][: blocks * HASH_BYTES]


def split(packed: bytes) -> list[bytes]:
    return [packed[start : start + HASH_BYTES] for start in range(0, len(packed), HASH_BYTES)]


@attrs.define
class Worker:
    """What a worker truly has, and what control can know of it."""

    peer: Peer
    version: int
    held: dict[bytes, None]
    live: dict[RequestId, int]
    told: set[bytes] | None
    """Hashes of the last report that control could apply; None before the first full one."""
    told_version: int
    heard_ns: int
    draining: bool
    parts: list[FullReport]
    staged: set[bytes]


class ControlMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.now = Nanos(0)
        self.workers: dict[int, Worker] = {}
        self.epochs = [0] * RANKS
        self.ingress = Peer(Role.INGRESS, Rank(0), Epoch(1))
        self.booked: dict[RequestId, tuple[int, int, int]] = {}
        """request -> rank, epoch, attempt of the bookings that must be open."""
        self.seen: set[RequestId] = set()
        self.deadlines: dict[RequestId, int] = {}
        self.attempts: dict[RequestId, int] = {}
        self.waiting: dict[RequestId, RouteAsked] = {}
        self.ranks_open: list[int] = []

    @initialize(policy=st.sampled_from(POLICIES))
    def start(self, policy: str) -> None:
        settings = attrs.evolve(SETTINGS, policy=policy, replicas=RANKS, sweep_hashes=7, decisions_kept=8)
        self.plane = ControlPlane(settings, CONTROL_EPOCH, self.now)
        self.feed(PeerJoined(self.ingress))
        for rank in range(RANKS):
            self.join(rank)
            self.workers[rank].held |= dict.fromkeys(split(head(rank, 8)))
            self.report_fully(rank, 1)

    def eligible(self) -> set[int]:
        return {
            rank
            for rank, worker in self.workers.items()
            if worker.told is not None and not worker.draining and self.now < worker.heard_ns + 3 * SECOND
        }

    def feed(self, event: PeerJoined | PeerLost | Received | Tick) -> list[object]:
        """Handles an event and checks every route that comes out of it."""
        messages: list[object] = []
        for effect in self.plane.handle(self.now, event):
            match effect.message:
                case RouteDecided() as routed:
                    self.check_route(routed)
                case Unroutable(request=request):
                    asked = self.waiting.pop(request)
                    assert not self.eligible().difference(asked.excluded)
                case Busy(request=request):
                    self.waiting.pop(request, None)
                case ReportWanted():
                    assert effect.peer in [worker.peer for worker in self.workers.values()]
                case _:
                    messages.append(effect.message)
        return messages

    def check_route(self, routed: RouteDecided) -> None:
        asked = self.waiting.pop(routed.request)
        worker = self.workers[routed.rank]
        assert routed.rank in self.eligible()
        assert routed.rank not in asked.excluded
        assert (routed.epoch, routed.attempt) == (worker.peer.epoch, asked.attempt)
        assert worker.told is not None
        depth = 0
        for block in split(asked.chain):
            if block not in worker.told:
                break
            depth += 1
        assert routed.ready_blocks == depth
        self.booked[routed.request] = routed.rank, routed.epoch, routed.attempt
        self.deadlines[routed.request] = self.now + SETTINGS.booking_ns

    def end(self, request: RequestId) -> None:
        self.booked.pop(request, None)
        self.seen.discard(request)
        self.deadlines.pop(request, None)

    def end_at(self, rank: int) -> None:
        for request in [request for request, place in self.booked.items() if place[0] == rank]:
            self.end(request)

    @rule(rank=PICK, parts=st.integers(0, 3), really=SELDOM)
    def restart(self, rank: int, parts: int, really: bool) -> None:
        if really:
            self.join(rank)
            self.report_fully(rank, parts)

    def join(self, rank: int) -> None:
        self.epochs[rank] += 1
        peer = Peer(Role.WORKER, Rank(rank), Epoch(self.epochs[rank]))
        self.end_at(rank)
        self.workers[rank] = Worker(peer, 1, {}, {}, None, 0, 0, False, [], set())
        self.feed(PeerJoined(peer))
        self.feed(Received(peer, FACTS))

    @rule(rank=PICK, really=SELDOM)
    def lose(self, rank: int, really: bool) -> None:
        worker = self.workers.pop(rank, None) if really else None
        if worker is not None:
            self.end_at(rank)
            self.feed(PeerLost(worker.peer))

    @rule(rank=PICK)
    def say_something_of_an_old_life(self, rank: int) -> None:
        if self.epochs[rank] > 1:
            old = Peer(Role.WORKER, Rank(rank), Epoch(self.epochs[rank] - 1))
            self.feed(Received(old, attrs.evolve(report(1, IDLE), added=CHAINS[0])))
            self.feed(PeerLost(old))

    @rule(rank=PICK, index=st.integers(0, 3), blocks=st.integers(1, 8))
    def store(self, rank: int, index: int, blocks: int) -> None:
        if rank in self.workers:
            self.workers[rank].held |= dict.fromkeys(split(head(index, blocks)))

    @rule(rank=PICK, index=st.integers(0, 3), blocks=st.integers(0, 7))
    def reclaim(self, rank: int, index: int, blocks: int) -> None:
        """Leaves only: whatever begins like this chain beyond so many blocks goes."""
        if rank in self.workers:
            held = self.workers[rank].held
            keep = {block for other in range(4) if other != index for block in split(CHAINS[other]) if block in held}
            for block in split(CHAINS[index])[blocks:]:
                if block not in keep:
                    held.pop(block, None)

    @rule(counter=COUNTERS, tokens=st.integers(0, 200))
    def work(self, counter: int, tokens: int) -> None:
        """A submit arrives, or its prefill goes on."""
        request = RequestId(self.ingress.epoch, counter)
        if request in self.booked:
            rank, epoch, _ = self.booked[request]
            worker = self.workers.get(rank)
            if worker is not None and worker.peer.epoch == epoch:
                worker.live[request] = tokens

    @rule(rank=PICK, counter=COUNTERS, lost=SELDOM)
    def report(self, rank: int, counter: int, lost: bool) -> None:
        """Everything new since the last report; one request may have ended. A lost report leaves a gap."""
        worker = self.workers.get(rank)
        if worker is None or worker.told is None or worker.parts:
            return
        ended = RequestId(self.ingress.epoch, counter)
        is_ending = worker.live.pop(ended, None) is not None
        worker.version += 1
        if lost:
            return
        told = worker.told
        added = b"".join(block for block in worker.held if block not in told)
        removed = b"".join(sorted(told.difference(worker.held)))
        worker.heard_ns = self.now
        if worker.told_version + 1 == worker.version:
            worker.told, worker.told_version = set(worker.held), worker.version
        self.tell(worker, is_ending, ended, added, removed)

    def tell(self, worker: Worker, is_ending: bool, ended: RequestId, added: bytes, removed: bytes) -> None:
        for request in worker.live:
            self.see(worker, request)
        if is_ending and self.booked.get(ended, (None,))[:2] == (worker.peer.rank, worker.peer.epoch):
            self.end(ended)
        message = attrs.evolve(
            report(worker.version, IDLE),
            added=added,
            removed=removed,
            accepted=tuple(worker.live),
            ended=(ended,) if is_ending else (),
            prefill_requests=tuple(worker.live),
            prefill_tokens=tuple(worker.live.values()),
        )
        self.feed(Received(worker.peer, message))

    def see(self, worker: Worker, request: RequestId) -> None:
        """A report names it: it is booked there, or adopted if it is booked nowhere."""
        place = self.booked.setdefault(request, (worker.peer.rank, worker.peer.epoch, 0))
        if place[:2] == (worker.peer.rank, worker.peer.epoch):
            self.seen.add(request)
            self.deadlines.pop(request, None)

    def report_fully(self, rank: int, parts: int) -> None:
        if parts:
            self.begin_full_report(rank, parts)
        for _ in range(parts):
            self.send_part(rank)

    @rule(rank=PICK, parts=st.integers(1, 3))
    def begin_full_report(self, rank: int, parts: int) -> None:
        worker = self.workers.get(rank)
        if worker is None or worker.parts:
            return
        worker.version += 1
        blocks = list(worker.held)
        share = -(-len(blocks) // parts) if blocks else 0
        for part in range(parts):
            requests = tuple(worker.live.items()) if part == parts - 1 else ()
            worker.parts.append(
                FullReport(
                    Version(worker.version),
                    part,
                    parts,
                    b"".join(blocks[part * share : (part + 1) * share]),
                    tuple(request for request, _ in requests),
                    tuple(tokens for _, tokens in requests),
                    IDLE,
                    RATES,
                    NOTHING_DONE,
                )
            )

    @rule(rank=PICK)
    def send_part(self, rank: int) -> None:
        worker = self.workers.get(rank)
        if worker is None or not worker.parts:
            return
        part = worker.parts.pop(0)
        worker.staged = (worker.staged if part.part else set()) | set(split(part.hashes))
        if not worker.parts:
            worker.told, worker.told_version = worker.staged, part.version
            for request in part.requests:
                self.see(worker, request)
            for request in sorted(self.seen):
                if self.booked[request][:2] == (rank, worker.peer.epoch) and request not in part.requests:
                    self.end(request)
        worker.heard_ns = self.now
        self.feed(Received(worker.peer, part))

    @rule(rank=PICK, really=SELDOM)
    def drain(self, rank: int, really: bool) -> None:
        worker = self.workers.get(rank) if really else None
        if worker is not None:
            worker.draining = True
            self.feed(Received(worker.peer, DrainBegun()))

    @rule(
        counter=COUNTERS,
        index=st.integers(0, 3),
        blocks=st.integers(0, 8),
        excluded=st.lists(PICK, max_size=2, unique=True),
        draw=st.integers(0, 9),
    )
    def ask(self, counter: int, index: int, blocks: int, excluded: list[int], draw: int) -> None:
        request = RequestId(self.ingress.epoch, counter)
        attempt = self.attempts.get(request, -1) + 1
        self.attempts[request] = attempt
        packed = head(index, blocks)
        asked = attrs.evolve(
            question(counter, packed, len(packed) // HASH_BYTES * BLOCK_SIZE + 3),
            request=request,
            attempt=attempt,
            excluded=tuple(Rank(rank) for rank in excluded),
            draw=draw,
        )
        self.end(request)
        self.waiting[request] = asked
        self.feed(Received(self.ingress, asked))

    @rule(counter=COUNTERS)
    def abandon(self, counter: int) -> None:
        request = RequestId(self.ingress.epoch, counter)
        self.waiting.pop(request, None)
        self.end(request)
        self.feed(Received(self.ingress, BookingEnded(request, self.attempts.get(request, 0))))

    @rule(really=SELDOM)
    def replace_ingress(self, really: bool) -> None:
        if not really:
            return
        self.feed(PeerLost(self.ingress))
        for request in [request for request in self.booked if request.ingress == self.ingress.epoch]:
            if request not in self.seen:
                self.end(request)
        self.waiting.clear()
        self.ingress = Peer(Role.INGRESS, Rank(0), Epoch(self.ingress.epoch + 1))
        self.attempts.clear()
        self.feed(PeerJoined(self.ingress))

    @rule(counter=COUNTERS, rank=PICK)
    def offer(self, counter: int, rank: int) -> None:
        """A request that the ingress sent there without this control."""
        request = RequestId(self.ingress.epoch, counter)
        worker = self.workers.get(rank)
        if worker is None or request in self.booked or request in self.waiting:
            return
        attempt = self.attempts.setdefault(request, 0)
        self.booked[request] = rank, worker.peer.epoch, attempt
        self.deadlines[request] = self.now + SETTINGS.booking_ns
        offered = BookingsOffered((request,), (attempt,), (Rank(rank),), (worker.peer.epoch,), (30,))
        self.feed(Received(self.ingress, offered))

    @rule(milliseconds=st.sampled_from([1, 1, 50, 50, 400, 3_100]))
    def pass_time(self, milliseconds: int) -> None:
        end = self.now + milliseconds * MILLISECOND
        for _ in range(2_000):
            deadline = self.plane.next_deadline()
            if deadline is None or deadline > end:
                break
            self.now = max(deadline, self.now)
            self.expire()
            self.feed(Tick())
        self.now = Nanos(end)
        self.expire()
        self.feed(Tick())

    def expire(self) -> None:
        for request in [request for request, deadline in self.deadlines.items() if deadline <= self.now]:
            self.end(request)

    @precondition(lambda self: hasattr(self, "plane"))
    @invariant()
    def books_and_tables_agree(self) -> None:
        self.plane.audit()
        state = self.state()
        assert state.bookings == len(self.booked)
        for rank in range(RANKS):
            told = state.ranks[rank]
            worker = self.workers.get(rank)
            assert told.booked == sum(place[0] == rank for place in self.booked.values())
            assert told.resident_hashes == (len(worker.told) if worker is not None and worker.told is not None else 0)
        assert self.plane.snapshot().unseen == len(self.deadlines)
        live: set[bytes] = set().union(*(worker.told or () for worker in self.workers.values()))
        assert state.page_table_hashes >= len(live)
        if self.plane.snapshot().is_swept and not any(worker.parts for worker in self.workers.values()):
            assert state.page_table_hashes == len(live)

    def state(self) -> StateReported:
        (message,) = self.feed(Received(self.ingress, StateAsked(1)))
        assert isinstance(message, StateReported)
        return message

    @rule()
    def explain(self) -> None:
        (message,) = self.feed(Received(self.ingress, DecisionsAsked(1, None, 100)))
        assert isinstance(message, DecisionsReported)
        assert len(message.decisions) <= 8
        for decision in message.decisions:
            assert [candidate.rank for candidate in decision.candidates] == list(range(RANKS))
            if decision.rank is not None:
                assert decision.candidates[decision.rank].eligible


TestControlMachine = ControlMachine.TestCase

SCRIPT = """
from tests.core.plane import SETTINGS, chain, question, ready_plane
import attrs
for policy in ("marginal-time", "session-bounded", "lmpool-paper", "random"):
    plane = ready_plane(attrs.evolve(SETTINGS, policy=policy), chain(("a", 9)), b"", chain(("a", 3)))
    for counter in range(40):
        asked = attrs.evolve(question(counter, chain(("a", 6), (str(counter % 5), 4)), 170), draw=counter * 7)
        plane.ask(attrs.evolve(asked, session=f"user {counter % 7}" if counter % 2 else ""))
        if counter % 4 == 3:
            plane.end(counter - 2, 0)
            plane.pass_time(700_000_000)
            plane.report(counter % 3, added=chain(("b", counter)), removed=chain(("b", counter))[:32])
    plane.lose(2)
    print(policy, plane.machine.digest().hex())
"""


def test_the_digest_does_not_depend_on_the_hash_seed() -> None:
    outputs = [
        subprocess.run(
            [sys.executable, "-c", SCRIPT],
            env={**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": os.getcwd()},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("1", "2")
    ]
    assert outputs[0] == outputs[1]
    assert len(outputs[0].splitlines()) == 4
