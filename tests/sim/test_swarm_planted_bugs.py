"""Mutation tests of the swarm: every planted bug is found, and for the reason that it breaks."""

import pytest

from lmpool.sim.swarm.run import run_seed
from tests.sim.planted_bugs import ORDER_BUG, PLANTED_BUGS, PlantedBug, digest_under

NEIGHBOURS = 12
"""Seeds tried from the known one on: a harmless change of a machine may move the first that finds a bug."""


@pytest.mark.parametrize("bug", PLANTED_BUGS, ids=lambda bug: bug.name)
def test_a_planted_bug_is_found(bug: PlantedBug, monkeypatch: pytest.MonkeyPatch) -> None:
    bug.plant(monkeypatch)
    for seed in range(bug.seed, bug.seed + NEIGHBOURS):
        violation = run_seed(seed).violation
        if violation:
            assert bug.betrayal in violation
            return
    pytest.fail(f"not found: {bug.plant.__doc__}")


def test_the_order_of_a_set_shows_in_the_digest() -> None:
    seed = ORDER_BUG.seed
    assert digest_under("1", seed, planted=False) == digest_under("2", seed, planted=False)
    assert any(digest_under("1", seed, planted=True) != digest_under(other, seed, planted=True) for other in "234")
