"""Whether a rank may be routed to. One value machine per rank; `specs/membership.md` is its table."""

from enum import Enum
from typing import TypeAlias, assert_never

import attrs

from lmpool.core.ids import Epoch, Nanos


@attrs.frozen
class Down:
    last: Epoch
    """Of its last life, 0 before the first: older links are stale."""


@attrs.frozen
class Joining:
    """Linked; its full report has not arrived completely."""

    epoch: Epoch


@attrs.frozen
class Rejected:
    """Linked, but it must not serve beside the others."""

    epoch: Epoch
    reason: str


@attrs.frozen
class Live:
    epoch: Epoch
    silent_at: Nanos
    """When silence makes it suspect."""


@attrs.frozen
class Suspect:
    epoch: Epoch


@attrs.frozen
class Draining:
    epoch: Epoch


Membership: TypeAlias = Down | Joining | Rejected | Live | Suspect | Draining

NAMES: dict[type[Membership], str] = {
    Down: "down",
    Joining: "joining",
    Rejected: "rejected",
    Live: "live",
    Suspect: "suspect",
    Draining: "draining",
}


@attrs.frozen
class Linked:
    epoch: Epoch


@attrs.frozen
class Unlinked:
    epoch: Epoch


@attrs.frozen
class Mismatched:
    """Its facts do not fit those of the first member."""

    reason: str


@attrs.frozen
class Complete:
    """A full report has arrived completely."""

    silent_at: Nanos


@attrs.frozen
class Heard:
    """Any other report."""

    silent_at: Nanos


@attrs.frozen
class Leaving:
    """It said that it takes nothing new."""


@attrs.frozen
class Elapsed:
    now: Nanos


MemberEvent: TypeAlias = Heard | Elapsed | Complete | Linked | Unlinked | Mismatched | Leaving


class MemberEffect(Enum):
    FORGET = "forget"
    """Everything that is known of the life before: hashes, bookings, rates."""


Step: TypeAlias = tuple[Membership, tuple[MemberEffect, ...]]


def epoch_of(state: Membership) -> Epoch | None:
    """The life that is linked."""
    return None if isinstance(state, Down) else state.epoch


def why_not(state: Membership) -> str:
    """Why it may not be routed to; empty if it may."""
    match state:
        case Live():
            return ""
        case Rejected(reason=reason):
            return reason
        case _:
            return NAMES[type(state)]


def is_stale(state: Membership, epoch: Epoch) -> bool:
    """Whether a link of this epoch belongs to a life that is over."""
    match state:
        case Down(last=last):
            return epoch < last
        case Joining() | Rejected() | Live() | Suspect() | Draining():
            return epoch < state.epoch
        case _:
            assert_never(state)


def step(state: Membership, event: MemberEvent) -> Step:
    """Events of another life than the linked one must not get here, except `Linked` (see `is_stale`)."""
    match event:
        case Linked(epoch=epoch):
            assert not is_stale(state, epoch)
            return Joining(epoch), () if isinstance(state, Down) else (MemberEffect.FORGET,)
        case Unlinked(epoch=epoch):
            assert epoch_of(state) == epoch
            return Down(epoch), (MemberEffect.FORGET,)
        case Heard() | Elapsed() | Complete() | Mismatched() | Leaving():
            return _within_life(state, event), ()
        case _:
            assert_never(event)


def _within_life(state: Membership, event: Heard | Elapsed | Complete | Mismatched | Leaving) -> Membership:
    assert not isinstance(state, Down)
    if isinstance(state, Draining | Rejected):
        return state
    match event:
        case Heard(silent_at=later):
            return state if isinstance(state, Joining) else Live(state.epoch, later)
        case Elapsed(now=now):
            return Suspect(state.epoch) if isinstance(state, Live) and now >= state.silent_at else state
        case Complete(silent_at=later):
            return Live(state.epoch, later)
        case Leaving():
            return Draining(state.epoch)
        case Mismatched(reason=reason):
            return Rejected(state.epoch, reason)
        case _:
            assert_never(event)
