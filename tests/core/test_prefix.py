"""Chains by their published vectors, by the rules as written, and by their laws."""

import os
import struct
import subprocess
import sys
from hashlib import blake2b

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lmpool.core.ids import BlockHash
from lmpool.core.prefix import (
    ModelIdentity,
    chain_length,
    extend_chain,
    hash_at,
    namespace_base,
    namespace_digest,
    pack_tokens,
    split_chain,
    unpack_tokens,
)
from tests.specs.tables import read_rows

BASES = read_rows("prefix.md", "Bases")
NAMESPACES = read_rows("prefix.md", "Namespaces")
CHAINS = read_rows("prefix.md", "Chains")
ACME = BlockHash(bytes.fromhex("d57f7ce366b77d62d6dc7037487d54b5"))
TOKENS = st.lists(st.integers(0, 2**32 - 1), max_size=70)


def written_digest(data: bytes) -> str:
    return blake2b(data, digest_size=16, person=b"lmpool-prefix-1").hexdigest()


def written_field(tag: int, value: bytes) -> bytes:
    return struct.pack("<BI", tag, len(value)) + value


def optional(cell: str) -> str | None:
    return None if cell == "-" else cell.strip('"')


@pytest.mark.parametrize("row", BASES, ids=lambda row: row["base"])
def test_bases(row: dict[str, str]) -> None:
    size = int(row["block size"])
    identity = ModelIdentity(row["revision"], row["kv dtype"], row["kv layout"], size)
    assert namespace_base(identity).hex() == row["base"]
    texts = [row["revision"], row["kv dtype"], row["kv layout"]]
    fields = [written_field(tag, text.encode()) for tag, text in enumerate(texts, 1)]
    assert written_digest(b"".join(fields) + written_field(4, struct.pack("<I", size))) == row["base"]


@pytest.mark.parametrize("row", NAMESPACES, ids=lambda row: row["namespace"])
def test_namespaces(row: dict[str, str]) -> None:
    base = bytes.fromhex(BASES[0]["base"])
    adapter, tenant, salt = (optional(row[name]) for name in ("adapter", "tenant", "salt"))
    assert tenant is not None
    assert namespace_digest(base, adapter, tenant, salt).hex() == row["namespace"]
    data = written_field(5, base) + written_field(6, tenant.encode())
    data += b"" if adapter is None else written_field(7, adapter.encode())
    data += b"" if salt is None else written_field(8, salt.encode())
    assert written_digest(data) == row["namespace"]


def test_b24_all_namespaces_differ() -> None:
    digests = [row["namespace"] for row in NAMESPACES]
    assert len(set(digests)) == len(digests)


@pytest.mark.parametrize("row", CHAINS, ids=lambda row: row["chain"][:8])
def test_chains(row: dict[str, str]) -> None:
    tokens, size = [int(token) for token in row["tokens"].split()], int(row["block size"])
    chain = extend_chain(ACME, pack_tokens(tokens), size)
    assert [digest.hex() for digest in split_chain(chain)] == row["chain"].split()
    last = ACME.hex()
    for position, digest in enumerate(row["chain"].split()):
        block = tokens[position * size : (position + 1) * size]
        last = written_digest(bytes.fromhex(last) + struct.pack(f"<{size}I", *block))
        assert last == digest


@given(tokens=TOKENS)
def test_packing_is_undone_by_unpacking(tokens: list[int]) -> None:
    packed = pack_tokens(tokens)
    assert packed == struct.pack(f"<{len(tokens)}I", *tokens)
    assert list(unpack_tokens(packed)) == tokens


@pytest.mark.parametrize("token", [-1, 2**32])
def test_tokens_that_are_none(token: int) -> None:
    with pytest.raises(OverflowError):
        pack_tokens([token])


@given(tokens=TOKENS, cut=st.integers(0, 8))
def test_a_chain_is_extended_from_any_of_its_blocks(tokens: list[int], cut: int) -> None:
    whole = extend_chain(ACME, pack_tokens(tokens), 8)
    assert chain_length(whole) == len(tokens) // 8
    cut = min(cut, chain_length(whole))
    last = hash_at(whole, cut - 1) if cut else ACME
    assert whole[: cut * 16] + extend_chain(last, pack_tokens(tokens[cut * 8 :]), 8) == whole


@given(tokens=st.lists(st.integers(0, 9), min_size=8, max_size=70), position=st.integers(0, 69))
def test_a_changed_token_changes_its_block_and_all_after_it(tokens: list[int], position: int) -> None:
    position = min(position, len(tokens) - 1)
    changed = [*tokens[:position], tokens[position] + 1, *tokens[position + 1 :]]
    before, after = (split_chain(extend_chain(ACME, pack_tokens(each), 8)) for each in (tokens, changed))
    equal = [one == other for one, other in zip(before, after, strict=True)]
    assert equal == [block < position // 8 for block in range(len(before))]


def test_b25_chains_do_not_depend_on_the_hash_seed() -> None:
    program = (
        "from lmpool.core.prefix import *\n"
        "base = namespace_base(ModelIdentity('rev-a', 'float32', 'split-heads', 16))\n"
        "namespace = namespace_digest(base, None, 'acme', None)\n"
        "print(extend_chain(namespace, pack_tokens(range(20)), 8).hex())\n"
    )
    said = [
        subprocess.run(
            [sys.executable, "-c", program],
            env=os.environ | {"PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout.strip()
        for seed in ("1", "2", "random")
    ]
    assert said == [CHAINS[2]["chain"].replace(" ", "")] * 3
