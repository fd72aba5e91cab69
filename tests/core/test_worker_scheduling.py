"""Who is served when, and what happens when blocks, slots or tokens are short."""

import pytest

from lmpool.core.ids import MILLISECOND, Nanos, RequestId
from lmpool.core.messages.ingress_worker import EndReason, Finish, RefusalReason, Refused, Submit
from tests.core.worker_world import INGRESS, World, prompt_of


@pytest.fixture(params=[1, 2])
def in_flight(request: pytest.FixtureRequest) -> int:
    return int(request.param)


def run_until_first_token(world: World, submit: Submit, steps_max: int) -> int:
    for step in range(steps_max):
        if world.outputs[submit.request, 0]:
            return step
        world.complete_step()
    raise AssertionError(f"no token within {steps_max} steps")


def run_until_end(world: World, submit: Submit, steps_max: int) -> int:
    for step in range(steps_max):
        if (submit.request, submit.attempt) in world.ended:
            return step
        world.complete_step()
    raise AssertionError(f"no end within {steps_max} steps")


def test_b33_what_can_never_fit_is_refused_and_blocks_nobody(in_flight: int) -> None:
    """A pool of 20 blocks of 16 below a model limit of 4096."""
    world = World(steps_in_flight_max=in_flight, block_size=16, blocks=20, model_tokens_max=4096)
    for counter, size in enumerate((320, 321, 400)):
        submit = world.submit(counter, prompt_of(size, 1))
        assert world.refused[submit.request] is RefusalReason.NEVER_FITS
    short = world.submit(10, prompt_of(20, 2))
    world.run(20)
    world.assert_complete(short)


def test_b33_a_prompt_that_fits_without_its_output_ends_by_length(in_flight: int) -> None:
    world = World(steps_in_flight_max=in_flight, block_size=16, blocks=20)
    submit = world.submit(1, prompt_of(310, 1), length=500)
    world.run(100)
    assert world.finishes[submit.request, 0] is Finish.LENGTH
    assert len(world.output(1, 0)) == 10
    world.assert_idle()


def test_b33_the_longest_prompt_gets_its_one_token(in_flight: int) -> None:
    world = World(steps_in_flight_max=in_flight, block_size=16, blocks=20)
    submit = world.submit(1, prompt_of(319, 1), length=500)
    world.run(100)
    assert world.finishes[submit.request, 0] is Finish.LENGTH
    assert len(world.output(1, 0)) == 1


def test_b33_the_limit_in_force_is_told() -> None:
    world = World(block_size=16, blocks=20, model_tokens_max=4096)
    joined = [message for peer, message in world.messages if peer == INGRESS]
    assert getattr(joined[0], "model_tokens_max", None) == 320


def test_b34_more_long_requests_than_the_pool_holds(in_flight: int) -> None:
    """A pool for 1.5 long requests (70 tokens of prompt, 80 of output), four of them, and short ones all along."""
    world = World(steps_in_flight_max=in_flight, blocks=29, step_tokens_max=64)
    longs = [world.submit(counter, prompt_of(70, counter), length=80) for counter in range(4)]
    shorts: list[Submit] = []
    for turn in range(600):
        if turn < 300 and turn % 10 == 0:
            shorts.append(world.submit(100 + turn, prompt_of(12, 100 + turn), length=3))
        if world.runner.launched:
            world.complete_step()
    world.assert_complete(*longs, *shorts)
    snapshot = world.worker.snapshot()
    needed = 4 * 70 + len(shorts) * 12
    assert snapshot.totals.tokens_computed <= 2 * needed
    assert snapshot.totals.preemptions <= 3 * 4
    world.assert_idle()


def test_b34_room_is_kept_so_that_preemptions_are_few(in_flight: int) -> None:
    """Steady overload. Without the margin that a beginning leaves free there is about one preemption a request."""
    world = World(steps_in_flight_max=in_flight, blocks=60, waiting_requests_max=500)
    submits: list[Submit] = []
    for turn in range(400):
        if turn % 6 == 0:
            submits.append(world.submit(turn, prompt_of(20 + turn % 50, turn), length=20 + turn % 60))
        world.complete_step()
    world.run(2000)
    world.assert_complete(*submits)
    assert world.worker.snapshot().totals.preemptions < len(submits) / 2


def test_b34_the_oldest_of_the_best_class_is_never_preempted(in_flight: int) -> None:
    world = World(steps_in_flight_max=in_flight, blocks=16, sequences_max=8)
    late = [world.submit(counter, prompt_of(30, counter), length=60) for counter in range(1, 5)]
    world.run(400)
    ends = list(world.ended)
    assert ends[0][0] == late[0].request
    world.assert_complete(*late)


def test_a_better_class_goes_first_and_the_worst_is_preempted_first() -> None:
    world = World(blocks=16, sequences_max=1)
    world.submit(1, prompt_of(16, 1), length=3)
    usual = world.submit(2, prompt_of(16, 2), length=3)
    better = world.submit(3, prompt_of(16, 3), length=3, priority=-1)
    worse = world.submit(4, prompt_of(16, 4), length=3, priority=1)
    world.run(40)
    order = [request for request, _ in world.ended]
    assert order[1:] == [better.request, usual.request, worse.request]


def test_waiting_raises_the_class() -> None:
    """A request of the worse class that has waited `class_ns` longer goes before one of the better class."""
    world = World(sequences_max=1, class_ns=Nanos(50 * MILLISECOND))
    world.submit(1, prompt_of(16, 1), length=3, arrived_ns=Nanos(0))
    better_late = world.submit(2, prompt_of(16, 2), arrived_ns=Nanos(60 * MILLISECOND))
    worse_early = world.submit(3, prompt_of(16, 3), arrived_ns=Nanos(5 * MILLISECOND), priority=1)
    better_soon = world.submit(4, prompt_of(16, 4), arrived_ns=Nanos(50 * MILLISECOND))
    world.run(40)
    order = [request for request, _ in world.ended]
    assert order[1:] == [better_soon.request, worse_early.request, better_late.request]


def test_endless_better_requests_do_not_starve_a_worse_one() -> None:
    world = World(sequences_max=2, class_ns=Nanos(50 * MILLISECOND))
    worse = world.submit(1, prompt_of(16, 1), priority=2, arrived_ns=world.now)
    for turn in range(400):
        world.submit(10 + turn, prompt_of(16, 10 + turn), length=2, arrived_ns=world.now)
        world.complete_step()
        if (worse.request, 0) in world.ended:
            break
    world.assert_complete(worse)


@pytest.mark.parametrize("size", [63, 64, 65, 128])
@pytest.mark.parametrize("cached", [0, 16, 48, 64])
def test_b36_chunks_are_planned_on_what_is_not_cached(size: int, cached: int, in_flight: int) -> None:
    """Chunks of 64 tokens, while the rest of the pool is nearly full of pinned blocks."""
    world = World(steps_in_flight_max=in_flight, block_size=16, blocks=24, step_tokens_max=64, sequences_max=4)
    if cached:
        world.submit(1, prompt_of(cached, 1), length=1)
        world.run(10)
    locker = world.submit(2, prompt_of(150, 2), length=60)
    for _ in range(4):
        world.complete_step()
    submit = world.submit(3, prompt_of(size, 1), length=5)
    world.run(200)
    world.assert_complete(locker, submit)
    rows = [row for plan in world.plans for row in plan.rows]
    assert all(row.length >= 1 for row in rows)
    assert all(sum(row.length for row in plan.rows) <= 64 for plan in world.plans)


def test_b37_the_queue_is_bounded_in_requests_and_choices() -> None:
    world = World(sequences_max=2, waiting_requests_max=10)
    for counter in range(100):
        world.submit(counter, prompt_of(30, counter))
    assert len(world.refused) == 100 - 1 - 10, "one has begun, and no step has completed yet"
    assert set(world.refused.values()) == {RefusalReason.QUEUE_FULL}
    refusals = [message for _, message in world.messages if isinstance(message, Refused)]
    assert all(refusal.retry_after_ns > 0 for refusal in refusals)
    assert world.worker.snapshot().requests_refused == 89
    many = world.submit(200, prompt_of(30, 1), choices=tuple(range(5)))
    assert many.request in world.refused
    world.run(400)
    again = world.submit(99, prompt_of(30, 99), attempt=1)
    world.run(20)
    world.assert_complete(again)


def test_b37_the_queue_is_bounded_in_tokens() -> None:
    world = World(sequences_max=1, waiting_tokens_max=100)
    submits = [world.submit(counter, prompt_of(45, counter)) for counter in range(5)]
    assert [submit.request in world.refused for submit in submits] == [False, False, False, True, True]
    world.run(100)


def test_b37_one_request_larger_than_the_bounds_is_taken_by_an_empty_queue() -> None:
    world = World(sequences_max=2, waiting_requests_max=3, waiting_tokens_max=20)
    submit = world.submit(1, prompt_of(45, 1), choices=tuple(range(8)))
    world.run(200)
    world.assert_complete(submit)


def test_b38_short_prompts_do_not_wait_for_a_long_one(in_flight: int) -> None:
    """One of 8,000 tokens, then 20 of 50, in steps of 256."""
    world = World(
        steps_in_flight_max=in_flight,
        block_size=16,
        blocks=800,
        step_tokens_max=256,
        sequences_max=32,
        model_tokens_max=10_000,
    )
    long = world.submit(0, prompt_of(8000, 1), length=2)
    shorts = [world.submit(counter, prompt_of(50, 10 + counter), length=2) for counter in range(1, 21)]
    worst = max(run_until_first_token(world, short, 40) for short in shorts)
    assert worst <= 12
    solo = -(-8000 // 256)
    assert run_until_first_token(world, long, 200) <= 2 * solo
    world.run(100)
    world.assert_complete(long, *shorts)


def test_b38_endless_short_prompts_do_not_starve_a_long_one(in_flight: int) -> None:
    world = World(
        steps_in_flight_max=in_flight,
        block_size=16,
        blocks=800,
        step_tokens_max=256,
        sequences_max=32,
        model_tokens_max=10_000,
        waiting_requests_max=1000,
    )
    long = world.submit(0, prompt_of(4000, 1), length=2)
    solo = -(-4000 // 256)
    for turn in range(3 * solo):
        for part in range(6):
            world.submit(10 + 6 * turn + part, prompt_of(50, 10 + 6 * turn + part), length=1)
        world.complete_step()
        if world.outputs[long.request, 0]:
            break
    assert turn <= 2 * solo + 2
    world.run(300)
    world.assert_complete(long)


def test_decodes_go_on_in_every_step_while_prompts_are_computed(in_flight: int) -> None:
    world = World(steps_in_flight_max=in_flight, step_tokens_max=16, blocks=100)
    stream = world.submit(1, prompt_of(10, 1), length=60)
    run_until_first_token(world, stream, 5)
    begin = len(world.plans)
    world.submit(2, prompt_of(300, 2))
    for _ in range(20):
        world.complete_step()
    slot = world.plans[begin].rows[0].slot
    assert all(slot in [row.slot for row in plan.rows] for plan in world.plans[begin:])
    world.run(200)
    world.assert_complete(stream)


def test_nobody_passes_who_waits_for_blocks(in_flight: int) -> None:
    world = World(steps_in_flight_max=in_flight, blocks=16, sequences_max=8)
    world.submit(1, prompt_of(60, 1), length=20)
    big = world.submit(2, prompt_of(100, 2), length=2)
    small = world.submit(3, prompt_of(30, 3), length=2)
    end_of_big = run_until_end(world, big, 100)
    assert end_of_big > 0
    assert list(world.accepted).index(big.request) < list(world.accepted).index(small.request)
    world.run(100)
    world.assert_complete(big, small)


def test_a_preempted_sequence_resumes_nearly_for_free(in_flight: int) -> None:
    """Two that fit in the beginning and not in the end: the younger gives way, and finds most of its blocks again."""
    world = World(steps_in_flight_max=in_flight, blocks=14)
    pair = [world.submit(counter, prompt_of(30, counter), length=40) for counter in (1, 2)]
    world.run(200)
    world.assert_complete(*pair)
    snapshot = world.worker.snapshot()
    assert snapshot.totals.preemptions >= 1
    assert snapshot.totals.tokens_computed < 60 + 30
    started = [start.slot for plan in world.plans for start in plan.starts]
    departed = [slot for plan in world.plans for slot in plan.departures]
    assert len(started) - len(departed) <= 1


@pytest.mark.parametrize("waiter", [-5, 0])
def test_the_writer_inherits_place_and_class_of_who_waits_for_it(waiter: int, in_flight: int) -> None:
    """A worse request writes what a better one needs, beside two that would leave it nothing of a step."""
    world = World(steps_in_flight_max=in_flight, step_tokens_max=32, blocks=300)
    worse = world.submit(1, prompt_of(160, 1), priority=5)
    for _ in range(in_flight):
        world.complete_step()
    first = world.submit(2, prompt_of(640, 2), priority=0)
    second = world.submit(3, prompt_of(800, 3), priority=1)
    better = world.submit(4, [*prompt_of(160, 1), 5], priority=waiter)
    assert run_until_first_token(world, better, 20) <= 12
    world.run(300)
    world.assert_complete(worse, first, second, better)


def test_a_decode_waits_for_the_blocks_of_one_that_is_about_to_end() -> None:
    """The older has its last row in a running step when the younger, alone to be planned, lacks a block."""
    world = World(steps_in_flight_max=2, blocks=11)
    pair = [world.submit(1, prompt_of(24, 1), length=18), world.submit(2, prompt_of(25, 2), length=30)]
    world.run(60)
    world.assert_complete(*pair)
    assert world.worker.snapshot().totals.preemptions == 0


def test_rates_follow_what_steps_take() -> None:
    world = World()
    before = world.worker.snapshot().rates
    world.submit(1, prompt_of(10, 1), length=200)
    world.run(300)
    after = world.worker.snapshot().rates
    assert 0.8e6 < after.step + after.decode + 100 * after.decode_context < 1.3e6, "a step takes a millisecond here"
    assert after.prefill == pytest.approx(before.prefill, rel=0.2)
    assert world.ended[RequestId(INGRESS.epoch, 1), 0] is EndReason.COMPLETE
