"""Traces under routes alone, transfers alone, and both."""

import attrs
import pytest

from lmpool.core.messages.transfer import PlacementShown
from lmpool.core.placement.proposal import USUAL
from lmpool.sim.copy_time import copy_ns, transfer_profile
from lmpool.sim.rack import LATENCY_NS, RackSettings
from lmpool.sim.replay import Replay, Replayed, make_prompts
from lmpool.sim.trace import Trace
from tests.sim.racks import COPIES, RACK, asked, trace

ALONE = attrs.evolve(RACK, kv_blocks=2_000)
PLACED = attrs.evolve(ALONE, placement=USUAL)
BURST = [asked(300.0, (1, 1_600), (100 + number, 60), output=40) for number in range(60)]
HOT = trace(asked(0.0, (1, 1_600), (99, 16)), *BURST)
"""A long context that is cached at one rank, and then many at once ask about it."""


def run(made: Trace, settings: RackSettings, policy: str = "default") -> tuple[Replay, Replayed]:
    replay = Replay(made, make_prompts(made, settings.block_size), settings, policy, 0)
    while replay.advance(50):
        pass
    return replay, replay.figures()


def shown(figures: Replayed) -> PlacementShown:
    assert figures.placement is not None
    return figures.placement


def test_a_request_finds_what_was_sent_with_it() -> None:
    replay, figures = run(HOT, PLACED)
    assert dict(shown(figures).admitted)["pull"] > 0
    assert dict(shown(figures).blocks)["pull"] > 0
    exchanges = [worker.worker.snapshot().exchange for worker in replay.rack.workers]
    assert sum(exchange.published for exchange in exchanges) > 0
    assert sum(exchange.missed + exchange.waiting for exchange in exchanges) == 0
    _, without = run(HOT, ALONE)
    assert figures.reuse > without.reuse
    assert figures.ttft_s.mean < without.ttft_s.mean


def test_other_policies_pull_nothing() -> None:
    """They leave transfers to the plannings."""
    _, figures = run(HOT, PLACED, "round-robin")
    assert dict(shown(figures).admitted)["pull"] == 0
    _, without = run(HOT, ALONE, "round-robin")
    assert figures.ttft_s == without.ttft_s


def test_predictions_come_true_where_copies_take_what_was_calibrated() -> None:
    _, figures = run(HOT, PLACED)
    placement = shown(figures)
    assert placement.observed > 0
    assert placement.error_ns / placement.observed_ns < 0.1
    assert placement.over_p95 == 0


def test_what_is_not_worth_its_price_is_not_begun() -> None:
    dear = attrs.evolve(PLACED, copies=attrs.evolve(COPIES, begin=60e9))
    _, figures = run(HOT, dear)
    assert sum(count for _, count in shown(figures).admitted) == 0
    assert any(gate == "not worth it" for _, gate, _ in shown(figures).refused)
    _, without = run(HOT, ALONE)
    assert (figures.ttft_s, figures.reuse) == (without.ttft_s, without.reuse)


def test_without_placement_nothing_is_told_of_it() -> None:
    assert run(HOT, ALONE)[1].placement is None


@pytest.mark.parametrize("policy", ["default", "round-robin"])
def test_streaks_give_what_single_steps_give(policy: str) -> None:
    _, streaks = run(HOT, PLACED, policy)
    _, single = run(HOT, attrs.evolve(PLACED, streak_max=1), policy)
    assert streaks == single


def test_control_knows_the_times_of_copies() -> None:
    (curve,) = transfer_profile(COPIES, LATENCY_NS).curves
    assert [point.copy_p50_ns for point in curve.points[:3]] == [copy_ns(COPIES, blocks) for blocks in (1, 2, 4)]
    assert all(point.residual_p50_ns == 8 * LATENCY_NS for point in curve.points)
