"""The tokens of a trace: packed prompts made when they are asked for, and their chains, made once."""

from lmpool.core.ids import BlockHash
from lmpool.core.prefix import HASH_BYTES, TOKEN_BYTES, extend_chain
from lmpool.sim.trace import ANSWER_FIRST, END_TOKEN, Trace

_END = END_TOKEN.to_bytes(TOKEN_BYTES, "little")


class Prompts:
    """Of one trace in one namespace and block size; several runs may share it."""

    __slots__ = ("_block_size", "_chains", "_namespace", "_trace", "lengths")

    def __init__(self, trace: Trace, namespace: BlockHash, block_size: int, lengths: list[int]) -> None:
        self._trace = trace
        self._namespace = namespace
        self._block_size = block_size
        self._chains: dict[int, bytes] = {}
        self.lengths = lengths
        """In tokens, by request."""

    def packed(self, number: int) -> bytes:
        parts: list[bytes] = []
        at: int | None = number
        while at is not None:
            request = self._trace.requests[at]
            if at != number:
                parts.append(answer(at, request.output_tokens))
            parts.extend(part.content.to_bytes(TOKEN_BYTES, "little") * part.tokens for part in reversed(request.parts))
            at = request.continues
        parts.reverse()
        return b"".join(parts)

    def chain(self, number: int, packed: bytes) -> bytes:
        """`packed` is the prompt of that request."""
        known = self._chains.get(number)
        if known is not None:
            return known
        before = self._trace.requests[number].continues
        head = self._chains.get(before, b"") if before is not None else b""
        last = BlockHash(head[-HASH_BYTES:]) if head else self._namespace
        done = len(head) // HASH_BYTES * self._block_size * TOKEN_BYTES
        chain = head + extend_chain(last, packed[done:], self._block_size)
        self._chains[number] = chain
        return chain


def filler(number: int) -> int:
    """Every token of the answer to a request but its last: nobody else's."""
    return ANSWER_FIRST + number


def answer(number: int, tokens: int) -> bytes:
    return filler(number).to_bytes(TOKEN_BYTES, "little") * (tokens - 1) + _END
