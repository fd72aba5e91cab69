from collections import Counter

import pytest

from lmpool.bench.study.matrix import is_planned, matrix, trial_spec
from lmpool.bench.study.plan_text import parse_plan
from lmpool.bench.trial.spec import Venue
from tests.bench.study.made import PLAN

FIVE = PLAN.replace("repetitions = 3", "repetitions = 5").replace(
    '["round-robin", "default"]', '["round-robin", "session", "default"]'
)


def test_every_trial_is_there_once_and_repetitions_follow_each_other() -> None:
    trials = matrix(parse_plan(FIVE.encode(), "plan"))
    assert len(trials) == len({trial.name for trial in trials}) == 3 * 2 * 5
    assert [trial.repetition for trial in trials] == sorted(trial.repetition for trial in trials)


def test_the_order_is_shuffled_and_a_matter_of_the_seed() -> None:
    plan = parse_plan(FIVE.encode(), "plan")
    other = parse_plan(FIVE.replace("seed = 7", "seed = 8").encode(), "plan")
    orders = [[(trial.arm, trial.point.budget) for trial in matrix(plan) if trial.repetition == n] for n in range(1, 6)]
    assert len({tuple(order) for order in orders}) > 1
    assert matrix(plan) == matrix(plan)
    assert matrix(plan) != matrix(other)
    assert Counter(matrix(plan)) == Counter(matrix(other))


def test_arms_of_a_repetition_share_everything_but_the_arm() -> None:
    plan = parse_plan(FIVE.encode(), "plan")
    for repetition in range(1, 6):
        specs = [trial_spec(plan, trial, Venue.SIMULATOR) for trial in matrix(plan) if trial.repetition == repetition]
        assert {spec.seed for spec in specs} == {7 + repetition - 1}
        assert len({(spec.workload, spec.requests, spec.rate, spec.scale) for spec in specs}) == 1
        assert {spec.kv_blocks for spec in specs} == {100, 200}


def test_a_share_of_blocks_becomes_the_same_number_for_all_arms() -> None:
    text = FIVE.replace("blocks = [100, 200]", "shares = [0.5, 1.0]")
    plan = parse_plan(text.encode(), "plan")
    blocks: dict[tuple[int, float], set[int]] = {}
    for trial in matrix(plan):
        spec = trial_spec(plan, trial, Venue.SIMULATOR)
        blocks.setdefault((trial.repetition, trial.point.budget), set()).add(spec.kv_blocks)
    assert all(len(found) == 1 for found in blocks.values())
    (half,), (whole,) = blocks[1, 0.5], blocks[1, 1.0]
    assert half == -(-whole // 2)


def test_the_same_plan_runs_in_either_venue() -> None:
    plan = parse_plan(PLAN.replace("replicas = 2", 'replicas = 2\nmodel = "tiny"').encode(), "plan")
    trial = matrix(plan)[0]
    live, simulated = (trial_spec(plan, trial, venue) for venue in (Venue.LIVE, Venue.SIMULATOR))
    assert (live.model, live.rates) == ("tiny", None)
    assert (simulated.model, simulated.rates) == (None, plan.system.rates)
    assert (live.seed, live.kv_blocks, live.requests) == (simulated.seed, simulated.kv_blocks, simulated.requests)


@pytest.mark.parametrize(
    ("budget", "own"),
    [("blocks = [100, 200]", {25, 50}), ("shares = [0.5, 1.0]", None)],
)
def test_a_workload_may_have_its_own_part_of_the_budget(budget: str, own: set[int] | None) -> None:
    text = PLAN.replace("blocks = [100, 200]", budget)
    whole, part = (
        parse_plan(each.encode(), "plan")
        for each in (text, text.replace("[budget]", "budget_factor = 0.25\n\n[budget]"))
    )
    found = {trial_spec(part, trial, Venue.SIMULATOR).kv_blocks for trial in matrix(part)}
    all_of_it = {trial_spec(whole, trial, Venue.SIMULATOR).kv_blocks for trial in matrix(whole)}
    assert own is None or found == own
    assert max(found) - 1 < max(all_of_it) / 4 <= max(found)
    for trial in matrix(part):
        spec = trial_spec(part, trial, Venue.SIMULATOR)
        assert is_planned(part, trial, Venue.SIMULATOR, spec)
        assert part.budget.shares or not is_planned(whole, trial, Venue.SIMULATOR, spec)
