"""What a client may ask of sampling and stopping, and the one source of chance: a pure function.

A sampler has no generator state. The uniform of a token depends on (seed, choice, output index) alone, so a
request continues identically on another replica and never depends on its neighbours in a batch.
"""

from hashlib import blake2b

import attrs


@attrs.frozen
class SamplingSettings:
    """Checked by the ingress against model facts before it enters any machine."""

    temperature: float
    """0 is greedy."""
    top_p: float
    top_k: int
    """0 is off."""
    min_p: float
    presence_penalty: float
    frequency_penalty: float
    repetition_penalty: float
    """1 is off; counts prompt and output, the other two penalties output only."""
    logit_bias: tuple[tuple[int, float], ...]
    logprobs: int | None
    """None: no log-probabilities. 0: of the chosen token. k: of the k best as well."""
    seed: int


@attrs.frozen
class StopSettings:
    """What ends a sequence at its worker. Stop strings are matched on text by the ingress."""

    output_tokens_max: int
    output_tokens_min: int
    ends: tuple[int, ...]
    """Token ids that end the sequence: eos (unless ignored) and the client's stop token ids."""
    hidden_ends: tuple[int, ...]
    """Those of `ends` whose text is not part of the answer (eos)."""


def greedy(seed: int) -> SamplingSettings:
    """The likeliest token each time, nothing else asked for."""
    return SamplingSettings(
        temperature=0.0,
        top_p=1.0,
        top_k=0,
        min_p=0.0,
        presence_penalty=0.0,
        frequency_penalty=0.0,
        repetition_penalty=1.0,
        logit_bias=(),
        logprobs=None,
        seed=seed,
    )


def uniform(seed: int, choice: int, output_index: int) -> float:
    """In [0, 1), from 53 bits of BLAKE2b over the three numbers (64-bit little-endian each)."""
    mask = (1 << 64) - 1
    data = b"".join((number & mask).to_bytes(8, "little") for number in (seed, choice, output_index))
    return (int.from_bytes(blake2b(data, digest_size=8, person=b"lmpool-uniform").digest(), "little") >> 11) * 2.0**-53
