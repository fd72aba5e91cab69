"""The chance of a token by its published vectors, by the rule as written, and by its distribution."""

import struct
from hashlib import blake2b

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lmpool.core.sampling import uniform
from tests.specs.tables import read_rows

ROWS = read_rows("prefix.md", "Uniforms")
INTEGERS = st.integers(-(2**63), 2**63 - 1)


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row["uniform"])
def test_uniforms(row: dict[str, str]) -> None:
    numbers = [int(row[name]) for name in ("seed", "choice", "output index")]
    assert uniform(*numbers).hex() == row["uniform"]
    data = struct.pack("<3Q", *(number % 2**64 for number in numbers))
    digest = blake2b(data, digest_size=8, person=b"lmpool-uniform").digest()
    assert (struct.unpack("<Q", digest)[0] >> 11) / 2**53 == float.fromhex(row["uniform"])


@given(seed=INTEGERS, choice=st.integers(0, 127), index=st.integers(0, 2**20))
def test_a_uniform_is_at_least_0_and_less_than_1(seed: int, choice: int, index: int) -> None:
    assert 0.0 <= uniform(seed, choice, index) < 1.0


def test_uniforms_of_one_seed_are_spread_evenly() -> None:
    """Chi-squared over 16 bins of 16,000 draws: 99.99 % of even distributions stay below 45."""
    bins = [0] * 16
    for choice in range(4):
        for index in range(4000):
            bins[int(uniform(1, choice, index) * 16)] += 1
    assert sum((count - 1000) ** 2 / 1000 for count in bins) < 45
