"""The port between a worker machine and whatever executes its steps: a plan goes in, a result comes out.

Two real implementations: `lmpool.gpu.runner` (torch) and `lmpool.sim.integer_model` (exact integers).
"""

from collections.abc import Sequence
from typing import NamedTuple, Protocol

import attrs

from lmpool.core.data_path import SharedPool
from lmpool.core.ids import BlockId, Slot, StepNumber
from lmpool.core.prefix import ModelIdentity
from lmpool.core.rates import Rates
from lmpool.core.sampling import SamplingSettings


@attrs.frozen
class SequenceStart:
    """Comes with the first plan of a sequence, and again after a preemption (which is a departure)."""

    slot: Slot
    sampling: SamplingSettings
    ends: tuple[int, ...]
    """Token ids that a row with `forbids_end` must not sample."""
    history: bytes
    """Packed prompt and output so far; what the penalties count."""
    prompt_tokens: int
    """How many tokens of `history` are prompt."""
    prompt_logprobs: int | None
    """None: none wanted. k: log-probability of each prompt token (but the first) and of the k best there."""


class Row(NamedTuple):
    """One sequence's part of a step."""

    slot: Slot
    start: int
    """Position of the first input token."""
    tokens: Sequence[int]
    """Input tokens, not to be changed. Empty: one token, the last that was sampled for this slot (perhaps in a step
    still running)."""
    blocks: tuple[BlockId, ...]
    """Block table from position 0 to the last input token."""
    writes: bool
    """False: the keys and values of the inputs are already in their (shared) blocks and must not be written."""
    samples: bool
    """Whether a token is sampled after the last input token."""
    uniform: float
    """Chance for that token, in [0, 1)."""
    forbids_end: bool
    """True while the sequence has fewer output tokens than its minimum."""

    @property
    def length(self) -> int:
        """Input tokens."""
        return len(self.tokens) or 1


@attrs.frozen
class BatchPlan:
    step: StepNumber
    departures: tuple[Slot, ...]
    """Slots to forget before anything else; a slot may depart and start again in one plan."""
    starts: tuple[SequenceStart, ...]
    rows: tuple[Row, ...]


@attrs.frozen
class TokenLogprobs:
    """Natural logarithms; of the model's distribution before temperature and filters, after bias and penalties."""

    token: int
    logprob: float
    top_tokens: tuple[int, ...]
    """Best first."""
    top_logprobs: tuple[float, ...]


@attrs.frozen
class PromptLogprobs:
    slot: Slot
    start: int
    """Position of the first token described (never 0: nothing precedes it)."""
    entries: tuple[TokenLogprobs, ...]


NOT_FINITE = -1
"""In place of a sampled token: the logits of that row were not finite. It fails that sequence only."""


@attrs.frozen
class StepResult:
    step: StepNumber
    slots: tuple[Slot, ...]
    """Slots of the plan's sampling rows, in the plan's order."""
    tokens: tuple[int, ...]
    """Parallel to `slots`; a token id or `NOT_FINITE`."""
    logprobs: tuple[TokenLogprobs | None, ...]
    """Parallel to `slots`."""
    prompt_logprobs: tuple[PromptLogprobs, ...]


class Runner(Protocol):
    """Executes plans in order on one thread that the driver owns. Not thread-safe."""

    def launch(self, plan: BatchPlan) -> None:
        """Begins a step; at most `steps_in_flight_max` are begun and not collected."""
        ...

    def collect(self) -> StepResult:
        """Blocks until the oldest step that was launched is complete, its writes to the pool included."""
        ...


class ReplicaError(Exception):
    """A replica cannot be had as ordered (device, model, memory); `what`, `hint`: one line each, as in `Failed`."""

    def __init__(self, what: str, hint: str) -> None:
        super().__init__(f"{what}; {hint}")
        self.what = what
        self.hint = hint


@attrs.frozen
class Replica:
    """A runner that is ready, and the facts that its worker machine needs."""

    runner: Runner
    pool: SharedPool | None
    """None: other workers cannot read its blocks."""
    identity: ModelIdentity
    blocks: int
    """Blocks of the pool that the machine may use."""
    model_tokens_max: int
    """Longest context that the model and the operator allow; the pool may allow less."""
    vocabulary: int
    steps_in_flight_max: int
    """1 where a launch blocks (CPU), 2 where it does not (CUDA)."""
    rates: Rates
    """Measured on this device before it was ready."""
    description: str
    """One line for the operator: device and why, dtype, weights and pool in bytes."""
