"""All transfers from control's side: those that an operator orders and those that placement proposes."""

from collections.abc import Mapping, Sequence

import attrs

from lmpool.core.booking import Placement
from lmpool.core.fleet import Lineup, RankView, RouteView
from lmpool.core.ids import SECOND, Nanos, Peer, Rank, TransferId
from lmpool.core.ledger import Ledger
from lmpool.core.messages.ingress_control import RouteDecided
from lmpool.core.messages.transfer import (
    Awaited,
    CopyMeans,
    TransferAsked,
    TransferDecided,
    TransferDenial,
    TransfersShown,
)
from lmpool.core.messages.worker_control import FullReport, Report
from lmpool.core.page_table import PageTable
from lmpool.core.placement.fetch import Giver, with_pulls
from lmpool.core.placement.occasions import Site, site_of
from lmpool.core.placement.placer import Placer
from lmpool.core.placement.price import Pair, TransferProfile
from lmpool.core.placement.proposal import Gate, PlacementSettings, Proposal
from lmpool.core.route import FindPulls, Pulls, Ruling
from lmpool.core.transfer.outbound import COPY_SHARE
from lmpool.core.transfer.tally import TransferTally
from lmpool.core.transfer.transfers import TransferOutcome, Transfers, TransferTerms

PULL_LEASE_NS = Nanos(2 * SECOND)
"""What a pull brings is kept so long for a request that comes to its rank after it: a message takes a millisecond."""


@attrs.frozen
class PlacementRules:
    """With these control begins transfers by itself."""

    settings: PlacementSettings
    profile: TransferProfile
    pairs: tuple[Pair, ...]
    """Of which the target can read the source's pool."""


class Carrier:
    """Owned by the control plane, as are the transfers."""

    __slots__ = ("_awaiting", "_placer", "_transfers", "tally")

    def __init__(self, transfers: Transfers, rules: PlacementRules | None, records_kept: int, now: Nanos) -> None:
        """Without rules only operators order transfers."""
        self._transfers = transfers
        self.tally = TransferTally()
        self._awaiting: dict[TransferId, list[Placement]] = {}
        """Of requests that await it, as they are placed if it does not come."""
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

    def report(self, now: Nanos, rank: Rank, report: Report | FullReport) -> None:
        """A rank has told how it stands."""
        if self._placer is not None:
            self._placer.report(now, rank, report)

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

    # Pulls on route

    @property
    def find_pulls(self) -> FindPulls | None:
        """None: nothing is placed."""
        return None if self._placer is None else self._find_pulls

    def _find_pulls(self, view: RouteView, lineup: Lineup, depths: Mapping[int, int]) -> Pulls | None:
        assert self._placer is not None
        if max(depths.values()) <= min(view.ready):
            return None
        givers = [
            Giver(rank.rank, rank.epoch, min(depths[rank.holder], rank.blocks // COPY_SHARE))
            for rank in (*lineup.eligible, *lineup.leaving)
        ]
        proposals = self._placer.fetches(view, givers)
        for proposal in proposals:
            if proposal is not None and proposal.joins is not None and not self._may_come(proposal.joins):
                proposal.gate = Gate.CHAIN_TAKEN
        uncached, waits = with_pulls(view, proposals)
        admitted = [None if pull is None or pull.gate is not None else pull for pull in proposals]
        fetch_ns = [0.0 if pull is None else pull.arrives_ns for pull in admitted]
        rent_ns = [0.0 if pull is None else pull.rent_ns for pull in admitted]
        return Pulls(proposals, uncached, waits, fetch_ns, rent_ns)

    def _may_come(self, transfer: TransferId) -> bool:
        under_way = self._transfers.get(transfer)
        return under_way is not None and under_way.outcome in (None, TransferOutcome.PUBLISHED)

    def fetch(self, now: Nanos, ruling: Ruling) -> Ruling:
        """Begins or joins the transfer of what the chosen rank is to be sent, for its request to await."""
        pull = ruling.pull
        if pull is None:
            return ruling
        assert self._placer is not None
        transfer = pull.joins
        if pull.gate is None and transfer is None:
            terms = attrs.evolve(self._placer.terms(pull), lease_ns=PULL_LEASE_NS)
            begun = self._transfers.begin(now, terms)
            if isinstance(begun, TransferDenial):  # an operator's transfer has one of the ranks
                pull.gate = Gate.RANK_BUSY
            else:
                self._placer.begin(now, begun, pull)
                transfer = begun
        if pull.gate is not None or transfer is None:
            self._placer.refuse(now, pull)
            return ruling
        return self._awaiting_ruling(now, ruling, pull, transfer)

    def _awaiting_ruling(self, now: Nanos, ruling: Ruling, pull: Proposal, transfer: TransferId) -> Ruling:
        """It waits at most so much longer than is predicted as computing would take."""
        placement, answer, under_way = ruling.placement, ruling.answer, self._transfers.get(transfer)
        assert placement is not None
        assert isinstance(answer, RouteDecided)
        assert under_way is not None
        blocks = pull.first + pull.blocks
        until = min(Nanos(now + int(ruling.wait_ns + pull.prefill_ns)), under_way.deadline_ns)
        self._awaiting.setdefault(transfer, []).append(placement)
        known = placement.ready_tokens + placement.arriving_tokens
        ready = blocks * placement.block_size
        arriving = max(known - ready, 0)
        writer = placement.writer if arriving else None
        return Ruling(
            attrs.evolve(answer, awaits=Awaited(transfer, blocks, until)),
            attrs.evolve(placement, ready_tokens=ready, arriving_tokens=arriving, writer=writer),
            pull,
            ruling.wait_ns,
        )

    def next_deadline(self) -> Nanos | None:
        """Of the next planning."""
        return None if self._placer is None else self._placer.next_deadline()

    def count_ended(self, now: Nanos, ledger: Ledger) -> None:
        """To be called whenever transfers may have ended."""
        for ended in self._transfers.take_ended():
            self.tally.end(ended)
            awaiting = self._awaiting.pop(ended.id, [])
            if ended.outcome is not TransferOutcome.PUBLISHED:
                for placement in awaiting:
                    ledger.miss(placement)
            if self._placer is not None:
                self._placer.end(now, ended)

    # What is told

    def shown(self) -> TransfersShown:
        return self.tally.shown(self._transfers, None if self._placer is None else self._placer.shown())

    def audit(self) -> None:
        if self._placer is not None:
            self._placer.audit()

    def digest_state(self) -> str:
        placer = "" if self._placer is None else repr((self._placer.digest_state(), self._awaiting))
        return repr((self.tally.digest_state(), placer))


def _terms(asked: TransferAsked, source: Peer, target: Peer) -> TransferTerms:
    return TransferTerms(
        source, target, asked.mode, asked.means, asked.chain, asked.first, asked.copy_ns, asked.lease_ns
    )


def _site(now: Nanos, view: RankView, *, is_draining: bool) -> Site:
    """Its wait is that of a request that finds blocks and a place."""
    elapsed = min(now - view.step_began_ns, view.step_cost_ns)
    return site_of(view, view.pending_ns - elapsed, is_draining=is_draining)
