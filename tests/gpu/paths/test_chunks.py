from itertools import pairwise

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lmpool.gpu.paths.chunks import Chunk, Run, chunk_bytes, chunks, runs
from lmpool.gpu.paths.port import CopyRefused, PoolForm, check_forms
from tests.gpu.paths.pools import order

FORM = PoolForm(layers=3, block_size=8, kv_heads=2, head_dim=4, dtype="bfloat16", item_bytes=2, blocks=10)
ids = st.lists(st.integers(0, 30), min_size=1, max_size=40)


def test_sizes_of_a_form() -> None:
    assert (FORM.planes, FORM.piece_bytes, FORM.block_bytes, FORM.size_bytes) == (6, 128, 768, 8448)


@given(st.integers(1, 5), st.integers(1, 40), st.integers(1, 20_000), st.booleans())
def test_every_piece_is_in_one_chunk_and_no_chunk_is_too_large(layers: int, blocks: int, size: int, one: bool) -> None:
    form = attrs.evolve(FORM, layers=layers)
    cut = chunks(form, order(range(blocks) if one else range(blocks, 0, -1), range(blocks), chunk_bytes=size))
    pieces = [
        (plane, block)
        for chunk in cut
        for plane in range(chunk.first_plane, chunk.first_plane + chunk.planes)
        for block in range(chunk.first, chunk.first + chunk.count)
    ]
    assert sorted(pieces) == [(plane, block) for plane in range(form.planes) for block in range(blocks)]
    assert all(chunk_bytes(form, chunk) <= max(size, form.piece_bytes) for chunk in cut)


def test_a_run_stays_whole_where_one_plane_of_it_fits() -> None:
    cut = chunks(FORM, order(range(4, 9), range(5), chunk_bytes=1500))
    assert cut == [Chunk(0, 2, 0, 5), Chunk(2, 2, 0, 5), Chunk(4, 2, 0, 5)]


def test_scattered_blocks_are_cut_by_blocks() -> None:
    cut = chunks(FORM, order([4, 6, 7, 8, 9], range(5), chunk_bytes=1600))
    assert cut == [Chunk(0, 6, 0, 2), Chunk(0, 6, 2, 2), Chunk(0, 6, 4, 1)]


@given(ids, st.data())
def test_runs_are_the_lists_again_and_none_can_be_longer(source: list[int], data: st.DataObject) -> None:
    target = data.draw(st.lists(st.integers(0, 30), min_size=len(source), max_size=len(source)))
    found = runs(source, target)
    assert [run.source + place for run in found for place in range(run.count)] == source
    assert [run.target + place for run in found for place in range(run.count)] == target
    for left, right in pairwise(found):
        assert (left.source + left.count, left.target + left.count) != (right.source, right.target)


def test_a_run_must_go_on_at_both_ends() -> None:
    assert runs([4, 5, 6, 8], [1, 2, 7, 8]) == [Run(4, 1, 2), Run(6, 7, 1), Run(8, 8, 1)]


def test_only_the_number_of_blocks_may_differ() -> None:
    check_forms(FORM, attrs.evolve(FORM, blocks=3))
    with pytest.raises(CopyRefused):
        check_forms(FORM, attrs.evolve(FORM, dtype="float16"))
