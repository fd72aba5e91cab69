"""Reuse at a worker: what was computed is not computed again, and a hit equals a miss."""

import pytest

from lmpool.core.events import Received
from lmpool.core.ids import RequestId
from lmpool.core.messages.ingress_worker import CacheCleared, ClearCache, Submit
from lmpool.core.prefix import namespace_digest
from tests.core.worker_world import BASE, DRAWN, INGRESS, World, prompt_of


@pytest.fixture(params=[1, 2])
def in_flight(request: pytest.FixtureRequest) -> int:
    return int(request.param)


def cached_tokens(world: World, submit: Submit) -> int:
    return world.accepted[submit.request].cached_tokens


def computed(world: World) -> int:
    return world.worker.snapshot().totals.tokens_computed


@pytest.mark.parametrize("size", [15, 16, 17, 32])
@pytest.mark.parametrize("length", [1, 5])
def test_b26_prompts_at_block_edges_sent_again_and_two_at_once(size: int, length: int, in_flight: int) -> None:
    """At least the last token is computed again; the hit is in whole blocks; the tokens are the same."""
    world = World(steps_in_flight_max=in_flight, block_size=16)
    first = world.submit(1, prompt_of(size, 1), length=length)
    world.run(20)
    assert computed(world) == size
    second = world.submit(2, prompt_of(size, 1), length=length)
    world.run(20)
    assert cached_tokens(world, second) == size // 16 * 16
    assert computed(world) == size + max(size % 16, 1)
    pair = [world.submit(counter, prompt_of(size, 1), length=length) for counter in (3, 4)]
    world.run(20)
    assert [cached_tokens(world, submit) for submit in pair] == [size // 16 * 16] * 2
    world.assert_complete(first, second, *pair)
    world.assert_idle()


def test_b26_a_wholly_cached_prompt_is_one_row_that_writes_nothing(in_flight: int) -> None:
    world = World(steps_in_flight_max=in_flight)
    world.submit(1, prompt_of(32, 1))
    world.run(20)
    planned = len(world.plans)
    world.submit(2, prompt_of(32, 1))
    row = world.plans[planned].rows[0]
    assert (row.start, tuple(row.tokens), row.writes, row.samples) == (31, (prompt_of(32, 1)[31],), False, True)
    assert len(row.blocks) == 4
    world.run(20)


def test_b24_namespaces_share_nothing() -> None:
    world = World()
    namespaces = [
        namespace_digest(BASE, adapter, "tenant", salt) for adapter in (None, "red") for salt in (None, "red")
    ]
    submits = [
        world.submit(counter, prompt_of(24, 1), namespace=namespace) for counter, namespace in enumerate(namespaces)
    ]
    world.run(40)
    assert [cached_tokens(world, submit) for submit in submits] == [0, 0, 0, 0]
    assert computed(world) == 4 * 24
    world.assert_complete(*submits)


def test_b31_cold_warm_and_batched_are_equal(in_flight: int) -> None:
    prompts = [prompt_of(size, kind) for size in (9, 24, 61) for kind in (1, 2)]
    world = World(steps_in_flight_max=in_flight, blocks=200)
    alone = []
    for counter, prompt in enumerate(prompts):
        alone.append(world.submit(counter, prompt, length=20, sampling=DRAWN))
        world.run(60)
    together = [
        world.submit(100 + counter, prompt, length=20, sampling=DRAWN) for counter, prompt in enumerate(prompts)
    ]
    world.run(200)
    world.assert_complete(*alone, *together)
    assert [world.output(counter, 0) for counter in range(6)] == [world.output(100 + n, 0) for n in range(6)]


def test_output_is_found_by_the_next_turn_of_a_conversation() -> None:
    world = World()
    first = world.submit(1, prompt_of(20, 1), length=20)
    world.run(40)
    history = prompt_of(20, 1) + world.output(1, 0)
    second = world.submit(2, [*history, 1, 2, 3])
    world.run(40)
    assert cached_tokens(world, second) == 32, "39 tokens were written, the 40th was only sampled"
    world.assert_complete(first, second)


def test_a_burst_computes_its_common_prefix_once(in_flight: int) -> None:
    """16 requests, one cold prefix of 48 tokens, own tails of 5."""
    world = World(steps_in_flight_max=in_flight, blocks=400, step_tokens_max=32)
    submits = [
        world.submit(counter, [*prompt_of(48, 1), *prompt_of(5, 10 + counter)], length=3) for counter in range(16)
    ]
    world.run(100)
    world.assert_complete(*submits)
    assert computed(world) == 48 + 16 * 5
    assert [cached_tokens(world, submit) for submit in submits] == [0, *[48] * 15]


def test_a_burst_is_computed_once_whatever_the_lengths(in_flight: int) -> None:
    """The youngest and shortest comes first to the tokens that the first in the queue leaves; others await it."""
    world = World(steps_in_flight_max=in_flight, blocks=400, step_tokens_max=16)
    world.submit(0, prompt_of(200, 9), length=2)
    submits = [world.submit(counter, prompt_of(90 - 8 * counter, 1), length=3) for counter in range(1, 6)]
    world.run(200)
    world.assert_complete(*submits)
    tails = sum(max((90 - 8 * counter) % 8, 1) for counter in range(2, 6))
    assert computed(world) == 200 + 82 + tails


def test_choices_of_a_request_share_its_prompt(in_flight: int) -> None:
    world = World(steps_in_flight_max=in_flight)
    submit = world.submit(1, prompt_of(37, 1), choices=(0, 1, 2), sampling=DRAWN, length=9)
    world.run(60)
    world.assert_complete(submit)
    assert computed(world) == 37 + 2 * 5, "each computes the tokens after the last complete block"
    assert len({tuple(world.output(1, choice)) for choice in range(3)}) == 3
    world.assert_idle()


def test_choices_of_a_wholly_blocked_prompt_share_it(in_flight: int) -> None:
    world = World(steps_in_flight_max=in_flight)
    submit = world.submit(1, prompt_of(32, 1), choices=(0, 1, 2, 3), sampling=DRAWN)
    world.run(60)
    world.assert_complete(submit)
    assert computed(world) == 32 + 3


@pytest.mark.parametrize("steps", [0, 1, 2, 3])
def test_the_next_in_line_takes_over_from_a_writer_that_is_cancelled(steps: int, in_flight: int) -> None:
    world = World(steps_in_flight_max=in_flight, step_tokens_max=16)
    world.submit(1, prompt_of(64, 1))
    submits = [world.submit(counter, prompt_of(64, 1)) for counter in (2, 3)]
    for _ in range(steps):
        world.complete_step()
    world.abort(1)
    world.run(40)
    world.assert_complete(*submits)
    was_planned = 16 * (steps + in_flight) >= 64
    assert computed(world) == 64 + 1 + was_planned, "each block was computed by just one of them"
    world.assert_idle()


def test_prompt_scores_come_in_order_and_read_no_cache(in_flight: int) -> None:
    world = World(steps_in_flight_max=in_flight, step_tokens_max=16)
    world.submit(1, prompt_of(40, 1))
    world.run(20)
    scored = world.submit(2, prompt_of(40, 1), prompt_logprobs=0)
    world.run(20)
    assert cached_tokens(world, scored) == 0
    assert len(world.scores[scored.request]) == 39
    assert computed(world) == 80
    world.assert_complete(scored)
    world.assert_idle()


def test_scores_only(in_flight: int) -> None:
    """No output wanted: nothing is sampled, and the request ends when its prompt is scored."""
    world = World(steps_in_flight_max=in_flight, step_tokens_max=16)
    submit = world.submit(1, prompt_of(40, 1), prompt_logprobs=0, length=0)
    world.run(20)
    assert len(world.scores[submit.request]) == 39
    assert not any(row.samples for plan in world.plans for row in plan.rows)
    world.assert_complete(submit)
    world.assert_idle()


def test_one_choice_scores_and_the_others_share(in_flight: int) -> None:
    world = World(steps_in_flight_max=in_flight)
    submit = world.submit(1, prompt_of(40, 1), prompt_logprobs=0, choices=(0, 1), sampling=DRAWN)
    world.run(20)
    assert len(world.scores[submit.request]) == 39
    assert computed(world) == 41
    world.assert_complete(submit)


@pytest.mark.parametrize("received", [0, 1, 5, 12, 19])
def test_a_request_continues_from_what_it_put_out_elsewhere(received: int, in_flight: int) -> None:
    world = World(steps_in_flight_max=in_flight)
    whole = world.submit(1, prompt_of(21, 1), length=20, sampling=DRAWN, minimum=3, ends=tuple(range(0, 1000, 50)))
    world.run(40)
    output = world.output(1, 0)
    other = World(steps_in_flight_max=in_flight)
    submit = other.submit(
        1,
        prompt_of(21, 1),
        length=20,
        sampling=DRAWN,
        minimum=3,
        ends=whole.stop.ends,
        outputs_of=[output[: min(received, len(output) - 1)]],
        attempt=1,
    )
    other.run(40)
    assert other.output(1, 0) == output
    other.assert_complete(submit)
    other.assert_idle()


def test_clear_cache_leaves_what_runs(in_flight: int) -> None:
    world = World(steps_in_flight_max=in_flight)
    world.submit(1, prompt_of(40, 1))
    world.run(20)
    submit = world.submit(2, prompt_of(24, 1), length=12)
    world.complete_step()
    heard = world.feed(Received(INGRESS, ClearCache(9)))
    assert CacheCleared(9, 2) in heard
    world.run(20)
    world.assert_complete(submit)
    assert RequestId(INGRESS.epoch, 2) in world.accepted
