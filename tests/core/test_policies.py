from collections.abc import Sequence

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lmpool.core.cost import RATES_WEIGHT
from lmpool.core.fleet import Choice, RankView, RouteView
from lmpool.core.ids import SECOND, Rank
from lmpool.core.messages.ingress_control import RouteAsked
from lmpool.core.policies.homes import Homes
from lmpool.core.policies.least_loaded import LeastLoaded
from lmpool.core.policies.lmpool_paper import LMPoolPaper
from lmpool.core.policies.longest_prefix import LongestPrefix
from lmpool.core.policies.marginal_time import COLD, ELSEWHERE, ONLY, PREFIX, TIE_SHARE, MarginalTime
from lmpool.core.policies.round_robin import RoundRobin
from lmpool.core.policies.session import Session
from lmpool.core.policies.session_bounded import SessionBounded
from lmpool.core.policies.uniform_random import UniformRandom
from lmpool.core.route import POLICIES
from tests.core.plane import RATES, chain, question
from tests.core.views import NOTHING, decoding_rank, idle_rank, plain_question, route_view

MILLI = 1e6


def ranks(count: int) -> list[RankView]:
    return [idle_rank(rank) for rank in range(count)]


def with_requests(*counts: int) -> list[RankView]:
    return [attrs.evolve(idle_rank(rank), requests=count) for rank, count in enumerate(counts)]


def chosen(choice: Choice, view: RouteView) -> int:
    return view.ranks[choice.index].rank


def waiting(view: RouteView, *milliseconds: float) -> RouteView:
    return attrs.evolve(view, waits=[wait * MILLI for wait in milliseconds])


@pytest.mark.parametrize("name", POLICIES)
@given(
    count=st.integers(1, 8),
    ready=st.lists(st.integers(0, 40), min_size=8, max_size=8),
    decoding=st.lists(st.integers(0, 9), min_size=8, max_size=8),
    cursor=st.integers(0, 9),
    draw=st.integers(0, 2**63 - 1),
)
def test_every_policy_chooses_a_candidate_and_prices_all(
    name: str, count: int, ready: Sequence[int], decoding: Sequence[int], cursor: int, draw: int
) -> None:
    asked = attrs.evolve(plain_question(), chain=chain(("a", 40)), draw=draw)
    some = [decoding_rank(2 * rank, decoding[rank], decoding[rank] * 100) for rank in range(count)]
    view = attrs.evolve(route_view(asked, some, ready[:count]), cursor=cursor)
    policy = POLICIES[name]()
    for _ in range(2):
        choice = policy.choose(view)
        assert 0 <= choice.index < count
        assert choice.reason
        assert len(choice.costs) == count
        assert len(choice.terms) == count * len(policy.term_names)
        policy.remember(asked, view.ranks[choice.index].rank)
    assert policy.digest_state() == policy.digest_state()


def test_round_robin_takes_each_in_turn() -> None:
    view = route_view(plain_question(), ranks(3), [40, 0, 0])
    turns = [chosen(RoundRobin().choose(attrs.evolve(view, cursor=cursor)), view) for cursor in (0, 1, 2, 3)]
    assert turns == [0, 1, 2, 0]


def test_random_is_the_draw() -> None:
    view = route_view(plain_question(), ranks(3), [0, 0, 0])
    draws = [attrs.evolve(view, asked=attrs.evolve(plain_question(), draw=draw)) for draw in range(6)]
    assert [chosen(UniformRandom().choose(drawn), view) for drawn in draws] == [0, 1, 2, 0, 1, 2]


def test_least_loaded_counts_requests_in_flight() -> None:
    view = route_view(plain_question(), with_requests(3, 1, 2), [40, 0, 0])
    assert chosen(LeastLoaded().choose(view), view) == 1


def named(session: str, blocks: bytes) -> RouteAsked:
    return attrs.evolve(question(1, blocks, 1_000), session=session)


def test_a_session_stays_at_home_while_home_is_eligible() -> None:
    policy = Session()
    asked = named("alice", b"")
    policy.remember(asked, Rank(2))
    view = route_view(asked, with_requests(0, 0, 9), [0, 0, 0])
    assert (chosen(policy.choose(view), view), policy.choose(view).reason) == (2, "home")
    without = route_view(asked, with_requests(1, 0), [0, 0])
    assert chosen(policy.choose(without), without) == 1
    stranger = attrs.evolve(view, asked=named("bob", b""))
    assert chosen(policy.choose(stranger), view) == 0


def test_without_a_name_home_is_where_the_deepest_known_block_was_served() -> None:
    policy = Session()
    policy.remember(named("", chain(("system", 2), ("alice", 3))), Rank(0))
    policy.remember(named("", chain(("system", 2), ("bob", 3))), Rank(1))
    asked = named("", chain(("system", 2), ("alice", 3), ("more", 4)))
    view = route_view(asked, with_requests(5, 0), [0, 0])
    assert chosen(policy.choose(view), view) == 0


def test_a_beginning_that_many_share_is_nobodys_home() -> None:
    homes = Homes(10, 100)
    for user in range(3):
        homes.remember(named("", chain(("system", 2), (f"user {user}", 1))), Rank(1))
    assert homes.home(named("", chain(("system", 2), ("new", 1)))) == 1
    homes.remember(named("", chain(("system", 2), ("user 3", 1))), Rank(1))
    assert homes.home(named("", chain(("system", 2), ("new", 1)))) is None
    assert homes.home(named("", chain(("system", 2), ("user 3", 1), ("more", 1)))) == 1


def test_the_memory_of_homes_is_bounded_and_forgets_the_oldest_and_deepest_first() -> None:
    homes = Homes(2, 6)
    for index, session in enumerate(("a", "b", "c")):
        homes.remember(named(session, b""), Rank(index))
    assert [homes.home(named(session, b"")) for session in ("a", "b", "c")] == [None, 1, 2]
    homes.remember(named("", chain(("one", 4))), Rank(0))
    homes.remember(named("", chain(("two", 4))), Rank(1))
    assert homes.home(named("", chain(("one", 2)))) == 0
    assert homes.home(named("", chain(("two", 4)))) == 1
    homes.remember(named("", chain(("long", 50))), Rank(0))
    assert homes.home(named("", chain(("long", 50)))) == 0


def test_session_bounded_leaves_home_above_its_share() -> None:
    policy = SessionBounded()
    asked = named("alice", b"")
    policy.remember(asked, Rank(0))
    # ceil(1.25 x (7 + 1) / 2) = 5: home may have 4 others, not 5
    at_share = route_view(asked, with_requests(4, 3), [0, 0])
    assert policy.choose(at_share).reason == "home"
    above = route_view(asked, with_requests(5, 2), [0, 0])
    assert chosen(policy.choose(above), above) == 1


def test_longest_prefix_takes_the_deepest_holder_and_spreads_what_is_cold() -> None:
    asked = attrs.evolve(plain_question(), chain=chain(("a", 40)))
    work = [attrs.evolve(rank, routed_tokens=tokens) for rank, tokens in zip(ranks(3), (90, 50, 70), strict=True)]
    held = route_view(asked, work, [10, 0, 10])
    assert chosen(LongestPrefix().choose(held), held) == 2
    cold = route_view(asked, work, [1, 0, 0])  # under 5 % of 40 blocks
    assert chosen(LongestPrefix().choose(cold), cold) == 1


def test_lmpool_paper_spills_to_its_pair_under_pressure_although_the_owner_is_cheaper() -> None:
    # The reference spills after one running request: pressure 2 x 1 against 0, 1,900 more at most.
    asked = attrs.evolve(plain_question(), prompt_tokens=1_900)
    view = route_view(asked, [decoding_rank(0, 1, 100), idle_rank(1)], [118, 0])
    choice = LMPoolPaper().choose(view)
    assert choice.costs[0] < choice.costs[1]
    assert (chosen(choice, view), choice.reason) == (1, "holder under pressure: spilled to its pair")


def test_lmpool_paper_without_pair_bypasses_only_for_a_much_lower_cost() -> None:
    asked = plain_question()
    idle = [idle_rank(0), idle_rank(2)]
    warm = route_view(asked, idle, [30, 0])
    assert LMPoolPaper().choose(warm).reason == "holder of least cost"
    busy = attrs.evolve(idle_rank(0), account=attrs.evolve(NOTHING, prefilling_prompts=2_000))
    view = route_view(asked, [busy, idle_rank(2)], [30, 0])
    assert (chosen(LMPoolPaper().choose(view), view), LMPoolPaper().choose(view).reason) == (
        2,
        "holder too costly: least cost",
    )


def test_lmpool_paper_when_holders_or_all_are_full() -> None:
    asked = plain_question()
    full = attrs.evolve(idle_rank(0), blocks_free=0, blocks_open=0)
    view = route_view(asked, [full, idle_rank(2)], [30, 0])
    assert (chosen(LMPoolPaper().choose(view), view), LMPoolPaper().choose(view).reason) == (
        2,
        "holders full: least cost",
    )
    both = route_view(asked, [full, attrs.evolve(full, rank=Rank(2))], [30, 0])
    assert (chosen(LMPoolPaper().choose(both), both), LMPoolPaper().choose(both).reason) == (0, "all full: holder")


def test_marginal_time_goes_home_unless_waiting_costs_more_than_computing() -> None:
    asked = attrs.evolve(plain_question(), chain=chain(("a", 40)))
    view = route_view(asked, ranks(2), [39, 0])
    for wait, expected, reason in ((0.0, 0, PREFIX), (50.0, 0, PREFIX), (100.0, 1, ELSEWHERE)):
        choice = MarginalTime().choose(waiting(view, wait, 0.0))
        assert (chosen(choice, view), choice.reason) == (expected, reason)


def test_marginal_time_prices_followers_with_the_load() -> None:
    """Own time alone would leave a waiting holder for an idle stranger, and nobody would pay the recomputation."""
    asked = attrs.evolve(plain_question(), chain=chain(("a", 40)))
    view = waiting(route_view(asked, ranks(2), [39, 0]), 100.0, 15.0)
    assert chosen(MarginalTime().choose(view), view) == 1
    loaded = attrs.evolve(view, arrivals_per_ns=6.0 / SECOND, busy_share=0.9)
    assert chosen(MarginalTime().choose(loaded), loaded) == 0


def test_marginal_time_spreads_decodes() -> None:
    view = route_view(plain_question(), [decoding_rank(0, 6, 3_000), decoding_rank(1, 2, 1_000)], [0, 0])
    choice = MarginalTime().choose(view)
    assert (chosen(choice, view), choice.reason) == (1, COLD)


def test_marginal_time_lets_no_prompt_overtake_the_transfer_that_it_awaits() -> None:
    """It is short then, and long prompts are booked before it."""
    account = attrs.evolve(NOTHING, prefill_tokens=5_000, prefills=[5_000])
    busy = attrs.evolve(idle_rank(0), account=account, pending_ns=500 * MILLI)
    view = attrs.evolve(waiting(route_view(plain_question(), [busy], [0]), 500.0), uncached=[1])
    assert MarginalTime().choose(view).terms[0] < 30 * MILLI
    fetched = MarginalTime().choose(attrs.evolve(view, fetch_ns=[30 * MILLI])).terms[0]
    assert fetched == pytest.approx(30 * MILLI + busy.step_ns)


def test_what_a_transfer_pushes_out_is_a_cost_of_those_who_come_later() -> None:
    view = route_view(plain_question(), ranks(2), [0, 0])
    names = MarginalTime().term_names
    first, second = names.index("followers"), len(names) + names.index("followers")
    plain = MarginalTime().choose(view)
    choice = MarginalTime().choose(attrs.evolve(view, rent_ns=[9 * MILLI, 0.0]))
    assert choice.terms[first] == plain.terms[first] + 9 * MILLI
    assert choice.terms[second] == plain.terms[second]
    assert choice.costs[0] == pytest.approx(plain.costs[0] + 9 * MILLI)
    assert chosen(choice, view) == 1


def test_marginal_time_of_one_candidate_says_so() -> None:
    assert MarginalTime().choose(route_view(plain_question(), ranks(1), [3])).reason == ONLY


def test_marginal_time_prefers_the_faster_rank() -> None:
    slow = attrs.evolve(idle_rank(0), rates=attrs.evolve(RATES, prefill=2 * RATES.prefill))
    view = route_view(plain_question(), [slow, idle_rank(1)], [0, 0])
    assert chosen(MarginalTime().choose(view), view) == 1


@pytest.mark.parametrize("decoding", [0, 8])
@pytest.mark.parametrize(("share", "expected"), [(0.9, 1), (1.1, 0)])
def test_the_longer_prefix_wins_where_costs_differ_by_little_of_the_time_to_first_token(
    decoding: int, share: float, expected: int
) -> None:
    """However long the answers there take."""
    asked = attrs.evolve(plain_question(), chain=chain(("a", 40)))
    both = [decoding_rank(rank, decoding, 500 * decoding) if decoding else idle_rank(rank) for rank in range(2)]
    view = route_view(asked, both, [0, 39])
    choice = MarginalTime().choose(view)
    margin = share * TIE_SHARE * (choice.terms[0] + choice.terms[1])
    later = waiting(view, 0.0, (choice.costs[0] - choice.costs[1] + margin) / MILLI)
    assert chosen(MarginalTime().choose(later), later) == expected


def test_a_longer_answer_is_a_cost_of_its_own() -> None:
    """No prefill of anybody is touched: the request and what it slows have nothing to compute but tokens."""
    slow = idle_rank(0, attrs.evolve(RATES, step=2 * RATES.step, decode=2 * RATES.decode))
    view = route_view(plain_question(), [slow, idle_rank(1)], [39, 39])
    choice = MarginalTime().choose(view)
    assert choice.terms[5] == pytest.approx(2 * choice.terms[11], rel=0.05)
    assert chosen(choice, view) == 1


def test_rates_that_differ_by_noise_still_tie() -> None:
    noisy = attrs.evolve(idle_rank(0), rates=attrs.evolve(RATES, prefill=RATES.prefill * (1 + TIE_SHARE / 2)))
    view = route_view(plain_question(), [noisy, idle_rank(1)], [0, 0])
    assert [chosen(MarginalTime().choose(attrs.evolve(view, cursor=cursor)), view) for cursor in (0, 1)] == [0, 1]
    assert 0 < RATES_WEIGHT < 1


def test_a_choice_with_a_single_output_token_costs_no_decode_slowdown_to_speak_of() -> None:
    view = route_view(plain_question(), [decoding_rank(0, 4, 400)], [0])
    scored = attrs.evolve(view, asked=attrs.evolve(plain_question(), output_tokens_max=1))
    assert MarginalTime().choose(scored).terms[4] < MarginalTime().choose(view).terms[4] / 50


@given(st.lists(st.floats(0, 1e5), min_size=2, max_size=8), st.integers(0, 8), st.floats(0, 50), st.floats(0, 2))
def test_marginal_time_never_takes_more_than_the_tie_share_above_the_least(
    waits: list[float], cursor: int, arrivals: float, busy: float
) -> None:
    view = attrs.evolve(
        waiting(route_view(plain_question(), ranks(len(waits)), [0] * len(waits)), *waits),
        cursor=cursor,
        arrivals_per_ns=arrivals / SECOND,
        busy_share=busy,
    )
    choice = MarginalTime().choose(view)
    least = min(choice.costs)
    first = choice.costs.index(least) * len(MarginalTime.term_names)
    assert choice.costs[choice.index] <= least + TIE_SHARE * (choice.terms[first] + choice.terms[first + 1])
