"""What a machine orders, in the imperative. A driver performs effects in order and never answers within one."""

from enum import Enum
from typing import TypeAlias

import attrs

from lmpool.core.ids import BlockId, Epoch, Generation, Nanos, Peer, Rank, RequestId, TransferId
from lmpool.core.messages import Message
from lmpool.core.messages.transfer import CopyMeans
from lmpool.core.plan import BatchPlan, TokenLogprobs


@attrs.frozen
class Send:
    """To a peer whose link may meanwhile be down: then it is dropped, and `PeerLost` follows."""

    peer: Peer
    message: Message


@attrs.frozen
class RunStep:
    plan: BatchPlan


@attrs.frozen
class CopyBlocks:
    """Fill blocks of this rank from blocks of another, one for one. The driver answers exactly once, `BlocksCopied` or
    `CopyFailed`, and not before nothing of the copy can touch the target's blocks any more."""

    transfer: TransferId
    means: CopyMeans
    source: Rank
    source_epoch: Epoch
    source_blocks: tuple[BlockId, ...]
    source_generations: tuple[Generation, ...]
    target_blocks: tuple[BlockId, ...]
    deadline_ns: Nanos
    """It is of no use after that."""


@attrs.frozen
class SendBlocks:
    """The other end of a `CopyBlocks` with `CopyMeans.SEND`. Answered exactly once, `BlocksSent` or `SendFailed`, and
    not before nothing of it reads the blocks any more."""

    transfer: TransferId
    target: Rank
    target_epoch: Epoch
    blocks: tuple[BlockId, ...]
    deadline_ns: Nanos


@attrs.frozen
class CancelCopy:
    """The copy or the sending is off. It is answered all the same, soon if it can be stopped. Harmless when over."""

    transfer: TransferId


class ChoiceEnd(Enum):
    """Why one choice ended, in the words of the API."""

    STOP = "stop"
    LENGTH = "length"


@attrs.frozen
class DeliverToken:
    """One token for one choice of a client, in order and without gaps."""

    request: RequestId
    choice: int
    output_index: int
    token: int
    logprobs: TokenLogprobs | None
    end: ChoiceEnd | None
    """Not None with the last token of a choice that its worker ended."""
    hidden: bool
    """The text of this token is not part of the answer (eos)."""


@attrs.frozen
class DeliverStart:
    """The first worker has begun the request."""

    request: RequestId
    cached_tokens: int
    queued_ns: Nanos
    """From arrival at the ingress to the begin."""


@attrs.frozen
class DeliverPromptLogprobs:
    request: RequestId
    start: int
    entries: tuple[TokenLogprobs, ...]


class Outcome(Enum):
    """How a request ended; each accepted request has exactly one."""

    COMPLETE = "complete"
    CANCELLED = "cancelled"
    BUSY = "busy"
    NEVER_FITS = "never fits"
    NO_REPLICA = "no replica"
    DEADLINE = "deadline"
    FAILED = "failed"
    DRAINING = "draining"


@attrs.frozen
class CloseRequest:
    """The last effect for a request. Nothing of it is left in the machine's open table."""

    request: RequestId
    outcome: Outcome
    detail: str
    """One sentence for the client; empty when complete or cancelled."""
    retry_after_ns: Nanos
    """For busy; 0 otherwise."""


@attrs.frozen
class AnswerQuery:
    """A reply to a numbered query of the driver (state, decisions, cache cleared)."""

    peer: Peer
    message: Message


CopyEffect: TypeAlias = CopyBlocks | SendBlocks | CancelCopy
WorkerEffect: TypeAlias = Send | RunStep | CopyEffect
ControlEffect: TypeAlias = Send
IngressEffect: TypeAlias = Send | DeliverToken | DeliverStart | DeliverPromptLogprobs | CloseRequest | AnswerQuery
