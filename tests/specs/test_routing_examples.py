import attrs
import pytest

from lmpool.core.cost import prefill_pairs
from lmpool.core.fleet import Policy, RankView
from lmpool.core.ids import SECOND, Nanos, Rank
from lmpool.core.messages.ingress_control import RouteAsked
from lmpool.core.policies.cache_aware_tree import CacheAwareTree
from lmpool.core.policies.llm_d import LLMD
from lmpool.core.policies.lmpool_paper import LMPoolPaper
from lmpool.core.policies.marginal_time import MarginalTime, overtaking_ns
from lmpool.core.policies.mooncake import Mooncake
from lmpool.core.route import POLICIES
from tests.core.plane import BLOCK_SIZE, chain
from tests.core.views import NOTHING, decoding_rank, idle_rank, plain_question, route_view
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
    assert policy.term_names == ("wait", "prefill", "followers", "stall", "slowdown", "answer")
    names = ("w", "x", "followers", "stall", "slowdown", "answer")
    found = {name: f"{term / MILLI:.3f}" for name, term in zip(names, choice.terms, strict=True)}
    assert found == {name: row[name] for name in names}
    assert f"{choice.costs[0] / MILLI:.3f}" == row["cost"]


@pytest.mark.parametrize("row", read_rows("routing.md", "Overtaking"), ids=lambda row: str(row["u"]))
def test_overtaking(row: dict[str, str]) -> None:
    booked, left = numbers(row["booked"]), float(row["left of the step"]) * MILLI
    account = attrs.evolve(NOTHING, prefill_tokens=sum(booked), prefills=booked)
    rank = attrs.evolve(
        idle_rank(0), account=account, pending_ns=sum(booked) * 0.1 * MILLI, step_cost_ns=Nanos(round(left))
    )
    past = overtaking_ns(Nanos(0), rank, int(row["u"]))
    assert past / MILLI == pytest.approx(float(row["past"]))


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


def numbers(cell: str) -> list[int]:
    return [int(number) for number in cell.split()]


def with_homes(policy: Policy, asked: RouteAsked, home: str) -> Policy:
    if home != "-":
        policy.remember(asked, Rank(int(home)))
    return policy


@pytest.mark.parametrize(
    "row", read_rows("routing.md", "Choices of the plain ones"), ids=lambda row: f"{row['policy']} {row['example']}"
)
def test_the_plain_policies(row: dict[str, str]) -> None:
    asked = attrs.evolve(plain_question(), draw=int(row["draw"]), session="alice")
    columns = zip(numbers(row["requests"]), numbers(row["routed tokens"]), strict=True)
    ranks = [
        attrs.evolve(idle_rank(rank), requests=requests, routed_tokens=routed)
        for rank, (requests, routed) in enumerate(columns)
    ]
    view = attrs.evolve(route_view(asked, ranks, numbers(row["ready"])), cursor=int(row["cursor"]))
    choice = with_homes(POLICIES[row["policy"]](), asked, row["home"]).choose(view)
    assert (str(choice.index), choice.reason) == (row["chosen"], row["reason"])


@pytest.mark.parametrize("row", read_rows("routing.md", "dynamo"), ids=lambda row: f"{row['scale']} {row['example']}")
def test_dynamo(row: dict[str, str]) -> None:
    account = attrs.evolve(NOTHING, prefilling_missing=int(row["charged"]))
    idle = idle_rank(0)
    rank = attrs.evolve(idle, account=account, blocks_open=idle.blocks - int(row["active"]))
    asked = attrs.evolve(plain_question(), prompt_tokens=int(row["P"]))
    ready, arriving = int(row["ready"]), int(row["arriving"])
    view = attrs.evolve(route_view(asked, [rank], [ready]), arriving=[arriving], known=[ready + arriving])
    policy = POLICIES["dynamo" if row["scale"] == "1" else f"dynamo-{row['scale']}"]()
    choice = policy.choose(view)
    found = dict(zip(policy.term_names, choice.terms, strict=True))
    assert found == {
        "prefill_blocks": float(row["prefill"]),
        "credit": float(row["credit"]),
        "decode_blocks": float(row["decode"]),
    }
    assert choice.costs[0] == float(row["cost"])


@pytest.mark.parametrize("row", read_rows("routing.md", "cache-aware-tree"), ids=lambda row: str(row["example"]))
def test_cache_aware_tree(row: dict[str, str]) -> None:
    asked = attrs.evolve(plain_question(), prompt_tokens=int(row["P"]), chain=chain(("a", 40)))
    ranks = [attrs.evolve(idle_rank(rank), requests=count) for rank, count in enumerate(numbers(row["requests"]))]
    policy = CacheAwareTree()
    policy.remember(attrs.evolve(asked, chain=chain(("a", int(row["matched"])))), Rank(int(row["sent to"])))
    choice = policy.choose(route_view(asked, ranks, [0] * len(ranks)))
    assert (str(choice.index), choice.reason) == (row["chosen"], row["reason"])
    assert list(choice.costs) == numbers(row["requests"])


@pytest.mark.parametrize("row", read_rows("routing.md", "llm-d"), ids=lambda row: str(row["example"]))
def test_llm_d(row: dict[str, str]) -> None:
    ranks: list[RankView] = []
    for waiting, held in zip(numbers(row["waiting"]), numbers(row["held"]), strict=True):
        idle = idle_rank(len(ranks))
        load = attrs.evolve(
            idle.load, waiting=waiting, blocks_free=600 - held // 2, blocks_cached=400 - (held + 1) // 2
        )
        ranks.append(attrs.evolve(idle, load=load))
    policy = LLMD()
    choice = policy.choose(route_view(plain_question(), ranks, numbers(row["ready"])))
    for index, name in enumerate(policy.term_names):
        assert " ".join(f"{term:.2f}" for term in choice.terms[index :: len(policy.term_names)]) == row[name]
    assert " ".join(f"{cost:.2f}" for cost in choice.costs) == row["cost"]
    assert str(choice.index) == row["chosen"]


@pytest.mark.parametrize("row", read_rows("routing.md", "mooncake"), ids=lambda row: str(row["example"]))
def test_mooncake(row: dict[str, str]) -> None:
    tokens = int(row["U"])
    account = attrs.evolve(NOTHING, prefill_tokens=tokens, prefill_pairs=prefill_pairs(tokens, 0))
    asked = attrs.evolve(plain_question(), prompt_tokens=int(row["P"]))
    choice = Mooncake().choose(route_view(asked, [attrs.evolve(idle_rank(0), account=account)], [int(row["ready"])]))
    found = [f"{term / MILLI:.3f}" for term in (*choice.terms, *choice.costs)]
    assert found == [row["queue"], row["prefill"], row["cost"]]


def test_every_known_policy_is_in_the_table() -> None:
    cells = [row["name"] for row in read_rows("routing.md", "The known policies")]
    named = [name.strip().strip("`") for cell in cells for name in cell.split(",")]
    assert sorted([*named, "default", "marginal-time"]) == sorted(POLICIES)
    assert all(POLICIES[name]().name == name for name in named)
    assert POLICIES["default"]().name == "marginal-time"
