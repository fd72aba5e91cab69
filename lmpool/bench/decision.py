"""What a routing decision costs: time per decision and report, memory per hash, against the bounds that we promise."""

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

RANKS = 8
BLOCK_SIZE = 16
RATES = Rates(2e6, 5e4, 2.0, 2e5, 20.0)
BOUNDS_US = {40: (40.0, 60.0), 400: (60.0, 100.0), 2_000: (100.0, 300.0)}
"""Chain blocks -> most microseconds (median) without and with booking."""
BOUND_INGEST_US = 1_000.0
BOUND_HASH_BYTES = 130.0


@attrs.frozen
class DecisionRow:
    what: str
    chain_blocks: int
    """0 where it does not matter."""
    unit: str
    median: float
    p99: float
    bound: float
    """The median must stay below it."""

    @property
    def is_within(self) -> bool:
        return self.median < self.bound


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


def _plane(policy: str, resident: int, chains: list[bytes], chance: random.Random) -> ControlPlane:
    """Eight live ranks; rank r holds (r + 1) ninths of each chain, and all together `resident` hashes."""
    settings = ControlSettings(
        policy=policy,
        replicas=RANKS,
        wait_max_ns=Nanos(3_600 * SECOND),
        suspect_after_ns=Nanos(3_600 * SECOND),
        settle_ns=Nanos(300 * MILLISECOND),
        report_wait_ns=SECOND,
        booking_ns=Nanos(3_600 * SECOND),
        bookings_max=100_000,
        waiting_routes_max=1_000,
        sweep_hashes=4_096,
        decisions_kept=1_024,
    )
    plane = ControlPlane(settings, Nanos(0))
    plane.handle(Nanos(0), PeerJoined(INGRESS))
    for rank in range(RANKS):
        peer = worker(rank)
        held = b"".join(chain[: len(chain) // HASH_BYTES * (rank + 1) // 9 * HASH_BYTES] for chain in chains)
        held += chance.randbytes(max(resident // RANKS - len(held) // HASH_BYTES, 0) * HASH_BYTES)
        plane.handle(Nanos(0), PeerJoined(peer))
        facts = WorkerJoined(b"base", BLOCK_SIZE, 1 << 20, 1 << 20, 2_048, 256, RATES)
        plane.handle(Nanos(0), Received(peer, facts))
        plane.handle(Nanos(0), Received(peer, _full_report(held)))
    return plane


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


def measure_decisions(policy: str, resident: int, repeats: int, seed: int) -> list[DecisionRow]:
    """Decisions of a control plane that holds `resident` hashes (10^6 is what the bounds are for)."""
    chance = random.Random(seed)
    chains = {blocks: chance.randbytes(blocks * HASH_BYTES) for blocks in BOUNDS_US}
    plane = _plane(policy, resident, list(chains.values()), chance)
    rows: list[DecisionRow] = []
    for blocks, (bound, bound_booked) in BOUNDS_US.items():
        chain = chains[blocks]

        def decide(index: int, chain: bytes = chain) -> float:
            return _timed_route(plane, _asked(index, chain))

        def book(index: int, chain: bytes = chain) -> float:
            asked = _asked(index, chain)
            spent = _timed(plane, INGRESS, asked)
            plane.handle(Nanos(0), Received(INGRESS, BookingEnded(asked.request, asked.attempt)))
            return spent

        rows.append(DecisionRow("decision", blocks, "us", *_percentiles(decide, repeats), bound))
        rows.append(DecisionRow("decision and booking", blocks, "us", *_percentiles(book, repeats), bound_booked))
    return rows


def _timed_route(plane: ControlPlane, asked: RouteAsked) -> float:
    begin = time.perf_counter_ns()
    plane.decide(Nanos(0), asked)
    return (time.perf_counter_ns() - begin) / 1_000


def measure_ingest(repeats: int, seed: int) -> DecisionRow:
    """A report of 1,000 new blocks that takes 1,000 older ones away."""
    chance = random.Random(seed)
    plane = _plane("default", 100_000, [], chance)
    deltas = [chance.randbytes(1_000 * HASH_BYTES) for _ in range(repeats + 1)]

    def ingest(index: int) -> float:
        removed = deltas[index - 1] if index else b""
        return _timed(plane, worker(0), _report(index + 2, deltas[index], removed))

    return DecisionRow("report of 1,000 blocks", 0, "us", *_percentiles(ingest, repeats), BOUND_INGEST_US)


def measure_memory(resident: int, seed: int) -> DecisionRow:
    """Bytes per distinct hash, each held by two of eight holders."""
    chance = random.Random(seed)
    tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()
        table = PageTable()
        holders = [table.grant() for _ in range(RANKS)]
        for part in range(0, resident, 10_000):
            hashes = chance.randbytes(min(10_000, resident - part) * HASH_BYTES)
            table.add(holders[part // 10_000 % RANKS], hashes)
            table.add(holders[(part // 10_000 + 1) % RANKS], hashes)
            del hashes
        after, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    count = len(table)
    return DecisionRow(
        "page table", 0, "bytes/hash", (after - before) / count, (peak - before) / count, BOUND_HASH_BYTES
    )


def measure(policy: str, resident: int, repeats: int, seed: int) -> list[DecisionRow]:
    rows = measure_decisions(policy, resident, repeats, seed)
    return [*rows, measure_ingest(min(repeats, 500), seed), measure_memory(resident, seed)]
