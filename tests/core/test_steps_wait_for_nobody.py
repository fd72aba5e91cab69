"""Whatever is silent, a peer, a copy or control: the end of a step is answered with the next one in the same breath."""

from collections.abc import Callable

import pytest

from lmpool.core.events import BlocksCopied, PeerLost
from lmpool.core.ids import BlockId, Generation
from lmpool.core.messages.transfer import AbortTransfer, BeginCopy, Confirm, Publish
from tests.core.test_worker_transfers import LATER, TRANSFER, awaiting, computed, pin, reserve, tell
from tests.core.worker_world import CONTROL, World, make_submit, prompt_of

MINE, THEIRS = prompt_of(61, kind=1), prompt_of(61, kind=2)
BLOCKS = 7
OUTPUTS = 20


def pinned(world: World) -> None:
    """For a target that never reads."""
    pin(world, make_submit(1, MINE).chain)


def confirmed(world: World) -> None:
    """And never heard to be finalized."""
    pinned(world)
    tell(world, Confirm(TRANSFER))


def reserved(world: World) -> None:
    """For a source that never prepares."""
    reserve(world, make_submit(1, THEIRS).chain)


def copying(world: World) -> None:
    """A copy that never ends."""
    reserved(world)
    tell(world, BeginCopy(TRANSFER, tuple(map(BlockId, range(BLOCKS))), (Generation(1),) * BLOCKS))
    assert world.copies


def cancelled(world: World) -> None:
    """A copy that does not notice that it is off."""
    copying(world)
    tell(world, AbortTransfer(TRANSFER))


def copied(world: World) -> None:
    """What a source never confirms."""
    copying(world)
    world.feed(BlocksCopied(TRANSFER, BLOCKS, 100))


def published(world: World) -> None:
    copied(world)
    tell(world, Publish(TRANSFER, LATER))


def awaited(world: World) -> None:
    """A request waits for what does not come."""
    world.submit(7, THEIRS, awaits=awaiting(make_submit(1, THEIRS).chain))


def control_lost(world: World) -> None:
    copying(world)
    world.feed(PeerLost(CONTROL))


SILENCES = (pinned, confirmed, reserved, copying, cancelled, copied, published, awaited, control_lost)


def rows(world: World, silence: Callable[[World], None] | None) -> list[list[tuple[int, int]]]:
    """Of every step of a request that decodes: where each row begins, and how many tokens it has."""
    before = len(world.plans)
    submit = world.submit(5, prompt_of(20, kind=5), length=OUTPUTS)
    if silence is not None:
        silence(world)
    steps = 0
    while not world.ended:
        assert world.runner.launched, f"after step {steps} no other has begun"
        world.complete_step()
        steps += 1
    assert (submit.request, 0) in world.ended
    world.assert_complete(submit)
    return [[(row.start, len(row.tokens)) for row in plan.rows] for plan in world.plans[before:]]


@pytest.mark.parametrize("silence", SILENCES, ids=lambda silence: silence.__name__)
def test_no_step_waits_for_a_transfer_a_peer_or_control(silence: Callable[[World], None]) -> None:
    alone, _ = computed(MINE)
    beside, _ = computed(MINE)
    for world in (alone, beside):
        world.ended.clear()
    expected = rows(alone, None)
    assert len(expected) == OUTPUTS
    assert rows(beside, silence) == expected
