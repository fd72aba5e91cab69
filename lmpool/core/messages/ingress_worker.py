"""Ingress and worker: requests one way, tokens the other."""

from enum import Enum

import attrs

from lmpool.core.ids import Nanos, RequestId
from lmpool.core.messages.transfer import Awaited
from lmpool.core.plan import TokenLogprobs
from lmpool.core.sampling import SamplingSettings, StopSettings


@attrs.frozen
class Submit:
    """A request for this worker, or the rest of one that began elsewhere."""

    request: RequestId
    attempt: int
    """Rises with each submit of the request, from 0; answers carry it and other attempts are dropped."""
    namespace: bytes
    """`h_{-1}` of the request's chain."""
    prompt: bytes
    """Packed tokens, at least one."""
    chain: bytes
    """Packed hashes of the prompt's complete blocks."""
    choices: tuple[int, ...]
    """Indexes of the choices still open."""
    outputs: tuple[bytes, ...]
    """Parallel to `choices`: packed output tokens that the ingress has received."""
    sampling: SamplingSettings
    stop: StopSettings
    prompt_logprobs: int | None
    """Not None: score the prompt; cached blocks are not read."""
    priority: int
    arrived_ns: Nanos
    """When the client's request arrived: its place in the queue."""
    deadline_ns: Nanos | None
    awaits: Awaited | None
    """Blocks on their way to this worker, that it need not compute."""


@attrs.frozen
class Abort:
    """Legal in every state, any number of times, also for requests never seen."""

    request: RequestId


@attrs.frozen
class FinishChoice:
    """A stop string was found: the choice has ended at this output index; later tokens do not count."""

    request: RequestId
    choice: int
    output_index: int


@attrs.frozen
class ClearCache:
    """Drop every cached block that no sequence uses."""

    number: int


@attrs.frozen
class CacheCleared:
    number: int
    blocks: int


@attrs.frozen
class Accepted:
    """The request has begun: its place in the batch and what it reuses are known."""

    request: RequestId
    attempt: int
    cached_tokens: int
    """Prompt tokens found in complete cached blocks by the first choice to begin."""
    waited_ns: Nanos
    """From the arrival of the submit at the worker."""


class RefusalReason(Enum):
    QUEUE_FULL = "queue full"
    NEVER_FITS = "never fits"
    DRAINING = "draining"
    NAMESPACE_UNKNOWN = "namespace unknown"


@attrs.frozen
class Refused:
    """Nothing of the request is kept here. `retry_after_ns` is the worker's own estimate, 0 if none."""

    request: RequestId
    attempt: int
    reason: RefusalReason
    retry_after_ns: Nanos


class Finish(Enum):
    """Why one choice ended, as its worker sees it."""

    END_TOKEN = "end token"
    LENGTH = "length"
    NOT_FINITE = "logits not finite"
    STEP_FAILED = "step failed"


@attrs.frozen
class TokensProduced:
    """What one step brought for the requests of one ingress; one row a sampled token, parallel columns."""

    requests: tuple[int, ...]
    """Counters of request ids."""
    attempts: tuple[int, ...]
    choices: tuple[int, ...]
    output_indexes: tuple[int, ...]
    tokens: tuple[int, ...]
    logprobs: tuple[TokenLogprobs | None, ...]
    """Empty if no row asked for any."""
    finishes: tuple[Finish | None, ...]
    """Not None on the last row of a choice. A choice that ends by a fault has a last row with token -1."""


@attrs.frozen
class PromptScored:
    """A run of prompt positions with their log-probabilities; runs arrive in order."""

    request: RequestId
    attempt: int
    start: int
    entries: tuple[TokenLogprobs, ...]


class EndReason(Enum):
    COMPLETE = "complete"
    ABORTED = "aborted"
    DEADLINE = "deadline"
    STEP_FAILED = "step failed"


@attrs.frozen
class Ended:
    """The request is gone from this worker and its blocks are released: complete, aborted or too late."""

    request: RequestId
    attempt: int
    reason: EndReason
