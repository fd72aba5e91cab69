"""Transfers among ranks with real pools: what each phase does, who refuses what, and what failed in other systems."""

from typing import Any

import pytest

from lmpool.core.events import BlocksCopied, BlocksSent, CopyFailed, SendFailed
from lmpool.core.ids import MILLISECOND, Epoch, Generation, Nanos, Rank, RequestId, SequenceId, TransferId
from lmpool.core.messages.transfer import (
    AbortTransfer,
    Awaited,
    BeginCopy,
    BeginSend,
    Confirm,
    CopyMeans,
    Finalize,
    PrepareSource,
    PrepareTarget,
    Publish,
    Published,
    SourcePrepared,
    TransferAnswer,
    TransferDenial,
    TransferEnd,
    TransferEnded,
    TransferMode,
    TransferRefusal,
    TransferRefused,
)
from lmpool.core.prefix import HASH_BYTES, chain_length, hash_at
from lmpool.core.transfer.exchange import ANSWERS_KEPT, SIDES_MAX
from lmpool.core.transfer.life import SourceState, TargetState, TransferState
from lmpool.core.transfer.transfers import TransferOutcome
from tests.core.transfer_world import (
    ANSWER_NS,
    BLOCKS,
    COPY_NS,
    LIFE_NS,
    LONG,
    TransferWorld,
    chain_of,
    source_side,
    target_side,
)

SOURCE, TARGET, OTHER = 0, 1, 2
SHORT = LONG[: 3 * HASH_BYTES]


@pytest.fixture
def world() -> TransferWorld:
    """The source holds the long chain; nobody else holds anything."""
    world = TransferWorld(3)
    world.stations[SOURCE].store(LONG)
    return world


def last(world: TransferWorld) -> TransferAnswer:
    return world.said[-1]


def refusal(world: TransferWorld, rank: int) -> TransferRefusal:
    """Of the last transfer that a rank has refused."""
    answers = [answer for answer in world.said if isinstance(answer, TransferRefused)]
    assert world.finals[world.stations[rank].peer, answers[-1].transfer] == answers[-1]
    return answers[-1].reason


def outcome(world: TransferWorld) -> TransferOutcome:
    """Of the one transfer that is over."""
    (over,) = [each for each, count in world.transfers.outcomes.items() if count]
    return over


def until(world: TransferWorld, state: TransferState, **terms: Any) -> TransferId:
    """A transfer of the long chain that has come so far at control, whose order is still under way."""
    transfer = world.open(SOURCE, TARGET, LONG, **terms)
    for _ in range(10):
        if transfer.state is state:
            return transfer.id
        for rank in (SOURCE, TARGET):
            while world.to_worker[rank]:
                world.hear(rank, world.to_worker[rank].popleft())
            world.run_driver(rank)
        for rank in (SOURCE, TARGET):
            while world.to_control[rank]:
                world.answer(rank, world.to_control[rank].popleft())
    raise AssertionError(f"never {state}")


# Phases


@pytest.mark.parametrize("means", CopyMeans)
def test_a_copy_makes_the_chain_resident_at_the_target_and_keeps_it_at_the_source(
    world: TransferWorld, means: CopyMeans
) -> None:
    world.open(SOURCE, TARGET, LONG, means=means)
    world.settle()
    assert [world.stations[rank].depth(LONG) for rank in range(3)] == [6, 6, 0]
    assert outcome(world) is TransferOutcome.PUBLISHED
    world.assert_at_rest()


def test_a_move_frees_what_it_has_moved(world: TransferWorld) -> None:
    world.open(SOURCE, TARGET, LONG, mode=TransferMode.MOVE)
    world.settle()
    assert [world.stations[rank].depth(LONG) for rank in range(2)] == [0, 6]
    assert last(world) == TransferEnded(last(world).transfer, TransferEnd.FINALIZED, 6)
    world.assert_at_rest()


def test_a_move_frees_only_the_safe_and_unreferenced_end_of_the_chain(world: TransferWorld) -> None:
    source = world.stations[SOURCE]
    source.store(chain_of(1, 2, 3, 9))
    world.open(SOURCE, TARGET, LONG, mode=TransferMode.MOVE)
    world.settle()
    assert source.depth(LONG) == 3  # another chain stands on the third
    world.stations[SOURCE].store(LONG)
    assert source.compute(LONG[: 5 * HASH_BYTES])  # a sequence reads five of six
    world.open(SOURCE, OTHER, LONG, mode=TransferMode.MOVE)
    world.settle()
    assert source.depth(LONG) == 5
    world.assert_at_rest()


def test_a_move_keeps_what_the_target_had_before(world: TransferWorld) -> None:
    world.stations[TARGET].store(SHORT)
    world.open(SOURCE, TARGET, LONG, first=3, mode=TransferMode.MOVE)
    world.settle()
    assert [world.stations[rank].depth(LONG) for rank in range(2)] == [3, 6]


def test_only_what_the_target_lacks_is_copied(world: TransferWorld) -> None:
    world.stations[TARGET].store(SHORT)
    transfer = until(world, TransferState.COPYING, first=1)
    (copy,) = [order for order in world.to_worker[TARGET] if isinstance(order, BeginCopy)]
    assert len(copy.blocks) == 3
    assert target_side(world, TARGET, transfer).reserved == 3
    world.settle()
    assert world.stations[TARGET].depth(LONG) == 6
    world.check()


def test_blocks_that_were_computed_at_the_target_meanwhile_are_kept(world: TransferWorld) -> None:
    until(world, TransferState.PUBLISHING)
    target = world.stations[TARGET]
    assert target.compute(SHORT)
    own = [target.pool.find(hash_at(LONG, position)) for position in range(3)]
    world.settle()
    assert target.depth(LONG) == 6
    assert [target.pool.find(hash_at(LONG, position)) for position in range(3)] == own
    world.check()


def test_nothing_is_resident_before_the_publication_and_everything_after_it(world: TransferWorld) -> None:
    """The commit point is real: the reference registered blocks as soon as they had come."""
    until(world, TransferState.PUBLISHING)
    target = world.stations[TARGET]
    assert target.depth(LONG) == 0
    assert not target.pool.has_changes
    world.hear(TARGET, world.to_worker[TARGET].popleft())
    assert target.depth(LONG) == 6
    assert last(world) == Published(last(world).transfer, target.version)  # type: ignore[arg-type]


def test_the_receiver_is_told_before_the_sender(world: TransferWorld) -> None:
    transfer = until(world, TransferState.COPYING, means=CopyMeans.SEND)
    assert list(world.to_worker[TARGET])[-1].transfer == transfer
    assert isinstance(world.to_worker[TARGET][-1], BeginCopy)
    assert world.to_worker[SOURCE][-1] == BeginSend(transfer, 0)


# What the reference gets wrong


def test_the_source_stays_readable_throughout_a_copy(world: TransferWorld) -> None:
    """There, a copied chain was a miss for routing and for local requests as long as the copy ran."""
    until(world, TransferState.COPYING)
    source = world.stations[SOURCE]
    assert source.depth(LONG) == 6
    assert source.compute(LONG + chain_of(9))
    assert source.compute(LONG)
    world.settle()
    assert world.stations[TARGET].depth(LONG) == 6
    world.check()


@pytest.mark.parametrize("refusing", [SOURCE, TARGET])
def test_a_refusal_before_the_other_side_has_answered_leaves_nothing_behind(
    world: TransferWorld, refusing: int
) -> None:
    """There, the slower rank locked blocks afterwards and never heard of the abort."""
    slower = TARGET if refusing == SOURCE else SOURCE
    if refusing == SOURCE:
        world.stations[SOURCE].pool.clear()
    else:
        world.stations[TARGET].exchange.is_draining = True
    world.open(SOURCE, TARGET, LONG)
    world.deliver(refusing)
    assert world.stations[slower].exchange.is_idle
    assert [type(order) for order in world.to_worker[slower]][1:] == [AbortTransfer]
    world.deliver(slower)
    assert outcome(world) is TransferOutcome.REFUSED
    world.assert_at_rest()


@pytest.mark.parametrize("slow", [SOURCE, TARGET])
@pytest.mark.parametrize("state", [TransferState.COPYING, TransferState.CONFIRMING, TransferState.PUBLISHING])
def test_a_rank_that_was_slow_lets_go_when_it_comes_back(world: TransferWorld, state: TransferState, slow: int) -> None:
    """There, a slow rank was marked unavailable and kept its locks for ever."""
    until(world, state)
    station = world.stations[slow]
    station.is_asleep = True
    world.deliver(TARGET if slow == SOURCE else SOURCE)
    world.pass_time(LIFE_NS + ANSWER_NS)
    assert len(world.transfers) == 0
    station.is_asleep = False
    world.pass_time(0)
    world.settle()
    world.assert_at_rest()


@pytest.mark.parametrize("lost", [SOURCE, TARGET])
@pytest.mark.parametrize("state", [TransferState.PREPARING, TransferState.COPYING, TransferState.CONFIRMING])
@pytest.mark.parametrize("how", ["cut", "crash"])
def test_a_lost_rank_ends_the_transfer_on_both_sides(
    world: TransferWorld, state: TransferState, lost: int, how: str
) -> None:
    until(world, state)
    getattr(world, how)(lost)
    world.link(lost)
    world.settle()
    assert outcome(world) is TransferOutcome.RANK_LOST
    assert world.stations[TARGET].depth(LONG) == 0
    world.assert_at_rest()


def test_a_copy_that_never_ends_costs_its_blocks_and_nothing_else(world: TransferWorld) -> None:
    """There, the peer waited for ever, and blocks were marked ready meanwhile."""
    transfer = until(world, TransferState.COPYING)
    world.deliver(TARGET)
    world.pass_time(COPY_NS)
    world.deliver(SOURCE)
    world.deliver(TARGET)
    target = world.stations[TARGET]
    assert target.copies[transfer].is_cancelled
    assert target.pool.counts().aborting == 6
    assert target.exchange.is_releasing
    assert source_is_free(world)
    world.pass_time(LIFE_NS)
    assert len(world.transfers) == 0
    world.open(OTHER, TARGET, LONG)  # to be refused, since the other rank has nothing; the target takes part again
    world.open(SOURCE, OTHER, LONG)
    world.deliver(SOURCE)
    world.deliver(OTHER)
    world.move_bytes(TARGET, transfer, BLOCKS)  # what writes late writes into blocks that nobody else has
    world.check()
    world.end_copy(TARGET, transfer)
    assert target.pool.counts().free == BLOCKS
    world.settle()
    world.assert_at_rest()


def source_is_free(world: TransferWorld) -> bool:
    return world.stations[SOURCE].exchange.is_idle and world.stations[SOURCE].pool.counts().pinned == 0


def test_an_abort_after_the_publication_takes_nothing_back(world: TransferWorld) -> None:
    """There, aborting a published block that somebody used raised an error, and other plans were not cleaned up."""
    transfer = until(world, TransferState.PUBLISHING)
    world.hear(TARGET, world.to_worker[TARGET].popleft())
    assert world.stations[TARGET].compute(LONG)
    world.hear(TARGET, AbortTransfer(transfer))
    assert last(world) == Published(transfer, world.stations[TARGET].version)  # type: ignore[arg-type]
    assert world.stations[TARGET].depth(LONG) == 6
    world.settle()
    world.assert_at_rest()


def test_a_tail_without_its_root_is_never_placed(world: TransferWorld) -> None:
    world.stations[TARGET].store(SHORT[:HASH_BYTES])
    world.open(SOURCE, TARGET, LONG, first=2)
    world.settle()
    assert refusal(world, TARGET) is TransferRefusal.ANCHOR_MISSING
    world.assert_at_rest()


def test_the_anchor_is_there_when_the_blocks_arrive(world: TransferWorld) -> None:
    target = world.stations[TARGET]
    target.store(SHORT)
    until(world, TransferState.COPYING, first=3)
    assert target.pool.clear() == 0
    world.settle()
    assert target.depth(LONG) == 6


def test_any_rank_may_copy_to_any_other_and_both_ways_at_once(world: TransferWorld) -> None:
    """There, each rank had one partner."""
    back = chain_of(7, 8)
    world.stations[TARGET].store(back)
    world.open(SOURCE, TARGET, LONG)
    world.open(TARGET, SOURCE, back)
    world.settle()
    world.open(TARGET, OTHER, LONG)
    world.settle()
    assert [world.stations[rank].depth(LONG) for rank in range(3)] == [6, 6, 6]
    assert world.stations[SOURCE].depth(back) == 2
    world.assert_at_rest()


# Confirmation


@pytest.mark.parametrize("how", ["expired", "yielded"])
def test_blocks_that_the_source_has_reused_are_never_published(world: TransferWorld, how: str) -> None:
    transfer = until(world, TransferState.COPYING)
    world.hear(TARGET, world.to_worker[TARGET].popleft())
    world.move_bytes(TARGET, transfer, 2)
    source = world.stations[SOURCE]
    if how == "yielded":
        assert world.yield_blocks(SOURCE)
    else:
        source.exchange.expire(Nanos(world.now + LIFE_NS))
        world.after(SOURCE)
    world.to_control[SOURCE].clear()  # nobody hears of it
    source.pool.clear()
    assert source.compute(chain_of(*range(20, 50)))
    world.settle()
    assert outcome(world) is TransferOutcome.SIDE_ENDED
    assert world.stations[TARGET].depth(LONG) == 0
    world.assert_at_rest()


def test_an_expired_source_answers_that_its_blocks_are_lost(world: TransferWorld) -> None:
    transfer = until(world, TransferState.CONFIRMING)
    source = world.stations[SOURCE]
    world.now = Nanos(world.now + LIFE_NS)  # it has slept, and the question is the first thing that it reads
    world.hear(SOURCE, world.to_worker[SOURCE].popleft())
    assert last(world) == TransferEnded(transfer, TransferEnd.EXPIRED, 0)
    assert source.exchange.is_idle


def test_a_publication_is_ordered_only_after_the_confirmation(world: TransferWorld) -> None:
    transfer = until(world, TransferState.CONFIRMING)
    assert list(world.to_worker[TARGET]) == []
    assert list(world.to_worker[SOURCE]) == [Confirm(transfer)]


def test_a_publication_before_the_copy_is_complete_changes_nothing(world: TransferWorld) -> None:
    transfer = until(world, TransferState.COPYING)
    world.hear(TARGET, Publish(transfer, Nanos(0)))
    assert target_side(world, TARGET, transfer).state is TargetState.RESERVED
    world.deliver(TARGET)
    world.hear(TARGET, Publish(transfer, Nanos(0)))
    assert target_side(world, TARGET, transfer).state is TargetState.COPYING
    assert world.stations[TARGET].depth(LONG) == 0


def test_another_number_of_blocks_than_were_reserved_is_a_failed_copy(world: TransferWorld) -> None:
    transfer = until(world, TransferState.COPYING)
    world.deliver(TARGET)
    world.move_bytes(TARGET, transfer, 4)
    world.end_copy(TARGET, transfer)
    assert last(world) == TransferEnded(transfer, TransferEnd.LENGTH_WRONG, 0)
    world.settle()
    assert outcome(world) is TransferOutcome.SIDE_ENDED
    world.assert_at_rest()


def test_a_failed_copy_ends_both_sides(world: TransferWorld) -> None:
    transfer = until(world, TransferState.COPYING)
    world.deliver(TARGET)
    world.fail_copy(TARGET, transfer)
    assert last(world) == TransferEnded(transfer, TransferEnd.COPY_FAILED, 0)
    world.settle()
    world.assert_at_rest()


def test_a_failed_sending_ends_both_sides(world: TransferWorld) -> None:
    transfer = until(world, TransferState.COPYING, means=CopyMeans.SEND)
    world.deliver(TARGET)
    world.deliver(SOURCE)
    world.end_sending(SOURCE, transfer)
    assert last(world) == TransferEnded(transfer, TransferEnd.SEND_FAILED, 0)
    world.settle()
    world.assert_at_rest()


def test_a_chain_that_is_being_sent_stays_pinned_until_nothing_reads_it(world: TransferWorld) -> None:
    transfer = until(world, TransferState.COPYING, means=CopyMeans.SEND)
    world.deliver(SOURCE)
    world.hear(SOURCE, AbortTransfer(transfer))
    source = world.stations[SOURCE]
    assert source_side(world, SOURCE, transfer).state is SourceState.ENDING
    assert source.pool.clear() == 0
    assert source.exchange.is_releasing
    world.end_sending(SOURCE, transfer)
    assert last(world) == TransferEnded(transfer, TransferEnd.ABORTED, 0)
    assert source.pool.clear() == 6


# Deadlines


@pytest.mark.parametrize("state", [state for state in TransferState if state is not TransferState.ENDED])
def test_a_phase_that_lasts_too_long_ends_the_transfer(world: TransferWorld, state: TransferState) -> None:
    if state is TransferState.ABORTING:
        world.transfers.cancel(world.now, until(world, TransferState.COPYING))
        world.after_control()
    else:
        until(world, state)
    for queue in (*world.to_worker, *world.to_control):
        queue.clear()  # type: ignore[attr-defined]
    published = state is TransferState.FINALIZING
    for _ in range(20):
        world.pass_time(ANSWER_NS)
        world.check()
        for queue in (*world.to_worker, *world.to_control):
            queue.clear()  # type: ignore[attr-defined]
    assert world.stations[TARGET].depth(LONG) == (6 if published else 0)
    world.assert_at_rest()


def test_a_move_whose_finalize_is_lost_is_a_copy(world: TransferWorld) -> None:
    until(world, TransferState.FINALIZING, mode=TransferMode.MOVE)
    world.to_worker[SOURCE].clear()
    world.pass_time(LIFE_NS)
    assert [world.stations[rank].depth(LONG) for rank in range(2)] == [6, 6]
    assert outcome(world) is TransferOutcome.PUBLISHED
    world.settle()
    world.assert_at_rest()


def test_a_source_that_is_lost_after_its_confirmation_costs_nothing(world: TransferWorld) -> None:
    until(world, TransferState.PUBLISHING)
    world.crash(SOURCE)
    world.settle()
    assert world.stations[TARGET].depth(LONG) == 6
    assert outcome(world) is TransferOutcome.PUBLISHED
    world.assert_at_rest()


def test_what_was_published_too_late_for_control_stays_and_a_move_is_a_copy(world: TransferWorld) -> None:
    until(world, TransferState.PUBLISHING, mode=TransferMode.MOVE)
    world.pass_time(ANSWER_NS)
    world.settle()
    assert [world.stations[rank].depth(LONG) for rank in range(2)] == [6, 6]
    assert outcome(world) is TransferOutcome.LATE
    world.assert_at_rest()


def test_a_target_that_slept_past_its_deadline_publishes_nothing(world: TransferWorld) -> None:
    transfer = until(world, TransferState.PUBLISHING)
    world.now = Nanos(world.now + LIFE_NS)
    world.hear(TARGET, world.to_worker[TARGET].popleft())
    assert last(world) == TransferEnded(transfer, TransferEnd.EXPIRED, 0)
    assert world.stations[TARGET].depth(LONG) == 0
    world.settle()
    world.assert_at_rest()


# Epochs, repeats and late ones


def test_a_new_control_finds_nothing_of_the_old_one(world: TransferWorld) -> None:
    old = until(world, TransferState.PUBLISHING)
    world.crash_control()
    for rank in (SOURCE, TARGET):
        assert world.stations[rank].exchange.ends[TransferEnd.CONTROL_LOST] == 1
        assert not world.stations[rank].exchange.remembers(old)
    assert world.finals == {}  # nobody is told: the new one never knew of it
    assert len(world.transfers) == 0
    world.open(SOURCE, TARGET, LONG)
    world.settle()
    assert world.stations[TARGET].depth(LONG) == 6
    world.assert_at_rest()


def test_an_order_of_another_control_is_dropped_and_counted(world: TransferWorld) -> None:
    transfer = until(world, TransferState.PUBLISHING)
    exchange = world.stations[TARGET].exchange
    exchange.hear(world.now, world.control._replace(epoch=Epoch(9)), Publish(transfer, Nanos(0)))
    exchange.hear(world.now, world.control, Publish(TransferId(Epoch(9), 1), Nanos(0)))
    assert exchange.strays == 2
    assert world.stations[TARGET].depth(LONG) == 0


@pytest.mark.parametrize("mode", TransferMode)
@pytest.mark.parametrize("means", CopyMeans)
def test_every_order_and_every_answer_twice_is_as_good_as_once(
    world: TransferWorld, mode: TransferMode, means: CopyMeans
) -> None:
    world.open(SOURCE, TARGET, LONG, mode=mode, means=means)
    for _ in range(10):
        for rank in (SOURCE, TARGET):
            while world.to_worker[rank]:
                order = world.to_worker[rank].popleft()
                world.hear(rank, order)
                exchange = world.stations[rank].exchange
                before = exchange.digest_parts()
                for repeated in list(world.told_to(rank)):
                    world.hear(rank, repeated)
                assert exchange.digest_parts() == before
            world.run_driver(rank)
            while world.to_control[rank]:
                answer = world.to_control[rank].popleft()
                world.answer(rank, answer)
                world.answer(rank, answer)
    assert world.stations[TARGET].depth(LONG) == 6
    assert world.stations[SOURCE].depth(LONG) == (0 if mode is TransferMode.MOVE else 6)
    world.settle()
    world.assert_at_rest()


@pytest.mark.parametrize("rank", [SOURCE, TARGET])
def test_a_preparation_that_comes_after_its_abort_begins_nothing(world: TransferWorld, rank: int) -> None:
    transfer = world.open(SOURCE, TARGET, LONG).id
    world.hear(rank, AbortTransfer(transfer))
    world.hear(rank, world.to_worker[rank].popleft())
    assert last(world) == TransferEnded(transfer, TransferEnd.ABORTED, 0)
    assert world.stations[rank].exchange.is_idle


@pytest.mark.parametrize("kind", [BeginCopy, BeginSend, Confirm, Publish, Finalize])
def test_an_order_about_what_was_never_heard_of_is_answered_unknown(world: TransferWorld, kind: type) -> None:
    transfer = TransferId(world.control.epoch, 99)
    arguments: dict[type, tuple[object, ...]] = {BeginCopy: ((), ()), BeginSend: (0,), Publish: (0,)}
    world.hear(TARGET, kind(transfer, *arguments.get(kind, ())))
    assert last(world) == TransferEnded(transfer, TransferEnd.UNKNOWN, 0)
    assert not world.stations[TARGET].exchange.remembers(transfer)


def test_an_abort_of_what_was_never_heard_of_is_answered(world: TransferWorld) -> None:
    transfer = TransferId(world.control.epoch, 99)
    world.hear(TARGET, AbortTransfer(transfer))
    assert last(world) == TransferEnded(transfer, TransferEnd.ABORTED, 0)


def test_an_order_for_the_other_side_is_dropped_and_counted(world: TransferWorld) -> None:
    transfer = until(world, TransferState.COPYING)
    prepare = PrepareTarget(transfer, CopyMeans.READ, Rank(2), Epoch(1), LONG, 0, Nanos(world.now + LIFE_NS))
    for order in (prepare, BeginCopy(transfer, (), ()), Publish(transfer, Nanos(0))):
        world.hear(SOURCE, order)
    other = PrepareSource(transfer, TransferMode.COPY, Rank(2), Epoch(1), LONG, 0, Nanos(world.now + LIFE_NS))
    for order2 in (other, BeginSend(transfer, 0), Confirm(transfer), Finalize(transfer)):
        world.hear(TARGET, order2)
    assert world.stations[SOURCE].exchange.strays == 3
    assert world.stations[TARGET].exchange.strays == 4
    world.settle()
    assert world.stations[TARGET].depth(LONG) == 6


def test_whoever_still_holds_something_of_what_is_over_is_told(world: TransferWorld) -> None:
    transfer = world.open(SOURCE, TARGET, LONG).id
    world.hear(SOURCE, world.to_worker[SOURCE].popleft())
    answer = world.to_control[SOURCE].popleft()
    world.pass_time(LIFE_NS + ANSWER_NS)
    for queue in (*world.to_worker, *world.to_control):
        queue.clear()  # type: ignore[attr-defined]
    assert len(world.transfers) == 0
    world.answer(SOURCE, answer)
    assert list(world.to_worker[SOURCE]) == [AbortTransfer(transfer)]
    assert world.transfers.late_answers == 1


def test_an_answer_of_a_stranger_or_of_the_wrong_side_changes_nothing(world: TransferWorld) -> None:
    transfer = until(world, TransferState.PUBLISHING)
    world.answer(OTHER, Published(transfer, 1))  # type: ignore[arg-type]
    world.answer(SOURCE, Published(transfer, 1))  # type: ignore[arg-type]
    world.answer(TARGET, SourcePrepared(transfer, (), ()))
    open_transfer = world.transfers.get(transfer)
    assert open_transfer is not None
    assert open_transfer.state is TransferState.PUBLISHING
    assert world.transfers.strays == 3


def test_a_preparation_of_the_wrong_length_counts_nothing(world: TransferWorld) -> None:
    transfer = world.open(SOURCE, TARGET, LONG).id
    world.answer(SOURCE, SourcePrepared(transfer, (), ()))
    world.deliver(TARGET)
    open_transfer = world.transfers.get(transfer)
    assert open_transfer is not None
    assert open_transfer.state is TransferState.PREPARING


def test_answers_are_forgotten_in_the_end(world: TransferWorld) -> None:
    exchange = world.stations[TARGET].exchange
    for counter in range(ANSWERS_KEPT + 10):
        world.hear(TARGET, AbortTransfer(TransferId(world.control.epoch, counter)))
    assert not exchange.remembers(TransferId(world.control.epoch, 9))
    assert exchange.remembers(TransferId(world.control.epoch, 10))
    world.check()


def test_a_stray_completion_changes_nothing(world: TransferWorld) -> None:
    transfer = until(world, TransferState.COPYING)
    world.deliver(TARGET)
    world.run_driver(TARGET)
    exchange = world.stations[TARGET].exchange
    before = exchange.digest_parts()[:-1]
    copy = world.heard[-1]
    assert isinstance(copy, BeginCopy)
    for event in (
        BlocksCopied(transfer, 6, 6),
        CopyFailed(transfer, ""),
        BlocksSent(transfer),
        SendFailed(transfer, ""),
    ):
        world.tell(TARGET, event)
    assert exchange.digest_parts()[:-1] == before


# Refusals and denials


def test_a_source_without_the_whole_chain_refuses(world: TransferWorld) -> None:
    world.open(SOURCE, TARGET, LONG + chain_of(9))
    world.settle()
    assert refusal(world, SOURCE) is TransferRefusal.CHAIN_MISSING
    world.assert_at_rest()


def test_a_source_pins_no_more_than_its_share_for_copies(world: TransferWorld) -> None:
    longer = chain_of(*range(30, 39))
    world.stations[SOURCE].store(longer)
    world.open(SOURCE, TARGET, longer)  # 9 of 32
    world.settle()
    assert refusal(world, SOURCE) is TransferRefusal.PINS_FULL
    world.assert_at_rest()


def test_a_target_that_has_the_chain_refuses(world: TransferWorld) -> None:
    world.stations[TARGET].store(LONG)
    world.open(SOURCE, TARGET, LONG)
    world.settle()
    assert refusal(world, TARGET) is TransferRefusal.ALREADY_RESIDENT
    world.assert_at_rest()


def test_a_target_without_so_many_blocks_refuses(world: TransferWorld) -> None:
    assert world.stations[TARGET].compute(chain_of(*range(30, 58)))  # 28 of 32
    world.open(SOURCE, TARGET, LONG)
    world.settle()
    assert refusal(world, TARGET) is TransferRefusal.NO_BLOCKS
    world.assert_at_rest()


def test_a_target_reserves_no_more_than_its_share(world: TransferWorld) -> None:
    deadline = Nanos(world.now + LIFE_NS)
    for counter, blocks in ((1, 10), (2, 7), (3, 6)):
        transfer = TransferId(world.control.epoch, counter)
        chain = chain_of(*range(30 * counter, 30 * counter + blocks))
        world.hear(TARGET, PrepareTarget(transfer, CopyMeans.READ, Rank(0), Epoch(1), chain, 0, deadline))
        if counter == 2:
            assert refusal(world, TARGET) is TransferRefusal.NO_BLOCKS
    assert world.stations[TARGET].pool.counts().reserved == 16


def test_a_draining_rank_gives_and_does_not_take(world: TransferWorld) -> None:
    for rank in (SOURCE, TARGET):
        world.stations[rank].exchange.is_draining = True
    world.open(SOURCE, TARGET, LONG)
    world.settle()
    assert refusal(world, TARGET) is TransferRefusal.DRAINING
    world.open(SOURCE, OTHER, LONG)
    world.settle()
    assert world.stations[OTHER].depth(LONG) == 6


@pytest.mark.parametrize("rank", [SOURCE, TARGET])
def test_a_preparation_after_its_deadline_is_refused(world: TransferWorld, rank: int) -> None:
    world.open(SOURCE, TARGET, LONG)
    world.now = Nanos(world.now + LIFE_NS)
    world.hear(rank, world.to_worker[rank].popleft())
    assert refusal(world, rank) is TransferRefusal.EXPIRED


@pytest.mark.parametrize("rank", [SOURCE, TARGET])
def test_a_rank_takes_part_in_so_many_and_no_more(world: TransferWorld, rank: int) -> None:
    deadline = Nanos(world.now + LIFE_NS)
    for counter in range(SIDES_MAX + 1):
        transfer = TransferId(world.control.epoch, counter)
        if rank == SOURCE and counter == SIDES_MAX:
            chain = SHORT[:HASH_BYTES]
            world.hear(rank, PrepareSource(transfer, TransferMode.COPY, Rank(1), Epoch(1), chain, 0, deadline))
        else:
            order = PrepareTarget(transfer, CopyMeans.READ, Rank(0), Epoch(1), chain_of(40 + counter), 0, deadline)
            world.hear(rank, order)
    assert refusal(world, rank) is TransferRefusal.BUSY


def test_control_does_not_begin_what_makes_no_sense(world: TransferWorld) -> None:
    assert world.begin(SOURCE, SOURCE, LONG) is TransferDenial.SAME_RANK
    assert world.begin(SOURCE, TARGET, LONG, first=6) is TransferDenial.NOTHING_WANTED
    assert world.begin(SOURCE, TARGET, LONG * 4000) is TransferDenial.TOO_LONG
    world.open(SOURCE, TARGET, LONG)
    assert world.begin(SOURCE, OTHER, LONG) is TransferDenial.SOURCE_BUSY
    assert world.begin(OTHER, TARGET, LONG) is TransferDenial.TARGET_BUSY
    assert len(world.transfers) == 1


def test_a_cancelled_transfer_ends_on_both_sides_unless_its_publication_is_ordered(world: TransferWorld) -> None:
    world.transfers.cancel(world.now, until(world, TransferState.CONFIRMING))
    world.after_control()
    world.settle()
    assert outcome(world) is TransferOutcome.CANCELLED
    world.assert_at_rest()
    late = until(world, TransferState.PUBLISHING)
    world.transfers.cancel(world.now, late)
    world.settle()
    assert world.stations[TARGET].depth(LONG) == 6


# Blocks for sequences


def test_blocks_are_given_up_in_order_leases_arrivals_copies(world: TransferWorld) -> None:
    station = world.stations[SOURCE]
    placed = chain_of(7, 8)
    world.stations[OTHER].store(placed)
    world.open(OTHER, SOURCE, placed, lease_ns=10 * LIFE_NS)
    world.settle()
    arriving = chain_of(9, 10, 11)
    world.stations[OTHER].store(arriving)
    world.open(OTHER, SOURCE, arriving)
    world.open(SOURCE, TARGET, LONG)
    world.deliver(SOURCE)
    counts = station.pool.counts()
    assert (counts.pinned, counts.reserved) == (8, 3)
    assert world.yield_blocks(SOURCE)
    assert (station.pool.counts().pinned, station.pool.counts().reserved) == (6, 3)
    assert world.yield_blocks(SOURCE)
    assert (station.pool.counts().pinned, station.pool.counts().reserved) == (6, 0)
    assert world.yield_blocks(SOURCE)
    assert station.pool.available == BLOCKS
    assert not world.yield_blocks(SOURCE)
    world.settle()
    world.assert_at_rest()


# Leases


def leased(world: TransferWorld) -> TransferWorld:
    world.open(SOURCE, TARGET, LONG, lease_ns=10 * LIFE_NS)
    world.settle()
    assert world.stations[TARGET].pool.counts().pinned == 6
    return world


def test_a_leased_chain_is_kept_from_reclaim_until_its_first_use(world: TransferWorld) -> None:
    target = leased(world).stations[TARGET]
    assert target.pool.clear() == 0
    sequence = SequenceId(RequestId(Epoch(1), 1), 0)
    target.exchange.use(sequence, SHORT)
    target.exchange.use(sequence, chain_of(1, 2, 3, 4, 5, 7))
    assert target.pool.clear() == 0
    target.exchange.use(sequence, LONG + chain_of(9))
    assert target.pool.clear() == 6
    world.assert_at_rest()


def test_a_lease_ends_with_the_last_that_awaited_its_beginning(world: TransferWorld) -> None:
    """A sibling's chain never has the whole of it."""
    target = world.stations[TARGET]
    transfer = world.open(SOURCE, TARGET, LONG)
    world.deliver(TARGET)
    siblings = [SequenceId(RequestId(Epoch(1), number), 0) for number in (1, 2)]
    for sequence in siblings:
        assert target.exchange.expect(world.now, sequence, Awaited(transfer.id, 2, Nanos(world.now + LIFE_NS)))
    world.settle()
    assert target.exchange.waiters.take_woken() == siblings
    other = chain_of(1, 2, 9)
    for sequence in siblings:
        assert target.pool.clear() == 0
        target.exchange.use(sequence, other)
    assert target.pool.clear() == 6
    world.assert_at_rest()


def test_a_lease_ends_with_its_deadline(world: TransferWorld) -> None:
    target = leased(world).stations[TARGET]
    assert target.exchange.next_deadline() == world.now + 10 * LIFE_NS
    world.pass_time(10 * LIFE_NS - 1)
    assert target.pool.counts().pinned == 6
    world.pass_time(1)
    assert target.pool.counts().pinned == 0
    world.assert_at_rest()


def test_leases_take_no_more_than_their_share_of_a_rank(world: TransferWorld) -> None:
    target = leased(world).stations[TARGET]
    other = chain_of(7, 8, 9)
    world.stations[SOURCE].store(other)
    world.open(SOURCE, TARGET, other, lease_ns=10 * LIFE_NS)
    world.settle()
    assert target.depth(other) == 3
    assert target.pool.counts().pinned == 6
    assert target.pool.clear() == 3


def test_the_source_says_where_its_blocks_are_and_in_which_generation(world: TransferWorld) -> None:
    source = world.stations[SOURCE]
    source.pool.clear()
    source.store(LONG)
    world.open(SOURCE, TARGET, LONG, first=0)
    world.hear(SOURCE, world.to_worker[SOURCE].popleft())
    answer = last(world)
    assert isinstance(answer, SourcePrepared)
    assert answer.blocks == tuple(source.pool.find(hash_at(LONG, index)) for index in range(chain_length(LONG)))
    assert answer.generations == (Generation(2),) * 6


def test_control_is_told_of_each_end_once_with_all_that_led_to_it(world: TransferWorld) -> None:
    published = world.open(SOURCE, TARGET, LONG)
    world.pass_time(3 * MILLISECOND)
    world.settle()
    refused = world.open(SOURCE, TARGET, LONG)
    world.settle()
    assert world.transfers.take_ended() == [published, refused]
    assert world.transfers.take_ended() == []
    assert (published.outcome, published.cause) == (TransferOutcome.PUBLISHED, None)
    assert published.published_ns == world.now
    assert (refused.outcome, refused.cause) == (TransferOutcome.REFUSED, TransferRefusal.ALREADY_RESIDENT)
    assert refused.published_ns is None


def test_time_is_measured_from_the_order_to_copy(world: TransferWorld) -> None:
    transfer = until(world, TransferState.COPYING)
    world.deliver(TARGET)
    world.pass_time(7 * MILLISECOND)
    world.run_driver(TARGET)
    world.deliver(TARGET)
    open_transfer = world.transfers.get(transfer)
    assert open_transfer is not None
    assert open_transfer.copied is not None
    assert open_transfer.copied.copy_ns == 7 * MILLISECOND
    assert open_transfer.copied.size_bytes == 6000
