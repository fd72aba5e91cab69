import attrs
import pytest

from lmpool.core.fleet import RankView
from lmpool.core.ids import SECOND
from lmpool.core.policies.lmpool_paper import LMPoolPaper
from lmpool.core.policies.marginal_time import MarginalTime
from lmpool.core.route import POLICIES
from tests.core.plane import BLOCK_SIZE
from tests.core.views import decoding_rank, idle_rank, plain_question, route_view
from tests.specs.tables import read_rows

MILLI = 1e6


def loaded(decoding: int, context: int) -> RankView:
    return decoding_rank(0, decoding, context) if decoding else idle_rank(0)


@pytest.mark.parametrize("row", read_rows("routing.md", "marginal-time"), ids=lambda row: str(row["example"]))
def test_marginal_time(row: dict[str, str]) -> None:
    rank = loaded(int(row["n"]), int(row["context"]))
    asked = attrs.evolve(plain_question(), prompt_tokens=int(row["P"]))
    view = attrs.evolve(
        route_view(asked, [rank], [int(row["known"]) // BLOCK_SIZE]),
        waits=[float(row["wait"]) * MILLI],
        arrivals_per_ns=float(row["L"]) / SECOND,
        busy_share=float(row["rho"]),
    )
    policy = MarginalTime()
    choice = policy.choose(view)
    assert policy.term_names == ("wait", "prefill", "followers", "stall", "slowdown")
    names = ("w", "x", "followers", "stall", "slowdown")
    found = {name: f"{term / MILLI:.3f}" for name, term in zip(names, choice.terms, strict=True)}
    assert found == {name: row[name] for name in names}
    assert f"{choice.costs[0] / MILLI:.3f}" == row["cost"]


@pytest.mark.parametrize("row", read_rows("routing.md", "lmpool-paper"), ids=lambda row: str(row["example"]))
def test_lmpool_paper(row: dict[str, str]) -> None:
    free = int(row["free"])
    rank = attrs.evolve(
        loaded(int(row["decoding"]), int(row["context"])), blocks_free=free, blocks_open=free + int(row["reclaimable"])
    )
    asked = attrs.evolve(plain_question(), prompt_tokens=int(row["P"]))
    choice = LMPoolPaper().choose(route_view(asked, [rank], [int(row["ready"])]))
    queue, missing, reclaim, _ = choice.terms
    found = (missing, reclaim, queue, choice.costs[0])
    assert [f"{term:.0f}" for term in found] == [row[name] for name in ("missing", "reclaim", "queue", "cost")]


def test_every_known_policy_is_in_the_table() -> None:
    named = [row["name"] for row in read_rows("routing.md", "The known policies")]
    assert sorted([*named, "default", "marginal-time"]) == sorted(POLICIES)
    assert all(POLICIES[name]().name == name for name in named)
    assert POLICIES["default"]().name == "marginal-time"
