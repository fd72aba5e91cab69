"""What a routing decision costs: time per decision and report, questions per second, memory per hash, and the bounds
that we promise."""

import gc
import random
import time
import tracemalloc
from collections.abc import Callable

import attrs

from lmpool.core.control import ControlPlane, ControlSettings
from lmpool.core.events import PeerJoined, Received
from lmpool.core.ids import MILLISECOND, SECOND, Epoch, Nanos, Peer, Rank, RequestId, Role, Version
from lmpool.core.messages import Message
from lmpool.core.messages.ingress_control import BookingEnded, RouteAsked
from lmpool.core.messages.worker_control import NOTHING_DONE, FullReport, Load, Report, WorkerJoined
from lmpool.core.page_table import PageTable
from lmpool.core.prefix import HASH_BYTES
from lmpool.core.rates import Rates
from lmpool.io.wire import Hello, HelloRefused, decode, encode

RANKS = (8, 64)
PARTS = len(RANKS) + 3
BLOCK_SIZE = 16
RATES = Rates(2e6, 5e4, 2.0, 2e5, 20.0)
CHAIN_BLOCKS = (40, 400, 2_000)
BOUNDS_US = {(8, 40): (40.0, 60.0), (8, 400): (60.0, 100.0), (8, 2_000): (100.0, 300.0)}
"""Ranks and blocks of the chain -> most microseconds (median) without and with booking."""
BOUND_INGEST_US = 1_000.0
BOUND_HASH_BYTES = 130.0
INGEST_BLOCKS = 1_000
INGEST_REPEATS_MAX = 500
QUERIES_BATCH = 100


@attrs.frozen
class DecisionRow:
    """Decisions about one chain, of which every rank holds another share, without and with their booking."""

    ranks: int
    blocks: int
    p50_us: float
    p99_us: float
    booked_p50_us: float
    booked_p99_us: float

    @property
    def is_within(self) -> bool:
        bounds = BOUNDS_US.get((self.ranks, self.blocks))
        return bounds is None or (self.p50_us < bounds[0] and self.booked_p50_us < bounds[1])


@attrs.frozen
class Measured:
    decision: tuple[DecisionRow, ...]
    queries_per_s: float
    """Questions about 40 blocks that 8 ranks hold unequally, on one core: read from their frames, decided, booked,
    answered as frames; and the message that ends each booking again, read and followed."""
    ingest_p50_us: float
    ingest_p99_us: float
    """Of a report of 1,000 new blocks that takes 1,000 older ones away."""
    bytes_per_hash: float
    """Of a hash that two of eight holders have."""
    peak_bytes_per_hash: float

    @property
    def is_within(self) -> bool:
        return (
            all(row.is_within for row in self.decision)
            and self.ingest_p50_us < BOUND_INGEST_US
            and self.bytes_per_hash < BOUND_HASH_BYTES
        )


def worker(rank: int) -> Peer:
    return Peer(Role.WORKER, Rank(rank), Epoch(1))


INGRESS = Peer(Role.INGRESS, Rank(0), Epoch(1))


def _load() -> Load:
    return Load(50_000, 100_000, 0, 0, 0, 0, 8, 8_000, Nanos(0), Nanos(5 * MILLISECOND))


def _full_report(hashes: bytes) -> FullReport:
    return FullReport(Version(1), 0, 1, hashes, (), (), _load(), RATES, NOTHING_DONE)


def _report(version: int, added: bytes, removed: bytes) -> Report:
    return Report(Version(version), added, removed, (), (), (), (), _load(), RATES, NOTHING_DONE)


def _asked(counter: int, chain: bytes) -> RouteAsked:
    return RouteAsked(
        request=RequestId(INGRESS.epoch, counter),
        attempt=0,
        chain=chain,
        namespace=bytes(HASH_BYTES),
        prompt_tokens=len(chain) // HASH_BYTES * BLOCK_SIZE + 5,
        output_tokens_max=256,
        choices=1,
        session="",
        priority=0,
        arrived_ns=Nanos(0),
        deadline_ns=None,
        excluded=(),
        draw=0,
    )


def _plane(policy: str, ranks: int, resident: int, chains: list[bytes], chance: random.Random) -> ControlPlane:
    """Live ranks, of which rank r holds the first r + 1 of ranks + 1 parts of each chain; `resident` hashes in all."""
    settings = ControlSettings(
        policy=policy,
        replicas=ranks,
        wait_max_ns=Nanos(3_600 * SECOND),
        suspect_after_ns=Nanos(3_600 * SECOND),
        settle_ns=Nanos(300 * MILLISECOND),
        report_wait_ns=SECOND,
        booking_ns=Nanos(3_600 * SECOND),
        bookings_max=100_000,
        waiting_routes_max=1_000,
        sweep_hashes=4_096,
        decisions_kept=1_024,
        transfer_answer_ns=SECOND,
        placement=None,
    )
    plane = ControlPlane(settings, Epoch(1), Nanos(0))
    plane.handle(Nanos(0), PeerJoined(INGRESS))
    for rank in range(ranks):
        peer = worker(rank)
        held = b"".join(chain[: _blocks(chain) * (rank + 1) // (ranks + 1) * HASH_BYTES] for chain in chains)
        held += chance.randbytes(max(resident // ranks - _blocks(held), 0) * HASH_BYTES)
        plane.handle(Nanos(0), PeerJoined(peer))
        facts = WorkerJoined(b"base", BLOCK_SIZE, 1 << 20, 1 << 20, 2_048, 256, RATES)
        plane.handle(Nanos(0), Received(peer, facts))
        plane.handle(Nanos(0), Received(peer, _full_report(held)))
    return plane


def _blocks(chain: bytes) -> int:
    return len(chain) // HASH_BYTES


def _percentiles(call: Callable[[int], float], count: int) -> tuple[float, float]:
    """Median and 99th percentile of `count` calls that return microseconds, without garbage collection."""
    gc.collect()
    gc.disable()
    try:
        times = sorted(call(index) for index in range(count))
    finally:
        gc.enable()
    return times[count // 2], times[count * 99 // 100]


def _timed(plane: ControlPlane, peer: Peer, message: Message) -> float:
    event = Received(peer, message)
    begin = time.perf_counter_ns()
    plane.handle(Nanos(0), event)
    return (time.perf_counter_ns() - begin) / 1_000


def measure_decisions(policy: str, ranks: int, resident: int, repeats: int, seed: int) -> list[DecisionRow]:
    """Of a control plane that holds `resident` hashes (10^6 is what the bounds are for)."""
    chance = random.Random(seed)
    chains = [chance.randbytes(blocks * HASH_BYTES) for blocks in CHAIN_BLOCKS]
    plane = _plane(policy, ranks, resident, chains, chance)
    rows: list[DecisionRow] = []
    for chain in chains:

        def decide(index: int, chain: bytes = chain) -> float:
            return _timed_route(plane, _asked(index, chain))

        def book(index: int, chain: bytes = chain) -> float:
            asked = _asked(index, chain)
            spent = _timed(plane, INGRESS, asked)
            plane.handle(Nanos(0), Received(INGRESS, BookingEnded(asked.request, asked.attempt)))
            return spent

        alone, booked = _percentiles(decide, repeats), _percentiles(book, repeats)
        rows.append(DecisionRow(ranks, _blocks(chain), *alone, *booked))
    return rows


def _timed_route(plane: ControlPlane, asked: RouteAsked) -> float:
    begin = time.perf_counter_ns()
    plane.decide(Nanos(0), asked)
    return (time.perf_counter_ns() - begin) / 1_000


def measure_queries(policy: str, resident: int, repeats: int, seed: int) -> float:
    """Per second of one core, from frame to frame. Of the median batch, in processor time: others compute as well."""
    chance = random.Random(seed)
    chain = chance.randbytes(CHAIN_BLOCKS[0] * HASH_BYTES)
    plane = _plane(policy, RANKS[0], resident, [chain], chance)
    spent: list[int] = []
    for first in range(0, repeats, QUERIES_BATCH):
        frames = [
            encode(message)
            for index in range(first, first + QUERIES_BATCH)
            for message in (_asked(index, chain), BookingEnded(RequestId(INGRESS.epoch, index), 0))
        ]
        begin = time.process_time_ns()
        answers = [answer for frame in frames for answer in _answers(plane, frame)]
        spent.append(time.process_time_ns() - begin)
        assert len(answers) == QUERIES_BATCH, "every question has one answer"
    return QUERIES_BATCH * SECOND / sorted(spent)[len(spent) // 2]


def _answers(plane: ControlPlane, frame: bytes) -> list[bytes]:
    message = decode(frame)
    assert not isinstance(message, Hello | HelloRefused)
    return [encode(effect.message) for effect in plane.handle(Nanos(0), Received(INGRESS, message))]


def measure_ingest(repeats: int, seed: int) -> tuple[float, float]:
    """Median and 99th percentile in microseconds."""
    chance = random.Random(seed)
    plane = _plane("default", RANKS[0], 100_000, [], chance)
    deltas = [chance.randbytes(INGEST_BLOCKS * HASH_BYTES) for _ in range(repeats + 1)]

    def ingest(index: int) -> float:
        removed = deltas[index - 1] if index else b""
        return _timed(plane, worker(0), _report(index + 2, deltas[index], removed))

    return _percentiles(ingest, repeats)


def measure_memory(resident: int, seed: int) -> tuple[float, float]:
    """Bytes per distinct hash, each held by two of eight holders: when all is there, and at most on the way."""
    chance = random.Random(seed)
    tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()
        table = PageTable()
        holders = [table.grant() for _ in range(RANKS[0])]
        for part in range(0, resident, 10_000):
            hashes = chance.randbytes(min(10_000, resident - part) * HASH_BYTES)
            table.add(holders[part // 10_000 % len(holders)], hashes)
            table.add(holders[(part // 10_000 + 1) % len(holders)], hashes)
            del hashes
        after, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    count = len(table)
    return (after - before) / count, (peak - before) / count


def measure(policy: str, resident: int, repeats: int, seed: int, ended: Callable[[], object]) -> Measured:
    """`ended` is called after each of `PARTS` parts."""
    rows: list[DecisionRow] = []
    for ranks in RANKS:
        rows += measure_decisions(policy, ranks, resident, repeats, seed)
        ended()
    queries = measure_queries(policy, resident, repeats, seed)
    ended()
    ingest = measure_ingest(min(repeats, INGEST_REPEATS_MAX), seed)
    ended()
    memory = measure_memory(resident, seed)
    ended()
    return Measured(tuple(rows), queries, *ingest, *memory)
