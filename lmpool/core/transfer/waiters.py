"""Queued sequences that wait for a transfer to bring them blocks, each until a moment of its own."""

from lmpool.core.ids import Nanos, SequenceId, TransferId
from lmpool.core.messages.transfer import Awaited


class Waiters:
    """Whoever waits no longer, for whatever reason, is told of once (`take_woken`)."""

    __slots__ = ("_awaited", "_woken", "missed")

    def __init__(self) -> None:
        self._awaited: dict[SequenceId, Awaited] = {}
        self._woken: list[SequenceId] = []
        self.missed = 0
        """Sequences whose blocks did not come, or not in time: they compute them."""

    def __len__(self) -> int:
        return len(self._awaited)

    @property
    def has_woken(self) -> bool:
        return bool(self._woken)

    def add(self, sequence: SequenceId, awaited: Awaited) -> None:
        self._awaited[sequence] = awaited

    def leave(self, sequence: SequenceId) -> None:
        """It has ended. Harmless if it does not wait."""
        self._awaited.pop(sequence, None)
        if sequence in self._woken:
            self._woken.remove(sequence)

    def wake(self, transfer: TransferId) -> dict[SequenceId, None]:
        """The blocks have come. Answers who waited for them."""
        woken = [sequence for sequence, awaited in self._awaited.items() if awaited.transfer == transfer]
        self._wake(woken)
        return dict.fromkeys(woken)

    def miss(self, transfer: TransferId) -> None:
        """They will not come."""
        self.missed += len(self.wake(transfer))

    def miss_all(self) -> None:
        self.missed += len(self._awaited)
        self._wake(list(self._awaited))

    def expire(self, now: Nanos) -> None:
        late = [sequence for sequence, awaited in self._awaited.items() if awaited.until_ns <= now]
        self.missed += len(late)
        self._wake(late)

    def next_deadline(self) -> Nanos | None:
        return min((awaited.until_ns for awaited in self._awaited.values()), default=None)

    def take_woken(self) -> list[SequenceId]:
        woken, self._woken = self._woken, []
        return woken

    def _wake(self, sequences: list[SequenceId]) -> None:
        for sequence in sequences:
            del self._awaited[sequence]
        self._woken += sequences

    def digest_parts(self) -> tuple[object, ...]:
        return list(self._awaited.items()), list(self._woken), self.missed
