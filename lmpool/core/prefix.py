"""Prefix chains: what makes two blocks the same block.

A chain has one 16-byte digest per *complete* block, `h_i = H(h_{i-1} | tokens_i)`, where `h_{-1}` is the digest
of the namespace. H is BLAKE2b-128 personalised with `DOMAIN`; tokens are unsigned 32-bit little-endian. There is
no per-process seed, so every process on every machine computes the same bytes. `specs/prefix.md` has test vectors.

Chains and tokens travel packed (16 and 4 bytes an item) and are sliced where they are used.
"""

import sys
from array import array
from collections.abc import Iterable
from hashlib import blake2b

import attrs

from lmpool.core.ids import BlockHash

HASH_BYTES = 16
TOKEN_BYTES = 4
DOMAIN = b"lmpool-prefix-1"


@attrs.frozen
class ModelIdentity:
    """Everything about a replica that changes the values in its KV blocks."""

    revision: str
    """Content digest of the weights, not a display name."""
    kv_dtype: str
    kv_layout: str
    block_size: int


def _digest(data: bytes) -> bytes:
    return blake2b(data, digest_size=HASH_BYTES, person=DOMAIN).digest()


def _tagged(fields: Iterable[tuple[int, bytes]]) -> bytes:
    """Tag (1 byte), length (4 bytes), value: no two field lists have the same bytes."""
    return b"".join(tag.to_bytes(1, "little") + len(value).to_bytes(4, "little") + value for tag, value in fields)


def namespace_base(identity: ModelIdentity) -> bytes:
    """The part of a namespace that a worker announces when it joins."""
    return _digest(
        _tagged(
            (
                (1, identity.revision.encode()),
                (2, identity.kv_dtype.encode()),
                (3, identity.kv_layout.encode()),
                (4, identity.block_size.to_bytes(4, "little")),
            )
        )
    )


def namespace_digest(base: bytes, adapter: str | None, tenant: str, salt: str | None) -> BlockHash:
    """`h_{-1}` of a chain. An absent adapter or salt differs from every present one, the empty one included."""
    fields = [(5, base), (6, tenant.encode())]
    if adapter is not None:
        fields.append((7, adapter.encode()))
    if salt is not None:
        fields.append((8, salt.encode()))
    return BlockHash(_digest(_tagged(fields)))


def pack_tokens(tokens: Iterable[int]) -> bytes:
    """Raises OverflowError for an id outside 0 to 2^32 - 1."""
    packed = array("I", tokens)
    if sys.byteorder == "big":
        packed.byteswap()
    return packed.tobytes()


def unpack_tokens(packed: bytes) -> "array[int]":
    tokens = array("I")
    tokens.frombytes(packed)
    if sys.byteorder == "big":
        tokens.byteswap()
    return tokens


def extend_chain(last: BlockHash, tokens: bytes, block_size: int) -> bytes:
    """Packed hashes of the complete blocks in packed `tokens`, which follow the block (or namespace) `last`."""
    width = block_size * TOKEN_BYTES
    digest: bytes = last
    hashes: list[bytes] = []
    for start in range(0, len(tokens) - width + 1, width):
        digest = blake2b(digest + tokens[start : start + width], digest_size=HASH_BYTES, person=DOMAIN).digest()
        hashes.append(digest)
    return b"".join(hashes)


def chain_length(chain: bytes) -> int:
    return len(chain) // HASH_BYTES


def hash_at(chain: bytes, index: int) -> BlockHash:
    return BlockHash(chain[index * HASH_BYTES : (index + 1) * HASH_BYTES])


def split_chain(chain: bytes) -> list[BlockHash]:
    return [BlockHash(chain[start : start + HASH_BYTES]) for start in range(0, len(chain), HASH_BYTES)]


def common_blocks(chain: bytes, other: bytes, known: int) -> int:
    """Leading blocks in both packed chains, given that `known` of them are and that the next is too."""
    low, high = known + 1, min(len(chain), len(other)) // HASH_BYTES
    while low < high:
        middle = (low + high + 1) >> 1
        start = (middle - 1) * HASH_BYTES
        if chain[start : start + HASH_BYTES] == other[start : start + HASH_BYTES]:
            low = middle
        else:
            high = middle - 1
    return low
