from hypothesis import given
from hypothesis import strategies as st

from lmpool.core.page_table import SHARDS, PageTable
from lmpool.core.prefix import HASH_BYTES
from tests.core.plane import chain


def filled(*held: bytes) -> tuple[PageTable, list[int]]:
    table = PageTable()
    holders = [table.grant() for _ in held]
    for holder, blocks in zip(holders, held, strict=True):
        table.add(holder, blocks)
    return table, holders


def test_depths_of_all_holders_at_once() -> None:
    whole = chain(("a", 2_000))
    table, holders = filled(*(whole[: blocks * HASH_BYTES] for blocks in (0, 1, 2, 999, 1_000, 1_999, 2_000)))
    depths = table.depths(whole, sum(holders))
    assert [depths[holder] for holder in holders] == [0, 1, 2, 999, 1_000, 1_999, 2_000]


def test_a_chain_that_forks_counts_to_the_fork() -> None:
    table, (holder,) = filled(chain(("a", 5), ("b", 5)))
    assert table.depths(chain(("a", 5), ("c", 5)), holder) == {holder: 5}


def test_an_empty_chain_is_held_nowhere() -> None:
    table, holders = filled(chain(("a", 3)), b"")
    assert table.depths(b"", sum(holders)) == dict.fromkeys(holders, 0)


def test_r29_a_second_mark_of_a_hash_counts_once_and_one_removal_ends_it() -> None:
    table, (holder, other) = filled(chain(("a", 4)), chain(("a", 4)))
    table.add(holder, chain(("a", 4)))
    assert table.size(holder) == 4
    table.remove(holder, chain(("a", 4))[3 * HASH_BYTES :])
    assert table.depths(chain(("a", 4)), holder | other) == {holder: 3, other: 4}
    table.remove(holder, chain(("b", 1)))
    assert (table.size(holder), len(table)) == (3, 4)


def test_r35_blocks_without_their_beginning_are_no_prefix() -> None:
    table, (holder,) = filled(chain(("a", 1), ("b", 3)))
    assert table.depths(chain(("c", 1), ("b", 3)), holder) == {holder: 0}


def test_a_retired_holder_is_swept_in_bounded_slices_and_its_bit_comes_back_only_then() -> None:
    blocks = chain(("a", 1_000))
    table, (holder, other) = filled(blocks, blocks[: 10 * HASH_BYTES])
    table.retire(holder)
    slices = 0
    while not table.is_clean:
        before = len(table)
        assert table.grant() != holder or table.is_clean
        table.sweep(1)
        slices += 1
        assert before - len(table) <= 40  # one shard of 256 for 1,000 hashes
    assert slices == SHARDS
    assert len(table) == 10
    assert table.depths(blocks, other) == {other: 10}
    assert table.grant() == holder


def test_a_holder_retired_during_a_sweep_waits_for_the_next_pass() -> None:
    blocks = chain(("a", 300))
    table, (first, second) = filled(blocks, blocks)
    table.retire(first)
    table.sweep(100)
    table.retire(second)
    for _ in range(SHARDS):  # one pass, or a little more
        table.sweep(1)
    assert table.grant() == first
    assert second not in [table.grant() for _ in range(2)]
    while not table.is_clean:
        table.sweep(100)
    assert len(table) == 0


OPERATIONS = st.lists(
    st.tuples(
        st.sampled_from(["add", "remove", "retire", "sweep"]), st.integers(0, 3), st.integers(0, 2), st.integers(0, 9)
    )
)


@given(OPERATIONS)
def test_equals_a_set_per_holder(operations: list[tuple[str, int, int, int]]) -> None:
    table = PageTable()
    holders = [table.grant() for _ in range(4)]
    model: list[set[bytes]] = [set() for _ in holders]
    for kind, index, label, blocks in operations:
        run = chain(("shared", 3), (str(label), blocks))
        hashes = {run[start : start + HASH_BYTES] for start in range(0, len(run), HASH_BYTES)}
        match kind:
            case "add":
                table.add(holders[index], run)
                model[index] |= hashes
            case "remove":
                table.remove(holders[index], run)
                model[index] -= hashes
            case "retire":
                table.retire(holders[index])
                holders[index], model[index] = table.grant(), set()
            case _:
                table.sweep(1)
        assert [table.size(holder) for holder in holders] == [len(hashes) for hashes in model]
    for label in range(3):
        for blocks in range(13):
            # A holder's marks are prefix-closed only where nothing inside was removed: compare single blocks.
            probe = chain(("shared", 3), (str(label), 9))[blocks * HASH_BYTES : (blocks + 1) * HASH_BYTES]
            depths = table.depths(probe, sum(holders))
            assert [depths[holder] for holder in holders] == [int(bool(probe) and probe in hashes) for hashes in model]
    for _ in range(3):
        table.sweep(1_000_000)
    assert table.is_clean
    assert len(table) == len(set().union(*model))


@given(st.lists(st.integers(0, 40), min_size=1, max_size=64), st.integers(0, 40))
def test_bisection_equals_a_walk(depths: list[int], asked: int) -> None:
    whole = chain(("a", 40))
    table, holders = filled(*(whole[: depth * HASH_BYTES] for depth in depths))
    found = table.depths(whole[: asked * HASH_BYTES], sum(holders))
    assert [found[holder] for holder in holders] == [min(depth, asked) for depth in depths]
