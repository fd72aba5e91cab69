"""What users of pools of replicas report, by the numbers of `specs/faults.md`: it must not happen to control."""

import gc
from collections.abc import Sequence

import attrs
import pytest

from lmpool.core.events import PeerJoined, Received
from lmpool.core.ids import MILLISECOND, SECOND, Epoch, Peer, Rank, RequestId, Role
from lmpool.core.messages.ingress_control import RouteDecided, Unroutable
from lmpool.core.messages.worker_control import ReportWanted
from lmpool.core.route import POLICIES
from lmpool.core.transfer.life import TransferState
from tests.core.plane import (
    BLOCK_SIZE,
    FACTS,
    IDLE,
    INGRESS,
    SETTINGS,
    Plane,
    chain,
    question,
    ready_plane,
    request,
)
from tests.core.transfer_world import LONG, TransferWorld

SHARED = chain(("shared", 40))
PROMPT = 40 * BLOCK_SIZE + 7
OTHER = Peer(Role.INGRESS, Rank(1), Epoch(2))


def test_b40_a_killed_holder_is_not_asked_again_and_its_prefix_is_computed_elsewhere_once() -> None:
    plane = ready_plane(SETTINGS, b"", b"", SHARED)
    assert plane.route(0, SHARED, PROMPT) == 2
    plane.lose(2)
    plane.end(0, 0)
    first = plane.route(1, SHARED, PROMPT)
    plane.report(first, added=SHARED, accepted=(request(1),), ended=(request(1),))
    used = []
    for counter in range(2, 40):
        used.append(plane.route(counter, SHARED, PROMPT))
        plane.report(used[-1], accepted=(request(counter),), ended=(request(counter),))
    assert set(used) == {first}
    plane.join(2, 2, FACTS)
    plane.report_fully(2, 1, b"", {})
    assert plane.route(50, SHARED, PROMPT) == first  # back, and cold


def test_b40_a_question_that_nobody_can_answer_is_answered() -> None:
    plane = ready_plane(SETTINGS, SHARED)
    plane.lose(0)
    assert isinstance(plane.ask(question(1, SHARED, PROMPT)), Unroutable)


def test_b42_reports_change_no_count_of_requests() -> None:
    plane = ready_plane(SETTINGS, b"", b"")
    there = plane.route(1, SHARED, PROMPT)
    plane.report(there, accepted=(request(1),))
    for _ in range(600):
        plane.pass_time(100 * MILLISECOND)
        plane.report(0)
        plane.report(1)
        assert [rank.booked for rank in plane.state().ranks] == [1 - there, there]
    for _ in range(2):  # also when its end is told twice
        plane.report(there, ended=(request(1),))
        assert [rank.booked for rank in plane.state().ranks] == [0, 0]


def looks(plane: Plane) -> list[object]:
    """How the first two ranks look to the next decisions, and which is taken."""
    seen: list[object] = []
    for counter in range(100, 112):
        blocks = SHARED[: 16 * 10 * (counter % 4)] + chain((f"{counter}", 5))
        asked = attrs.evolve(question(counter, blocks, len(blocks) + 9), session=f"{counter % 3}", draw=counter)
        answer = plane.ask(asked)
        assert isinstance(answer, RouteDecided)
        costs = [(candidate.terms, candidate.cost) for candidate in plane.decision().candidates[:2]]
        seen.append((costs, answer.rank))
    return seen


@pytest.mark.parametrize("policy", POLICIES)
def test_b42_a_member_that_cannot_be_chosen_changes_no_decision(policy: str) -> None:
    planes = []
    for joins in (True, False):
        plane = Plane(attrs.evolve(SETTINGS, policy=policy, replicas=3))
        plane.connect()
        plane.bring(0, SHARED)
        plane.bring(1, b"")
        if joins:
            plane.bring(2, b"")
        for _ in range(5):
            plane.pass_time(SECOND)
            for rank in (0, 1):
                plane.report(rank, load=attrs.evolve(IDLE, waiting=3, decoding=5 + rank, decoding_context=3_000))
        assert plane.machine.snapshot().why_not == ("", "", "suspect" if joins else "down")
        planes.append(looks(plane))
    assert planes[0] == planes[1]


def burst(plane: Plane, requests: int) -> list[int]:
    """Equal requests, in turn from two front ends: how many each rank gets. Reports in between know of none."""
    plane.feed(PeerJoined(OTHER))
    used = [0] * 4
    for counter in range(requests):
        peer = (INGRESS, OTHER)[counter % 2]
        asked = attrs.evolve(question(counter, chain((f"{counter}", 20)), 330), request=RequestId(peer.epoch, counter))
        answers = [message for message in plane.feed(Received(peer, asked)) if isinstance(message, RouteDecided)]
        used[answers[0].rank] += 1
        if counter % 100 == 99:
            plane.pass_time(100 * MILLISECOND)
            plane.report(counter // 100 % 4)
    return used


def test_b43_a_burst_of_two_front_ends_is_even_however_late_the_reports() -> None:
    used = burst(ready_plane(SETTINGS, b"", b"", b"", b""), 400)
    assert max(used) - min(used) <= 0.1 * sum(used) / 4


def reachable(root: object) -> int:
    """Objects that belong to a machine, classes and modules left out."""
    seen: dict[int, None] = {}
    left: list[object] = [root]
    while left:
        item = left.pop()
        if id(item) not in seen and not isinstance(item, type) and not callable(item):
            seen[id(item)] = None
            left += gc.get_referents(item)
    return len(seen)


def many_prompts(plane: Plane, counters: Sequence[int], held: list[bytes]) -> None:
    """Each is asked, computed and ends; the rank keeps the blocks of ten prompts."""
    for counter in counters:
        blocks = chain((f"{counter}", 3))
        there = plane.route(counter, blocks, 3 * BLOCK_SIZE + 1)
        held.append(blocks)
        removed = held.pop(0) if len(held) > 10 else b""
        plane.report(there, added=blocks, removed=removed, accepted=(request(counter),), ended=(request(counter),))
        plane.pass_time(20 * MILLISECOND)


def test_b45_distinct_prompts_leave_nothing_behind_at_control() -> None:
    plane, held = ready_plane(SETTINGS, b""), list[bytes]()
    many_prompts(plane, range(500), held)
    plane.sent.clear()
    before = reachable(plane.machine)
    many_prompts(plane, range(500, 3_000), held)
    plane.sent.clear()
    assert reachable(plane.machine) <= before + 50
    assert (plane.state().page_table_hashes, plane.state().bookings) == (30, 0)


def test_b47_an_index_that_misses_every_fiftieth_report_is_right_again_after_one_resync_each() -> None:
    plane = ready_plane(SETTINGS, b"")
    truth = b""
    for number in range(1, 501):
        block = chain((f"{number}", 1))
        truth += block
        if number % 50 == 0:
            plane.versions[0] += 1  # it is lost
            continue
        if any(isinstance(message, ReportWanted) for message in plane.report(0, added=block)):
            plane.report_fully(0, plane.versions[0] + 1, truth, {})
    plane.report(0)
    state = plane.state()
    assert plane.wanted() == state.resyncs == 10
    plane.report_fully(0, plane.versions[0] + 1, truth, {})
    assert plane.state().ranks[0].resident_hashes == 500


def test_b47_a_new_control_has_the_whole_index_again_from_full_reports_and_takes_events_after_them() -> None:
    plane = Plane(attrs.evolve(SETTINGS, replicas=2))
    plane.connect()
    for rank in range(2):
        plane.join(rank, 1, FACTS)
        plane.report_fully(rank, 70 + rank, SHARED, {})
        plane.report(rank, added=chain(("shared", 40), ("more", 1 + rank))[len(SHARED) :])
    assert [rank.resident_hashes for rank in plane.state().ranks] == [41, 42]
    assert plane.wanted() == 0
    answer = plane.ask(question(1, chain(("shared", 40), ("more", 2)), 42 * BLOCK_SIZE + 1))
    assert isinstance(answer, RouteDecided)
    assert (answer.rank, answer.ready_blocks) == (1, 42)


@pytest.mark.parametrize("state", [TransferState.PREPARING, TransferState.COPYING])
def test_b20_r58_a_transfer_that_nobody_wants_any_more_holds_nothing_however_often(state: TransferState) -> None:
    world = TransferWorld(2)
    world.stations[0].store(LONG)
    for _ in range(100):
        transfer = world.open(0, 1, LONG)
        if state is TransferState.COPYING:  # its source is ready, and its target has not begun
            world.deliver(0)
            world.hear(1, world.to_worker[1].popleft())
            world.answer(1, world.to_control[1].popleft())
        assert transfer.state is state
        world.transfers.cancel(world.now, transfer.id)
        world.after_control()
        world.settle()
        assert [station.exchange.is_idle for station in world.stations] == [True, True]
        assert world.stations[0].pool.counts().pinned == 0
        assert world.stations[1].depth(LONG) == 0
    world.assert_at_rest()
