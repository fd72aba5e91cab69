"""Bugs of transfers, for `planted_bugs.py`: each breaks one law of `specs/transfer.md`."""

from typing import Any

import attrs
import pytest

from lmpool.core.block_pool import BlockPool
from lmpool.core.carrier import Carrier
from lmpool.core.effects import CopyEffect
from lmpool.core.fleet import RankView
from lmpool.core.ids import Nanos, Peer, StepNumber, TransferId
from lmpool.core.membership import Draining, Live
from lmpool.core.messages.ingress_control import RouteDecided
from lmpool.core.messages.transfer import (
    AbortTransfer,
    Awaited,
    BeginCopy,
    Confirm,
    Confirmed,
    Copied,
    SourcePrepared,
    TransferEnd,
    TransferMode,
    TransferOrder,
)
from lmpool.core.reservation import Reservation
from lmpool.core.roster import Roster
from lmpool.core.route import Ruling
from lmpool.core.transfer.exchange import Exchange
from lmpool.core.transfer.inbound import TargetSide
from lmpool.core.transfer.leases import Leases
from lmpool.core.transfer.life import (
    TARGET_TRANSITIONS,
    TRANSFER_TRANSITIONS,
    TargetEvent,
    TargetState,
    TransferEvent,
    TransferState,
)
from lmpool.core.transfer.outbound import SourceSide
from lmpool.core.transfer.transfers import Transfer, Transfers
from lmpool.core.transfer.waiters import Waiters

Patch = pytest.MonkeyPatch


def published_without_confirmation(patch: Patch) -> None:
    """What is copied is published, and nobody asks the source."""
    patch.setitem(TRANSFER_TRANSITIONS[TransferState.COPYING], TransferEvent.COPIED, TransferState.PUBLISHING)


def copied_before_it_is(patch: Patch) -> None:
    """A target says that all has come as soon as it is told to copy."""
    copy = TargetSide.copy

    def hasty(self: TargetSide, now: Nanos, order: BeginCopy) -> list[CopyEffect]:
        effects = copy(self, now, order)
        if effects:
            self.copied = Copied(self.transfer, 0, Nanos(0))
        return effects

    patch.setattr(TargetSide, "copy", hasty)


def confirmed_after_letting_go(patch: Patch) -> None:
    """A source whose pins are gone confirms all the same."""
    hear = Exchange.hear

    def agree(self: Exchange, now: Nanos, peer: Peer, order: TransferOrder) -> None:
        if isinstance(order, Confirm) and self.side(order.transfer) is None:
            self._say(Confirmed(order.transfer))
        else:
            hear(self, now, peer, order)

    patch.setattr(Exchange, "hear", agree)


def aborted_copy_frees_at_once(patch: Patch) -> None:
    """Blocks of a copy that is off are free while the driver still writes them."""
    for event in (TargetEvent.ABORTED, TargetEvent.EXPIRED, TargetEvent.YIELDED, TargetEvent.CONTROL_LOST):
        patch.setitem(TARGET_TRANSITIONS[TargetState.COPYING], event, TargetState.ENDED)


def sender_lets_go_at_once(patch: Patch) -> None:
    """A source that is told to end unpins what its driver still sends."""
    stop = SourceSide.stop

    def let_go(self: SourceSide, end: TransferEnd) -> list[CopyEffect]:
        effects = stop(self, end)
        if effects:
            self._pool.release(self._blocks, StepNumber(0))
            self._blocks = []
        return effects

    patch.setattr(SourceSide, "stop", let_go)


def aborting_for_ever(patch: Patch) -> None:
    """The driver's last word about a copy that is off frees nothing."""
    patch.setattr(BlockPool, "end_abort", lambda *_: None)


def released_twice(patch: Patch) -> None:
    """A reservation that ends unpins its path a second time."""
    release_reserved = BlockPool.release_reserved

    def twice(self: BlockPool, reservation: Reservation) -> None:
        release_reserved(self, reservation)
        self._let_go([block for block in reservation.path if self.pins(block)])

    patch.setattr(BlockPool, "release_reserved", twice)


def failed_copy_is_resident(patch: Patch) -> None:
    """A copy that failed is taken for one that is complete."""

    def fail_copy(self: TargetSide, _: TransferEnd) -> None:
        self.end_copy(Nanos(0), len(self._reservation.blocks), 0)

    patch.setattr(TargetSide, "fail_copy", fail_copy)


def side_without_deadline(patch: Patch) -> None:
    """A side waits for control, whatever time it is."""

    def expire(self: Exchange, now: Nanos) -> None:
        self._leases.expire(now)
        self.waiters.expire(now)

    patch.setattr(Exchange, "expire", expire)


def plan_without_deadline(patch: Patch) -> None:
    """Control waits for its sides for ever."""
    patch.setattr(Transfers, "tick", lambda *_: None)
    patch.setattr(Transfers, "next_deadline", lambda _: None)


def abort_spares_who_has_not_answered(patch: Patch) -> None:
    """Control tells only those of an abort that have prepared."""
    say = Transfers._say

    def tell(self: Transfers, peer: Peer, order: TransferOrder) -> None:
        transfer = self.get(order.transfer)
        assert transfer is not None
        has_answered = transfer.target_prepared if peer == transfer.terms.target else transfer.source_prepared
        if has_answered is not None or not isinstance(order, AbortTransfer):
            say(self, peer, order)

    patch.setattr(Transfers, "_say", tell)


def pins_of_a_source_are_lost(patch: Patch) -> None:
    """A source that has given what was wanted of it keeps its pins."""
    let_go = SourceSide._let_go

    def keep(self: SourceSide) -> None:
        if self.end is not TransferEnd.FINALIZED:
            let_go(self)

    patch.setattr(SourceSide, "_let_go", keep)


def move_frees_when_it_is_off(patch: Patch) -> None:
    """A move that was aborted frees its source."""
    let_go = SourceSide._let_go

    def free(self: SourceSide) -> None:
        let_go(self)
        if self._order.mode is TransferMode.MOVE and self.end is TransferEnd.ABORTED:
            self._freed = self._pool.shed(self._blocks[self._order.first :])

    patch.setattr(SourceSide, "_let_go", free)


def waiter_is_not_told_of_an_end(patch: Patch) -> None:
    """Who waits for a transfer that is off waits until its own moment."""
    patch.setattr(Waiters, "miss", lambda *_: None)


def waiter_without_a_moment(patch: Patch) -> None:
    """Who waits for a transfer waits as long as that takes."""
    patch.setattr(Waiters, "expire", lambda *_: None)
    patch.setattr(Waiters, "next_deadline", lambda _: None)


def woken_for_nothing(patch: Patch) -> None:
    """Who waited and whose request has ended is still counted on."""
    patch.setattr(Exchange, "leave", lambda *_: None)


def lease_for_ever(patch: Patch) -> None:
    """A lease ends with its first use alone."""
    patch.setattr(Leases, "expire", lambda *_: None)
    patch.setattr(Leases, "next_deadline", lambda _: None)


def blocks_arrive_in_another_order(patch: Patch) -> None:
    """Control tells of the source's blocks from the last to the first."""
    begin_copy = Transfers._begin_copy

    def backwards(self: Transfers, transfer: Transfer) -> None:
        source = transfer.source_prepared
        assert source is not None
        transfer.source_prepared = SourcePrepared(source.transfer, source.blocks[::-1], source.generations[::-1])
        begin_copy(self, transfer)
        transfer.source_prepared = source

    patch.setattr(Transfers, "_begin_copy", backwards)


def nobody_ends_with_its_control(patch: Patch) -> None:
    """A rank that loses its control goes on with what that has ordered."""

    def lose_control(self: Exchange) -> None:
        self._control = None

    patch.setattr(Exchange, "lose_control", lose_control)


def busy_rank_takes_another(patch: Patch) -> None:
    """Control begins a transfer without a look at those under way."""
    why_not = Transfers._why_not

    def careless(self: Transfers, terms: Any) -> Any:
        under_way: dict[TransferId, Transfer] = self._transfers
        self._transfers = {}
        denial = why_not(self, terms)
        self._transfers = under_way
        return denial

    patch.setattr(Transfers, "_why_not", careless)


def planning_hides_renewed_views(patch: Patch) -> None:
    """A planning renews views of ranks, so that the next route does not see that its own are old."""

    def givers(self: Roster) -> list[tuple[RankView, bool]]:
        return [
            (self._view(member), isinstance(member.state, Draining))
            for member in self._members
            if isinstance(member.state, Live | Draining) and member.has_reported
        ]

    patch.setattr(Roster, "givers", givers)


def promised_more_than_comes(patch: Patch) -> None:
    """A request is to wait for a block more than the transfer brings."""
    fetch = Carrier.fetch

    def generous(self: Carrier, now: Nanos, ruling: Ruling) -> Ruling:
        ruled = fetch(self, now, ruling)
        match ruled.answer:
            case RouteDecided(awaits=Awaited() as awaits):
                more = attrs.evolve(awaits, blocks=awaits.blocks + 1)
                return attrs.evolve(ruled, answer=attrs.evolve(ruled.answer, awaits=more))
            case _:
                return ruled

    patch.setattr(Carrier, "fetch", generous)


def joined_on_the_way_elsewhere(patch: Patch) -> None:
    """A request is to wait for blocks that are on their way to another rank."""
    fetch = Carrier.fetch

    def misled(self: Carrier, now: Nanos, ruling: Ruling) -> Ruling:
        ruled = fetch(self, now, ruling)
        match ruled.answer:
            case RouteDecided(awaits=None, rank=rank):
                others = [plan for plan in self._transfers.under_way() if plan.terms.target.rank != rank]
                promise = Awaited(others[0].id, 1, others[0].deadline_ns) if others else None
                return attrs.evolve(ruled, answer=attrs.evolve(ruled.answer, awaits=promise))
            case _:
                return ruled

    patch.setattr(Carrier, "fetch", misled)
