"""A request at its worker: what was submitted, and the sequences of its choices."""

import attrs

from lmpool.core.ids import BlockHash, Nanos, Peer, RequestId, SequenceId
from lmpool.core.messages.ingress_worker import Submit
from lmpool.core.prefix import HASH_BYTES, TOKEN_BYTES, chain_length, extend_chain
from lmpool.core.sequence import Place, Sequence, SequenceEvent, SequenceState


@attrs.define
class LiveRequest:
    """Owned by the worker machine, from the submit until no sequence of it is left."""

    submit: Submit
    peer: Peer
    """The ingress that is answered."""
    received_ns: Nanos
    sequences: list[Sequence]
    is_accepted: bool
    has_failed: bool
    """A choice ended because its steps failed."""
    prefill_told: int | None
    """Remaining prefill tokens in the last report; None before the first."""

    @property
    def id(self) -> RequestId:
        return self.submit.request

    @property
    def open_sequences(self) -> list[Sequence]:
        return [sequence for sequence in self.sequences if sequence.state is not SequenceState.ENDED]

    @property
    def prefill_remaining(self) -> int:
        left = 0
        for sequence in self.sequences:
            left += sequence.prefill_remaining
        return left

    def digest_parts(self) -> tuple[object, ...]:
        return (
            self.submit,
            self.peer,
            self.received_ns,
            [(sequence.id, sequence.state) for sequence in self.sequences],
            (self.is_accepted, self.has_failed, self.prefill_told),
        )


def place_of(submit: Submit, choice: int, class_ns: Nanos) -> Place:
    """A class is worth `class_ns` of arrival: whoever has waited so much longer goes before the next better class."""
    return submit.arrived_ns + submit.priority * class_ns, submit.request, choice


def tokens_max(submit: Submit, model_tokens_max: int) -> int:
    """Length of prompt and output at which a choice ends."""
    return min(len(submit.prompt) // TOKEN_BYTES + submit.stop.output_tokens_max, model_tokens_max)


def fits(submit: Submit, model_tokens_max: int) -> bool:
    """Whether there is a prompt, and room for each choice and its next token (none, where only scores are wanted)."""
    prompt = len(submit.prompt) // TOKEN_BYTES
    longest = max((len(output) // TOKEN_BYTES for output in submit.outputs), default=0)
    return 0 < prompt <= model_tokens_max - longest - min(submit.stop.output_tokens_max, 1)


def has_its_chain(submit: Submit, block_size: int) -> bool:
    """Whether the chain is of this block size and begins in the named namespace; its first block is hashed again."""
    if chain_length(submit.chain) != len(submit.prompt) // TOKEN_BYTES // block_size:
        return False
    first = extend_chain(BlockHash(submit.namespace), submit.prompt[: block_size * TOKEN_BYTES], block_size)
    return submit.chain[:HASH_BYTES] == first


def sequences_of(submit: Submit, block_size: int, model_tokens_max: int, class_ns: Nanos) -> list[Sequence]:
    """One for each open choice. The first scores the prompt, where that is wanted."""
    sequences: list[Sequence] = []
    for choice, output in zip(submit.choices, submit.outputs, strict=True):
        sequence = Sequence(
            SequenceId(submit.request, choice),
            place_of(submit, choice, class_ns),
            submit.priority,
            BlockHash(submit.namespace),
            submit.prompt,
            output,
            submit.chain,
            tokens_max(submit, model_tokens_max),
        )
        sequence.extend_chain(block_size)
        if submit.prompt_logprobs is not None and not sequences:
            sequence.scored = 1
        if len(sequence.history) >= sequence.tokens_max and not sequence.is_scoring:
            sequence.move(SequenceEvent.ENDED)
        sequences.append(sequence)
    return sequences
