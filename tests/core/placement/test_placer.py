import os
import random
import subprocess
import sys
from collections.abc import Sequence

import attrs
import pytest

from lmpool.core.ids import MILLISECOND, SECOND, BlockId, Epoch, Generation, Nanos, Rank, TransferId, Version
from lmpool.core.ledger import Ledger
from lmpool.core.messages.transfer import (
    Confirmed,
    Copied,
    Published,
    SourcePrepared,
    TargetPrepared,
    TransferAnswer,
    TransferEnd,
    TransferEnded,
    TransferRefusal,
    TransferRefused,
)
from lmpool.core.messages.worker_control import NOTHING_DONE
from lmpool.core.page_table import PageTable
from lmpool.core.placement.demand import FADE_NS
from lmpool.core.placement.log import REFUSALS_KEPT
from lmpool.core.placement.occasions import Site
from lmpool.core.placement.placer import COOLING_MAX, COPY_NS_MIN, FAILURES_MAX, Placer
from lmpool.core.placement.price import FORGET_NS, TransferPrices
from lmpool.core.placement.proposal import USUAL, Gate, Occasion, PlacementSettings, Proposal
from lmpool.core.prefix import chain_length
from lmpool.core.transfer.transfers import TransferOutcome, Transfers
from tests.core.places import MILLI, NOW, pair, paths, point, profile, site
from tests.core.plane import IDLE, RATES, chain, report, worker

A = chain(("a", 64))
PAUSE = USUAL.pause_ns
PROFILE = profile(point(1, (0, 0), (10, 20)))


class World:
    """A placer with two ranks or more, of which control has reports."""

    def __init__(self, sites: Sequence[Site], settings: PlacementSettings = USUAL) -> None:
        self.placer = Placer(settings, PROFILE, paths(len(sites)), 8, NOW)
        self.sites = sites
        self.table = PageTable()
        self.holders = [self.table.grant() for _ in sites]
        self.ledger = Ledger(len(sites))
        self.now = NOW
        self.transfers = Transfers(Epoch(1), SECOND)

    def ask(self, packed: bytes, times: int) -> None:
        for _ in range(times):
            self.placer.note(self.now, packed)

    def hold(self, rank: int, packed: bytes) -> None:
        self.table.add(self.holders[rank], packed)

    def wait(self, pause: int) -> None:
        self.now = Nanos(self.now + pause)

    def plan(self) -> tuple[Proposal, ...]:
        self.wait(PAUSE)
        found = self.placer.plan(self.now, self.sites, self.table, self.ledger)
        self.placer.audit()
        return found

    def begin(self, proposal: Proposal) -> TransferId:
        transfer = self.transfers.begin(self.now, self.placer.terms(proposal))
        assert isinstance(transfer, TransferId)
        self.placer.begin(self.now, transfer, proposal)
        return transfer

    def hear(self, side: Rank, answer: TransferAnswer) -> None:
        self.transfers.hear(self.now, worker(side, 1), answer)
        for ended in self.transfers.take_ended():
            self.placer.end(self.now, ended)

    def publish(self, transfer: TransferId, took: float, *, known: int = 0) -> None:
        """Heard so many milliseconds after now; the source's last word comes a millisecond later.

        `known`: blocks that the target has more than was thought.
        """
        open_transfer = self.transfers.get(transfer)
        assert open_transfer is not None
        terms = open_transfer.terms
        source, target, first = terms.source.rank, terms.target.rank, terms.first
        blocks = chain_length(terms.chain) - first
        numbers = tuple(range(blocks))
        self.hear(source, SourcePrepared(transfer, tuple(map(BlockId, numbers)), tuple(map(Generation, numbers))))
        self.hear(target, TargetPrepared(transfer, first + known, blocks - known))
        self.hear(target, Copied(transfer, 100, Nanos(7)))
        self.hear(source, Confirmed(transfer))
        self.now = Nanos(self.now + round(took * MILLI))
        self.hear(target, Published(transfer, Version(1)))
        self.now = Nanos(self.now + MILLISECOND)
        self.hear(source, TransferEnded(transfer, TransferEnd.FINALIZED, 0))
        assert self.transfers.get(transfer) is None

    def fail(self, transfer: TransferId, cause: TransferRefusal = TransferRefusal.NO_BLOCKS) -> None:
        open_transfer = self.transfers.get(transfer)
        assert open_transfer is not None
        terms = open_transfer.terms
        self.hear(terms.target.rank, TransferRefused(transfer, cause))
        self.hear(terms.source.rank, TransferEnded(transfer, TransferEnd.ABORTED, 0))
        assert self.transfers.get(transfer) is None

    def cancel(self, transfer: TransferId) -> None:
        self.transfers.cancel(self.now, transfer)
        for rank in (0, 1):
            self.hear(Rank(rank), TransferEnded(transfer, TransferEnd.ABORTED, 0))


def hot_world(settings: PlacementSettings = USUAL) -> World:
    """Rank 0 holds a chain that many ask for, and they wait."""
    world = World((site(0, wait=800), site(1)), settings)
    world.ask(A, 10)
    world.hold(0, A)
    return world


def last_refusal(world: World) -> Gate | None:
    return world.placer.log.refusals()[0].proposal.gate


def test_what_is_admitted_has_terms_for_control() -> None:
    world = hot_world()
    (proposal,) = world.plan()
    terms = world.placer.terms(proposal)
    assert (terms.source, terms.target) == (worker(0, 1), worker(1, 1))
    assert (terms.chain, terms.first, terms.lease_ns) == (A, 0, USUAL.lease_ns)
    assert terms.copy_ns == COPY_NS_MIN


def test_plannings_come_after_a_pause_and_only_while_somebody_asks() -> None:
    world = World((site(0, wait=800), site(1)))
    world.hold(0, A)
    assert world.placer.next_deadline() == NOW
    world.ask(A, 10)
    assert world.plan() != ()
    due = world.placer.next_deadline()
    assert due == world.now + PAUSE
    assert world.placer.plan(Nanos(due - 1), world.sites, world.table, world.ledger) == ()
    world.wait(FADE_NS)
    world.plan()
    assert world.placer.next_deadline() is None
    assert world.plan() == ()
    world.placer.wake(world.now)
    assert world.placer.next_deadline() is not None


def test_an_intention_is_not_kept() -> None:
    world = hot_world()
    assert len(world.plan()) == 1
    world.sites = (site(0), site(1))
    assert [world.plan() for _ in range(60)][-1] == ()
    assert last_refusal(world) is Gate.NOT_WORTH_IT


def test_proposals_depend_on_what_came_and_on_nothing_else() -> None:
    world = hot_world()
    later = chain(("b", 64))
    world.hold(0, later)
    assert [proposal.chain for proposal in world.plan()] == [A]
    world.ask(later, 30)
    assert [proposal.chain for proposal in world.plan()] == [later]


def test_a_queue_counts_when_it_lasts() -> None:
    world = hot_world()
    world.sites = (site(0), site(1))
    world.plan()
    world.sites = (site(0, wait=100), site(1))
    assert world.plan() == ()
    found = [world.plan() for _ in range(30)]
    assert found[0] == ()
    assert len(found[-1]) == 1


def test_a_planning_that_comes_early_counts_for_less_of_a_wait() -> None:
    world = World((site(0), site(1), site(2)), attrs.evolve(USUAL, safety_ratio=0.0))
    world.hold(0, A)
    world.ask(A, 30)
    world.plan()
    world.sites = (site(0, wait=80), site(1), site(2))
    (usual,) = world.plan()
    assert usual.saved_ns / usual.visitors == pytest.approx(10 * MILLI)
    world.publish(world.begin(usual), 9)
    (early,) = world.placer.plan(world.now, world.sites, world.table, world.ledger)
    assert early.saved_ns / early.visitors == pytest.approx((10 + 70 / 8 / 10) * MILLI)


def test_a_full_rank_asks_the_rent_that_it_has_reported_and_half_of_its_blocks_before() -> None:
    world = hot_world()
    world.sites = (world.sites[0], attrs.evolve(world.sites[1], blocks_free=0))
    for version, (cached, removed) in enumerate([(0, b""), (1_000, chain(("x", 250)))], 1):
        totals = attrs.evolve(NOTHING_DONE, tokens_cached=cached)
        told = attrs.evolve(report(version, IDLE), removed=removed, totals=totals)
        world.placer.report(world.now, Rank(1), told)
    (proposal,) = world.plan()
    assert proposal.rent_ns == 4.0 * RATES.prefill * 64
    world.placer.lose_rank(Rank(1))
    (proposal,) = world.plan()
    assert proposal.rent_ns == 8.0 * RATES.prefill * 64


def test_what_was_refused_for_a_busy_rank_is_planned_again_as_soon_as_that_is_free() -> None:
    world = World((site(0, wait=800), site(1), site(2)))
    world.hold(0, A)
    world.ask(A, 30)
    (first,) = world.plan()
    transfer, began = world.begin(first), world.now
    world.publish(transfer, 14)
    assert world.placer.next_deadline() == began + 14 * MILLISECOND + MILLISECOND
    found = world.placer.plan(world.now, world.sites, world.table, world.ledger)
    assert [proposal.pair.target for proposal in found] == [3 - first.pair.target]


def test_a_failed_transfer_is_no_reason_to_plan_at_once() -> None:
    world = World((site(0, wait=800), site(1), site(2)))
    world.hold(0, A)
    world.ask(A, 30)
    (first,) = world.plan()
    world.fail(world.begin(first))
    assert world.placer.next_deadline() == world.now + PAUSE


def test_what_is_observed_is_the_time_until_publication() -> None:
    world = hot_world()
    (proposal,) = world.plan()
    assert proposal.price.median_ns == 10 * MILLI
    transfer = world.begin(proposal)
    world.publish(transfer, 14)
    errors = world.placer.prices.errors
    assert (errors.observed, errors.observed_ns, errors.error_ns) == (1, 14 * MILLI, 4 * MILLI)
    (record,) = world.placer.log.records()
    assert (record.outcome, record.took_ns) == (TransferOutcome.PUBLISHED, 14 * MILLI)
    assert record.proposal is proposal


def test_only_what_was_missing_by_then_is_observed() -> None:
    world = hot_world()
    (proposal,) = world.plan()
    began = world.now
    world.publish(world.begin(proposal), 14, known=60)
    assert world.placer.log.published_blocks[Occasion.COPY] == 4
    expected = TransferPrices(PROFILE)
    expected.observe(world.now, proposal.pair, 4, proposal.price, Nanos(14 * MILLISECOND))
    assert world.placer.prices.digest_state() == expected.digest_state()
    assert world.now - began == 15 * MILLISECOND


def test_prices_are_forgotten_with_time() -> None:
    world = hot_world()
    for _ in range(4):
        world.ask(A, 30)
        (proposal,) = world.plan()
        world.publish(world.begin(proposal), 30)
        world.wait(USUAL.chain_pause_ns)
    assert world.placer.prices.price(pair(0, 1), 64).median_ns == 30 * MILLI
    world.wait(FORGET_NS)
    world.ask(A, 1)
    world.plan()
    assert world.placer.prices.price(pair(0, 1), 64).median_ns == 10 * MILLI


def test_what_was_published_is_not_sent_again_at_once() -> None:
    world = hot_world()
    world.publish(world.begin(world.plan()[0]), 10)
    assert world.plan() == ()
    assert last_refusal(world) is Gate.CHAIN_COOLS
    world.wait(USUAL.chain_pause_ns)
    world.ask(A, 10)
    assert len(world.plan()) == 1


def test_a_chain_cools_twice_as_long_with_each_failure() -> None:
    world = hot_world()
    for failures in (1, 2, 3, 4, FAILURES_MAX, FAILURES_MAX):
        world.ask(A, 10)
        (proposal,) = world.plan()
        world.fail(world.begin(proposal))
        assert world.plan() == ()
        world.wait((USUAL.chain_pause_ns << failures) - 3 * PAUSE)
        world.ask(A, 10)
        assert world.plan() == ()
        assert last_refusal(world) is Gate.CHAIN_COOLS
        world.wait(PAUSE)


def test_a_failure_cools_both_ranks_unless_it_is_about_the_chain() -> None:
    for cause, gate in (
        (TransferRefusal.NO_BLOCKS, Gate.RANK_COOLS),
        (TransferRefusal.PINS_FULL, Gate.RANK_COOLS),
        (TransferRefusal.CHAIN_MISSING, None),
    ):
        world = hot_world()
        (proposal,) = world.plan()
        world.fail(world.begin(proposal), cause)
        other = chain(("b", 64))
        world.ask(other, 30)
        world.hold(0, other)
        found = world.plan()
        assert (found == ()) == (gate is not None)
        if gate is not None:
            assert gate in [record.proposal.gate for record in world.placer.log.refusals()]
            world.wait(USUAL.rank_pause_ns)
            assert [proposal.chain for proposal in world.plan()] == [other]


def test_while_one_is_under_way_its_ranks_are_taken() -> None:
    world = hot_world()
    transfer = world.begin(world.plan()[0])
    assert world.plan() == ()
    assert last_refusal(world) is Gate.CHAIN_TAKEN
    other = chain(("b", 64))
    world.ask(other, 30)
    world.hold(0, other)
    assert world.plan() == ()
    assert Gate.RANK_BUSY in [record.proposal.gate for record in world.placer.log.refusals()]
    world.publish(transfer, 10)
    assert [proposal.chain for proposal in world.plan()] == [other]


def test_leases_end_with_use_deadline_and_epoch() -> None:
    def lease_of_the_next(world: World) -> Nanos:
        packed = chain(("b", 62))
        world.ask(packed, 30)
        world.hold(0, packed)
        found = [proposal for proposal in world.plan() if proposal.chain == packed]
        return found[0].lease_ns

    for ending in ("use", "deadline", "epoch", "use elsewhere", "none"):
        world = hot_world(attrs.evolve(USUAL, chain_pause_ns=SECOND))
        world.publish(world.begin(world.plan()[0]), 10)
        world.ask(A, 1)
        match ending:
            case "use":
                world.placer.route(Rank(1), chain(("a", 80)))
            case "use elsewhere":
                world.placer.route(Rank(0), A)
            case "deadline":
                world.wait(USUAL.lease_ns)
            case "epoch":
                world.placer.lose_rank(Rank(1))
            case _:
                pass
        is_kept = ending in ("use elsewhere", "none")
        assert lease_of_the_next(world) == (0 if is_kept else USUAL.lease_ns), ending
        world.placer.audit()


def test_a_cancelled_transfer_is_no_failure() -> None:
    world = hot_world()
    transfer = world.begin(world.plan()[0])
    world.cancel(transfer)
    assert world.placer.log.records()[0].outcome is TransferOutcome.CANCELLED
    world.wait(USUAL.chain_pause_ns)
    assert len(world.plan()) == 1
    assert world.placer.prices.errors.observed == 0


def test_the_end_of_a_transfer_that_nobody_proposed_is_harmless() -> None:
    world = hot_world()
    (proposal,) = world.plan()
    before = world.placer.digest_state()
    transfer = world.transfers.begin(world.now, world.placer.terms(proposal))
    assert isinstance(transfer, TransferId)
    world.publish(transfer, 10)
    assert world.placer.digest_state() == before


def test_equal_refusals_are_kept_once_and_counted() -> None:
    world = hot_world(attrs.evolve(USUAL, safety_ratio=99.0))
    for _ in range(5):
        world.plan()
    (record,) = world.placer.log.refusals()
    assert (record.times, record.at) == (5, world.now)
    assert world.placer.log.refused[Occasion.COPY, Gate.NOT_WORTH_IT] == 5
    for number in range(REFUSALS_KEPT + 10):
        refused = attrs.evolve(record.proposal, chain=chain((f"{number}", 3)))
        world.placer.refuse(world.now, refused)
    assert len(world.placer.log.refusals()) == REFUSALS_KEPT


def test_what_ended_is_kept_up_to_a_bound_newest_first() -> None:
    world = hot_world()
    for _ in range(12):
        world.ask(A, 30)
        (proposal,) = world.plan()
        world.publish(world.begin(proposal), 10)
        world.wait(USUAL.chain_pause_ns)
    assert [record.transfer.counter for record in world.placer.log.records()] == list(range(12, 4, -1))
    assert world.placer.log.admitted[Occasion.COPY] == 12
    assert world.placer.log.published_blocks[Occasion.COPY] == 12 * 64


def test_what_cools_is_bounded() -> None:
    world = hot_world()
    (proposal,) = world.plan()
    for number in range(COOLING_MAX + 50):
        world.publish(world.begin(attrs.evolve(proposal, chain=chain((f"{number}", 5)))), 10)
        world.placer.audit()


def history(seed: int) -> str:
    """Of a placer that has seen much, as text."""
    drawn = random.Random(seed)
    world = World([site(rank, wait=drawn.uniform(0, 900), free=drawn.randrange(1000)) for rank in range(4)])
    running: list[TransferId] = []
    lines: list[str] = []
    for _ in range(60):
        packed = chain((drawn.choice("abcd"), 20), (drawn.choice("uvwxyz"), drawn.randrange(1, 40)))
        world.ask(packed, drawn.randrange(1, 4))
        world.hold(drawn.randrange(4), packed)
        for proposal in world.plan():
            lines.append(repr(proposal))
            running.append(world.begin(proposal))
        while running and drawn.random() < 0.4:
            transfer = running.pop(drawn.randrange(len(running)))
            if drawn.random() < 0.7:
                world.publish(transfer, drawn.uniform(1, 60))
            else:
                world.fail(transfer, drawn.choice(list(TransferRefusal)))
        world.placer.audit()
    return "\n".join([*lines, world.placer.digest_state()])


@pytest.mark.parametrize("seed", range(2))
def test_equal_histories_give_equal_proposals(seed: int) -> None:
    found = history(seed)
    assert found == history(seed)
    assert "Occasion.COPY" in found


def test_no_hash_seed_changes_anything() -> None:
    program = "import hashlib\nfrom tests.core.placement.test_placer import history\n"
    program += "print(hashlib.sha256(''.join(map(history, range(3))).encode()).hexdigest())"
    found = [
        subprocess.run(
            [sys.executable, "-c", program],
            env=os.environ | {"PYTHONHASHSEED": seed, "PYTHONPATH": os.pathsep.join(sys.path)},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("1", "2")
    ]
    assert found[0] == found[1] != ""
