"""The ranks of the pool and what each has reported: membership, versions, hashes and load."""

import attrs

from lmpool.core.booking import Placement
from lmpool.core.cost import smooth_rates
from lmpool.core.fleet import Lineup, RankView, line_up, view_rank, with_views
from lmpool.core.ids import Epoch, Nanos, Peer, Rank, RequestId
from lmpool.core.ledger import Ledger
from lmpool.core.member import Feed, Member, Residency, Staged
from lmpool.core.membership import (
    NAMES,
    Complete,
    Down,
    Draining,
    Elapsed,
    Heard,
    Joining,
    Leaving,
    Linked,
    Live,
    MemberEffect,
    MemberEvent,
    Mismatched,
    Unlinked,
    epoch_of,
    is_stale,
    step,
    why_not,
)
from lmpool.core.messages.ingress_control import RankState
from lmpool.core.messages.worker_control import NOTHING_DONE, FullReport, Report, WorkerJoined
from lmpool.core.page_table import PageTable
from lmpool.core.prefix import HASH_BYTES


@attrs.frozen
class RosterSettings:
    replicas: int
    suspect_after_ns: Nanos
    report_wait_ns: Nanos


class Roster:
    """Owns members and page table; reports change the ledger, which the caller owns as well."""

    __slots__ = (
        "_deadline",
        "_ledger",
        "_lineup",
        "_lineup_revision",
        "_members",
        "_settings",
        "resyncs",
        "stale_dropped",
        "table",
    )

    def __init__(self, settings: RosterSettings, ledger: Ledger) -> None:
        self._settings = settings
        self._ledger = ledger
        self._members = [
            Member(Rank(rank), Down(Epoch(0)), None, None, 0, 0, None, 0) for rank in range(settings.replicas)
        ]
        self._deadline: Nanos | None = None
        self._lineup: Lineup | None = None  # kept, as each view is, until what it is made of changes
        self._lineup_revision = 0
        self.table = PageTable()
        self.stale_dropped = 0
        """Messages of old epochs or versions, and of ranks that do not exist."""
        self.resyncs = 0
        """Full reports asked for because of a gap."""

    def knows(self, peer: Peer) -> bool:
        """Whether this is the linked life of a member. Counts it as stale if not."""
        if peer.rank < len(self._members) and self._members[peer.rank].peer == peer:
            return True
        self.stale_dropped += 1
        return False

    @property
    def is_settled(self) -> bool:
        """Every rank that could serve has reported completely."""
        return all(not isinstance(member.state, Down | Joining) for member in self._members)

    def link(self, peer: Peer) -> None:
        if peer.rank >= len(self._members) or is_stale(self._members[peer.rank].state, peer.epoch):
            self.stale_dropped += 1
            return
        member = self._members[peer.rank]
        self._advance(member, Linked(peer.epoch))
        member.peer = peer
        self._ledger.lose_rank(member.rank, peer.epoch)

    def unlink(self, peer: Peer) -> None:
        if self.knows(peer):
            self._advance(self._members[peer.rank], Unlinked(peer.epoch))

    def join(self, now: Nanos, peer: Peer, facts: WorkerJoined) -> None:
        member = self._members[peer.rank]
        if member.feed is not None:
            self.stale_dropped += 1
            return
        if self._base() not in (None, (facts.namespace_base, facts.block_size)):
            self._reject(member, "its namespace differs from the first member's")
            return
        wanted_until = Nanos(now + self._settings.report_wait_ns)
        member.feed = Feed(facts, facts.rates, None, wanted_until, None, NOTHING_DONE)
        self._change(member)

    def drain(self, peer: Peer) -> None:
        self._advance(self._members[peer.rank], Leaving())

    def report(self, now: Nanos, peer: Peer, report: Report) -> tuple[int, int]:
        """Returns as `Feed.count`."""
        member = self._members[peer.rank]
        feed = member.feed
        if feed is None or feed.residency is None or report.version <= feed.residency.version:
            self.stale_dropped += 1
            return 0, 0
        residency = feed.residency
        blocks = self.table.size(residency.holder) + (len(report.added) - len(report.removed)) // HASH_BYTES
        if report.version == residency.version + 1 and blocks <= feed.facts.blocks:
            self.table.remove(residency.holder, report.removed)
            self.table.add(residency.holder, report.added)
            residency.version = report.version
        elif feed.wanted_until is None:
            self.resyncs += 1
            feed.wanted_until = now
        residency.load = report.load
        feed.rates = smooth_rates(feed.rates, report.rates)
        self._follow(member, peer, report)
        self._advance(member, Heard(Nanos(now + self._settings.suspect_after_ns)))
        return feed.count(report.totals)

    def _follow(self, member: Member, peer: Peer, report: Report) -> None:
        rank, epoch, ledger = member.rank, peer.epoch, self._ledger
        known = dict(zip(report.prefill_requests, report.prefill_tokens, strict=True))
        for request in report.accepted:
            if not ledger.accept(rank, epoch, request) and ledger.booking(request) is None:
                self._adopt(member, peer, request, known.get(request, 0))
        for request, tokens in known.items():
            ledger.progress(rank, epoch, request, tokens)
        for request in report.ended:
            ledger.end(rank, epoch, request)

    def _adopt(self, member: Member, peer: Peer, request: RequestId, tokens: int) -> None:
        """What nobody booked here: routed by an ingress without control, or booked with a control that is gone."""
        placement = Placement(
            request=request,
            attempt=0,
            rank=member.rank,
            epoch=peer.epoch,
            chain=b"",
            prompt_tokens=tokens,
            output_tokens_max=0,
            choices=1,
            ready_tokens=0,
            arriving_tokens=0,
            writer=None,
            block_size=1,
        )
        self._ledger.adopt(placement, tokens)

    def full_report(self, now: Nanos, peer: Peer, report: FullReport) -> tuple[int, int]:
        member = self._members[peer.rank]
        feed = member.feed
        if feed is None or (feed.residency is not None and report.version < feed.residency.version):
            self.stale_dropped += 1
            return 0, 0
        if report.part == 0:
            if feed.staged is not None:
                self.table.retire(feed.staged.holder)
            feed.staged = Staged(report.version, 0, self.table.grant())
        staged = feed.staged
        if staged is None or report.version != staged.version or report.part != staged.next_part:
            self.stale_dropped += 1
            return 0, 0
        if self.table.size(staged.holder) + len(report.hashes) // HASH_BYTES > feed.facts.blocks:
            self._reject(member, "it reports more hashes than it has blocks")
            return 0, 0
        self.table.add(staged.holder, report.hashes)
        staged.next_part += 1
        silent_at = Nanos(now + self._settings.suspect_after_ns)
        if staged.next_part < report.parts:
            feed.wanted_until = Nanos(now + self._settings.report_wait_ns)
            self._advance(member, Heard(silent_at))
            return 0, 0
        if feed.residency is not None:
            self.table.retire(feed.residency.holder)
        feed.staged, feed.wanted_until = None, None
        feed.residency = Residency(report.version, staged.holder, report.load)
        feed.rates = smooth_rates(feed.rates, report.rates)
        listed = dict(zip(report.requests, report.prefill_tokens, strict=True))
        for request in self._ledger.reconcile(member.rank, peer.epoch, listed):
            if self._ledger.booking(request) is None:
                self._adopt(member, peer, request, listed[request])
        self._advance(member, Complete(silent_at))
        return feed.count(report.totals)

    def tick(self, now: Nanos) -> list[Peer]:
        """Returns the peers to ask for a full report."""
        wanted: list[Peer] = []
        if self._deadline is None or now < self._deadline:
            return wanted
        for member in self._members:
            if isinstance(member.state, Live) and now >= member.state.silent_at:
                self._advance(member, Elapsed(now))
            feed = member.feed
            if feed is not None and feed.wanted_until is not None and now >= feed.wanted_until:
                assert member.peer is not None
                feed.wanted_until = Nanos(now + self._settings.report_wait_ns)
                wanted.append(member.peer)
        self._set_deadline()
        return wanted

    def next_deadline(self) -> Nanos | None:
        return self._deadline

    def _set_deadline(self) -> None:
        deadlines: list[Nanos] = []
        for member in self._members:
            if isinstance(member.state, Live):
                deadlines.append(member.state.silent_at)
            if member.feed is not None and member.feed.wanted_until is not None:
                deadlines.append(member.feed.wanted_until)
        self._deadline = min(deadlines, default=None)

    def lineup(self) -> Lineup:
        if self._lineup is None:
            self._lineup = self._line_up()
        elif self._lineup_revision != self._ledger.revision:
            lineup, members, revisions = self._lineup, self._members, self._ledger.revisions
            views = [
                view if members[view.rank].revision == revisions[view.rank] else self._view(members[view.rank])
                for view in lineup.eligible
            ]
            leaving = tuple([self._view(members[view.rank]) for view in lineup.leaving])
            self._lineup = with_views(lineup, tuple(views), leaving)
        self._lineup_revision = self._ledger.revision
        return self._lineup

    def _line_up(self) -> Lineup:
        eligible = [self._view(member) for member in self._members if isinstance(member.state, Live)]
        absent = [
            (member.rank, why_not(member.state)) for member in self._members if not isinstance(member.state, Live)
        ]
        leaving = [
            self._view(member) for member in self._members if isinstance(member.state, Draining) and member.has_reported
        ]
        return line_up(tuple(eligible), tuple(leaving), tuple(absent))

    def givers(self) -> list[tuple[RankView, bool]]:
        """Ranks that may be the source of a transfer, by number; which of them are to stop."""
        lineup = self.lineup()
        givers = [(view, False) for view in lineup.eligible] + [(view, True) for view in lineup.leaving]
        return sorted(givers, key=lambda giver: giver[0].rank)

    def count_routed(self, rank: Rank, uncached: int) -> None:
        """To be called with every booking, whose new revision renews the view."""
        member = self._members[rank]
        member.routed += 1
        member.routed_tokens += uncached

    def peer(self, rank: Rank) -> Peer | None:
        """The linked life of a rank."""
        return self._members[rank].peer

    def why_not(self) -> tuple[str, ...]:
        return tuple(why_not(member.state) for member in self._members)

    def states(self) -> tuple[RankState, ...]:
        return tuple(self._state(member) for member in self._members)

    def _state(self, member: Member) -> RankState:
        feed, account = member.feed, self._ledger.account(member.rank)
        residency = None if feed is None else feed.residency
        load = None if residency is None else residency.load
        totals = NOTHING_DONE if feed is None else feed.totals
        return RankState(
            rank=member.rank,
            epoch=epoch_of(member.state) or Epoch(0),
            membership=NAMES[type(member.state)],
            blocks=0 if feed is None else feed.facts.blocks,
            blocks_free=0 if load is None else load.blocks_free,
            blocks_cached=0 if load is None else load.blocks_cached,
            resident_hashes=0 if residency is None else self.table.size(residency.holder),
            waiting=0 if load is None else load.waiting,
            prefilling=0 if load is None else load.prefilling,
            decoding=0 if load is None else load.decoding,
            booked=account.requests,
            prefill_tokens=account.prefill_tokens,
            tokens_computed=totals.tokens_computed,
            tokens_cached=totals.tokens_cached,
            steps_failed=totals.steps_failed,
            preemptions=totals.preemptions,
            routed=member.routed,
        )

    def audit(self) -> None:
        """Asserts that the kept lineup is the one that would be made now."""
        eligible = tuple([self._make_view(member) for member in self._members if isinstance(member.state, Live)])
        assert eligible == self.lineup().eligible

    def digest_state(self) -> str:
        return repr((self._members, self.stale_dropped, self.resyncs, self.table.digest()))

    def _view(self, member: Member) -> RankView:
        revision = self._ledger.revisions[member.rank]
        if member.view is None or member.revision != revision:
            member.view, member.revision = self._make_view(member), revision
        return member.view

    def _make_view(self, member: Member) -> RankView:
        feed = member.feed
        assert feed is not None
        assert feed.residency is not None
        assert member.peer is not None
        return view_rank(
            member.rank,
            member.peer.epoch,
            feed.residency.holder,
            feed.facts,
            feed.residency.load,
            feed.rates,
            self._ledger.account(member.rank),
            member.routed_tokens,
        )

    def _change(self, member: Member) -> None:
        member.view, self._lineup = None, None
        self._set_deadline()

    def _base(self) -> tuple[bytes, int] | None:
        """Namespace and block size of the members, all the same; None before the first."""
        for member in self._members:
            if member.feed is not None:
                return member.feed.facts.namespace_base, member.feed.facts.block_size
        return None

    def _advance(self, member: Member, event: MemberEvent) -> None:
        member.state, effects = step(member.state, event)
        for effect in effects:
            assert effect is MemberEffect.FORGET
            self._forget(member)
            member.peer = None
        self._change(member)

    def _reject(self, member: Member, reason: str) -> None:
        self._advance(member, Mismatched(reason))
        self._forget(member)

    def _forget(self, member: Member) -> None:
        assert member.peer is not None
        self._ledger.lose_rank(member.rank, None)
        feed, member.feed = member.feed, None
        if feed is not None and feed.staged is not None:
            self.table.retire(feed.staged.holder)
        if feed is not None and feed.residency is not None:
            self.table.retire(feed.residency.holder)
