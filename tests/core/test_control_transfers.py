"""Transfers that an operator asks control for, and what ends them there."""

import attrs
import pytest

from lmpool.core.events import PeerJoined, Received
from lmpool.core.ids import MILLISECOND, SECOND, BlockId, Epoch, Generation, Nanos, Rank, TransferId, Version
from lmpool.core.messages import Message
from lmpool.core.messages.transfer import (
    AbortTransfer,
    BeginCopy,
    Confirm,
    Confirmed,
    Copied,
    CopyMeans,
    Finalize,
    PrepareSource,
    PrepareTarget,
    Publish,
    Published,
    SourcePrepared,
    TargetPrepared,
    TransferAsked,
    TransferDecided,
    TransferDenial,
    TransferEnd,
    TransferEnded,
    TransferMode,
)
from lmpool.core.messages.worker_control import DrainBegun
from tests.core.plane import CONTROL_EPOCH, FACTS, INGRESS, SETTINGS, Plane, chain, ready_plane, worker

CHAIN = chain(("prefix", 3))
FIRST = TransferId(CONTROL_EPOCH, 1)
ASKED = TransferAsked(
    5, Rank(0), Rank(1), TransferMode.COPY, CopyMeans.READ, CHAIN, 0, copy_ns=SECOND, lease_ns=Nanos(0)
)


def ask(plane: Plane, asked: TransferAsked) -> list[Message]:
    return plane.feed(Received(INGRESS, asked))


@pytest.fixture
def plane() -> Plane:
    return ready_plane(SETTINGS, CHAIN, b"", b"")


def test_a_transfer_goes_through_its_phases(plane: Plane) -> None:
    decided, to_target, to_source = ask(plane, ASKED)
    assert decided == TransferDecided(5, FIRST, None)
    deadline = Nanos(plane.now + 5 * SECOND)
    assert to_target == PrepareTarget(FIRST, CopyMeans.READ, Rank(0), Epoch(1), CHAIN, 0, deadline)
    assert to_source == PrepareSource(FIRST, TransferMode.COPY, Rank(1), Epoch(1), CHAIN, 0, deadline)
    blocks = BlockId(4), BlockId(2), BlockId(9)
    generations = (Generation(1),) * 3
    assert plane.tell(0, SourcePrepared(FIRST, blocks, generations)) == []
    assert plane.tell(1, TargetPrepared(FIRST, 1, 2)) == [BeginCopy(FIRST, blocks[1:], generations[1:])]
    assert plane.tell(1, Copied(FIRST, 2000, Nanos(7))) == [Confirm(FIRST)]
    assert plane.tell(0, Confirmed(FIRST)) == [Publish(FIRST, Nanos(0))]
    plane.report(1, added=CHAIN)
    assert plane.machine.snapshot().transfers == 1
    assert plane.tell(1, Published(FIRST, Version(2))) == [Finalize(FIRST)]
    assert plane.tell(0, TransferEnded(FIRST, TransferEnd.FINALIZED, 0)) == []
    snapshot = plane.machine.snapshot()
    assert snapshot.transfers == 0
    assert dict(snapshot.transfer_outcomes)["published"] == 1
    assert (snapshot.transferred_blocks, snapshot.transferred_bytes) == (2, 2000)
    answer = ask(plane, attrs.evolve(ASKED, source=Rank(1), target=Rank(2)))[0]
    assert answer == TransferDecided(5, TransferId(CONTROL_EPOCH, 2), None)


def test_what_is_over_tells_how_long_its_copy_and_all_of_it_took(plane: Plane) -> None:
    """Until control hears of the publication: what comes after that delays nobody."""
    ask(plane, ASKED)
    began = plane.now
    plane.tell(0, SourcePrepared(FIRST, (BlockId(4), BlockId(2), BlockId(9)), (Generation(1),) * 3))
    plane.tell(1, TargetPrepared(FIRST, 1, 2))
    plane.pass_time(Nanos(3 * MILLISECOND))
    plane.tell(1, Copied(FIRST, 2000, Nanos(2 * MILLISECOND)))
    plane.tell(0, Confirmed(FIRST))
    plane.pass_time(Nanos(MILLISECOND))
    took = Nanos(plane.now - began)
    assert took >= 4 * MILLISECOND
    (shown,) = plane.machine.snapshot().state.transfers.under_way
    assert (shown.copy_ns, shown.took_ns) == (2 * MILLISECOND, None)
    plane.tell(1, Published(FIRST, Version(1)))
    plane.pass_time(Nanos(MILLISECOND))
    plane.tell(0, TransferEnded(FIRST, TransferEnd.FINALIZED, 0))
    (shown,) = plane.machine.snapshot().state.transfers.over
    assert (shown.copy_ns, shown.took_ns) == (2 * MILLISECOND, took)


@pytest.mark.parametrize("ranks", [(40, 1), (0, 40), (2, 1), (0, 2)])
def test_a_rank_that_is_not_there_takes_no_part(plane: Plane, ranks: tuple[int, int]) -> None:
    plane.lose(2)
    asked = attrs.evolve(ASKED, source=Rank(ranks[0]), target=Rank(ranks[1]))
    assert ask(plane, asked) == [TransferDecided(5, None, TransferDenial.RANK_ABSENT)]


def test_a_draining_rank_gives_and_does_not_take(plane: Plane) -> None:
    plane.tell(0, DrainBegun())
    assert ask(plane, attrs.evolve(ASKED, source=Rank(1), target=Rank(0))) == [
        TransferDecided(5, None, TransferDenial.RANK_ABSENT)
    ]
    assert ask(plane, ASKED)[0] == TransferDecided(5, FIRST, None)


def test_what_makes_no_sense_is_denied(plane: Plane) -> None:
    assert ask(plane, attrs.evolve(ASKED, target=Rank(0))) == [TransferDecided(5, None, TransferDenial.SAME_RANK)]


@pytest.mark.parametrize("lost", [0, 1])
def test_the_other_side_is_told_of_a_rank_whose_link_is_down(plane: Plane, lost: int) -> None:
    ask(plane, ASKED)
    plane.sent.clear()
    plane.lose(lost)
    assert [(effect.peer, effect.message) for effect in plane.sent] == [(worker(1 - lost, 1), AbortTransfer(FIRST))]


def test_a_new_life_of_a_rank_ends_the_transfers_of_the_old_one(plane: Plane) -> None:
    """Also where it joins before the end of the old link is read."""
    ask(plane, ASKED)
    plane.sent.clear()
    plane.feed(PeerJoined(worker(1, 2)))
    assert [(effect.peer, effect.message) for effect in plane.sent] == [(worker(0, 1), AbortTransfer(FIRST))]
    plane.epochs[1] = 2
    plane.tell(1, FACTS)
    assert plane.tell(1, TargetPrepared(FIRST, 0, 3)) == []
    plane.tell(0, TransferEnded(FIRST, TransferEnd.ABORTED, 0))
    assert plane.machine.snapshot().transfers == 0


def test_a_stale_link_ends_nothing(plane: Plane) -> None:
    plane.lose(1)
    plane.join(1, 3, FACTS)
    plane.report_fully(1, 1, b"", {})
    ask(plane, ASKED)
    plane.feed(PeerJoined(worker(1, 2)))
    assert plane.machine.snapshot().transfers == 1


def test_deadlines_are_those_of_the_machine(plane: Plane) -> None:
    ask(plane, ASKED)
    assert plane.machine.next_deadline() == plane.now + SECOND
    messages = plane.pass_time(SECOND)
    assert [type(message) for message in messages if isinstance(message, AbortTransfer)] == [AbortTransfer] * 2
    plane.pass_time(10 * SECOND)
    assert dict(plane.machine.snapshot().transfer_outcomes)["late"] == 1
    assert plane.machine.snapshot().transfers == 0


def test_the_digest_follows_a_transfer(plane: Plane) -> None:
    before = plane.machine.digest()
    ask(plane, ASKED)
    assert plane.machine.digest() != before
