"""Control with placement: what it observes leads to transfers, beside those of an operator."""

import attrs
import pytest

from lmpool.core.carrier import PlacementRules
from lmpool.core.events import Received, Tick
from lmpool.core.ids import MILLISECOND, SECOND, Epoch, Nanos, Rank, TransferId
from lmpool.core.messages import Message
from lmpool.core.messages.transfer import (
    CopyMeans,
    PrepareSource,
    PrepareTarget,
    TransferAsked,
    TransferDecided,
    TransferMode,
    TransferRefusal,
    TransferRefused,
)
from lmpool.core.messages.worker_control import DrainBegun
from lmpool.core.placement.demand import FADE_NS
from lmpool.core.placement.proposal import USUAL
from lmpool.core.prefix import chain_length
from tests.core.places import pair, paths, point, profile
from tests.core.plane import IDLE, INGRESS, SETTINGS, Plane, chain, question

HOT = chain(("a", 64))
OTHER = chain(("b", 8))
TOKENS = 64 * 16 + 1
RULES = PlacementRules(USUAL, profile(point(1, (0, 0), (10, 20))), tuple(paths(2)))
STICKY = attrs.evolve(SETTINGS, policy="longest-prefix")
"""Requests follow the prefix, so that they queue where it is; marginal time would compute it at the other rank."""
BUSY = attrs.evolve(IDLE, step_began_ns=Nanos(0), step_cost_ns=Nanos(5 * SECOND), decoding=1)
"""Nothing begins there for a while."""


def ready(rules: PlacementRules | None, *, load_of_holder: bool) -> Plane:
    """Rank 0 holds the chain, rank 1 nothing; perhaps nothing begins at rank 0 for a while."""
    plane = Plane(attrs.evolve(STICKY, placement=rules))
    plane.connect()
    plane.bring(0, HOT + OTHER)
    plane.bring(1, b"")
    if load_of_holder:
        plane.report(0, load=BUSY)
    return plane


def ask_often(plane: Plane, times: int) -> list[Message]:
    """Of one conversation after the other; none of them computes anything."""
    return [
        message
        for counter in range(1, times + 1)
        for message in plane.feed(Received(INGRESS, question(counter, HOT, TOKENS)))
    ]


def begun(messages: list[Message]) -> list[PrepareTarget | PrepareSource]:
    return [message for message in messages if isinstance(message, PrepareTarget | PrepareSource)]


def test_a_chain_that_many_ask_for_is_copied_to_the_rank_that_does_not_wait() -> None:
    plane = ready(RULES, load_of_holder=True)
    messages = [*ask_often(plane, 12), *plane.pass_time(USUAL.pause_ns)]
    (to_target, to_source) = begun(messages)
    assert isinstance(to_target, PrepareTarget)
    assert isinstance(to_source, PrepareSource)
    assert (to_target.source, to_source.target) == (Rank(0), Rank(1))
    assert (to_target.chain, to_source.mode) == (HOT, TransferMode.COPY)
    assert plane.machine.snapshot().transfers == 1


@pytest.mark.parametrize(
    ("rules", "is_loaded", "times"),
    [(None, True, 12), (RULES, False, 12), (RULES, True, 1)],
    ids=["placement is off", "nobody waits", "asked once"],
)
def test_nothing_is_begun_without_a_reason(rules: PlacementRules | None, is_loaded: bool, times: int) -> None:
    plane = ready(rules, load_of_holder=is_loaded)
    messages = [*ask_often(plane, times), *plane.pass_time(3 * USUAL.pause_ns)]
    assert begun(messages) == []


def test_what_only_a_rank_has_that_is_to_stop_goes_to_another() -> None:
    plane = ready(RULES, load_of_holder=False)
    ask_often(plane, 12)
    messages = [*plane.tell(0, DrainBegun()), *plane.pass_time(USUAL.pause_ns)]
    to_target, _ = begun(messages)
    assert isinstance(to_target, PrepareTarget)
    assert (to_target.source, to_target.chain) == (Rank(0), HOT)


def test_a_planning_leaves_the_next_route_what_it_knows_of_all_ranks() -> None:
    plane = ready(RULES, load_of_holder=False)
    machine = plane.machine  # a plane audits, and so would take the views up itself
    machine.handle(plane.now, Received(INGRESS, question(1, HOT, TOKENS)))
    machine.handle(Nanos(plane.now + USUAL.pause_ns), Tick())
    machine.audit()


def test_a_refused_transfer_is_not_repeated_at_once_and_a_failure_is_remembered() -> None:
    plane = ready(RULES, load_of_holder=True)
    assert len(begun([*ask_often(plane, 12), *plane.pass_time(USUAL.pause_ns)])) == 2
    transfer = TransferId(Epoch(1), 1)
    plane.tell(1, TransferRefused(transfer, TransferRefusal.NO_BLOCKS))
    plane.tell(0, TransferRefused(transfer, TransferRefusal.BUSY))
    assert plane.machine.snapshot().transfers == 0
    assert begun(plane.pass_time(10 * USUAL.pause_ns)) == []
    shown = plane.machine.snapshot().state.transfers
    assert dict(shown.refusals) == {"no blocks": 1}
    assert [one.outcome for one in shown.over] == ["refused"]


def test_an_operators_transfer_comes_first_and_placement_waits_for_its_ranks() -> None:
    plane = ready(RULES, load_of_holder=True)
    asked = TransferAsked(5, Rank(0), Rank(1), TransferMode.COPY, CopyMeans.READ, OTHER, 0, SECOND, Nanos(0))
    decided = plane.feed(Received(INGRESS, asked))[0]
    assert decided == TransferDecided(5, TransferId(Epoch(1), 1), None)
    assert begun([*ask_often(plane, 12), *plane.pass_time(USUAL.pause_ns)]) == []
    for rank in (0, 1):
        plane.tell(rank, TransferRefused(TransferId(Epoch(1), 1), TransferRefusal.BUSY))
    orders = begun(plane.pass_time(USUAL.pause_ns))
    assert [chain_length(order.chain) for order in orders] == [64, 64]


def test_only_pairs_that_have_a_path_are_considered() -> None:
    rules = attrs.evolve(RULES, pairs=(pair(1, 0),))
    plane = ready(rules, load_of_holder=True)
    assert begun([*ask_often(plane, 12), *plane.pass_time(USUAL.pause_ns)]) == []


def test_plannings_have_deadlines_only_while_somebody_asks_and_ranks_are_known() -> None:
    plane = Plane(attrs.evolve(STICKY, placement=RULES))
    plane.connect()
    assert plane.machine.next_deadline() == SETTINGS.settle_ns
    plane.bring(0, HOT)
    plane.bring(1, b"")
    ask_often(plane, 1)
    deadline = plane.machine.next_deadline()
    assert deadline is not None
    assert deadline <= plane.now + USUAL.pause_ns
    plane.pass_time(FADE_NS + USUAL.pause_ns)
    for rank in (0, 1):
        plane.report(rank)
    later = plane.machine.next_deadline()
    assert later is not None
    assert later > plane.now + SECOND


def test_equal_histories_have_equal_digests_and_placement_is_part_of_them() -> None:
    digests = []
    for rules in (RULES, RULES, None):
        plane = ready(rules, load_of_holder=True)
        ask_often(plane, 12)
        plane.pass_time(5 * MILLISECOND)
        digests.append(plane.machine.digest())
    assert digests[0] == digests[1] != digests[2]
