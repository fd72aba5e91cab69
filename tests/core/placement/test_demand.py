from hypothesis import given
from hypothesis import strategies as st

from lmpool.core.ids import SECOND, Nanos
from lmpool.core.limits import TRANSFER_BLOCKS_MAX
from lmpool.core.placement.demand import BYTES_MAX, FADE_NS, NODES_MAX, Demand
from lmpool.core.prefix import chain_length
from tests.core.plane import chain

NOW = Nanos(SECOND)


def noted(*chains: bytes) -> Demand:
    demand = Demand()
    for packed in chains:
        demand.note(NOW, packed)
        demand.audit()
    return demand


def told(demand: Demand, now: Nanos = NOW) -> list[tuple[int, float, int]]:
    return [(hot.blocks, round(hot.weight, 3), hot.visits) for hot in demand.hottest(now, 100)]


def test_what_came_once_is_no_demand() -> None:
    assert told(noted(chain(("a", 10)), chain(("b", 10)))) == []


def test_the_part_that_prompts_share_is_found_to_the_block() -> None:
    demand = noted(*[chain(("system", 37), (f"user {number}", 5)) for number in range(4)])
    assert told(demand) == [(37, 4.0, 4)]
    assert demand.hottest(NOW, 1)[0].chain == chain(("system", 37))


def test_a_prompt_that_comes_again_counts_with_its_shared_beginning() -> None:
    demand = noted(
        chain(("system", 10), ("one", 20)), chain(("system", 10), ("one", 20)), chain(("system", 10), ("two", 20))
    )
    assert told(demand) == [(30, 2.0, 2), (10, 3.0, 3)]


def test_a_shorter_prompt_ends_inside_a_longer_one() -> None:
    demand = noted(chain(("a", 20)), chain(("a", 7)), chain(("a", 20)))
    assert told(demand) == [(20, 2.0, 2), (7, 3.0, 3)]


def test_visits_fade() -> None:
    demand = noted(chain(("a", 10)), chain(("a", 10)))
    assert told(demand, Nanos(NOW + FADE_NS)) == [(10, 0.736, 2)]
    demand.note(Nanos(NOW + FADE_NS), chain(("a", 10)))
    assert told(demand, Nanos(NOW + FADE_NS)) == [(10, 1.736, 3)]


def test_the_hottest_have_most_visits_times_blocks() -> None:
    chains = [chain(("long", 40))] * 2 + [chain(("often", 10))] * 9 + [chain(("little", 10))] * 3
    assert told(noted(*chains)) == [(10, 9.0, 9), (40, 2.0, 2), (10, 3.0, 3)]
    assert len(noted(*chains).hottest(NOW, 2)) == 2


def test_a_flood_of_prompts_that_come_once_leaves_what_is_asked_for() -> None:
    demand = Demand()
    for number in range(3 * NODES_MAX):
        demand.note(NOW, chain((f"once {number}", 3)))
        if number % 50 == 0:
            demand.note(NOW, chain(("hot", 30)))
    demand.audit()
    assert len(demand) == NODES_MAX
    assert [hot.blocks for hot in demand.hottest(NOW, 5)] == [30]


def test_long_prompts_are_bounded_by_their_bytes() -> None:
    demand = Demand()
    for number in range(3 * BYTES_MAX // (TRANSFER_BLOCKS_MAX * 16)):
        head = chain((f"{number}", 2))
        demand.note(NOW, head + bytes(2 * TRANSFER_BLOCKS_MAX * 16))
    demand.audit()
    assert 0 < len(demand) <= BYTES_MAX // (TRANSFER_BLOCKS_MAX * 16)


PROMPT = st.lists(st.tuples(st.sampled_from("abc"), st.integers(1, 4)), max_size=5)


@given(st.lists(st.tuples(PROMPT, st.integers(0, 10**10)), max_size=40))
def test_the_tree_tells_what_a_list_of_all_prompts_tells(rows: list[tuple[list[tuple[str, int]], int]]) -> None:
    demand, now = Demand(), Nanos(0)
    prompts: list[bytes] = []
    for runs, pause in rows:
        now = Nanos(now + pause)
        prompts.append(chain(*runs))
        demand.note(now, prompts[-1])
        demand.audit()
    for hot in demand.hottest(now, 1000):
        visits = sum(prompt[: len(hot.chain)] == hot.chain for prompt in prompts)
        assert hot.visits == visits > 1
        assert 0 < hot.weight <= visits
        assert chain_length(hot.chain) == hot.blocks
    shared = {hot.chain for hot in demand.hottest(now, 1000)}
    for prompt in prompts:
        if prompts.count(prompt) > 1 and prompt:
            assert prompt in shared
