"""Rules of other systems, where more than one question shows them: memory, ties, and what their ledgers count."""

import attrs
from hypothesis import given
from hypothesis import strategies as st

from lmpool.core.booking import Placement
from lmpool.core.fleet import RankView
from lmpool.core.ids import Nanos, Rank
from lmpool.core.ledger import Ledger
from lmpool.core.messages.ingress_control import RouteAsked
from lmpool.core.policies.cache_aware_tree import CacheAwareTree, RoutingHistory
from lmpool.core.policies.dynamo import Dynamo
from lmpool.core.policies.llm_d import LLMD
from lmpool.core.policies.mooncake import Mooncake
from lmpool.core.route import POLICIES
from tests.core.plane import BLOCK_SIZE, SETTINGS, chain, question, ready_plane, request
from tests.core.views import NOTHING, idle_rank, plain_question, route_view


def ranks(count: int) -> list[RankView]:
    return [idle_rank(rank) for rank in range(count)]


def prompt(blocks: bytes) -> RouteAsked:
    return question(1, blocks, len(blocks))  # 16 bytes a hash, 16 tokens a block


@given(st.sampled_from(["dynamo", "dynamo-64", "llm-d"]), st.integers(0, 2**63 - 1))
def test_equal_ranks_are_drawn(name: str, draw: int) -> None:
    view = route_view(attrs.evolve(plain_question(), draw=draw), ranks(3), [0, 0, 0])
    assert POLICIES[name]().choose(view).index == draw % 3


def test_dynamo_charges_what_was_not_resident_until_the_first_token() -> None:
    ledger = Ledger(1)
    blocks = chain(("document", 10))
    placement = Placement(request(1), 0, Rank(0), idle_rank(0).epoch, blocks, 200, 50, 1, 96, 32, None, BLOCK_SIZE)
    ledger.book(placement, Nanos(10))
    epoch = placement.epoch
    charges = [ledger.account(Rank(0)).prefilling_missing]
    for left in (72, 40, 0):
        ledger.progress(Rank(0), epoch, request(1), left)
        charges.append(ledger.account(Rank(0)).prefilling_missing)
    assert charges == [104, 104, 104, 0]


def test_dynamo_sends_a_resumed_turn_away_from_a_rank_that_decodes_and_with_scale_8_does_not() -> None:
    busy = attrs.evolve(idle_rank(0), blocks_open=idle_rank(0).blocks - 50)
    view = route_view(plain_question(), [busy, idle_rank(1)], [30, 0])
    assert Dynamo("dynamo", 1.0).choose(view).index == 1
    assert Dynamo("dynamo-8", 8.0).choose(view).index == 0


def test_dynamo_gives_no_credit_for_what_only_arrives() -> None:
    view = attrs.evolve(route_view(plain_question(), ranks(2), [0, 0]), arriving=[40, 0], known=[40, 0])
    _, credit, _, _, _, _ = Dynamo("dynamo", 1.0).choose(view).terms
    assert credit == 0


def test_dynamo_scatters_the_siblings_of_a_burst() -> None:
    plane = ready_plane(attrs.evolve(SETTINGS, policy="dynamo"), *[b""] * 8)
    document = chain(("document", 100))
    used = [plane.route(counter, document, 1_607) for counter in range(16)]
    assert [used.count(rank) for rank in range(8)] == [2] * 8


def test_the_tree_remembers_where_the_deepest_match_was_sent_last() -> None:
    history = RoutingHistory(100)
    history.insert(chain(("system", 2), ("alice", 3)), Rank(0))
    history.insert(chain(("system", 2), ("bob", 3)), Rank(1))
    assert history.match(chain(("system", 2), ("alice", 9))) == (5, 0)
    assert history.match(chain(("system", 2), ("carol", 1))) == (2, 1)
    assert history.match(chain(("alice", 3))) == (0, None)


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(1, 12), st.integers(0, 2)), max_size=30))
def test_the_tree_is_bounded_and_loses_ends_before_beginnings(sent: list[tuple[int, int, int]]) -> None:
    history = RoutingHistory(8)
    for label, blocks, rank in sent:
        path = chain(("system", 1), (f"{label}", blocks))
        history.insert(path, Rank(rank))
        assert len(history) <= 8
        assert history.match(path) == (min(blocks + 1, 8), rank)


def test_the_tree_hears_of_no_eviction() -> None:
    document = chain(("document", 100))
    plane = ready_plane(attrs.evolve(SETTINGS, policy="cache-aware-tree"), b"", document)
    assert plane.route(1, document, 1_600) == 0  # of residents it knows nothing either
    plane.report(0, accepted=(request(1),), ended=(request(1),))
    plane.route(2, b"", 10)
    plane.report(0, removed=document)
    assert plane.route(3, document, 1_600) == 0
    assert plane.decision().reason == "deepest match"


def test_the_tree_gives_every_idle_tie_to_the_first_rank() -> None:
    """As measured of sglang-router 0.3.2: all of 2,000 requests with 16 prefixes went to one of four idle workers."""
    plane = ready_plane(attrs.evolve(SETTINGS, policy="cache-aware-tree"), *[b""] * 4)
    for counter in range(32):
        assert plane.route(counter, chain((f"prefix {counter % 16}", 10)), 170) == 0
        plane.report(0, accepted=(request(counter),), ended=(request(counter),))


def test_what_a_policy_remembers_is_in_its_digest() -> None:
    for name in ("session", "session-bounded", "cache-aware-tree"):
        one, other = POLICIES[name](), POLICIES[name]()
        one.remember(prompt(chain(("a", 4))), Rank(0))
        other.remember(prompt(chain(("a", 4))), Rank(1))
        assert one.digest_state() != other.digest_state()


def test_llm_d_books_nothing_itself_so_that_a_burst_sees_the_same_queues() -> None:
    plane = ready_plane(attrs.evolve(SETTINGS, policy="llm-d"), b"", chain(("document", 100)))
    used = [plane.route(counter, chain(("document", 100)), 1_607) for counter in range(40)]
    assert used == [1] * 40


def test_llm_d_does_not_match_a_prompt_of_less_than_a_block() -> None:
    view = route_view(question(1, b"", 5), ranks(2), [0, 0])
    assert [LLMD().choose(view).terms[index] for index in (2, 5)] == [0, 0]


def test_mooncake_leaves_a_holder_whose_queue_is_longer_than_the_prefill_it_saves() -> None:
    for queued, expected in ((500, 0), (700, 1)):  # 624 tokens are saved
        account = attrs.evolve(NOTHING, prefill_tokens=queued)
        view = route_view(plain_question(), [attrs.evolve(idle_rank(0), account=account), idle_rank(1)], [39, 0])
        assert Mooncake().choose(view).index == expected


def test_mooncake_counts_what_arrives_in_the_queue_and_not_as_a_prefix() -> None:
    """The second sibling finds an idle stranger as cheap as the first found it."""
    plane = ready_plane(attrs.evolve(SETTINGS, policy="mooncake"), b"", b"")
    document = chain(("document", 100))
    assert [plane.route(counter, document, 1_607) for counter in range(2)] == [0, 1]


def test_a_tree_without_a_chain_falls_back_to_load() -> None:
    view = route_view(question(1, b"", 5), [attrs.evolve(idle_rank(0), requests=2), idle_rank(1)], [0, 0])
    assert CacheAwareTree().choose(view).index == 1
