"""What placement remembers: demand, prices, transfers under way, what cools, and what came of all of it.

Owned by control, which begins what is admitted and tells how it ended.
"""

from collections.abc import Mapping, Sequence

import attrs

from lmpool.core.fleet import RouteView
from lmpool.core.ids import SECOND, BlockHash, Epoch, Nanos, Peer, Rank, Role, TransferId
from lmpool.core.ledger import Ledger
from lmpool.core.messages.transfer import CopyMeans, PlacementShown, TransferRefusal
from lmpool.core.messages.worker_control import FullReport, Report
from lmpool.core.page_table import PageTable
from lmpool.core.placement.demand import FADE_NS, Demand, HotChain
from lmpool.core.placement.fetch import Giver, fetches
from lmpool.core.placement.log import TransferLog
from lmpool.core.placement.occasions import HeldChain, PlacementView, Site, propose
from lmpool.core.placement.price import Pair, TransferPrices, TransferProfile
from lmpool.core.placement.proposal import Conditions, Gate, PlacementSettings, Proposal, Underway
from lmpool.core.placement.rent import Rents
from lmpool.core.prefix import HASH_BYTES, chain_length
from lmpool.core.transfer.transfers import Transfer, TransferOutcome, TransferTerms

UNTIL_ONE_ENDS = (Gate.CHAIN_TAKEN, Gate.RANK_BUSY, Gate.TOO_MANY)
WAIT_WEIGHT = 1 / 8
"""Of a new wait, a whole pause after the last, against all before it: a queue counts when it has lasted some plannings,
not while one prompt runs."""
COPY_PATIENCE = 8.0
COPY_NS_MIN = 2 * SECOND
"""A copy may take so many times the P95 of its whole transfer, and not less than this: a deadline is for what hangs."""
FAILURES_MAX = 4
"""Doublings of a chain's pause."""
COOLING_MAX = 1024
"""Parts of chains that cool; the oldest are forgotten first."""

OF_THE_CHAIN = (TransferRefusal.CHAIN_MISSING, TransferRefusal.ANCHOR_MISSING, TransferRefusal.ALREADY_RESIDENT)
"""Refusals that say nothing about other chains of the same rank."""


@attrs.define
class Cooling:
    """A part of a chain that was sent, or not, to one rank."""

    until: Nanos
    failures: int
    """In a row."""


@attrs.define
class LeaseGranted:
    """As far as control can tell: the worker ends it by itself, and earlier under shortage."""

    rank: Rank
    epoch: Epoch
    blocks: int
    until: Nanos


class Placer:
    __slots__ = (
        "_active_until",
        "_chains",
        "_demand",
        "_is_held_up",
        "_known",
        "_leases",
        "_next",
        "_paths",
        "_planned",
        "_prices",
        "_ranks",
        "_rents",
        "_settings",
        "_underway",
        "_waits",
        "log",
    )

    def __init__(
        self,
        settings: PlacementSettings,
        profile: TransferProfile,
        paths: Mapping[Pair, CopyMeans],
        records_kept: int,
        now: Nanos,
    ) -> None:
        self._settings = settings
        self._prices = TransferPrices(profile)
        self._paths = paths
        self._demand = Demand()
        self._waits: dict[Rank, float] = {}
        self._underway: dict[TransferId, Underway] = {}
        self._chains: dict[tuple[BlockHash, Rank], Cooling] = {}
        self._ranks: dict[Rank, Nanos] = {}
        self._leases: dict[tuple[BlockHash, Rank], LeaseGranted] = {}
        self._rents = Rents()
        self._known: Conditions | None = None
        """No part of the state."""
        self._next = now
        self._planned = now
        self._is_held_up = False
        """The last planning refused what may be admitted when a transfer is over."""
        self._active_until = now
        self.log = TransferLog(records_kept)

    @property
    def prices(self) -> TransferPrices:
        return self._prices

    def note(self, now: Nanos, chain: bytes) -> None:
        """A request has come, for the first time."""
        self._demand.note(now, chain)
        self.wake(now)

    def wake(self, now: Nanos) -> None:
        """Plannings go on for a while: something has come, or a rank is to stop."""
        self._active_until = Nanos(now + FADE_NS)

    def report(self, now: Nanos, rank: Rank, report: Report | FullReport) -> None:
        """A rank has told how it stands."""
        if isinstance(report, Report):
            self._rents.count(now, rank, report.totals.tokens_cached, report.removed)
        else:
            self._rents.begin(now, rank, report.totals.tokens_cached)

    def next_deadline(self) -> Nanos | None:
        """Of the next planning. None: nothing has been asked for lately."""
        return self._next if self._next <= self._active_until else None

    # Proposals

    def fetches(self, view: RouteView, givers: Sequence[Giver]) -> list[Proposal | None]:
        """For each rank of the view: what it could be sent instead of computing it."""
        return fetches(view, givers, self._settings, self._prices, self._conditions())

    def plan(self, now: Nanos, sites: Sequence[Site], table: PageTable, ledger: Ledger) -> tuple[Proposal, ...]:
        """What to begin now; empty before the next deadline. Sites are live and draining ranks, by number."""
        if now < self._next or self._next > self._active_until:
            return ()
        elapsed, self._planned = now - self._planned, now
        self._next = Nanos(now + self._settings.pause_ns)
        self._prices.forget(now)
        self._end_leases(now)
        sites = self._smoothed(sites, elapsed)
        hot = self._demand.hottest(now, self._settings.chains_max)
        chains = [self._held(chain, sites, table, ledger) for chain in hot]
        proposals = propose(PlacementView(now, sites, chains, self._conditions()), self._settings, self._prices)
        refused = [proposal for proposal in proposals if proposal.gate is not None]
        for proposal in refused:
            self.log.refuse(now, proposal)
        self._is_held_up = any(proposal.gate in UNTIL_ONE_ENDS for proposal in refused)
        return tuple([proposal for proposal in proposals if proposal.gate is None])

    def _smoothed(self, sites: Sequence[Site], elapsed: int) -> list[Site]:
        pause = self._settings.pause_ns
        weight = WAIT_WEIGHT if elapsed >= pause else WAIT_WEIGHT * elapsed / pause
        kept = {site.rank: self._waits.get(site.rank, site.wait_ns) for site in sites}
        self._waits = {site.rank: kept[site.rank] + (site.wait_ns - kept[site.rank]) * weight for site in sites}
        return [attrs.evolve(site, wait_ns=self._waits[site.rank]) for site in sites]

    def _held(self, hot: HotChain, sites: Sequence[Site], table: PageTable, ledger: Ledger) -> HeldChain:
        found = table.depths(hot.chain, sum(site.holder for site in sites))
        depths = [found[site.holder] for site in sites]
        arriving, writers = ledger.arriving(hot.chain, [site.rank for site in sites], depths)
        begins_ns = [
            0.0 if writer is None else ledger.tokens_before(writer) * site.rates.prefill
            for site, writer in zip(sites, writers, strict=True)
        ]
        return HeldChain(hot, depths, arriving, begins_ns)

    def _conditions(self) -> Conditions:
        """Kept until something changes: every route asks for it."""
        if self._known is None:
            leased: dict[Rank, int] = {}
            for lease in self._leases.values():
                leased[lease.rank] = leased.get(lease.rank, 0) + lease.blocks
            self._known = Conditions(
                self._paths,
                tuple(self._underway.values()),
                {key: cooling.until for key, cooling in self._chains.items()},
                self._ranks,
                leased,
                self._rents.tokens,
            )
        return self._known

    def _end_leases(self, now: Nanos) -> None:
        """Those whose deadline has passed."""
        if any(lease.until <= now for lease in self._leases.values()):
            self._leases = {key: lease for key, lease in self._leases.items() if lease.until > now}
            self._known = None

    # Transfers

    def terms(self, proposal: Proposal) -> TransferTerms:
        """Of an admitted one that joins no other."""
        assert proposal.gate is None
        assert proposal.joins is None
        source, target = (
            Peer(Role.WORKER, rank, epoch) for rank, epoch in zip(proposal.pair, proposal.epochs, strict=True)
        )
        copy_ns = Nanos(max(int(proposal.price.p95_ns * COPY_PATIENCE), COPY_NS_MIN))
        return TransferTerms(
            source,
            target,
            proposal.mode,
            proposal.means,
            proposal.chain,
            proposal.first,
            copy_ns,
            proposal.lease_ns,
        )

    def begin(self, now: Nanos, transfer: TransferId, proposal: Proposal) -> None:
        """Control has begun it."""
        self._underway[transfer] = Underway(
            transfer, proposal.pair, proposal.epochs, proposal.chain, now, proposal.price
        )
        self._known = None
        self.log.begin(now, transfer, proposal)

    def refuse(self, now: Nanos, proposal: Proposal) -> None:
        """The pull that the chosen rank of a request will not have."""
        self.log.refuse(now, proposal)

    def end(self, now: Nanos, ended: Transfer) -> None:
        """It is over. Harmless for transfers that nobody proposed here."""
        record = self.log.end(ended)
        if record is None:
            return
        del self._underway[ended.id]
        self._known = None
        proposal = record.proposal
        pair, last = proposal.pair, proposal.last
        earlier = self._chains.pop((last, pair.target), None)
        failures = 0
        if record.took_ns is not None:
            if self._is_held_up:
                self._next = min(self._next, now)
            assert ended.target_prepared is not None
            # of what was not resident there by then
            self._prices.observe(now, pair, ended.target_prepared.blocks, proposal.price, record.took_ns)
            if proposal.lease_ns:
                self._lease(now, proposal)
        elif ended.outcome is not TransferOutcome.CANCELLED:
            failures = 1 if earlier is None else min(earlier.failures + 1, FAILURES_MAX)
            if ended.cause not in OF_THE_CHAIN:
                for rank in pair:
                    self._ranks[rank] = Nanos(now + self._settings.rank_pause_ns)
        until = Nanos(now + (self._settings.chain_pause_ns << failures))
        self._chains[last, pair.target] = Cooling(until, failures)
        if len(self._chains) > COOLING_MAX:
            del self._chains[next(iter(self._chains))]

    def _lease(self, now: Nanos, proposal: Proposal) -> None:
        target, blocks = proposal.pair.target, chain_length(proposal.chain)
        until = Nanos(now + proposal.lease_ns)
        self._end_leases(now)
        self._leases[proposal.last, target] = LeaseGranted(target, proposal.epochs[1], blocks, until)

    def route(self, rank: Rank, chain: bytes) -> None:
        """A request goes to a rank: its leases on this chain are used with it."""
        for key, lease in list(self._leases.items()):
            if lease.rank == rank and chain[(lease.blocks - 1) * HASH_BYTES : lease.blocks * HASH_BYTES] == key[0]:
                del self._leases[key]
                self._known = None

    def lose_rank(self, rank: Rank) -> None:
        """A life of it is over. Its transfers end as control says."""
        self._leases = {key: lease for key, lease in self._leases.items() if lease.rank != rank}
        self._waits.pop(rank, None)
        self._ranks.pop(rank, None)
        self._rents.lose(rank)
        self._known = None

    # What is told

    def shown(self) -> PlacementShown:
        return self.log.shown(self._prices.errors)

    def audit(self) -> None:
        """Asserts bounds, and that a rank is the source of one transfer and the target of one."""
        self._demand.audit()
        self._prices.audit()
        kept, self._known = self._known, None
        assert kept is None or kept == self._conditions()
        for side in (0, 1):
            ranks = [underway.pair[side] for underway in self._underway.values()]
            assert len(ranks) == len(dict.fromkeys(ranks))
        assert len(self._underway) <= self._settings.transfers_max
        assert len(self._chains) <= COOLING_MAX

    def digest_state(self) -> str:
        return repr(
            (
                self._demand.digest_state(),
                self._prices.digest_state(),
                self._waits,
                self._underway,
                self._chains,
                self._ranks,
                self._leases,
                self._rents.digest_state(),
                self._next,
                self._planned,
                self._is_held_up,
                self._active_until,
                self.log.digest_state(),
            )
        )
