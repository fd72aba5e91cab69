"""What control tells of transfers: those under way, the last that are over, and counts of all since it began."""

from collections import deque

from lmpool.core.ids import Nanos
from lmpool.core.limits import TRANSFERS_TOLD
from lmpool.core.messages.transfer import (
    PlacementShown,
    TransferDenial,
    TransferRefusal,
    TransferShown,
    TransfersShown,
)
from lmpool.core.prefix import chain_length
from lmpool.core.transfer.transfers import Transfer, TransferOutcome, Transfers


class TransferTally:
    __slots__ = ("_over", "_refusals", "blocks", "copy_ns", "size_bytes")

    def __init__(self) -> None:
        self._over: deque[TransferShown] = deque(maxlen=TRANSFERS_TOLD)
        self._refusals: dict[str, int] = {}
        self.blocks = 0
        """In those that were published, as are the next two."""
        self.size_bytes = 0
        self.copy_ns = 0

    def end(self, transfer: Transfer) -> None:
        self._over.append(_shown(transfer))
        if isinstance(transfer.cause, TransferRefusal):
            self._refuse(transfer.cause.value)
        if transfer.outcome is TransferOutcome.PUBLISHED:
            assert transfer.copied is not None
            assert transfer.target_prepared is not None
            self.blocks += transfer.target_prepared.blocks
            self.size_bytes += transfer.copied.size_bytes
            self.copy_ns += transfer.copied.copy_ns

    def deny(self, denial: TransferDenial) -> None:
        self._refuse(denial.value)

    def _refuse(self, reason: str) -> None:
        self._refusals[reason] = self._refusals.get(reason, 0) + 1

    def shown(self, transfers: Transfers, placement: PlacementShown | None) -> TransfersShown:
        return TransfersShown(
            under_way=tuple([_shown(transfer) for transfer in transfers.under_way()]),
            over=tuple(self._over),
            outcomes=tuple([(outcome.value, count) for outcome, count in transfers.outcomes.items()]),
            refusals=tuple(self._refusals.items()),
            blocks=self.blocks,
            size_bytes=self.size_bytes,
            copy_ns=self.copy_ns,
            placement=placement,
        )

    def digest_state(self) -> str:
        return repr((list(self._over), self._refusals, self.blocks, self.size_bytes, self.copy_ns))


def _shown(transfer: Transfer) -> TransferShown:
    terms, outcome, cause = transfer.terms, transfer.outcome, transfer.cause
    copied, published = transfer.copied, transfer.published_ns
    return TransferShown(
        transfer=transfer.id,
        source=terms.source.rank,
        target=terms.target.rank,
        mode=terms.mode,
        blocks=chain_length(terms.chain) - terms.first,
        phase=transfer.state.value,
        outcome="" if outcome is None else outcome.value,
        cause="" if cause is None else cause.value,
        copy_ns=None if copied is None else copied.copy_ns,
        took_ns=None if published is None else Nanos(published - transfer.began_ns),
    )
