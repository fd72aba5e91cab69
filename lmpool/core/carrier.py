"""All transfers from control's side: those that an operator orders and those that placement proposes."""

from collections.abc import Sequence

import attrs

from lmpool.core.fleet import RankView
from lmpool.core.ids import Nanos, Peer, Rank
from lmpool.core.ledger import Ledger
from lmpool.core.messages.transfer import (
    CopyMeans,
    TransferAsked,
    TransferDecided,
    TransferDenial,
    TransfersShown,
)
from lmpool.core.page_table import PageTable
from lmpool.core.placement import Site, site_of
from lmpool.core.placer import Placer
from lmpool.core.proposal import Gate, PlacementSettings
from lmpool.core.transfer_price import Pair, TransferProfile
from lmpool.core.transfer_tally import TransferTally
from lmpool.core.transfers import Transfers, TransferTerms


@attrs.frozen
class PlacementRules:
    """With these control begins transfers by itself."""

    settings: PlacementSettings
    profile: TransferProfile
    pairs: tuple[Pair, ...]
    """Of which the target can read the source's pool."""


class Carrier:
    """Owned by the control plane, as are the transfers."""

    __slots__ = ("_placer", "_transfers", "tally")

    def __init__(self, transfers: Transfers, rules: PlacementRules | None, records_kept: int, now: Nanos) -> None:
        """Without rules only operators order transfers."""
        self._transfers = transfers
        self.tally = TransferTally()
        self._placer: Placer | None = None
        if rules is not None:
            paths = dict.fromkeys(rules.pairs, CopyMeans.READ)
            self._placer = Placer(rules.settings, rules.profile, paths, records_kept, now)

    # What is observed

    def note(self, now: Nanos, chain: bytes) -> None:
        """A request has come, for the first time."""
        if self._placer is not None:
            self._placer.note(now, chain)

    def route(self, rank: Rank, chain: bytes) -> None:
        """It goes to this rank."""
        if self._placer is not None:
            self._placer.route(rank, chain)

    def drain(self, now: Nanos) -> None:
        """A rank is to stop."""
        if self._placer is not None:
            self._placer.wake(now)

    def keep(self, now: Nanos, rank: Rank, linked: Peer | None) -> None:
        """No life of the rank but this one has a link."""
        self._transfers.keep(now, rank, linked)
        if self._placer is not None:
            self._placer.lose_rank(rank)

    # What is begun

    def ask(self, now: Nanos, asked: TransferAsked, source: Peer | None, target: Peer | None) -> TransferDecided:
        """For an operator. None: that rank cannot take part."""
        begun = (
            TransferDenial.RANK_ABSENT
            if source is None or target is None
            else self._transfers.begin(now, _terms(asked, source, target))
        )
        if isinstance(begun, TransferDenial):
            self.tally.deny(begun)
            return TransferDecided(asked.number, None, begun)
        return TransferDecided(asked.number, begun, None)

    def is_due(self, now: Nanos) -> bool:
        """Whether it is time to plan."""
        due = self.next_deadline()
        return due is not None and now >= due

    def plan(self, now: Nanos, givers: Sequence[tuple[RankView, bool]], table: PageTable, ledger: Ledger) -> None:
        """Begins what is worth it. `givers`: ranks by number, and whether each is to stop."""
        assert self._placer is not None
        sites = [_site(now, view, is_draining=is_draining) for view, is_draining in givers]
        for proposal in self._placer.plan(now, sites, table, ledger):
            begun = self._transfers.begin(now, self._placer.terms(proposal))
            if isinstance(begun, TransferDenial):  # an operator's transfer has one of the ranks
                proposal.gate = Gate.RANK_BUSY
                self._placer.refuse(now, proposal)
            else:
                self._placer.begin(now, begun, proposal)

    def next_deadline(self) -> Nanos | None:
        """Of the next planning."""
        return None if self._placer is None else self._placer.next_deadline()

    def count_ended(self, now: Nanos) -> None:
        """To be called after every event."""
        for ended in self._transfers.take_ended():
            self.tally.end(ended)
            if self._placer is not None:
                self._placer.end(now, ended)

    # What is told

    def shown(self) -> TransfersShown:
        return self.tally.shown(self._transfers)

    def audit(self) -> None:
        if self._placer is not None:
            self._placer.audit()

    def digest_state(self) -> str:
        placer = "" if self._placer is None else self._placer.digest_state()
        return repr((self.tally.digest_state(), placer))


def _terms(asked: TransferAsked, source: Peer, target: Peer) -> TransferTerms:
    return TransferTerms(
        source, target, asked.mode, asked.means, asked.chain, asked.first, asked.copy_ns, asked.lease_ns
    )


def _site(now: Nanos, view: RankView, *, is_draining: bool) -> Site:
    """Its wait is that of a request that finds blocks and a place."""
    elapsed = min(now - view.step_began_ns, view.step_cost_ns)
    return site_of(view, view.pending_ns - elapsed, is_draining=is_draining)
