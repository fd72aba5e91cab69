"""What one seed of the swarm makes of everything that can be set: sizes, times, load and faults."""

from random import Random
from typing import TypeVar

import attrs

from lmpool.core.carrier import PlacementRules
from lmpool.core.control import ControlSettings
from lmpool.core.ids import MILLISECOND, Nanos, Rank
from lmpool.core.placement.price import CurvePoint, Pair, PairCurve, TransferProfile
from lmpool.core.placement.proposal import USUAL
from lmpool.core.rates import Rates
from lmpool.core.route import POLICIES
from lmpool.core.search import SearchSettings

T = TypeVar("T")


@attrs.frozen
class WorkerKnobs:
    """Of one rank, in all its lives."""

    blocks: int
    rates: Rates


@attrs.frozen
class LoadKnobs:
    """What clients do. Shares are probabilities."""

    gap_ns: int
    """Mean time between two arrivals."""
    burst: float
    """Share of arrivals that come together with the one before."""
    waiting_max: int
    """Nobody comes while so many wait."""
    patience_ns: int
    """Nobody comes for so long after somebody was told that the server is busy."""
    families: int
    """Prompts that others begin with."""
    family_tokens: int
    suffix_tokens: int
    turns: float
    """Share that continues an earlier request with its answer."""
    repeats: float
    """Share that asks an earlier prompt again."""
    outputs: int
    choices: int
    tenants: int
    sessions: int
    warm: float
    penalised: float
    scored: float
    """Share that wants log-probabilities; some of them those of the prompt."""
    ending: float
    """Share with end tokens."""
    minimum: float
    priorities: float
    deadlines: float
    deadline_ns: int
    stops: float
    """Share whose text completes a stop string."""
    leaves: float
    """Share whose client goes away early."""
    vocabulary: int


@attrs.frozen
class FaultKnobs:
    """Probabilities: of a message, of a step, or of any event of the cluster."""

    delay: float
    delay_ns: int
    step_fails: float
    step_not_finite: float
    hold: float
    hold_ns: int
    stall: float
    stall_ns: int
    cut: float
    worker_crash: float
    control_crash: float
    ingress_crash: float
    drain: float
    clear: float
    query: float
    restart_ns: int


@attrs.frozen
class TransferKnobs:
    """Of transfers between ranks. Probabilities: of any event of the cluster, of a route, of an order, or of a copy."""

    ordered: float
    """Of an event: somebody wants one."""
    cancelled: float
    """Of an event: control takes one back."""
    asked: float
    """Of an order: it comes by control's door, instead of being control's own."""
    absurd: float
    """Of an order: it wants what nobody has, or the other way round."""
    partial: float
    """Of an order: it counts on blocks at its target."""
    moves: float
    sends: float
    """Of an order: the source sends, instead of being read."""
    pulls: float
    """Of a route: what another rank has of the chain is fetched, and the request waits for it."""
    promises: float
    """Of a route: the request waits for something of which nobody else has heard."""
    await_ns: int
    """At most so long."""
    answer_ns: Nanos
    """How long a side may take to answer control."""
    copy_ns: int
    """How long a copy may take, at most."""
    leases: float
    lease_ns: int
    block_ns: int
    """What a block takes."""
    chunk_blocks: int
    fails: float
    """Of a copy, of a sending."""
    deaf: float
    """Of a copy, of a sending: it notices nothing, and ends when it is done."""
    late: float
    """Of its end: told much later."""
    late_ns: int

    @property
    def healed(self) -> "TransferKnobs":
        """Nobody orders any more; routes go on to, and copies are whole and told of at once."""
        return attrs.evolve(self, ordered=0.0, cancelled=0.0, promises=0.0, fails=0.0, deaf=0.0, late=0.0)


@attrs.frozen
class Knobs:
    seed: int
    events: int
    """After so many of them faults and load end."""
    block_size: int
    workers: tuple[WorkerKnobs, ...]
    model_tokens_max: int
    step_tokens_max: int
    sequences_max: int
    steps_in_flight_max: int
    waiting_requests_max: int
    waiting_tokens_max: int
    report_interval_ns: Nanos
    class_ns: Nanos
    requests_max: int
    abort_wait_ns: Nanos
    control: ControlSettings
    search: SearchSettings
    latency_ns: int
    redial_ns: int
    load: LoadKnobs
    faults: FaultKnobs
    transfers: TransferKnobs

    @property
    def healed(self) -> FaultKnobs:
        """Nothing goes wrong any more."""
        return FaultKnobs(0.0, 1, 0.0, 0.0, 0.0, 1, 0.0, 1, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 1)


def draw_knobs(seed: int) -> Knobs:
    chance = Random(f"{seed} knobs")
    replicas = chance.randint(3, 6)
    block_size = chance.choice((8, 8, 8, 16))
    sequences_max = chance.randint(1, 10)
    search = _search(chance, replicas, block_size)
    report_interval_ns = _span(chance, 10, 300)
    transfers = _transfers(Random(f"{seed} transfers"))
    knobs = Knobs(
        seed=seed,
        events=chance.randint(2_000, 2_600),
        block_size=block_size,
        workers=_workers(chance, replicas),
        model_tokens_max=chance.choice((96, 160, 320, 1_000)),
        step_tokens_max=max(sequences_max, chance.choice((4, 9, 16, 33, 64, 128))),
        sequences_max=sequences_max,
        steps_in_flight_max=chance.choice((1, 2)),
        waiting_requests_max=chance.choice((1, 3, 8, 24)),
        waiting_tokens_max=chance.choice((60, 300, 5_000)),
        report_interval_ns=report_interval_ns,
        class_ns=_span(chance, 1, 1_000),
        requests_max=chance.choice((6, 12, 24, 64)),
        abort_wait_ns=_span(chance, 2, 1_000),
        control=_control(chance, replicas, report_interval_ns, transfers),
        search=search,
        latency_ns=_span(chance, 0.02, 3),
        redial_ns=_span(chance, 1, 60),
        load=_load(chance, block_size),
        faults=_faults(chance),
        transfers=transfers,
    )
    if not knobs.transfers.ordered:
        return knobs
    placement = _placement(Random(f"{seed} placement"), replicas, knobs.transfers.block_ns)
    return attrs.evolve(knobs, control=attrs.evolve(knobs.control, placement=placement))


def _span(chance: Random, least_ms: float, most_ms: float) -> Nanos:
    """Every order of magnitude is as likely."""
    return Nanos(int(MILLISECOND * least_ms * (most_ms / least_ms) ** chance.random()))


def _seldom(chance: Random, odds: float, value: T, otherwise: T) -> T:
    return value if chance.random() < odds else otherwise


def _workers(chance: Random, replicas: int) -> tuple[WorkerKnobs, ...]:
    least, spread = chance.choice((6, 9, 12, 20, 40)), chance.choice((0, 5, 23))
    step_ns = float(_span(chance, 1, 12))
    workers: list[WorkerKnobs] = []
    for _ in range(replicas):
        pace = _seldom(chance, 0.2, chance.uniform(1.0, 5.0), 1.0)
        rates = Rates(step_ns * pace, 4e4 * pace, 40.0, 2e5 * pace, 500.0)
        workers.append(WorkerKnobs(min(least + chance.randint(0, spread), 63), rates))
    return tuple(workers)


def _control(chance: Random, replicas: int, report_interval_ns: int, transfers: TransferKnobs) -> ControlSettings:
    return ControlSettings(
        policy=chance.choice(sorted(POLICIES)),
        replicas=replicas,
        wait_max_ns=_span(chance, 30, 20_000),
        suspect_after_ns=Nanos(int(report_interval_ns * chance.uniform(1.2, 8.0))),
        settle_ns=_span(chance, 1, 300),
        report_wait_ns=_span(chance, 2, 500),
        booking_ns=_span(chance, 20, 2_000),
        bookings_max=_seldom(chance, 0.1, 6, 1_000),
        waiting_routes_max=chance.choice((1, 4, 64)),
        sweep_hashes=chance.choice((1, 16, 300)),
        decisions_kept=64,
        transfer_answer_ns=transfers.answer_ns,
        placement=None,
    )


def _search(chance: Random, replicas: int, block_size: int) -> SearchSettings:
    return SearchSettings(
        replicas=replicas,
        block_size=block_size,
        attempts_max=chance.randint(1, 3),
        route_wait_ns=_span(chance, 1, 500),
        replica_wait_ns=_span(chance, 100, 10_000),
        retry_ns=_span(chance, 2, 250),
        busy_retry_ns=_span(chance, 10, 1_000),
        routes_degraded=chance.random() < 0.8,
        homes_max=chance.choice((1, 4, 64)),
    )


def _load(chance: Random, block_size: int) -> LoadKnobs:
    return LoadKnobs(
        gap_ns=_span(chance, 1, 30),
        burst=chance.choice((0.0, 0.3, 0.7)),
        waiting_max=chance.choice((3, 8, 8, 20, 60)),
        patience_ns=_span(chance, 0.1, 100),
        families=chance.randint(1, 5),
        family_tokens=block_size * chance.randint(1, 6),
        suffix_tokens=chance.choice((4, 20, 60)),
        turns=chance.choice((0.0, 0.2, 0.5)),
        repeats=chance.choice((0.0, 0.1, 0.4)),
        outputs=chance.choice((4, 12, 30, 60)),
        choices=chance.choice((1, 1, 2, 4)),
        tenants=chance.choice((1, 1, 3)),
        sessions=chance.choice((0, 4)),
        warm=chance.choice((0.0, 0.3, 1.0)),
        penalised=chance.choice((0.0, 0.2)),
        scored=chance.choice((0.0, 0.0, 0.2)),
        ending=chance.choice((0.0, 0.3)),
        minimum=chance.choice((0.0, 0.3)),
        priorities=chance.choice((0.0, 0.4)),
        deadlines=chance.choice((0.0, 0.0, 0.3)),
        deadline_ns=_span(chance, 20, 1_000),
        stops=chance.choice((0.0, 0.2)),
        leaves=chance.choice((0.0, 0.0, 0.1, 0.3)),
        vocabulary=chance.choice((20, 1_000)),
    )


def _faults(chance: Random) -> FaultKnobs:
    """A tenth of all seeds has none."""
    worst = _seldom(chance, 0.9, 1.0, 0.0)

    def share(*shares: float) -> float:
        return worst * chance.choice(shares)

    return FaultKnobs(
        delay=share(0.0, 0.01, 0.05),
        delay_ns=_span(chance, 1, 200),
        step_fails=share(0.0, 0.0, 0.01, 0.05),
        step_not_finite=share(0.0, 0.0, 0.005),
        hold=share(0.0, 0.002, 0.01),
        hold_ns=_span(chance, 5, 1_500),
        stall=share(0.0, 0.001, 0.004),
        stall_ns=_span(chance, 5, 1_500),
        cut=share(0.0, 0.001, 0.005),
        worker_crash=share(0.0, 0.001, 0.004),
        control_crash=share(0.0, 0.0005, 0.003),
        ingress_crash=share(0.0, 0.0, 0.0005, 0.002),
        drain=share(0.0, 0.0, 0.001),
        clear=chance.choice((0.0, 0.0, 0.003)),
        query=chance.choice((0.0, 0.01)),
        restart_ns=_span(chance, 1, 400),
    )


def _transfers(chance: Random) -> TransferKnobs:
    """By a stream of its own, so that all else is as it was before there were any. A quarter of all seeds has none."""
    some = _seldom(chance, 0.25, 0.0, 1.0)
    return TransferKnobs(
        ordered=some * chance.choice((0.01, 0.03, 0.06)),
        cancelled=some * chance.choice((0.0, 0.002, 0.01)),
        asked=chance.choice((0.0, 0.5, 1.0)),
        absurd=chance.choice((0.0, 0.1, 0.3)),
        partial=chance.choice((0.0, 0.3)),
        moves=chance.choice((0.0, 0.3, 1.0)),
        sends=chance.choice((0.0, 0.4, 1.0)),
        pulls=some * chance.choice((0.0, 0.5, 1.0)),
        promises=some * chance.choice((0.0, 0.0, 0.05)),
        await_ns=_span(chance, 3, 1_000),
        answer_ns=_span(chance, 2, 300),
        copy_ns=_span(chance, 2, 1_000),
        leases=chance.choice((0.0, 0.5)),
        lease_ns=_span(chance, 5, 2_000),
        block_ns=_span(chance, 0.05, 20),
        chunk_blocks=chance.choice((1, 2, 8)),
        fails=chance.choice((0.0, 0.05, 0.2)),
        deaf=chance.choice((0.0, 0.3, 1.0)),
        late=chance.choice((0.0, 0.0, 0.1)),
        late_ns=_span(chance, 10, 3_000),
    )


def _placement(chance: Random, replicas: int, block_ns: int) -> PlacementRules | None:
    """In half of the seeds that have transfers control begins some by itself, and is less choosy than usual."""
    if chance.random() < 0.5:
        return None
    settings = attrs.evolve(
        USUAL,
        safety_ratio=chance.choice((0.01, 0.5, 1.5)),
        blocks_min=1,
        blocks_max=chance.choice((1, 4, 1_024)),
        transfers_max=chance.choice((1, 8)),
        visits_min=chance.choice((1, 2)),
        pause_ns=_span(chance, 2, 100),
        chain_pause_ns=_span(chance, 5, 1_000),
        rank_pause_ns=_span(chance, 1, 200),
        lease_ns=_span(chance, 5, 1_000),
        room_share=chance.choice((0.0, USUAL.room_share)),
    )
    cost = block_ns * chance.choice((0.01, 0.3, 3.0))  # as often as not it is told wrong
    point = CurvePoint(1, cost, 2 * cost, cost, 3 * cost)
    ranks = [Rank(rank) for rank in range(replicas)]
    pairs = tuple(Pair(source, target) for source in ranks for target in ranks if source != target)
    return PlacementRules(settings, TransferProfile(1.2, (PairCurve(pairs[0], (point,)),)), pairs)
