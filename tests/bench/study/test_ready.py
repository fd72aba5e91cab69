import pytest

from lmpool.bench.study.matrix import matrix
from lmpool.bench.study.ready import ready_names, ready_plan
from lmpool.bench.trial.spec import Venue
from lmpool.core.route import POLICIES

LONG_S, QUICK_S = 3_600, 120


@pytest.mark.parametrize("name", ready_names())
def test_a_ready_plan_has_its_name_and_is_expected_to_end_in_time(name: str) -> None:
    plan = ready_plan(name)
    assert plan.name == name
    assert plan.question.endswith("?")
    trial_s = plan.expected.live_s if plan.venue is Venue.LIVE else plan.expected.simulator_s
    assert trial_s is not None
    assert len(matrix(plan)) * trial_s <= (QUICK_S if name.endswith("-quick") else LONG_S)


def test_how_often_the_long_studies_repeat() -> None:
    assert {name: ready_plan(name).repetitions for name in ready_names() if not name.endswith("-quick")} == {
        "five-arms": 5,
        "load-crossover": 5,
        "memory-skew-paced": 36,
        "residency": 5,
        "routing-matrix": 5,
        "routing-matrix-simulator": 5,
        "skew-paced": 10,
    }


def test_the_matrix_of_the_simulator_has_every_policy_once() -> None:
    arms = [POLICIES[arm]().name for arm in ready_plan("routing-matrix-simulator").arms]
    assert sorted(arms) == sorted({policy().name for policy in POLICIES.values()})
