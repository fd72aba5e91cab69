"""What control keeps of one rank: where it stands, and what its life has told."""

import attrs

from lmpool.core.fleet import RankView
from lmpool.core.ids import Nanos, Peer, Rank, Version
from lmpool.core.membership import Membership
from lmpool.core.messages.worker_control import Load, Totals, WorkerJoined
from lmpool.core.rates import Rates


@attrs.define
class Staged:
    """A full report of which some parts are here. Its hashes are under a holder of their own until it is complete."""

    version: Version
    next_part: int
    holder: int


@attrs.define
class Feed:
    """What one life of a rank has told."""

    facts: WorkerJoined
    rates: Rates
    staged: Staged | None
    wanted_until: Nanos | None
    """A full report is due: asked for, or expected after joining. When to ask for it (again)."""
    residency: "Residency | None"
    """None before the first complete full report."""
    totals: Totals

    def count(self, totals: Totals) -> tuple[int, int]:
        """Returns how many choices have ended since the last count, and their output tokens. None of a peer whose
        totals fall, which those of one life never do."""
        outputs, tokens = totals.outputs - self.totals.outputs, totals.output_tokens - self.totals.output_tokens
        self.totals = totals
        return (outputs, tokens) if min(outputs, tokens) >= 0 else (0, 0)


@attrs.define
class Residency:
    version: Version
    holder: int
    load: Load


@attrs.define
class Member:
    rank: Rank
    state: Membership
    peer: Peer | None
    feed: Feed | None
    routed: int
    routed_tokens: int
    view: RankView | None = attrs.field(repr=False)
    """If it is eligible: kept until something that it is made of changes. No part of the state."""
    revision: int = attrs.field(repr=False)
    """Of the ledger's account, when `view` was made."""

    @property
    def has_reported(self) -> bool:
        """Completely, in this life."""
        return self.feed is not None and self.feed.residency is not None
