"""How requests end at a worker: by themselves, by their client, by time, by faults, and by the loss of a peer."""

import attrs
import pytest

from lmpool.core.events import DrainOrdered, PeerJoined, PeerLost, Received
from lmpool.core.ids import MILLISECOND, Epoch, Nanos, Peer, Rank, RequestId, Role
from lmpool.core.messages.ingress_worker import (
    Abort,
    Ended,
    EndReason,
    Finish,
    FinishChoice,
    RefusalReason,
    Refused,
    TokensProduced,
)
from lmpool.core.messages.worker_control import DrainBegun
from lmpool.core.prefix import pack_tokens
from tests.core.worker_world import CONTROL, DRAWN, INGRESS, World, make_submit, prompt_of


@pytest.fixture(params=[1, 2])
def in_flight(request: pytest.FixtureRequest) -> int:
    return int(request.param)


def free_and_cached(world: World) -> int:
    blocks = world.worker.snapshot().blocks
    return blocks.free + blocks.cached


def assert_all_back_within_two_steps(world: World) -> None:
    for _ in range(2):
        if world.runner.launched:
            world.complete_step()
    assert free_and_cached(world) == world.settings.blocks
    assert world.worker.snapshot().running == 0


def test_b16_a_cancelled_stream_gives_everything_back_within_two_steps(in_flight: int) -> None:
    world = World(steps_in_flight_max=in_flight)
    for counter in range(50):
        world.submit(counter, prompt_of(20, counter), length=100)
        for _ in range(4):
            world.complete_step()
        world.abort(counter)
        said = len(world.messages)
        assert_all_back_within_two_steps(world)
        assert not any(isinstance(message, TokensProduced) for _, message in world.messages[said:])
        assert world.ended[RequestId(INGRESS.epoch, counter), 0] is EndReason.ABORTED
    world.assert_idle()


def test_b17_cancelled_while_queued_costs_nothing(in_flight: int) -> None:
    world = World(steps_in_flight_max=in_flight, sequences_max=1)
    long = world.submit(0, prompt_of(60, 0), length=30)
    for counter in range(1, 21):
        world.submit(counter, prompt_of(60, counter))
    for counter in range(1, 20):
        world.abort(counter)
    world.run(200)
    world.assert_complete(long, world.submits[RequestId(INGRESS.epoch, 20)])
    assert world.worker.snapshot().totals.tokens_computed == 120
    world.assert_idle()


def test_b17_cancelled_in_the_middle_of_a_chunked_prefill(in_flight: int) -> None:
    world = World(steps_in_flight_max=in_flight, step_tokens_max=16)
    world.submit(1, prompt_of(300, 1))
    for _ in range(3):
        world.complete_step()
    world.abort(1)
    assert_all_back_within_two_steps(world)
    assert world.worker.snapshot().totals.tokens_computed == 16 * (3 + in_flight)
    world.assert_idle()


def test_b17_cancelled_while_preempted_or_waiting_for_a_writer(in_flight: int) -> None:
    world = World(steps_in_flight_max=in_flight, blocks=14, step_tokens_max=16)
    kept = world.submit(1, prompt_of(30, 1), length=60)
    world.submit(2, prompt_of(30, 1), length=60)
    world.complete_step()
    world.abort(2)
    world.submit(3, prompt_of(30, 3), length=60)
    while not world.worker.snapshot().totals.preemptions:
        world.complete_step()
    world.abort(3)
    world.run(100)
    world.assert_complete(kept)
    world.assert_idle()


def test_b21_abort_and_finish_are_legal_in_every_state_any_number_of_times(in_flight: int) -> None:
    world = World(steps_in_flight_max=in_flight)
    world.abort(1)
    world.finish(1, 0, 5)
    world.submit(1, prompt_of(20, 1), length=9)
    world.abort(1)
    world.abort(1)
    world.finish(1, 0, 0)
    world.submit(2, prompt_of(20, 2), length=9)
    world.complete_step()
    world.finish(2, 7, 0)
    for _ in range(2):
        world.abort(2)
        world.finish(2, 0, 3)
    world.run(20)
    world.assert_idle()


def test_b22_two_live_requests_of_one_prompt_do_not_mix(in_flight: int) -> None:
    """Ids are made by the ingress; here two requests differ in nothing else."""
    world = World(steps_in_flight_max=in_flight)
    first = world.submit(1, prompt_of(20, 1), length=30, sampling=DRAWN)
    world.submit(2, prompt_of(20, 1), length=30, sampling=DRAWN)
    for _ in range(6):
        world.complete_step()
    world.abort(2)
    world.run(60)
    world.assert_complete(first)


def test_b30_blocks_of_a_cancelled_request_are_not_written_by_its_running_step() -> None:
    """Forced reuse in every one of a thousand schedules; the runner checks whose blocks running steps write."""
    for delay in range(1000):
        world = World(steps_in_flight_max=2, blocks=8, step_tokens_max=16 + delay % 7)
        world.submit(1, prompt_of(20 + delay % 11, 1), length=20)
        for _ in range(delay % 5):
            world.complete_step()
        if delay % 2:
            world.abort(1)
        other = world.submit(2, prompt_of(30 + delay % 13, 2), length=8)
        if not delay % 2:
            world.abort(1)
        world.run(60)
        world.assert_complete(other)


def test_b32_an_empty_prompt_is_refused_and_harms_nobody() -> None:
    world = World()
    empty = world.submit(1, [])
    assert world.refused[empty.request] is RefusalReason.NEVER_FITS
    usual = world.submit(2, prompt_of(5, 1))
    world.run(10)
    world.assert_complete(usual)


def test_b32_no_output_wanted_ends_at_once() -> None:
    world = World()
    none = world.submit(1, prompt_of(5, 1), length=0)
    world.assert_complete(none)
    assert not world.runner.launched
    world.assert_idle()


def test_a_stop_string_ends_a_choice_and_the_last_ends_the_request(in_flight: int) -> None:
    world = World(steps_in_flight_max=in_flight)
    submit = world.submit(1, prompt_of(20, 1), choices=(0, 1), length=40, sampling=DRAWN)
    for _ in range(6):
        world.complete_step()
    world.finish(1, 0, 2)
    assert submit.request not in [request for request, _ in world.ended]
    length = len(world.output(1, 0))
    world.complete_step()
    assert len(world.output(1, 0)) == length
    world.finish(1, 1, 1)
    assert world.ended[submit.request, 0] is EndReason.COMPLETE
    snapshot = world.worker.snapshot()
    assert (snapshot.totals.outputs, snapshot.totals.output_tokens) == (2, 5)
    world.run(10)
    world.assert_idle()


def test_an_end_token_ends_and_is_told(in_flight: int) -> None:
    world = World(steps_in_flight_max=in_flight)
    submit = world.submit(1, prompt_of(20, 1), length=200, ends=tuple(range(0, 1000, 20)))
    world.run(300)
    assert world.finishes[submit.request, 0] is Finish.END_TOKEN
    assert world.output(1, 0)[-1] % 20 == 0
    world.assert_complete(submit)


def test_an_end_token_does_not_come_before_the_minimum(in_flight: int) -> None:
    world = World(steps_in_flight_max=in_flight)
    ends = tuple(range(0, 1000, 3))
    submit = world.submit(1, prompt_of(20, 1), length=60, minimum=25, ends=ends)
    world.run(300)
    output = world.output(1, 0)
    assert len(output) > 25
    assert not any(token % 3 == 0 for token in output[:25])
    world.assert_complete(submit)


def test_the_end_token_at_the_limit_counts_as_an_end() -> None:
    world = World()
    probe = world.submit(1, prompt_of(20, 1), length=5)
    world.run(10)
    last = world.outputs[probe.request, 0][-1]
    submit = world.submit(2, prompt_of(20, 1), length=5, ends=(last,))
    world.run(10)
    assert world.finishes[submit.request, 0] is Finish.END_TOKEN


@pytest.mark.parametrize("steps", [0, 1, 3, 9])
def test_a_deadline_holds_in_every_state(steps: int, in_flight: int) -> None:
    world = World(steps_in_flight_max=in_flight, step_tokens_max=16, sequences_max=1)
    deadline = Nanos(world.now + 100 * MILLISECOND)
    running = world.submit(1, prompt_of(60, 1), length=1000, deadline_ns=deadline)
    queued = world.submit(2, prompt_of(60, 1), length=1000, deadline_ns=Nanos(deadline + 1))
    for _ in range(steps):
        world.complete_step()
    assert world.worker.next_deadline() == deadline
    world.tick(deadline - world.now)
    assert world.ended[running.request, 0] is EndReason.DEADLINE
    assert world.ended[queued.request, 0] is EndReason.DEADLINE
    assert_all_back_within_two_steps(world)
    world.assert_idle()


def test_a_deadline_that_has_passed_before_the_submit() -> None:
    world = World()
    submit = world.submit(1, prompt_of(20, 1), deadline_ns=Nanos(1))
    assert world.ended[submit.request, 0] is EndReason.DEADLINE
    assert not world.runner.launched


def test_a_newer_attempt_replaces_the_older(in_flight: int) -> None:
    world = World(steps_in_flight_max=in_flight)
    first = world.submit(1, prompt_of(20, 1), length=12)
    for _ in range(4):
        world.complete_step()
    received = world.output(1, 0)[:2]
    second = world.send_submit(attrs.evolve(first, attempt=1, outputs=(pack_tokens(received),)))
    assert world.ended[first.request, 0] is EndReason.ABORTED
    world.send_submit(first)
    world.run(30)
    world.assert_complete(second)
    world.assert_idle()


def test_a_replaced_attempt_is_not_told_as_ended_to_control() -> None:
    world = World()
    first = world.submit(1, prompt_of(20, 1), length=12)
    world.complete_step()
    world.send_submit(attrs.evolve(first, attempt=1))
    world.complete_step()
    assert first.request in world.told_live
    world.run(30)
    assert first.request not in world.told_live


def test_the_loss_of_an_ingress_ends_its_requests_only(in_flight: int) -> None:
    world = World(steps_in_flight_max=in_flight)
    other = Peer(Role.INGRESS, Rank(0), Epoch(9))
    world.feed(PeerJoined(other))
    world.submit(1, prompt_of(20, 1), length=50)
    foreign = make_submit(5, prompt_of(20, 2), request=RequestId(other.epoch, 5))
    world.worker.handle(world.now, Received(other, foreign))
    before = len(world.messages)
    world.feed(PeerLost(INGRESS))
    assert not any(peer == INGRESS for peer, _ in world.messages[before:])
    assert world.worker.snapshot().requests == 1
    world.feed(PeerLost(other))
    assert_all_back_within_two_steps(world)


def test_draining_refuses_the_new_and_finishes_the_old(in_flight: int) -> None:
    world = World(steps_in_flight_max=in_flight)
    old = world.submit(1, prompt_of(20, 1), length=10)
    heard = world.feed(DrainOrdered())
    assert heard.count(DrainBegun()) == 2
    assert DrainBegun() not in world.feed(DrainOrdered())
    new = world.submit(2, prompt_of(20, 2))
    assert world.refused[new.request] is RefusalReason.DRAINING
    world.run(20)
    world.assert_complete(old)
    world.feed(PeerLost(CONTROL))
    assert DrainBegun() in world.feed(PeerJoined(CONTROL))
    assert world.worker.snapshot().is_draining


def test_logits_that_are_not_finite_end_that_sequence_only(in_flight: int) -> None:
    world = World(steps_in_flight_max=in_flight)
    bad = world.submit(1, prompt_of(24, 1), length=30)
    good = world.submit(2, prompt_of(24, 2), length=30)
    for _ in range(5):
        world.complete_step()
    world.runner.not_finite.add(world.plans[0].rows[0].slot)
    world.complete_step()
    assert world.finishes[bad.request, 0] is Finish.NOT_FINITE
    assert world.ended[bad.request, 0] is EndReason.COMPLETE
    again = world.submit(3, prompt_of(24, 1), length=30)
    world.run(60)
    world.assert_complete(good, again)
    world.assert_idle()


def test_a_failed_step_is_computed_again(in_flight: int) -> None:
    world = World(steps_in_flight_max=in_flight, step_tokens_max=32)
    submits = [world.submit(counter, prompt_of(40, counter), length=12) for counter in (1, 2)]
    for turn in range(12):
        if turn % 4 == 3:
            world.fail_step()
        else:
            world.complete_step()
    world.run(60)
    world.assert_complete(*submits)
    assert world.worker.snapshot().totals.steps_failed == 3
    world.assert_idle()


@pytest.mark.parametrize("how", ["failed", "not finite"])
def test_what_a_lost_step_wrote_for_a_cancelled_request_is_not_published(how: str) -> None:
    """The cancelled request has a later row in a running step: that one completes, on top of garbage."""
    world = World(steps_in_flight_max=2)
    world.submit(1, prompt_of(20, 1), length=30)
    while len(world.output(1, 0)) < 4:
        world.complete_step()
    world.abort(1)
    if how == "failed":
        world.fail_step()
    else:
        world.runner.not_finite.add(world.plans[0].rows[0].slot)
        world.complete_step()
    world.run(5)
    assert world.worker.snapshot().blocks.cached == 2
    again = world.submit(2, prompt_of(20, 1), length=30)
    world.run(60)
    world.assert_complete(again)


def test_three_failures_in_a_row_end_the_sequence(in_flight: int) -> None:
    world = World(steps_in_flight_max=in_flight)
    submit = world.submit(1, prompt_of(20, 1), length=12)
    for _ in range(3):
        world.complete_step()
    while world.runner.launched:
        world.fail_step()
    assert world.finishes[submit.request, 0] is Finish.STEP_FAILED
    assert world.ended[submit.request, 0] is EndReason.STEP_FAILED
    assert world.worker.snapshot().totals.steps_failed <= 3 * in_flight
    usual = world.submit(2, prompt_of(20, 1))
    world.run(20)
    world.assert_complete(usual)
    world.assert_idle()


def test_a_chain_of_another_namespace_or_block_size_is_refused() -> None:
    world = World()
    submit = make_submit(1, prompt_of(20, 1))
    for counter, chain in enumerate((submit.chain[:16], submit.chain + bytes(16), bytes(32))):
        wrong = attrs.evolve(submit, request=RequestId(INGRESS.epoch, counter), chain=chain)
        world.send_submit(wrong)
        assert world.refused[wrong.request] is RefusalReason.NAMESPACE_UNKNOWN


def test_messages_that_no_worker_expects_are_counted_and_dropped() -> None:
    world = World()
    before = world.worker.snapshot().messages_stray
    world.feed(Received(INGRESS, DrainBegun()))
    assert world.worker.snapshot().messages_stray == before + 1


def test_tokens_of_a_step_come_in_one_message_before_the_ends_they_cause() -> None:
    world = World()
    for counter in range(3):
        world.submit(counter, prompt_of(5, counter), length=2)
    world.run(10)
    heard = [message for _, message in world.messages if isinstance(message, TokensProduced | Ended)]
    assert [type(message) for message in heard if isinstance(message, TokensProduced)] == [TokensProduced] * 3
    ends = [position for position, message in enumerate(heard) if isinstance(message, Ended)]
    assert len(ends) == 3
    assert all(any(isinstance(message, TokensProduced) for message in heard[:end]) for end in ends)


def test_refusals_and_aborts_carry_the_attempt() -> None:
    world = World(sequences_max=1)
    submit = make_submit(1, prompt_of(2000, 1), attempt=4)
    world.send_submit(submit)
    refusal = next(message for _, message in world.messages if isinstance(message, Refused))
    assert refusal == Refused(submit.request, 4, RefusalReason.NEVER_FITS, Nanos(0))
    assert world.feed(Received(INGRESS, Abort(submit.request))) == []
    assert world.feed(Received(INGRESS, FinishChoice(submit.request, 0, 0))) == []
