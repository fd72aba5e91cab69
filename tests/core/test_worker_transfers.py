"""A worker in a transfer: what arrives is as good as computed, sequences come first, and requests may wait for it."""

from typing import Any

import attrs
import pytest

from lmpool.core.effects import CancelCopy, CopyBlocks
from lmpool.core.events import BlocksCopied, CopyFailed, DrainOrdered, PeerJoined, PeerLost, Received
from lmpool.core.ids import MILLISECOND, SECOND, BlockId, Epoch, Generation, Nanos, Rank, RequestId, TransferId
from lmpool.core.messages import Message
from lmpool.core.messages.ingress_worker import Submit
from lmpool.core.messages.transfer import (
    AbortTransfer,
    Awaited,
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
    TransferEnd,
    TransferEnded,
    TransferMode,
    TransferOrder,
    TransferRefusal,
    TransferRefused,
)
from lmpool.core.messages.worker_control import Report
from lmpool.core.prefix import HASH_BYTES, chain_length, split_chain
from tests.core.worker_world import CONTROL, INGRESS, World, make_submit, prompt_of

SIZE = 8
TRANSFER = TransferId(CONTROL.epoch, 1)
LATER = Nanos(60 * SECOND)


def tell(world: World, order: TransferOrder) -> list[Message]:
    return world.feed(Received(CONTROL, order))


def only(messages: list[Message], kind: type) -> Any:
    (message,) = [message for message in messages if isinstance(message, kind)]
    return message


def reserve(world: World, chain: bytes, transfer: TransferId = TRANSFER) -> TargetPrepared:
    order = PrepareTarget(transfer, CopyMeans.READ, Rank(1), Epoch(1), chain, 0, LATER)
    prepared = only(tell(world, order), TargetPrepared)
    assert isinstance(prepared, TargetPrepared)
    return prepared


def pin(world: World, chain: bytes, transfer: TransferId = TRANSFER) -> SourcePrepared:
    order = PrepareSource(transfer, TransferMode.COPY, Rank(1), Epoch(1), chain, 0, LATER)
    prepared = only(tell(world, order), SourcePrepared)
    assert isinstance(prepared, SourcePrepared)
    return prepared


def copy(source: World, target: World, prepared: SourcePrepared) -> None:
    """What a driver does."""
    tell(target, BeginCopy(TRANSFER, prepared.blocks, prepared.generations))
    order = target.copies[-1]
    assert isinstance(order, CopyBlocks)
    for here, there in zip(order.target_blocks, order.source_blocks, strict=True):
        for offset in range(SIZE):
            target.runner.memory[here, offset] = source.runner.memory[there, offset]
    copied = BlocksCopied(TRANSFER, len(order.target_blocks), 100 * len(order.target_blocks))
    assert only(target.feed(copied), Copied).size_bytes == 100 * len(order.target_blocks)


def bring(source: World, target: World, chain: bytes) -> list[Message]:
    """A whole transfer. Answers what the target says of its publication."""
    prepared = pin(source, chain)
    reserve(target, chain)
    copy(source, target, prepared)
    only(tell(source, Confirm(TRANSFER)), Confirmed)
    messages = tell(target, Publish(TRANSFER, Nanos(0)))
    only(tell(source, Finalize(TRANSFER)), TransferEnded)
    return messages


def computed(prompt: list[int]) -> tuple[World, bytes]:
    """A worker that has computed a prompt, and the chain of it."""
    world = World()
    submit = world.submit(1, prompt)
    world.run(100)
    world.assert_complete(submit)
    return world, submit.chain


def awaiting(chain: bytes, until_ns: int = 50 * SECOND) -> Awaited:
    return Awaited(TRANSFER, chain_length(chain), Nanos(until_ns))


def idle_submit(prompt: list[int]) -> Submit:
    return make_submit(1, prompt)


def finish(world: World, submit: Submit) -> None:
    world.run(100)
    world.assert_complete(submit)


# What arrives


def test_a_request_that_finds_arrived_blocks_gets_the_same_tokens_as_without() -> None:
    source, chain = computed(prompt_of(61, kind=1))
    target = World()
    bring(source, target, chain)
    submit = target.submit(2, prompt_of(61, kind=1))
    target.run(100)
    target.assert_complete(submit)
    assert target.accepted[submit.request].cached_tokens == 56
    target.assert_idle()
    source.assert_idle()


def test_wrong_bytes_would_show() -> None:
    source, chain = computed(prompt_of(61, kind=1))
    target = World()
    for place in source.runner.memory:
        source.runner.memory[place] += 1
    bring(source, target, chain)
    submit = target.submit(2, prompt_of(61, kind=1))
    with pytest.raises(AssertionError):
        finish(target, submit)


def test_the_report_that_tells_of_the_blocks_comes_before_the_word_that_they_are_published() -> None:
    source, chain = computed(prompt_of(61, kind=1))
    target = World()
    messages = bring(source, target, chain)
    assert [type(message) for message in messages] == [Report, Published]
    report, published = messages
    assert isinstance(report, Report)
    assert isinstance(published, Published)
    assert report.added == chain
    assert published.version == report.version


def test_a_move_is_told_of_in_the_report_of_its_source() -> None:
    source, chain = computed(prompt_of(57, kind=1))
    order = PrepareSource(TRANSFER, TransferMode.MOVE, Rank(1), Epoch(1), chain, 0, LATER)
    tell(source, order)
    ended = only(tell(source, Finalize(TRANSFER)), TransferEnded)
    assert ended.blocks_freed == 7
    report = only(source.tick(source.settings.report_interval_ns), Report)
    assert sorted(split_chain(report.removed)) == sorted(split_chain(chain))
    source.assert_idle()


def test_a_sequence_that_computes_what_arrives_meanwhile_goes_on_with_what_arrived() -> None:
    """The writer of a block that a transfer publishes; and who waits for that writer waits no longer."""
    source, chain = computed(prompt_of(200, kind=1))
    target = World()
    prepared = pin(source, chain[: 15 * HASH_BYTES])
    reserve(target, chain[: 15 * HASH_BYTES])
    writer = target.submit(2, prompt_of(200, kind=1))
    waiting = target.submit(3, prompt_of(200, kind=1))
    copy(source, target, prepared)
    tell(target, Publish(TRANSFER, Nanos(0)))
    target.run(100)
    target.assert_complete(writer, waiting)
    target.assert_idle()


# Blocks for sequences


def small(blocks: int, **changes: Any) -> World:
    return World(blocks=blocks, **changes)


def test_an_arrival_gives_its_blocks_up_before_a_sequence_is_preempted() -> None:
    world = small(12)
    reserve(world, idle_submit(prompt_of(48, kind=9)).chain)
    submit = world.submit(1, prompt_of(30, kind=1), length=30)
    other = world.submit(2, prompt_of(9, kind=2), length=10)
    world.run(100)
    world.assert_complete(submit, other)
    snapshot = world.worker.snapshot()
    assert snapshot.totals.preemptions == 0
    assert dict(snapshot.exchange.ends)["yielded"] == 1
    assert TransferEnded(TRANSFER, TransferEnd.YIELDED, 0) in [message for _, message in world.messages]
    world.assert_idle()


def test_blocks_that_are_still_written_are_waited_for_and_not_taken() -> None:
    """One sequence alone needs every block of the pool; a copy that cannot be stopped has some of them."""
    world = small(8)
    reserve(world, idle_submit(prompt_of(32, kind=9)).chain)
    tell(world, BeginCopy(TRANSFER, (BlockId(0),) * 4, (Generation(1),) * 4))
    submit = world.submit(1, prompt_of(20, kind=1), length=44)
    for _ in range(30):
        if not world.runner.launched:
            break
        world.complete_step()
    assert not world.runner.launched
    assert world.copies[-1] == CancelCopy(TRANSFER)
    assert world.worker.snapshot().blocks.aborting == 4
    world.feed(CopyFailed(TRANSFER, "cancelled"))
    world.run(100)
    world.assert_complete(submit)
    world.assert_idle()


def test_who_is_first_in_the_queue_does_not_wait_for_ever_behind_an_arrival() -> None:
    world = small(8)
    reserve(world, idle_submit(prompt_of(32, kind=9)).chain)
    submit = world.submit(1, prompt_of(50, kind=1))
    world.run(100)
    world.assert_complete(submit)


def test_a_chain_that_is_copied_away_gives_its_pins_up_before_a_sequence_is_preempted() -> None:
    world = small(16)
    first = world.submit(1, prompt_of(32, kind=9), length=1)
    world.run(10)
    pin(world, first.chain)
    submit = world.submit(2, prompt_of(50, kind=1), length=60)
    world.run(200)
    world.assert_complete(submit)
    snapshot = world.worker.snapshot()
    assert snapshot.totals.preemptions == 0
    assert dict(snapshot.exchange.ends)["yielded"] == 1
    world.assert_idle()


# Requests that wait


def test_a_request_waits_for_promised_blocks_and_computes_only_the_rest() -> None:
    source, chain = computed(prompt_of(61, kind=1))
    target = World()
    submit = target.submit(2, prompt_of(61, kind=1), awaits=awaiting(chain))
    assert not target.plans
    assert target.worker.snapshot().waiting_tokens == 5
    bring(source, target, chain)
    target.run(100)
    target.assert_complete(submit)
    assert target.accepted[submit.request].cached_tokens == 56
    assert target.worker.snapshot().exchange.missed == 0
    target.assert_idle()


def test_who_waits_for_a_transfer_takes_no_tokens_and_blocks_nobody() -> None:
    source, chain = computed(prompt_of(61, kind=1))
    target = World(sequences_max=1, waiting_requests_max=2)
    first = target.submit(2, prompt_of(61, kind=1), awaits=awaiting(chain))
    others = [target.submit(number, prompt_of(20, kind=number)) for number in (3, 4)]
    target.run(100)
    target.assert_complete(*others)
    assert first.request not in target.accepted
    later = target.submit(5, prompt_of(40, kind=5), length=20)
    bring(source, target, chain)
    last = target.submit(6, prompt_of(20, kind=6))
    order: list[RequestId] = []
    while target.runner.launched:
        target.complete_step()
        order += [request for request in target.accepted if request not in order]
    target.assert_complete(first, later, last)
    assert order.index(first.request) < order.index(last.request), "it has lost its place"


def test_every_choice_of_a_request_waits() -> None:
    source, chain = computed(prompt_of(61, kind=1))
    target = World()
    submit = target.submit(2, prompt_of(61, kind=1), choices=(0, 1, 2), awaits=awaiting(chain))
    assert target.worker.snapshot().exchange.waiting == 3
    bring(source, target, chain)
    target.run(100)
    target.assert_complete(submit)
    target.assert_idle()


def test_several_requests_wait_for_one_transfer_and_all_find_its_blocks() -> None:
    source, chain = computed(prompt_of(61, kind=1))
    target = World(sequences_max=1)
    submits = [target.submit(number, prompt_of(61, kind=1), awaits=awaiting(chain)) for number in (2, 3, 4)]
    bring(source, target, chain)
    snapshot = target.worker.snapshot()
    assert snapshot.exchange.leases == 1
    assert target.worker.snapshot().blocks.cached == 0  # pinned for those who still queue
    target.run(300)
    target.assert_complete(*submits)
    assert [target.accepted[submit.request].cached_tokens for submit in submits] == [56, 56, 56]
    assert target.worker.snapshot().exchange.leases == 0
    target.assert_idle()


def test_a_request_that_comes_after_the_blocks_finds_them_pinned() -> None:
    source, chain = computed(prompt_of(61, kind=1))
    target = World(sequences_max=1)
    prepared = pin(source, chain)
    reserve(target, chain)
    copy(source, target, prepared)
    tell(target, Publish(TRANSFER, Nanos(target.now + 20 * SECOND)))
    running = target.submit(2, prompt_of(20, kind=2), length=30)
    submit = target.submit(3, prompt_of(61, kind=1), awaits=awaiting(chain))
    assert target.worker.snapshot().exchange.waiting == 0
    assert target.worker.snapshot().exchange.leases == 1
    target.run(100)
    target.assert_complete(running, submit)
    assert target.accepted[submit.request].cached_tokens == 56
    assert target.worker.snapshot().exchange.leases == 0


def end_by_refusal(world: World, chain: bytes) -> None:
    order = PrepareTarget(TRANSFER, CopyMeans.READ, Rank(1), Epoch(1), chain, 0, Nanos(1))
    assert only(tell(world, order), TransferRefused).reason is TransferRefusal.EXPIRED


def end_by_abort(world: World, chain: bytes) -> None:
    reserve(world, chain)
    tell(world, AbortTransfer(TRANSFER))


def end_by_abort_before_preparation(world: World, chain: bytes) -> None:
    tell(world, AbortTransfer(TRANSFER))


def end_by_deadline(world: World, chain: bytes) -> None:
    reserve(world, chain)
    assert world.worker.next_deadline() <= 50 * SECOND
    world.now = Nanos(50 * SECOND)
    world.tick(MILLISECOND)


def end_by_failed_copy(world: World, chain: bytes) -> None:
    blocks = reserve(world, chain).blocks
    tell(world, BeginCopy(TRANSFER, (BlockId(0),) * blocks, (Generation(1),) * blocks))
    world.feed(CopyFailed(TRANSFER, "made to fail"))


def end_by_lost_control(world: World, chain: bytes) -> None:
    world.feed(PeerLost(CONTROL))


def end_by_new_control(world: World, chain: bytes) -> None:
    reserve(world, chain)
    world.feed(PeerJoined(CONTROL._replace(epoch=Epoch(CONTROL.epoch + 1))))


def end_by_new_link(world: World, chain: bytes) -> None:
    """Of the same control, before the end of the old one is read."""
    reserve(world, chain)
    world.feed(PeerJoined(CONTROL))


@pytest.mark.parametrize(
    "end",
    [
        end_by_refusal,
        end_by_abort,
        end_by_abort_before_preparation,
        end_by_deadline,
        end_by_failed_copy,
        end_by_lost_control,
        end_by_new_control,
        end_by_new_link,
    ],
)
def test_a_request_whose_blocks_do_not_come_computes_them(end: Any) -> None:
    chain = idle_submit(prompt_of(61, kind=1)).chain
    world = World()
    submit = world.submit(2, prompt_of(61, kind=1), awaits=awaiting(chain))
    assert not world.plans
    end(world, chain)
    world.run(100)
    world.assert_complete(submit)
    assert world.accepted[submit.request].cached_tokens == 0
    snapshot = world.worker.snapshot()
    assert (snapshot.exchange.missed, snapshot.exchange.waiting) == (1, 0)


@pytest.mark.parametrize("until_ns", [1, 50 * SECOND])
def test_a_request_does_not_wait_for_what_is_over(until_ns: int) -> None:
    chain = idle_submit(prompt_of(61, kind=1)).chain
    world = World()
    if until_ns > 1:
        tell(world, AbortTransfer(TRANSFER))
    submit = world.submit(2, prompt_of(61, kind=1), awaits=awaiting(chain, until_ns))
    world.run(100)
    world.assert_complete(submit)
    assert world.worker.snapshot().exchange.missed == 1


def test_a_request_does_not_wait_for_what_is_there() -> None:
    world, chain = computed(prompt_of(61, kind=1))
    submit = world.submit(2, prompt_of(61, kind=1), awaits=awaiting(chain))
    assert world.runner.launched
    world.run(100)
    world.assert_complete(submit)
    assert world.worker.snapshot().exchange.missed == 0


def test_a_waiting_request_may_be_aborted() -> None:
    source, chain = computed(prompt_of(61, kind=1))
    target = World()
    target.submit(2, prompt_of(61, kind=1), awaits=awaiting(chain))
    target.abort(2)
    assert target.worker.snapshot().exchange.waiting == 0
    bring(source, target, chain)
    assert target.worker.snapshot().exchange.leases == 0
    target.assert_idle()


def test_a_newer_attempt_that_comes_when_the_older_has_waited_too_long_waits_for_itself() -> None:
    source, chain = computed(prompt_of(61, kind=1))
    target = World()
    first = target.submit(2, prompt_of(61, kind=1), awaits=awaiting(chain, until_ns=10 * MILLISECOND))
    target.now = Nanos(20 * MILLISECOND)
    newer = target.send_submit(attrs.evolve(first, attempt=1, awaits=awaiting(chain)))
    assert target.worker.snapshot().exchange.waiting == 1
    assert not target.plans
    bring(source, target, chain)
    target.run(100)
    target.assert_complete(newer)
    assert target.accepted[newer.request].cached_tokens == 56


def test_a_request_that_leaves_its_queue_leaves_its_pins() -> None:
    source, chain = computed(prompt_of(61, kind=1))
    target = World(sequences_max=1)
    running = target.submit(2, prompt_of(20, kind=2), length=30)
    target.submit(3, prompt_of(61, kind=1), awaits=awaiting(chain))
    bring(source, target, chain)
    assert target.worker.snapshot().exchange.leases == 1
    target.abort(3)
    assert target.worker.snapshot().exchange.leases == 0
    target.run(100)
    target.assert_complete(running)
    target.assert_idle()


def test_pins_for_waiting_requests_end_where_running_ones_need_the_blocks() -> None:
    source, chain = computed(prompt_of(61, kind=1))
    target = small(16, sequences_max=1)
    running = target.submit(2, prompt_of(20, kind=2), length=70)
    waiting = target.submit(3, prompt_of(61, kind=1), awaits=awaiting(chain))
    bring(source, target, chain)
    target.run(300)
    target.assert_complete(running, waiting)
    assert target.worker.snapshot().totals.preemptions == 0


def test_a_draining_worker_gives_and_does_not_take() -> None:
    world, chain = computed(prompt_of(61, kind=1))
    world.feed(DrainOrdered())
    other = idle_submit(prompt_of(61, kind=2)).chain
    order = PrepareTarget(TRANSFER, CopyMeans.READ, Rank(1), Epoch(1), other, 0, LATER)
    assert only(tell(world, order), TransferRefused).reason is TransferRefusal.DRAINING
    pin(world, chain, TransferId(CONTROL.epoch, 2))


def test_an_order_of_an_ingress_is_dropped_and_counted() -> None:
    world = World()
    before = world.worker.digest()
    world.feed(Received(INGRESS, AbortTransfer(TransferId(INGRESS.epoch, 1))))
    assert world.worker.snapshot().messages_stray == 1
    assert world.worker.digest() != before


def test_the_digest_knows_of_transfers() -> None:
    one, other = World(), World()
    assert one.worker.digest() == other.worker.digest()
    chain = idle_submit(prompt_of(61, kind=1)).chain
    order = PrepareTarget(TRANSFER, CopyMeans.READ, Rank(1), Epoch(1), chain, 0, LATER)
    tell(one, order)
    tell(other, attrs.evolve(order, source=Rank(2)))
    assert one.worker.digest() != other.worker.digest()
