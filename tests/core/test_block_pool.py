"""The block pool by examples. `machines/test_block_pool_machine.py` has random histories against a naive model."""

from itertools import pairwise
from random import Random

import pytest

from lmpool.core.block import BlockState
from lmpool.core.block_pool import BlockCounts, BlockPool
from lmpool.core.ids import BlockHash, BlockId, StepNumber
from lmpool.core.prefix import chain_length, extend_chain, hash_at, pack_tokens, split_chain
from lmpool.core.reservation import Reservation, ReserveRefusal

ROOT = BlockHash(b"root of a chain.")
NOW = StepNumber(0)
"""A step that has completed."""


def chain_of(*kinds: int) -> bytes:
    """One block for each kind."""
    return extend_chain(ROOT, pack_tokens(kind for kind in kinds for _ in range(8)), 8)


def write(pool: BlockPool, chain: bytes) -> list[BlockId]:
    """As a sequence does that computes what is not resident. The table is pinned."""
    depth = pool.resident_depth(chain)
    table = pool.pin(chain, depth) + pool.allocate(chain_length(chain) - depth)
    for position in range(depth, chain_length(chain)):
        parent = table[position - 1] if position else None
        table[position] = pool.publish(table[position], hash_at(chain, position), parent, NOW)
    return table


def cache(pool: BlockPool, chain: bytes) -> None:
    pool.release(write(pool, chain), NOW)


def test_a_block_lives_from_free_to_cached_and_back() -> None:
    pool = BlockPool(2)
    chain = chain_of(1)
    (block,) = pool.allocate(1)
    assert pool.state(block) is BlockState.WRITING
    assert pool.resident_depth(chain) == 0
    assert pool.publish(block, hash_at(chain, 0), None, NOW) == block
    assert pool.state(block) is BlockState.PINNED
    assert pool.resident_depth(chain) == 1
    pool.release([block], NOW)
    assert pool.state(block) is BlockState.CACHED
    assert pool.counts() == BlockCounts(1, 0, 0, 0, 0, 1)
    generation = pool.generation(block)
    assert block in pool.allocate(2)
    assert pool.generation(block) == generation + 1
    assert pool.resident_depth(chain) == 0


def test_b28_giving_out_a_block_removes_its_key() -> None:
    pool = BlockPool(4)
    cache(pool, chain_of(1, 2, 3, 4))
    pool.allocate(2)
    assert pool.resident_depth(chain_of(1, 2, 3, 4)) == 2
    assert pool.find(hash_at(chain_of(1, 2, 3), 2)) is None
    assert pool.reclaimed == 2


def test_a_pinned_block_is_not_given_out() -> None:
    pool = BlockPool(4)
    cache(pool, chain_of(1, 2))
    pool.pin(chain_of(1, 2), 1)
    assert pool.available == 3
    pool.allocate(3)
    assert pool.resident_depth(chain_of(1, 2)) == 1


def test_leaves_are_reclaimed_before_their_ancestors() -> None:
    pool = BlockPool(5)
    cache(pool, chain_of(1, 2, 3))
    cache(pool, chain_of(1, 2, 4))
    for _ in range(4):
        pool.allocate(1)
        residents = split_chain(pool.residents())
        for chain in (chain_of(1, 2, 3), chain_of(1, 2, 4)):
            depths = [digest in residents for digest in split_chain(chain)]
            assert depths == sorted(depths, reverse=True)


def test_the_less_used_goes_first() -> None:
    pool = BlockPool(3)
    for kind in (1, 2, 3):
        cache(pool, chain_of(kind))
    for kind in (1, 3, 1):
        pool.release(pool.pin(chain_of(kind), 1), NOW)
    pool.allocate(2)
    assert pool.resident_depth(chain_of(1)) == 1


def test_equally_used_go_in_order_of_their_last_use() -> None:
    pool = BlockPool(3)
    for kind in (1, 2, 3):
        cache(pool, chain_of(kind))
    for kind in (2, 1, 3):
        pool.release(pool.pin(chain_of(kind), 1), NOW)
    pool.allocate(1)
    assert [pool.resident_depth(chain_of(kind)) for kind in (1, 2, 3)] == [1, 0, 1]


def test_what_was_popular_once_goes_in_the_end() -> None:
    """The clock rises with the keys of victims, so a hundred old uses do not hold a block for ever."""
    pool = BlockPool(2)
    cache(pool, chain_of(1))
    for _ in range(100):
        pool.release(pool.pin(chain_of(1), 1), NOW)
    for kind in range(2, 150):
        cache(pool, chain_of(kind))
        pool.release(pool.pin(chain_of(kind), 1), NOW)
    assert pool.resident_depth(chain_of(1)) == 0


def test_the_later_of_two_writers_adopts_the_block_of_the_first() -> None:
    pool = BlockPool(4)
    digest = hash_at(chain_of(1), 0)
    first, second = pool.allocate(2)
    assert pool.publish(first, digest, None, NOW) == first
    assert pool.publish(second, digest, None, NOW) == first
    assert (pool.pins(first), pool.state(second)) == (2, BlockState.FREE)


def test_b30_a_block_that_a_step_touches_is_not_free_before_it_has_completed() -> None:
    pool = BlockPool(2)
    table = pool.allocate(1)
    digest = hash_at(chain_of(1), 0)
    pool.release(table, StepNumber(2))
    pool.complete(StepNumber(1))
    assert (pool.available, pool.is_releasing) == (1, True)
    assert pool.state(table[0]) is BlockState.WRITING
    pool.publish(table[0], digest, None, StepNumber(2))
    assert pool.available == 1
    pool.complete(StepNumber(2))
    assert (pool.available, pool.is_releasing) == (2, False)
    assert pool.find(digest) == table[0]


def test_b30_the_block_of_a_later_writer_is_free_only_after_its_steps() -> None:
    pool = BlockPool(2)
    digest = hash_at(chain_of(1), 0)
    first, second = pool.allocate(2)
    pool.publish(first, digest, None, NOW)
    pool.publish(second, digest, None, StepNumber(1))
    assert pool.available == 0
    pool.complete(StepNumber(1))
    assert pool.available == 1


def test_unpinned_counts_the_cached_tail_of_a_resident_head() -> None:
    pool = BlockPool(8)
    chain = chain_of(1, 2, 3, 4, 5)
    cache(pool, chain)
    assert pool.unpinned(chain, 5) == 5
    pool.pin(chain, 2)
    assert [pool.unpinned(chain, depth) for depth in range(6)] == [0, 0, 0, 1, 2, 3]


def test_clear_leaves_only_what_is_pinned() -> None:
    pool = BlockPool(8)
    cache(pool, chain_of(1, 2, 3))
    pool.pin(chain_of(1), 1)
    assert pool.clear() == 2
    assert pool.residents() == chain_of(1)
    assert pool.clear() == 0


def test_changes_are_net_and_ancestors_come_first() -> None:
    pool = BlockPool(4)
    cache(pool, chain_of(1, 2))
    assert pool.take_changes() == (chain_of(1, 2), b"")
    pool.clear()
    cache(pool, chain_of(1, 2, 3))
    added, removed = pool.take_changes()
    assert (added, removed) == (chain_of(1, 2, 3)[32:], b"")
    pool.clear()
    added, removed = pool.take_changes()
    assert added == b""
    assert sorted(split_chain(removed)) == sorted(split_chain(chain_of(1, 2, 3)))


def reserve(pool: BlockPool, chain: bytes, first: int) -> Reservation:
    reservation = pool.reserve(chain, first)
    assert isinstance(reservation, Reservation)
    return reservation


def test_reserved_blocks_become_resident_all_at_once() -> None:
    pool = BlockPool(6)
    chain = chain_of(1, 2, 3, 4)
    cache(pool, chain[:32])
    reservation = reserve(pool, chain, 2)
    assert pool.counts() == BlockCounts(2, 0, 2, 0, 2, 0)
    assert pool.resident_depth(chain) == 2
    assert reservation.generations == tuple(pool.generation(block) for block in reservation.blocks)
    pool.publish_reserved(reservation)
    assert pool.counts() == BlockCounts(2, 0, 0, 0, 0, 4)
    assert pool.resident_depth(chain) == 4
    pool.audit([])


def test_the_path_to_reserved_blocks_is_not_reclaimed() -> None:
    pool = BlockPool(4)
    chain = chain_of(1, 2, 3)
    cache(pool, chain[:32])
    reservation = reserve(pool, chain, 2)
    assert pool.available == 1
    pool.allocate(1)
    pool.publish_reserved(reservation)
    assert pool.resident_depth(chain) == 3


def test_a_reservation_is_refused_without_anchor_or_blocks() -> None:
    pool = BlockPool(3)
    assert pool.reserve(chain_of(1, 2), 1) is ReserveRefusal.ANCHOR_MISSING
    cache(pool, chain_of(1))
    assert pool.reserve(chain_of(1, 2, 3, 4), 1) is ReserveRefusal.NO_BLOCKS
    assert pool.reserve(chain_of(5, 6, 7, 8), 0) is ReserveRefusal.NO_BLOCKS
    pool.audit([])


def test_reserved_blocks_that_were_computed_meanwhile_become_free() -> None:
    pool = BlockPool(8)
    chain = chain_of(1, 2, 3)
    reservation = reserve(pool, chain, 0)
    cache(pool, chain[:32])
    pool.publish_reserved(reservation)
    assert pool.counts() == BlockCounts(5, 0, 0, 0, 0, 3)
    pool.audit([])


def test_a_released_reservation_leaves_nothing() -> None:
    pool = BlockPool(4)
    cache(pool, chain_of(1))
    pool.release_reserved(reserve(pool, chain_of(1, 2, 3), 1))
    assert pool.counts() == BlockCounts(3, 0, 0, 0, 0, 1)
    pool.audit([])


def test_an_aborted_reservation_keeps_its_blocks_until_the_operation_has_ended() -> None:
    pool = BlockPool(3)
    reservation = reserve(pool, chain_of(1, 2), 0)
    pool.abort_reserved(reservation)
    assert pool.counts() == BlockCounts(1, 0, 0, 2, 0, 0)
    assert pool.available == 1
    pool.end_abort(reservation)
    assert pool.available == 3


@pytest.mark.parametrize("seed", [1, 2])
def test_b28_a_hundred_thousand_random_steps_keep_every_law(seed: int) -> None:
    """Sequences of random prompts that share beginnings come, grow by a block and go."""
    random = Random(seed)
    pool = BlockPool(40)
    live: list[tuple[tuple[int, ...], list[BlockId]]] = []
    for step in range(50_000):
        if random.random() < 0.5 and len(live) < 8:
            kinds = tuple(random.choice((1, 2)) for _ in range(random.randint(1, 6)))
            chain = chain_of(*kinds)
            depth = pool.resident_depth(chain)
            if pool.available >= len(kinds) - depth + pool.unpinned(chain, depth):
                live.append((kinds, write(pool, chain)))
        elif live:
            position = random.randrange(len(live))
            kinds, table = live[position]
            if random.random() < 0.6 and pool.available and len(kinds) < 8:
                grown = (*kinds, random.choice((1, 2, 3)))
                digest = hash_at(chain_of(*grown), len(kinds))
                (block,) = pool.allocate(1)
                live[position] = (grown, [*table, pool.publish(block, digest, table[-1], StepNumber(step + 1))])
            else:
                del live[position]
                pool.release(table, StepNumber(step + random.randint(0, 1)))
        pool.complete(StepNumber(step + 1))
        if step % 50 == 0:
            pool.audit([table for _, table in live])
        for kinds, table in live[-1:]:
            assert [pool.find(digest) for digest in split_chain(chain_of(*kinds))] == table


def test_residents_come_ancestors_first() -> None:
    pool = BlockPool(8)
    cache(pool, chain_of(1, 2, 3))
    pool.allocate(7)
    pool = BlockPool(8)
    cache(pool, chain_of(4, 5))
    cache(pool, chain_of(1, 2, 3))
    residents = split_chain(pool.residents())
    for chain in (chain_of(4, 5), chain_of(1, 2, 3)):
        for parent, child in pairwise(split_chain(chain)):
            assert residents.index(parent) < residents.index(child)
