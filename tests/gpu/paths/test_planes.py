import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from lmpool.gpu.kv_pool import BlockShape
from lmpool.gpu.paths.chunks import Chunk, chunk_bytes
from lmpool.gpu.paths.planes import DevicePlanes, HostPlanes, Planes, host_planes, pool_form
from tests.gpu.paths.pools import ODD, SHAPE, WIDE, filled_pool, known_bytes

pytestmark = pytest.mark.model

BLOCKS = 12
kinds = st.sampled_from([HostPlanes, lambda pool: DevicePlanes(pool, is_staged_on_host=True)])
shapes = st.sampled_from([SHAPE, ODD, WIDE])


@st.composite
def cases(draw: st.DrawFn) -> tuple[BlockShape, Chunk, list[int]]:
    shape = draw(shapes)
    planes = 2 * shape.layers
    first = draw(st.integers(0, planes - 1))
    blocks = draw(st.lists(st.integers(0, BLOCKS - 1), min_size=1, max_size=BLOCKS, unique=True))
    return shape, Chunk(first, draw(st.integers(1, planes - first)), 0, len(blocks)), blocks


@given(cases(), kinds)
def test_payloads_are_packed_and_put_back(case: tuple[BlockShape, Chunk, list[int]], kind: type[HostPlanes]) -> None:
    shape, chunk, blocks = case
    source, target = filled_pool(shape, BLOCKS, 1), filled_pool(shape, BLOCKS, 2)
    gathering: Planes = kind(source)
    packed = gathering.stage(chunk_bytes(gathering.form, chunk))
    gathering.gather(chunk, blocks, packed)
    part = slice(chunk.first_plane, chunk.first_plane + chunk.planes)
    expected = host_planes(source)[part][:, blocks]
    assert np.array_equal(packed.numpy(), expected.reshape(-1))
    kind(target).scatter(chunk, blocks, packed)
    whole = known_bytes(shape, BLOCKS, 2)
    whole[part, blocks] = expected
    assert np.array_equal(host_planes(target), whole)


def test_planes_are_the_pools_own_memory_in_its_own_layout() -> None:
    pool = filled_pool(SHAPE, BLOCKS, 1)
    planes = host_planes(pool)
    assert pool_form(pool).planes == len(planes)
    piece = pool.tensor[2, 1, 5].contiguous().view(torch.uint8).numpy().reshape(-1)
    assert np.array_equal(planes[5, 5], piece)
    planes[5, 5] = 0
    assert float(pool.layers[2][1, 5].float().abs().sum()) == 0
