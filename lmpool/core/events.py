"""What a machine is told, in the past tense. Each door takes the union at the end that bears its name."""

from typing import TypeAlias

import attrs

from lmpool.core.ids import Nanos, Peer, RequestId, StepNumber, TransferId
from lmpool.core.messages import Message
from lmpool.core.plan import StepResult
from lmpool.core.sampling import SamplingSettings, StopSettings


@attrs.frozen
class PeerJoined:
    """A link is up; its handshake (run, protocol version, identity) was right."""

    peer: Peer


@attrs.frozen
class PeerLost:
    """A link is down. Everything received before it has been handled."""

    peer: Peer


@attrs.frozen
class Received:
    peer: Peer
    message: Message


@attrs.frozen
class Tick:
    """Time has passed. Harmless at any moment."""


@attrs.frozen
class StepCompleted:
    result: StepResult


@attrs.frozen
class StepsCompleted:
    """A simulator's shortcut for as many `StepCompleted`, each at its own time and each followed at once by a step of
    the same decodes. Legal for at most `Worker.streak()` steps, and if no token of it ends a choice."""

    ends_ns: tuple[Nanos, ...]
    """When the running step completed, and each after it."""
    tokens: tuple[tuple[int, ...], ...]
    """Parallel to the rows of the running step: what each sampled, one token a step."""


@attrs.frozen
class StepFailed:
    """The oldest running step raised; its writes may be anything, its results are lost."""

    step: StepNumber
    cause: str


@attrs.frozen
class BlocksCopied:
    """All of a `CopyBlocks` is in its blocks, and checked as far as the settings say."""

    transfer: TransferId
    blocks: int
    size_bytes: int


@attrs.frozen
class CopyFailed:
    """Its blocks may hold anything; nothing writes them any more."""

    transfer: TransferId
    cause: str


@attrs.frozen
class BlocksSent:
    """A `SendBlocks` is complete."""

    transfer: TransferId


@attrs.frozen
class SendFailed:
    transfer: TransferId
    cause: str


@attrs.frozen
class DrainOrdered:
    """The supervisor wants this process to take nothing new."""


@attrs.frozen
class RequestArrived:
    """A client's request, checked against model facts and tokenised."""

    request: RequestId
    tenant: str
    session: str
    namespace: bytes
    prompt: bytes
    chain: bytes
    choices: int
    sampling: SamplingSettings
    stop: StopSettings
    prompt_logprobs: int | None
    priority: int
    arrived_ns: Nanos
    """When the client's request arrived, before it was tokenised."""
    deadline_ns: Nanos | None
    draw: int
    """Chance for policies that need it, 0 to 2^63 - 1."""


@attrs.frozen
class StopFound:
    """A stop string was completed by the text of this output index."""

    request: RequestId
    choice: int
    output_index: int


@attrs.frozen
class ClientGone:
    request: RequestId


CopyEvent: TypeAlias = BlocksCopied | CopyFailed | BlocksSent | SendFailed
WorkerEvent: TypeAlias = (
    Received | StepCompleted | PeerJoined | PeerLost | Tick | StepFailed | DrainOrdered | StepsCompleted | CopyEvent
)
ControlEvent: TypeAlias = Received | PeerJoined | PeerLost | Tick
IngressEvent: TypeAlias = (
    Received | RequestArrived | StopFound | ClientGone | PeerJoined | PeerLost | Tick | DrainOrdered
)
