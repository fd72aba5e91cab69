"""What was proposed and what became of it: for whoever asks whether transfers pay."""

from collections import deque
from itertools import islice

import attrs

from lmpool.core.ids import BlockHash, Nanos, TransferId
from lmpool.core.limits import TRANSFERS_TOLD
from lmpool.core.messages.transfer import PlacedShown, PlacementShown, RefusedShown
from lmpool.core.placement.price import Pair, PriceErrors
from lmpool.core.placement.proposal import Gate, Occasion, Proposal
from lmpool.core.transfer.transfers import Transfer, TransferOutcome

REFUSALS_KEPT = 256
"""Distinct ones: some plannings of a large machine."""


@attrs.frozen
class TransferRecord:
    """A transfer that was begun."""

    transfer: TransferId
    began: Nanos
    proposal: Proposal
    """With what was predicted."""
    outcome: TransferOutcome | None
    """None: it is under way."""
    took_ns: Nanos | None
    """Until it was published. None if it was not."""


@attrs.frozen
class RefusalRecord:
    """The latest of equal refusals."""

    at: Nanos
    proposal: Proposal
    times: int


class TransferLog:
    __slots__ = ("_records", "_refusals", "_underway", "admitted", "published_blocks", "refused")

    def __init__(self, records_kept: int) -> None:
        self._records: deque[TransferRecord] = deque(maxlen=records_kept)
        self._underway: dict[TransferId, TransferRecord] = {}
        self._refusals: dict[tuple[Occasion, Pair, BlockHash, Gate], RefusalRecord] = {}
        """The latest last."""
        self.admitted = dict.fromkeys(Occasion, 0)
        self.refused = {(occasion, gate): 0 for occasion in Occasion for gate in Gate}
        self.published_blocks = dict.fromkeys(Occasion, 0)

    def begin(self, now: Nanos, transfer: TransferId, proposal: Proposal) -> None:
        self.admitted[proposal.occasion] += 1
        self._underway[transfer] = TransferRecord(transfer, now, proposal, None, None)

    def end(self, ended: Transfer) -> TransferRecord | None:
        """None: it was not begun here."""
        record = self._underway.pop(ended.id, None)
        if record is None:
            return None
        took: Nanos | None = None
        if ended.outcome is TransferOutcome.PUBLISHED:
            assert ended.published_ns is not None
            assert ended.target_prepared is not None
            took = Nanos(ended.published_ns - record.began)
            self.published_blocks[record.proposal.occasion] += ended.target_prepared.blocks
        closed = TransferRecord(ended.id, record.began, record.proposal, ended.outcome, took)
        self._records.append(closed)
        return closed

    def refuse(self, now: Nanos, proposal: Proposal) -> None:
        assert proposal.gate is not None
        self.refused[proposal.occasion, proposal.gate] += 1
        key = (proposal.occasion, proposal.pair, proposal.last, proposal.gate)
        earlier = self._refusals.pop(key, None)
        self._refusals[key] = RefusalRecord(now, proposal, 1 if earlier is None else earlier.times + 1)
        if len(self._refusals) > REFUSALS_KEPT:
            del self._refusals[next(iter(self._refusals))]

    def records(self) -> tuple[TransferRecord, ...]:
        """Newest first, those under way before all others."""
        return (*reversed(self._underway.values()), *reversed(self._records))

    def refusals(self) -> tuple[RefusalRecord, ...]:
        """Newest first."""
        return tuple(reversed(self._refusals.values()))

    def shown(self, errors: PriceErrors) -> PlacementShown:
        return PlacementShown(
            admitted=tuple([(occasion.value, count) for occasion, count in self.admitted.items()]),
            refused=tuple([(occasion.value, gate.value, n) for (occasion, gate), n in self.refused.items() if n]),
            blocks=tuple([(occasion.value, count) for occasion, count in self.published_blocks.items()]),
            observed=errors.observed,
            observed_ns=errors.observed_ns,
            error_ns=errors.error_ns,
            over_median=errors.over_median,
            over_p95=errors.over_p95,
            placed=tuple(map(_placed, self.records()[:TRANSFERS_TOLD])),
            refusals=tuple(map(_refused, islice(reversed(self._refusals.values()), TRANSFERS_TOLD))),
        )

    def digest_state(self) -> str:
        refused = [(occasion.value, gate.value, count) for (occasion, gate), count in self.refused.items()]
        return repr((self._underway, list(self._records), list(self._refusals.values()), self.admitted, refused))


def _placed(record: TransferRecord) -> PlacedShown:
    proposal, outcome = record.proposal, record.outcome
    return PlacedShown(
        transfer=record.transfer,
        occasion=proposal.occasion.value,
        source=proposal.pair.source,
        target=proposal.pair.target,
        blocks=proposal.blocks,
        began_ns=record.began,
        median_ns=proposal.price.median_ns,
        p95_ns=proposal.price.p95_ns,
        saved_ns=proposal.saved_ns,
        rent_ns=proposal.rent_ns,
        outcome="" if outcome is None else outcome.value,
        took_ns=record.took_ns,
    )


def _refused(record: RefusalRecord) -> RefusedShown:
    return RefusedShown(record.at, record.proposal.reason, record.times)
