import gc
import os
import subprocess
import sys
from typing import Any

import attrs
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lmpool.core.effects import DeliverToken, IngressEffect
from lmpool.core.events import RequestArrived
from lmpool.core.ids import MILLISECOND, SECOND, Nanos, Rank, RequestId
from lmpool.core.ingress import Ingress, IngressSettings
from lmpool.core.route import POLICIES
from lmpool.core.sampling import StopSettings, greedy
from lmpool.core.search import SearchSettings
from lmpool.core.step_cost import StepWork, predict
from lmpool.sim.collection import uncollected
from lmpool.sim.front import OUTPUT_TOKENS_MAX
from lmpool.sim.node import Node
from lmpool.sim.rack import BEGIN_NS, INGRESS, LATENCY_NS, Rack, RackSettings, namespace
from lmpool.sim.replay import Replay, Replayed, make_prompts, spread
from lmpool.sim.timeline import Timeline
from lmpool.sim.trace import END_TOKEN, Trace
from tests.sim.racks import RACK, RATES, SINGLE_STEPS, asked, continued, mixed, trace

ONE_RANK = attrs.evolve(RACK, replicas=1)


def _replay(made: Trace, settings: RackSettings, policy: str = "default", seed: int = 0) -> Replay:
    return Replay(made, make_prompts(made, settings.block_size), settings, policy, seed)


def _run(made: Trace, settings: RackSettings, policy: str = "default", seed: int = 0) -> tuple[Replay, Replayed]:
    replay = _replay(made, settings, policy, seed)
    while replay.advance(50):
        pass
    return replay, replay.figures()


def test_every_request_gets_its_whole_answer() -> None:
    made = mixed(120)
    replay, figures = _run(made, RACK)
    assert figures.unserved == 0
    assert figures.output_tokens == sum(request.output_tokens for request in made.requests)
    assert all(0 <= times.arrived_ns < times.first_ns <= times.ended_ns for times in replay.front.times)
    totals = [worker.worker.snapshot().totals for worker in replay.rack.workers]
    assert sum(total.output_tokens for total in totals) == figures.output_tokens


def test_a_run_leaves_nothing_to_collect() -> None:
    made = mixed(120)
    replay = _replay(made, RACK)
    gc.collect()
    with uncollected():
        assert not gc.isenabled()
        while replay.advance(50):
            pass
        assert gc.collect() == 0
    assert gc.isenabled()


def test_one_request_alone_takes_its_links_its_prefill_and_its_decode_steps() -> None:
    made = trace(asked(0, (1, 100), output=5))
    replay, figures = _run(made, SINGLE_STEPS)
    prefill = predict(RATES, StepWork(100, 100 * 99 // 2, 0, 0))
    decodes = [predict(RATES, StepWork(0, 0, 1, context)) for context in range(100, 104)]
    assert figures.ttft_s.mean == pytest.approx((4 * LATENCY_NS + prefill) / SECOND, abs=1e-8)
    assert figures.tpot_s.mean == pytest.approx(sum(decodes) / 4 / SECOND, abs=1e-8)
    assert replay.front.times[0].cached_tokens == 0


def test_what_an_earlier_prompt_left_in_whole_blocks_is_reused_and_no_more() -> None:
    made = trace(asked(0, (1, 100), (2, 20)), asked(1000, (1, 100), (3, 20)))
    _, figures = _run(made, RACK)
    assert figures.cached_tokens == 100 // 16 * 16
    assert figures.reuse == figures.cached_tokens / 240
    assert figures.computed_prefill_tokens == 240 - figures.cached_tokens


@pytest.mark.parametrize("policy", ["default", "least-loaded", "longest-prefix"])
def test_streaks_and_single_steps_leave_the_same_machines_and_times(policy: str) -> None:
    made = mixed(150)
    quick, figures = _run(made, RACK, policy)
    slow, expected = _run(made, SINGLE_STEPS, policy)
    assert quick.front.times == slow.front.times
    assert figures == expected
    assert sum(worker.events for worker in quick.rack.workers) < 0.7 * sum(
        worker.events for worker in slow.rack.workers
    )


@settings(max_examples=20, deadline=None)
@given(
    st.lists(
        st.tuples(st.integers(0, 400), st.integers(0, 3), st.integers(1, 90), st.integers(1, 70)),
        min_size=1,
        max_size=40,
    ),
    st.integers(14, 60),
    st.sampled_from(["default", "round-robin", "session-bounded"]),
)
def test_streaks_change_nothing_whatever_is_asked(
    drawn: list[tuple[int, int, int, int]], kv_blocks: int, policy: str
) -> None:
    made = trace(
        *(
            asked(at_ms, (group, 50), (10 + number, own), output=output)
            for number, (at_ms, group, own, output) in enumerate(sorted(drawn))
        )
    )
    small = attrs.evolve(RACK, replicas=2, kv_blocks=kv_blocks)
    quick, figures = _run(made, small, policy)
    slow, expected = _run(made, attrs.evolve(small, streak_max=1), policy)
    assert quick.front.times == slow.front.times
    assert figures == expected
    assert figures.unserved == 0
    for worker in quick.rack.workers:
        worker.worker.audit()


def test_streaks_under_memory_pressure_preempt_as_single_steps_do() -> None:
    tight = attrs.evolve(RACK, kv_blocks=24)
    made = trace(*(asked(number * 5, (number, 60), output=90) for number in range(40)))
    _, figures = _run(made, tight)
    _, expected = _run(made, attrs.evolve(tight, streak_max=1))
    assert figures == expected
    assert figures.preemptions > 0
    assert figures.resumed_prefill_tokens > 0


def test_policies_differ_and_each_run_can_be_repeated() -> None:
    made = mixed(100)
    names = [name for name in POLICIES if name != "default"]
    digests = {name: _run(made, RACK, name)[1].digest for name in names}
    assert len(set(digests.values())) == len(names)
    assert {name: _run(made, RACK, name)[1].digest for name in names} == digests
    assert _run(made, RACK, "default")[1].digest == digests["marginal-time"]


def test_the_seed_draws_for_policies_that_need_chance() -> None:
    made = mixed(60)
    assert _run(made, RACK, "random", 1)[1].digest != _run(made, RACK, "random", 2)[1].digest


DIGEST = """
from tests.sim.racks import RACK, mixed
from lmpool.sim.replay import Replay, make_prompts
for policy in ("default", "session-bounded", "lmpool-paper"):
    made = mixed(60)
    replay = Replay(made, make_prompts(made, 16), RACK, policy, 3)
    while replay.advance(60): pass
    print(replay.figures().digest)
"""


def test_the_digest_does_not_depend_on_the_hash_seed() -> None:
    outputs = [
        subprocess.run(
            [sys.executable, "-c", DIGEST],
            env=dict(os.environ, PYTHONHASHSEED=seed, PYTHONPATH=os.pathsep.join(sys.path)),
            stdout=subprocess.PIPE,
            check=True,
        ).stdout
        for seed in ("1", "2")
    ]
    assert outputs[0] == outputs[1]
    assert len(set(outputs[0].split())) == 3


def test_a_turn_comes_after_the_last_answer_and_its_pause_and_finds_both_cached() -> None:
    made = trace(asked(0, (1, 64), output=33), continued(0, 2.5, (2, 30), output=4))
    replay, _ = _run(made, ONE_RANK)
    first, second = replay.front.times
    assert second.arrived_ns == first.ended_ns + 2.5 * SECOND
    assert second.cached_tokens == (64 + 33 - 1) // 16 * 16


def test_a_busy_client_comes_again_when_it_was_told_and_is_counted() -> None:
    slow = attrs.evolve(ONE_RANK, rates=attrs.evolve(RATES, prefill=1e8))
    made = trace(*(asked(0, (number, 100), output=2) for number in range(12)))
    _, figures = _run(made, slow)
    assert figures.busy > 0
    assert figures.unserved == 0
    assert figures.ttft_s.p99 > 60


def test_a_refused_request_is_asked_about_again_and_is_counted() -> None:
    made = trace(*(asked(0, (number, 20), output=20) for number in range(300)))
    _, figures = _run(made, attrs.evolve(ONE_RANK, kv_blocks=2_000, sequences=8))
    assert figures.refused > 0
    assert figures.busy >= figures.refused
    assert figures.unserved == 0


def test_what_no_rank_can_hold_is_told_apart() -> None:
    made = trace(asked(0, (1, 100)), asked(0, (2, 16 * 200)), asked(0, (3, 100)))
    replay, figures = _run(made, RACK)
    assert figures.unserved == 1
    assert replay.front.unserved == {1: "never fits"}
    assert figures.output_tokens == 16


def test_a_slow_rank_is_slow_knows_it_and_gets_less() -> None:
    slow = attrs.evolve(RACK, slow=((Rank(1), 4.0),))
    replay, _ = _run(mixed(150), slow)
    counts = [sum(times.rank == rank for times in replay.front.times) for rank in range(3)]
    assert counts[1] < min(counts[0], counts[2])
    rates = {worker.worker.snapshot().rates.step / RATES.step for worker in replay.rack.workers}
    assert max(rates) == pytest.approx(4.0, rel=0.01)


def test_a_rank_that_joins_later_gets_nothing_before_and_something_after() -> None:
    cold = attrs.evolve(RACK, cold=((Rank(2), SECOND),))
    replay, _ = _run(mixed(150), cold)
    early = [times for times in replay.front.times if times.arrived_ns < BEGIN_NS + SECOND]
    late = [times for times in replay.front.times if times.arrived_ns > BEGIN_NS + SECOND + 10 * MILLISECOND]
    assert early
    assert all(times.rank != 2 for times in early)
    assert any(times.rank == 2 for times in late)


def test_machines_obey_their_laws_at_the_end() -> None:
    replay, _ = _run(mixed(100), attrs.evolve(RACK, kv_blocks=40))
    replay.rack.control.audit()
    for worker in replay.rack.workers:
        worker.worker.audit()


def test_a_spread_takes_the_least_value_that_the_share_does_not_exceed() -> None:
    assert attrs.astuple(spread([float(value) for value in range(1, 201)])) == (100.5, 100.0, 198.0)
    assert attrs.astuple(spread([3.0])) == (3.0, 3.0, 3.0)
    assert attrs.astuple(spread([])) == (0.0, 0.0, 0.0)


class _RealIngress:
    """The production ingress on the same cluster, fed with the arrivals of a trace."""

    def __init__(self, made: Trace, settings: RackSettings, policy: str, draws: list[int]) -> None:
        self.timeline = Timeline(Nanos(0))
        self.first: dict[int, int] = {}
        self.ended: dict[int, int] = {}
        search = SearchSettings(
            replicas=settings.replicas,
            block_size=settings.block_size,
            attempts_max=3,
            route_wait_ns=SECOND,
            replica_wait_ns=Nanos(60 * SECOND),
            retry_ns=Nanos(250 * MILLISECOND),
            busy_retry_ns=SECOND,
            routes_degraded=True,
            homes_max=64,
        )
        machine = Ingress(IngressSettings(INGRESS.epoch, 10_000, Nanos(2 * SECOND), search), Nanos(0))
        self.node: Node[Any, IngressEffect] = Node(self.timeline, INGRESS, machine, self._perform)
        self.rack = Rack(settings, policy, [request.output_tokens for request in made.requests], self.timeline)
        self.rack.open(self.node)
        prompts = make_prompts(made, settings.block_size)
        for number, request in enumerate(made.requests):
            assert request.at_ns is not None
            packed = prompts.packed(number)
            arrived = RequestArrived(
                request=RequestId(INGRESS.epoch, number),
                tenant="trace",
                session=request.session,
                namespace=namespace(settings.block_size)[1],
                prompt=packed,
                chain=prompts.chain(number, packed),
                choices=1,
                sampling=greedy(number),
                stop=StopSettings(OUTPUT_TOKENS_MAX, 0, (END_TOKEN,), (END_TOKEN,)),
                prompt_logprobs=None,
                priority=0,
                arrived_ns=Nanos(BEGIN_NS + request.at_ns),
                deadline_ns=None,
                draw=draws[number],
            )
            self.timeline.at(arrived.arrived_ns, lambda arrived=arrived: self.node.feed(arrived))  # type: ignore[misc]

    def _perform(self, effect: IngressEffect) -> None:
        if isinstance(effect, DeliverToken):
            self.first.setdefault(effect.request.counter, self.timeline.now)
            if effect.end is not None:
                self.ended[effect.request.counter] = self.timeline.now


@pytest.mark.parametrize("policy", ["default", "random", "session-bounded"])
def test_the_production_ingress_decides_and_times_the_same(policy: str) -> None:
    made = mixed(120)
    replay, _ = _run(made, SINGLE_STEPS, policy, seed=5)
    real = _RealIngress(made, SINGLE_STEPS, policy, replay.front.draws)
    while len(real.ended) < len(made.requests):
        assert real.timeline.advance()
    assert [real.first[number] for number in range(120)] == [times.first_ns for times in replay.front.times]
    assert [real.ended[number] for number in range(120)] == [times.ended_ns for times in replay.front.times]
    decided = {decision.request.counter: decision for decision in real.rack.decisions(1_000)}
    mine = {decision.request.counter: decision for decision in replay.rack.decisions(1_000)}
    assert len(mine) == 120
    for number, decision in mine.items():
        assert decision == decided[number]
