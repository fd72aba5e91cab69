"""Requests that are sent to a rank together with blocks that another rank has."""

import attrs
import pytest

from lmpool.core.carrier import PULL_LEASE_NS, PlacementRules
from lmpool.core.events import PeerJoined, Received
from lmpool.core.ids import MILLISECOND, SECOND, BlockId, Generation, Nanos, Rank, TransferId, Version
from lmpool.core.messages.ingress_control import RouteAsked, RouteDecided
from lmpool.core.messages.transfer import (
    AbortTransfer,
    Awaited,
    Confirmed,
    Copied,
    CopyMeans,
    PrepareSource,
    PrepareTarget,
    Publish,
    Published,
    SourcePrepared,
    TargetPrepared,
    TransferAsked,
    TransferDecided,
    TransferEnd,
    TransferEnded,
    TransferMode,
    TransferRefusal,
    TransferRefused,
)
from lmpool.core.messages.worker_control import DrainBegun
from lmpool.core.placement.proposal import USUAL
from lmpool.core.prefix import HASH_BYTES
from lmpool.core.route import FETCHED
from lmpool.core.transfer.outbound import COPY_SHARE
from tests.core.places import paths, point, profile
from tests.core.plane import CONTROL_EPOCH, FACTS, IDLE, INGRESS, SETTINGS, Plane, chain, question, request, worker

CHAIN = chain(("a", 64))
TOKENS = 64 * 16 + 1
PREFILL_NS = 103_447_552
"""Of the chain, without the steps' own time."""
RULES = PlacementRules(USUAL, profile(point(1, (0, 0), (10, 20))), tuple(paths(3)))
"""Every transfer takes 10 ms, at P95 20 ms."""
BUSY = attrs.evolve(IDLE, step_began_ns=Nanos(0), step_cost_ns=Nanos(2 * SECOND), decoding=1)
"""Nothing begins there for a while."""
FIRST = TransferId(CONTROL_EPOCH, 1)
ASKED = TransferAsked(5, Rank(0), Rank(2), TransferMode.COPY, CopyMeans.READ, CHAIN, 0, SECOND, Nanos(0))
"""By an operator."""


def plane_of(*held: bytes, rules: PlacementRules | None = RULES, policy: str = "default") -> Plane:
    """Rank 0 is busy; others are idle."""
    plane = Plane(attrs.evolve(SETTINGS, replicas=len(held), placement=rules, policy=policy))
    plane.connect()
    for rank, blocks in enumerate(held):
        plane.bring(rank, blocks)
    plane.report(0, load=BUSY)
    plane.sent.clear()
    return plane


def decide(plane: Plane, counter: int, blocks: bytes = CHAIN) -> RouteDecided:
    answer = plane.ask(question(counter, blocks, len(blocks) // HASH_BYTES * 16 + 1))
    assert isinstance(answer, RouteDecided)
    return answer


def begun(plane: Plane) -> list[PrepareTarget | PrepareSource]:
    return [each.message for each in plane.sent if isinstance(each.message, PrepareTarget | PrepareSource)]


def prefill(plane: Plane, rank: int) -> int:
    """Booked, in tokens."""
    return plane.state().ranks[rank].prefill_tokens


def publish(plane: Plane, source: int, target: int) -> None:
    numbers = range(64)
    plane.tell(source, SourcePrepared(FIRST, tuple(map(BlockId, numbers)), tuple(map(Generation, numbers))))
    plane.tell(target, TargetPrepared(FIRST, 0, 64))
    plane.tell(target, Copied(FIRST, 100, Nanos(7)))
    plane.tell(source, Confirmed(FIRST))
    plane.report(target, added=CHAIN)
    plane.tell(target, Published(FIRST, Version(plane.versions[target])))
    plane.tell(source, TransferEnded(FIRST, TransferEnd.FINALIZED, 0))


def test_a_pull_begins_with_the_route_that_counts_on_it() -> None:
    plane = plane_of(CHAIN, b"")
    answer = decide(plane, 1)
    assert (answer.rank, answer.reason) == (Rank(1), f"least marginal time, {FETCHED}")
    assert answer.awaits == Awaited(FIRST, 64, Nanos(plane.now + 10 * MILLISECOND + PREFILL_NS))
    to_target, to_source = begun(plane)
    assert isinstance(to_target, PrepareTarget)
    assert isinstance(to_source, PrepareSource)
    assert (to_target.source, to_source.target) == (Rank(0), Rank(1))
    assert (to_target.chain, to_target.first) == (CHAIN, 0)
    assert prefill(plane, 1) == 1
    assert plane.decision().fetch.endswith("admitted")


def test_mooncake_pulls_where_a_copy_is_sooner_than_the_queue_of_the_holder() -> None:
    plane = plane_of(CHAIN, b"", policy="mooncake")
    assert decide(plane, 1, CHAIN + chain(("tail", 400))).rank == Rank(0)
    assert begun(plane) == []
    answer = decide(plane, 2)
    assert (answer.rank, answer.reason) == (Rank(1), f"least predicted time to first token, {FETCHED}")
    chosen = plane.decision().candidates[1]
    assert chosen.terms[0] >= 10 * MILLISECOND, "it waits for the copy"
    assert chosen.uncached_tokens == 1


def test_mooncake_computes_what_is_sooner_computed_than_copied() -> None:
    slow = PlacementRules(USUAL, profile(point(1, (0, 0), (200, 400))), tuple(paths(3)))
    plane = plane_of(CHAIN, b"", rules=slow, policy="mooncake")
    assert decide(plane, 1, CHAIN + chain(("tail", 400))).rank == Rank(0)
    answer = decide(plane, 2)
    assert (answer.rank, answer.reason) == (Rank(1), "least predicted time to first token")
    assert plane.decision().candidates[1].uncached_tokens == TOKENS
    assert begun(plane) == []


def test_policies_that_do_not_reckon_in_time_pull_nothing() -> None:
    for policy in ("least-loaded", "longest-prefix", "dynamo-64"):
        plane = plane_of(CHAIN, b"", policy=policy)
        for counter in range(1, 4):
            assert FETCHED not in decide(plane, counter).reason
        assert begun(plane) == []


def test_the_transfer_is_in_the_wait_of_the_chosen_rank() -> None:
    plane = plane_of(CHAIN, b"")
    decide(plane, 1)
    decision = plane.decision()
    chosen = dict(zip(decision.term_names, decision.candidates[1].terms, strict=True))
    assert decision.candidates[1].uncached_tokens == 1
    assert chosen["wait"] >= 10 * MILLISECOND
    assert chosen["prefill"] < MILLISECOND


def test_what_a_pull_brings_is_leased_for_a_request_that_comes_after_it() -> None:
    plane = plane_of(CHAIN, b"")
    decide(plane, 1)
    publish(plane, 0, 1)
    (order,) = [each.message for each in plane.sent if isinstance(each.message, Publish)]
    assert order.lease_until_ns == plane.now + PULL_LEASE_NS
    assert plane.machine.snapshot().transfers == 0
    assert prefill(plane, 1) == 1


@pytest.mark.parametrize(
    ("rules", "policy"), [(None, "default"), (RULES, "round-robin"), (RULES, "longest-prefix")], ids=str
)
def test_without_placement_or_with_another_policy_no_route_begins_a_transfer(
    rules: PlacementRules | None, policy: str
) -> None:
    plane = plane_of(CHAIN, b"", rules=rules, policy=policy)
    for counter in (1, 2):
        assert decide(plane, counter).awaits is None
        assert plane.decision().fetch == ""
    assert begun(plane) == []


def test_the_holder_itself_awaits_nothing() -> None:
    plane = plane_of(CHAIN, b"")
    plane.report(0, load=IDLE)
    answer = decide(plane, 1)
    assert (answer.rank, answer.awaits) == (Rank(0), None)


def test_who_knows_as_much_as_all_others_awaits_nothing() -> None:
    plane = plane_of(CHAIN, CHAIN)
    answer = decide(plane, 1)
    assert (answer.rank, answer.awaits) == (Rank(1), None)
    assert plane.decision().fetch == ""


def test_a_pull_that_does_not_pay_is_shown_with_its_gate() -> None:
    short = CHAIN[: 5 * HASH_BYTES]
    plane = plane_of(short, b"")
    answer = decide(plane, 1, short)
    assert (answer.rank, answer.awaits) == (Rank(1), None)
    assert "refused: not worth it" in plane.decision().fetch
    assert prefill(plane, 1) == 81
    assert begun(plane) == []


def test_later_requests_of_the_chain_join_the_transfer() -> None:
    plane = plane_of(CHAIN, b"")
    decide(plane, 1)
    second, longer = decide(plane, 2), decide(plane, 3, chain(("a", 64), ("b", 4)))
    for answer, expected in ((second, 64), (longer, 64)):
        assert answer.rank == 1
        assert answer.awaits is not None
        assert (answer.awaits.transfer, answer.awaits.blocks) == (FIRST, expected)
    assert len(begun(plane)) == 2
    assert "is on its way for another 10.0 ms; admitted" in plane.decision().fetch
    assert prefill(plane, 1) == 1 + 1 + 4 * 16 + 1


def test_a_transfer_that_is_off_is_not_joined() -> None:
    plane = plane_of(CHAIN, b"")
    decide(plane, 1)
    plane.tell(1, TransferRefused(FIRST, TransferRefusal.NO_BLOCKS))
    assert plane.machine.snapshot().transfers == 1
    plane.report(0, load=BUSY)
    assert decide(plane, 2).awaits is None


def test_a_request_whose_transfer_fails_is_booked_with_all_that_it_computes() -> None:
    plane = plane_of(CHAIN, b"")
    decide(plane, 1)
    decide(plane, 2)
    assert prefill(plane, 1) == 2
    plane.tell(1, TransferRefused(FIRST, TransferRefusal.NO_BLOCKS))
    plane.tell(0, TransferEnded(FIRST, TransferEnd.ABORTED, 0))
    # the second counts on the first again, as on any that computes what it wants as well
    assert prefill(plane, 1) >= TOKENS


def test_where_an_operator_has_a_rank_the_request_computes() -> None:
    plane = plane_of(CHAIN, b"", b"")
    plane.report(2, load=BUSY)
    (decided, *_) = plane.feed(Received(INGRESS, ASKED))
    assert decided == TransferDecided(5, FIRST, None)
    plane.sent.clear()
    answer = decide(plane, 1)
    assert (answer.rank, answer.awaits) == (Rank(1), None)
    assert begun(plane) == []
    assert prefill(plane, 1) == TOKENS
    assert "refused: rank busy" in plane.decision().fetch


def test_a_draining_rank_still_gives() -> None:
    plane = plane_of(CHAIN, b"")
    plane.tell(0, DrainBegun())
    answer = decide(plane, 1)
    assert answer.rank == 1
    assert answer.awaits is not None
    assert [message.source for message in begun(plane) if isinstance(message, PrepareTarget)] == [Rank(0)]


def test_a_rank_that_is_lost_gives_nothing() -> None:
    plane = plane_of(CHAIN, b"")
    plane.lose(0)
    assert decide(plane, 1).awaits is None


def test_a_lost_source_ends_the_transfer_and_its_booking_counts_again() -> None:
    plane = plane_of(CHAIN, b"")
    decide(plane, 1)
    plane.lose(0)
    plane.tell(1, TransferEnded(FIRST, TransferEnd.ABORTED, 0))
    assert prefill(plane, 1) == TOKENS


def test_an_attempt_that_is_over_is_not_booked_again_when_its_transfer_fails() -> None:
    plane = plane_of(CHAIN, b"")
    decide(plane, 1)
    plane.end(1, 0)
    again: RouteAsked = attrs.evolve(question(1, b"", 33), attempt=1)
    answer = plane.ask(again)
    assert isinstance(answer, RouteDecided)
    plane.tell(1, TransferRefused(FIRST, TransferRefusal.NO_BLOCKS))
    plane.tell(0, TransferEnded(FIRST, TransferEnd.ABORTED, 0))
    assert prefill(plane, answer.rank) == 33


def test_a_new_link_of_the_same_life_ends_its_transfers_also_where_the_loss_was_not_told() -> None:
    plane = plane_of(CHAIN, b"")
    decide(plane, 1)
    plane.sent.clear()
    plane.feed(PeerJoined(worker(0, 1)))
    assert AbortTransfer(FIRST) in [each.message for each in plane.sent if each.peer == worker(1, 1)]
    plane.tell(1, TransferEnded(FIRST, TransferEnd.ABORTED, 0))
    assert plane.machine.snapshot().transfers == 0
    assert plane.state().ranks[0].membership == "joining"


def test_requests_that_waited_for_control_to_settle_may_pull() -> None:
    plane = Plane(attrs.evolve(SETTINGS, replicas=2, placement=RULES))
    plane.connect()
    plane.bring(0, CHAIN)
    plane.report(0, load=BUSY)
    plane.feed(Received(INGRESS, question(1, CHAIN, TOKENS)))
    plane.join(1, 1, FACTS)
    messages = plane.report_fully(1, 1, b"", {})
    (answer,) = [message for message in messages if isinstance(message, RouteDecided)]
    assert (answer.request, answer.rank) == (request(1), Rank(1))
    assert answer.awaits is not None


def test_the_digest_knows_who_awaits_a_transfer() -> None:
    one, other = plane_of(CHAIN, b""), plane_of(CHAIN, b"")
    decide(one, 1)
    decide(other, 1)
    assert one.machine.digest() == other.machine.digest()
    decide(one, 2)
    assert one.machine.digest() != other.machine.digest()


def test_the_state_tells_what_was_predicted_and_what_it_took() -> None:
    plane = plane_of(CHAIN, b"")
    decide(plane, 1)
    plane.pass_time(12 * MILLISECOND)
    publish(plane, 0, 1)
    shown = plane.state().transfers.placement
    assert shown is not None
    assert dict(shown.admitted)["pull"] == 1
    assert dict(shown.blocks)["pull"] == 64
    (placed,) = shown.placed
    assert (placed.median_ns, placed.took_ns, placed.outcome) == (10e6, 12 * MILLISECOND, "published")
    assert (shown.observed, shown.observed_ns, shown.error_ns, shown.over_median) == (1, 12e6, 2e6, 1)


def test_the_state_tells_what_was_refused_and_why() -> None:
    plane = plane_of(CHAIN[: 5 * HASH_BYTES], b"")
    decide(plane, 1, CHAIN[: 5 * HASH_BYTES])
    shown = plane.state().transfers.placement
    assert shown is not None
    assert shown.refused == (("pull", "not worth it", 1),)
    (refusal,) = shown.refusals
    assert refusal.reason == plane.decision().fetch


def test_no_more_is_pulled_than_its_holder_may_pin() -> None:
    long = chain(("a", 400))
    plane = plane_of(long, b"")
    decided = decide(plane, 1, long)
    assert decided.awaits is not None
    assert decided.awaits.blocks == FACTS.blocks // COPY_SHARE
    assert {len(order.chain) for order in begun(plane)} == {FACTS.blocks // COPY_SHARE * HASH_BYTES}
