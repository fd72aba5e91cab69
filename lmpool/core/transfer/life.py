"""The life of a transfer, as each of its three parties sees it: three enums, three tables.

`specs/transfer.md` has the same tables for people. What is absent is a repeat or comes late, and changes nothing.
"""

from enum import Enum


class SourceState(Enum):
    HELD = "held"
    """The chain is pinned; a target may read it."""
    SENDING = "sending"
    """The driver reads it."""
    SENT = "sent"
    """Pinned still, until control has heard of the target."""
    ENDING = "ending"
    """It is off, but the driver may still read: the pins stay."""
    ENDED = "ended"


class SourceEvent(Enum):
    SEND_ORDERED = "send ordered"
    SENT = "sent"
    SEND_FAILED = "send failed"
    CONFIRM_ASKED = "confirm asked"
    FINALIZED = "finalized"
    ABORTED = "aborted"
    EXPIRED = "expired"
    YIELDED = "yielded"
    CONTROL_LOST = "control lost"


class TargetState(Enum):
    RESERVED = "reserved"
    """Blocks are reserved and the path before them is pinned."""
    COPYING = "copying"
    """The driver writes them."""
    COPIED = "copied"
    """Nothing touches them; whether they are right is known to the source alone."""
    ABORTING = "aborting"
    """It is off, but the driver may still write: the blocks stay out of use."""
    PUBLISHED = "published"
    ENDED = "ended"


class TargetEvent(Enum):
    COPY_ORDERED = "copy ordered"
    COPIED = "copied"
    COPY_FAILED = "copy failed"
    PUBLISH_ORDERED = "publish ordered"
    ABORTED = "aborted"
    EXPIRED = "expired"
    YIELDED = "yielded"
    CONTROL_LOST = "control lost"


class TransferState(Enum):
    """As control sees it."""

    PREPARING = "preparing"
    COPYING = "copying"
    CONFIRMING = "confirming"
    PUBLISHING = "publishing"
    FINALIZING = "finalizing"
    ABORTING = "aborting"
    """Until neither side holds anything."""
    ENDED = "ended"


class TransferEvent(Enum):
    PREPARED = "prepared"
    """By both sides."""
    COPIED = "copied"
    CONFIRMED = "confirmed"
    PUBLISHED = "published"
    SOURCE_ENDED = "source ended"
    """It refused, said that it holds nothing, or its link is down."""
    TARGET_ENDED = "target ended"
    CANCELLED = "cancelled"
    LATE = "late"
    """The deadline of the phase has passed."""
    CLOSED = "closed"
    """Neither side holds anything."""


_S = SourceState
_SE = SourceEvent
SOURCE_TRANSITIONS: dict[SourceState, dict[SourceEvent, SourceState]] = {
    _S.HELD: {
        _SE.SEND_ORDERED: _S.SENDING,
        _SE.CONFIRM_ASKED: _S.HELD,
        _SE.FINALIZED: _S.ENDED,
        _SE.ABORTED: _S.ENDED,
        _SE.EXPIRED: _S.ENDED,
        _SE.YIELDED: _S.ENDED,
        _SE.CONTROL_LOST: _S.ENDED,
    },
    _S.SENDING: {
        _SE.SENT: _S.SENT,
        _SE.SEND_FAILED: _S.ENDED,
        _SE.CONFIRM_ASKED: _S.SENDING,
        _SE.FINALIZED: _S.ENDING,
        _SE.ABORTED: _S.ENDING,
        _SE.EXPIRED: _S.ENDING,
        _SE.YIELDED: _S.ENDING,
        _SE.CONTROL_LOST: _S.ENDING,
    },
    _S.SENT: {
        _SE.CONFIRM_ASKED: _S.SENT,
        _SE.FINALIZED: _S.ENDED,
        _SE.ABORTED: _S.ENDED,
        _SE.EXPIRED: _S.ENDED,
        _SE.YIELDED: _S.ENDED,
        _SE.CONTROL_LOST: _S.ENDED,
    },
    _S.ENDING: {_SE.SENT: _S.ENDED, _SE.SEND_FAILED: _S.ENDED},
    _S.ENDED: {},
}

_T = TargetState
_TE = TargetEvent
TARGET_TRANSITIONS: dict[TargetState, dict[TargetEvent, TargetState]] = {
    _T.RESERVED: {
        _TE.COPY_ORDERED: _T.COPYING,
        _TE.ABORTED: _T.ENDED,
        _TE.EXPIRED: _T.ENDED,
        _TE.YIELDED: _T.ENDED,
        _TE.CONTROL_LOST: _T.ENDED,
    },
    _T.COPYING: {
        _TE.COPIED: _T.COPIED,
        _TE.COPY_FAILED: _T.ENDED,
        _TE.ABORTED: _T.ABORTING,
        _TE.EXPIRED: _T.ABORTING,
        _TE.YIELDED: _T.ABORTING,
        _TE.CONTROL_LOST: _T.ABORTING,
    },
    _T.COPIED: {
        _TE.PUBLISH_ORDERED: _T.PUBLISHED,
        _TE.ABORTED: _T.ENDED,
        _TE.EXPIRED: _T.ENDED,
        _TE.YIELDED: _T.ENDED,
        _TE.CONTROL_LOST: _T.ENDED,
    },
    _T.ABORTING: {_TE.COPIED: _T.ENDED, _TE.COPY_FAILED: _T.ENDED},
    _T.PUBLISHED: {},
    _T.ENDED: {},
}

_C = TransferState
_CE = TransferEvent
_FAILURES = dict.fromkeys((_CE.SOURCE_ENDED, _CE.TARGET_ENDED, _CE.CANCELLED, _CE.LATE), _C.ABORTING)
TRANSFER_TRANSITIONS: dict[TransferState, dict[TransferEvent, TransferState]] = {
    _C.PREPARING: {_CE.PREPARED: _C.COPYING, **_FAILURES},
    _C.COPYING: {_CE.COPIED: _C.CONFIRMING, **_FAILURES},
    _C.CONFIRMING: {_CE.CONFIRMED: _C.PUBLISHING, **_FAILURES},
    _C.PUBLISHING: {
        _CE.PUBLISHED: _C.FINALIZING,
        _CE.TARGET_ENDED: _C.ABORTING,
        _CE.LATE: _C.ABORTING,
    },
    _C.FINALIZING: {_CE.SOURCE_ENDED: _C.ENDED, _CE.LATE: _C.ENDED},
    _C.ABORTING: {_CE.CLOSED: _C.ENDED, _CE.LATE: _C.ENDED},
    _C.ENDED: {},
}
"""Once the publication is ordered nothing but the target decides: what it has published stays."""
