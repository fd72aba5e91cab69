"""Control and worker: the phases of a transfer of blocks from one rank to another (`specs/transfer.md`).

Each order may be repeated, may come late and may name a transfer that the worker does not know: its answer says how
things stand. Blocks of the payload never come this way. The last messages are an operator's, who asks for a transfer.
"""

from enum import Enum
from typing import TypeAlias

import attrs

from lmpool.core.ids import BlockId, Epoch, Generation, Nanos, Rank, TransferId, Version


class TransferMode(Enum):
    COPY = "copy"
    MOVE = "move"
    """The source frees what nobody uses of it, once the target has published."""


class CopyMeans(Enum):
    READ = "read"
    """The target reads the source's pool by index; the source does nothing."""
    SEND = "send"
    """The source sends and the target receives."""


@attrs.frozen
class PrepareSource:
    """Pin the chain and say where its blocks are."""

    transfer: TransferId
    mode: TransferMode
    target: Rank
    target_epoch: Epoch
    chain: bytes
    """Packed hashes, from the first block of the chain to the last that is wanted."""
    first: int
    """Blocks before this index are not wanted."""
    deadline_ns: Nanos
    """When this side ends by itself."""


@attrs.frozen
class PrepareTarget:
    """Pin the resident head of the chain and reserve blocks for the rest."""

    transfer: TransferId
    means: CopyMeans
    source: Rank
    source_epoch: Epoch
    chain: bytes
    first: int
    """At least so many blocks of the chain must be resident."""
    deadline_ns: Nanos


@attrs.frozen
class BeginCopy:
    """To the target: fill the reserved blocks from these."""

    transfer: TransferId
    blocks: tuple[BlockId, ...]
    """At the source, in the order of the target's reserved ones."""
    generations: tuple[Generation, ...]


@attrs.frozen
class BeginSend:
    """To the source, where it sends: its blocks of the chain, in order."""

    transfer: TransferId
    first: int
    """Those before this index are not wanted."""


@attrs.frozen
class Confirm:
    """To the source, after the target's last read: were the pins held throughout?"""

    transfer: TransferId


@attrs.frozen
class Publish:
    """To the target, after the source's confirmation: make the blocks resident."""

    transfer: TransferId
    lease_until_ns: Nanos
    """Until then they are kept from reclaim before their first use; a moment in the past: no lease."""


@attrs.frozen
class Finalize:
    """To the source, after the target's publication: unpin, and free what a move may free."""

    transfer: TransferId


@attrs.frozen
class AbortTransfer:
    """To either side: end it, whatever its phase. What is published stays."""

    transfer: TransferId


class TransferRefusal(Enum):
    """Why a side takes no part. It holds nothing for the transfer."""

    CHAIN_MISSING = "chain missing"
    """The source does not hold all of it (any more)."""
    ANCHOR_MISSING = "anchor missing"
    """The target does not hold the block that the first would stand on."""
    ALREADY_RESIDENT = "already resident"
    """The target lacks nothing."""
    NO_BLOCKS = "no blocks"
    """The target cannot reserve so many."""
    PINS_FULL = "pins full"
    """The source holds as many pins for copies as it may."""
    BUSY = "busy"
    """As many transfers as a rank takes part in at once."""
    DRAINING = "draining"
    EXPIRED = "expired"
    """Its deadline had passed when it came."""


class TransferEnd(Enum):
    """Why a side holds nothing for a transfer any more."""

    FINALIZED = "finalized"
    ABORTED = "aborted"
    """Control said so."""
    EXPIRED = "expired"
    YIELDED = "yielded"
    """The rank was short of blocks."""
    COPY_FAILED = "copy failed"
    SEND_FAILED = "send failed"
    LENGTH_WRONG = "length wrong"
    """Not as many blocks came as were reserved."""
    CONTROL_LOST = "control lost"
    """The link to the control that ordered it."""
    UNKNOWN = "unknown"
    """Never heard of, or forgotten."""


@attrs.frozen
class SourcePrepared:
    """The chain is pinned. Columns: the blocks from `first` of the order on."""

    transfer: TransferId
    blocks: tuple[BlockId, ...]
    generations: tuple[Generation, ...]


@attrs.frozen
class TargetPrepared:
    """Blocks are reserved for the chain from block `first` on: never before the `first` of the order."""

    transfer: TransferId
    first: int
    blocks: int


@attrs.frozen
class TransferRefused:
    transfer: TransferId
    reason: TransferRefusal


@attrs.frozen
class Copied:
    """All bytes have arrived at the target; nothing touches the reserved blocks any more."""

    transfer: TransferId
    size_bytes: int
    copy_ns: Nanos
    """From the order to copy to its completion."""


@attrs.frozen
class Confirmed:
    """The source has held pins and generations from its preparation until now."""

    transfer: TransferId


@attrs.frozen
class Published:
    """The blocks are resident at the target, as its report of this version (or an earlier one) has told."""

    transfer: TransferId
    version: Version


@attrs.frozen
class TransferEnded:
    """A side holds nothing for the transfer any more. At the source, before its confirmation: the blocks are lost."""

    transfer: TransferId
    end: TransferEnd
    blocks_freed: int
    """By a move, at the source."""


@attrs.frozen
class Awaited:
    """A request may wait for this transfer instead of computing what it brings."""

    transfer: TransferId
    blocks: int
    """Leading blocks of the request's chain that are resident when it has come."""
    until_ns: Nanos
    """Then it waits no longer."""


TransferOrder: TypeAlias = (
    PrepareSource | PrepareTarget | BeginCopy | BeginSend | Confirm | Publish | Finalize | AbortTransfer
)
TransferAnswer: TypeAlias = (
    SourcePrepared | TargetPrepared | TransferRefused | Copied | Confirmed | Published | TransferEnded
)


@attrs.frozen
class TransferAsked:
    """An operator wants one: from an ingress to control."""

    number: int
    source: Rank
    target: Rank
    mode: TransferMode
    means: CopyMeans
    chain: bytes
    first: int
    copy_ns: Nanos
    """How long the copy may take."""
    lease_ns: Nanos
    """How long the target keeps it for its first use; 0: no lease."""


class TransferDenial(Enum):
    """Why control does not even begin a transfer."""

    RANK_ABSENT = "rank absent"
    """Down, or not in a state to take part."""
    SAME_RANK = "same rank"
    SOURCE_BUSY = "source busy"
    """It is the source of another transfer."""
    TARGET_BUSY = "target busy"
    NOTHING_WANTED = "nothing wanted"
    TOO_LONG = "too long"


@attrs.frozen
class TransferDecided:
    """The transfer has begun, or why not."""

    number: int
    transfer: TransferId | None
    denial: TransferDenial | None


@attrs.frozen
class TransferShown:
    """One transfer, as control tells of it."""

    transfer: TransferId
    source: Rank
    target: Rank
    mode: TransferMode
    blocks: int
    """That were asked for; the target may have had some."""
    phase: str
    """`specs/transfer.md`"""
    outcome: str
    """Empty while it may yet be published."""
    cause: str
    """Of a failure, in the words of the side where it began; empty where control knows more than a side."""
    copy_ns: Nanos | None
    """From the order to copy to its completion, by the target. None: it is not copied."""
    took_ns: Nanos | None
    """From the orders to prepare until control heard that it is published. None: it is not."""


@attrs.frozen
class PlacedShown:
    """A transfer that control has begun of its own accord, with what was predicted."""

    transfer: TransferId
    occasion: str
    """`specs/placement.md`, as are the gates."""
    source: Rank
    target: Rank
    blocks: int
    began_ns: Nanos
    median_ns: float
    p95_ns: float
    saved_ns: float
    rent_ns: float
    """Of that, what others lose."""
    outcome: str
    """Empty: it is under way."""
    took_ns: Nanos | None
    """Until it was published; None if it was not."""


@attrs.frozen
class RefusedShown:
    """The last of equal refusals."""

    at_ns: Nanos
    reason: str
    """With all terms, in words."""
    times: int


@attrs.frozen
class PlacementShown:
    """Counts are of this life of control."""

    admitted: tuple[tuple[str, int], ...]
    """By occasion, as are the blocks."""
    refused: tuple[tuple[str, str, int], ...]
    """By occasion and gate; those that are not 0."""
    blocks: tuple[tuple[str, int], ...]
    """Of those that were published."""
    observed: int
    """Predictions that were compared with what the transfer took."""
    observed_ns: float
    error_ns: float
    """Sum of the distances from the median."""
    over_median: int
    over_p95: int
    placed: tuple[PlacedShown, ...]
    """The last few, newest first, as are the refusals."""
    refusals: tuple[RefusedShown, ...]


@attrs.frozen
class TransfersShown:
    """Part of `StateReported`. Counts are of this life of control."""

    under_way: tuple[TransferShown, ...]
    over: tuple[TransferShown, ...]
    """The last few, newest last."""
    outcomes: tuple[tuple[str, int], ...]
    refusals: tuple[tuple[str, int], ...]
    """By reason: of control, which begins nothing then, and of sides."""
    blocks: int
    """Of all that were published, as are the next two."""
    size_bytes: int
    copy_ns: int
    placement: PlacementShown | None
    """None: control begins none of its own accord."""
