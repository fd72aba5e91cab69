"""One choice of a request at its worker: what it is doing (a label with a table), and its tokens and positions.

`specs/sequence.md` has the table for people. Positions of a sequence in work:

    0 ... published blocks ... computed ... planned ... prefill_end
    history: known tokens (prompt and output); sampled tokens of running steps are not in it yet
"""

from array import array
from enum import Enum
from typing import TypeAlias

from lmpool.core.ids import BlockHash, BlockId, RequestId, SequenceId, Slot, StepNumber
from lmpool.core.prefix import HASH_BYTES, TOKEN_BYTES, extend_chain, pack_tokens, unpack_tokens

Place: TypeAlias = tuple[int, RequestId, int]
"""Order of service, least first: arrival (a class is worth so many nanoseconds of it), request, choice."""


class SequenceState(Enum):
    WAITING = "waiting"
    AWAITING = "awaiting"
    """Queued, while another sequence writes the block that it needs next."""
    PREFILLING = "prefilling"
    DECODING = "decoding"
    PREEMPTED = "preempted"
    """Queued again, without blocks and slot. Rows of it may still run, and what they sample counts."""
    ENDED = "ended"


class SequenceEvent(Enum):
    WRITER_FOUND = "writer found"
    WRITER_GONE = "writer gone"
    """Its blocks are resident, or it has left without writing them."""
    BEGUN = "begun"
    """It has a slot and its blocks."""
    PREFILLED = "prefilled"
    """The step that computed the last token before the next output has completed."""
    PREEMPTED = "preempted"
    STEP_LOST = "step lost"
    """A step with a row of it failed."""
    ENDED = "ended"


_S = SequenceState
_E = SequenceEvent
TRANSITIONS: dict[SequenceState, dict[SequenceEvent, SequenceState]] = {
    _S.WAITING: {_E.WRITER_FOUND: _S.AWAITING, _E.BEGUN: _S.PREFILLING, _E.ENDED: _S.ENDED},
    _S.AWAITING: {_E.WRITER_GONE: _S.WAITING, _E.ENDED: _S.ENDED},
    _S.PREFILLING: {
        _E.PREFILLED: _S.DECODING,
        _E.PREEMPTED: _S.PREEMPTED,
        _E.STEP_LOST: _S.PREEMPTED,
        _E.ENDED: _S.ENDED,
    },
    _S.DECODING: {_E.PREEMPTED: _S.PREEMPTED, _E.STEP_LOST: _S.PREEMPTED, _E.ENDED: _S.ENDED},
    _S.PREEMPTED: {
        _E.WRITER_FOUND: _S.AWAITING,
        _E.BEGUN: _S.PREFILLING,
        _E.STEP_LOST: _S.PREEMPTED,
        _E.ENDED: _S.ENDED,
    },
    _S.ENDED: {},
}
"""What is absent is a bug of the machine."""


class Sequence:
    """Owned by the worker machine. Blocks and slot are held exactly while prefilling or decoding."""

    __slots__ = (
        "awaited",
        "chain",
        "computed",
        "failures",
        "has_begun",
        "history",
        "id",
        "in_flight",
        "is_arriving",
        "last_step",
        "life",
        "namespace",
        "place",
        "planned",
        "preemptions",
        "prefill_end",
        "prefill_left",
        "priority",
        "prompt_tokens",
        "published",
        "sampling",
        "scored",
        "slot",
        "state",
        "table",
        "tokens_max",
    )

    def __init__(
        self,
        sequence: SequenceId,
        place: Place,
        priority: int,
        namespace: BlockHash,
        prompt: bytes,
        output: bytes,
        chain: bytes,
        tokens_max: int,
    ) -> None:
        self.id = sequence
        self.place = place
        self.priority = priority
        self.namespace = namespace
        self.history: array[int] = unpack_tokens(prompt + output)
        self.prompt_tokens = len(prompt) // TOKEN_BYTES
        self.tokens_max = tokens_max
        """Length of `history` at which it ends."""
        self.chain = chain
        """Hashes of the complete blocks of `history`, as far as needed."""
        self.state = SequenceState.WAITING
        self.awaited: BlockHash | None = None
        """Whose running writer it waits for."""
        self.is_arriving = False
        """It waits for a transfer."""
        self.prefill_left = len(self.history)
        """While queued: tokens that will probably have to be computed."""
        self.has_begun = False
        # While running:
        self.slot = Slot(0)
        self.table: tuple[BlockId, ...] = ()
        self.prefill_end = 0
        self.planned = 0
        """Positions whose inputs are in completed or running steps."""
        self.computed = 0
        """Positions whose inputs are in completed steps."""
        self.published = 0
        """Blocks of the table that are resident."""
        self.sampling = 0
        """Tokens that running steps will sample."""
        self.in_flight = 0
        """Rows in running steps."""
        self.last_step = StepNumber(0)
        self.life = 0
        """Rises when a step is lost: results of rows from before mean nothing."""
        self.failures = 0
        """Lost steps in a row."""
        self.preemptions = 0
        self.scored: int | None = None
        """Prompt positions whose log-probabilities were told, the first (which has none) included; None: not wanted."""

    @property
    def outputs(self) -> int:
        return len(self.history) - self.prompt_tokens

    @property
    def is_running(self) -> bool:
        """Whether it holds a slot and blocks."""
        return self.state is SequenceState.PREFILLING or self.state is SequenceState.DECODING

    @property
    def is_scoring(self) -> bool:
        """Whether prompt positions are still to be scored, so that cached blocks do not help it."""
        return self.scored is not None and self.scored < self.prompt_tokens

    @property
    def prefill_remaining(self) -> int:
        """Prefill tokens not computed yet."""
        if self.state is SequenceState.PREFILLING:
            return self.prefill_end - self.computed
        return 0 if self.state in (SequenceState.DECODING, SequenceState.ENDED) else self.prefill_left

    def move(self, event: SequenceEvent) -> None:
        self.state = TRANSITIONS[self.state][event]

    def extend_chain(self, block_size: int) -> None:
        """Hashes every complete block of `history`."""
        hashed = len(self.chain) // HASH_BYTES
        if (hashed + 1) * block_size > len(self.history):
            return
        last = BlockHash(self.chain[-HASH_BYTES:]) if hashed else self.namespace
        tokens = pack_tokens(self.history[hashed * block_size :])
        self.chain += extend_chain(last, tokens, block_size)

    def digest_parts(self) -> tuple[object, ...]:
        return tuple(getattr(self, name) for name in self.__slots__)
