from itertools import groupby

import attrs

from lmpool.bench.e2e_trials import BLOCKS_OF_256, E2ESettings, Trial, trial_spec, trials
from lmpool.bench.trial.spec import ARMS, Venue, check_spec

SETTINGS = E2ESettings(
    venue=Venue.LIVE,
    workloads=tuple(BLOCKS_OF_256),
    arms=tuple(arm.name for arm in ARMS),
    baseline="round-robin",
    repetitions=3,
    requests=None,
    scale=0.1,
    replicas=2,
    block_size=16,
    step_tokens=512,
    model="tiny",
    threads=None,
    rates=None,
    e2e_max_s=3.0,
    seed=7,
)


def test_every_repetition_is_whole_before_the_next_and_each_has_an_order_of_its_own() -> None:
    order = trials(SETTINGS)
    blocks = [list(block) for _, block in groupby(order, key=lambda trial: trial.repetition)]
    whole = {(workload, arm) for workload in BLOCKS_OF_256 for arm in SETTINGS.arms}
    orders = [[(trial.workload, trial.arm) for trial in block] for block in blocks]
    assert [set(one) for one in orders] == [whole] * 3
    assert len(order) == 3 * len(whole)
    assert orders[0] != orders[1]
    assert trials(SETTINGS) == order
    assert trials(attrs.evolve(SETTINGS, seed=8)) != order


def test_budgets_are_those_of_the_paper_times_the_factor_of_lengths() -> None:
    full = attrs.evolve(SETTINGS, scale=1.0, block_size=256)
    for workload, blocks in BLOCKS_OF_256.items():
        trial = Trial(workload, "full", 2)
        assert trial_spec(full, trial).kv_blocks == blocks
        small = trial_spec(SETTINGS, trial)
        assert 0 <= small.kv_blocks * 16 - blocks * 25.6 < 16
        check_spec(small)


def test_arms_of_a_repetition_differ_in_nothing_else() -> None:
    specs = [attrs.evolve(trial_spec(SETTINGS, Trial("load-skew", arm, 2)), arm="") for arm in SETTINGS.arms]
    assert specs == specs[:1] * len(ARMS)
    assert specs[0].seed == 8
