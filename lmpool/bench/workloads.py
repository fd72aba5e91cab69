"""Batches of random prompts, made from a seed: the same tokens on every machine."""

from hashlib import blake2b

import attrs

from lmpool.bench.load.contents import RandomTokens
from lmpool.core.prefix import pack_tokens
from lmpool.sim.trace import Part


@attrs.frozen
class Batch:
    """Prompts that are sent together."""

    prompts: tuple[tuple[int, ...], ...]
    output_tokens: int

    @property
    def fingerprint(self) -> str:
        digest = blake2b(digest_size=8)
        for prompt in self.prompts:
            packed = pack_tokens(prompt)
            digest.update(len(packed).to_bytes(8, "little") + packed)
        return digest.hexdigest()


def shared_batch(requests: int, shared: int, own: int, output_tokens: int, vocabulary: int, seed: int) -> Batch:
    """`requests` prompts of `shared` common and `own` private random tokens."""
    contents = RandomTokens(vocabulary, seed)
    common = contents.tokens(Part(0, shared))
    prompts = tuple(common + contents.tokens(Part(1 + number, own)) for number in range(requests))
    return Batch(prompts, output_tokens)
