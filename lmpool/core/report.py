"""What control is told of a rank: net changes since the last report, or everything."""

import attrs

from lmpool.core.block_pool import BlockPool
from lmpool.core.ids import Nanos, RequestId, Version
from lmpool.core.limits import REPORT_HASHES_MAX
from lmpool.core.live_request import LiveRequest
from lmpool.core.messages.worker_control import NOTHING_DONE, FullReport, Load, Report, Totals
from lmpool.core.prefix import HASH_BYTES
from lmpool.core.rates import Rates
from lmpool.core.schedule import Schedule
from lmpool.core.sequence import SequenceState
from lmpool.core.step import RunningStep


@attrs.define
class Tally:
    """`Totals` in the making."""

    tokens_computed: int = 0
    tokens_cached: int = 0
    outputs: int = 0
    output_tokens: int = 0
    steps: int = 0
    steps_failed: int = 0
    preemptions: int = 0

    def totals(self) -> Totals:
        return Totals(
            self.tokens_computed,
            self.tokens_cached,
            self.outputs,
            self.output_tokens,
            self.steps,
            self.steps_failed,
            self.preemptions,
        )


class Reporter:
    """Gathers what the next report says beyond what can be read off the machine."""

    __slots__ = ("_accepted", "_ended", "_told", "_version")

    def __init__(self) -> None:
        self._version = Version(0)
        self._accepted: dict[RequestId, None] = {}
        self._ended: dict[RequestId, None] = {}
        self._told = NOTHING_DONE
        """Totals of the last report."""

    @property
    def version(self) -> Version:
        """Of the last report."""
        return self._version

    def has_news(self, pool: BlockPool, tally: Tally) -> bool:
        """Whether anything has changed but the lengths of sequences that decode. Those can wait for the interval."""
        told = self._told
        return bool(
            self._accepted
            or self._ended
            or pool.has_changes
            or tally.tokens_computed != told.tokens_computed
            or tally.outputs != told.outputs
            or tally.steps_failed != told.steps_failed
        )

    def note_accepted(self, request: RequestId) -> None:
        """A submit was taken. If another attempt has just ended, the request is simply still there."""
        self._ended.pop(request, None)
        self._accepted[request] = None

    def note_ended(self, request: RequestId) -> None:
        self._ended[request] = None

    def forget(self, pool: BlockPool, totals: Totals) -> None:
        """There is nobody to tell; who comes later gets everything."""
        pool.take_changes()
        self._told = totals
        self._accepted.clear()
        self._ended.clear()

    def changes(
        self, pool: BlockPool, prefilling: dict[RequestId, LiveRequest], load: Load, rates: Rates, totals: Totals
    ) -> Report:
        """Drops those from `prefilling` that have no prefill token left."""
        added, removed = pool.take_changes()
        prefills: dict[RequestId, int] = {}
        for request in prefilling.values():
            left = request.prefill_remaining
            if left != request.prefill_told:
                prefills[request.id] = left
                request.prefill_told = left
        for done in [request.id for request in prefilling.values() if not request.prefill_told]:
            del prefilling[done]
        self._version = Version(self._version + 1)
        self._told = totals
        report = Report(
            self._version,
            added,
            removed,
            tuple(self._accepted),
            tuple(self._ended),
            tuple(prefills),
            tuple(prefills.values()),
            load,
            rates,
            totals,
        )
        self._accepted.clear()
        self._ended.clear()
        return report

    def everything(
        self, pool: BlockPool, live: dict[RequestId, LiveRequest], load: Load, rates: Rates, totals: Totals
    ) -> list[FullReport]:
        """In parts of bounded size, all of one new version."""
        self.forget(pool, totals)
        self._version = Version(self._version + 1)
        hashes = pool.residents()
        width = REPORT_HASHES_MAX * HASH_BYTES
        parts = max(-(-len(hashes) // width), 1)
        for request in live.values():
            request.prefill_told = request.prefill_remaining
        prefills = tuple(request.prefill_remaining for request in live.values())
        return [
            FullReport(
                self._version,
                part,
                parts,
                hashes[part * width : (part + 1) * width],
                tuple(live) if part == parts - 1 else (),
                prefills if part == parts - 1 else (),
                load,
                rates,
                totals,
            )
            for part in range(parts)
        ]

    def digest_parts(self) -> tuple[object, ...]:
        return self._version, tuple(self._accepted), tuple(self._ended), self._told


def load_of(pool: BlockPool, schedule: Schedule, running: RunningStep | None, began_ns: Nanos | None) -> Load:
    """`running` is the oldest step in flight, and `began_ns` when the device began it."""
    counts = pool.counts()
    prefilling = prefilling_tokens = decoding = context = 0
    for sequence in schedule.running:
        if sequence.state is SequenceState.DECODING:
            decoding += 1
            context += len(sequence.history)
        else:
            prefilling += 1
            prefilling_tokens += sequence.prefill_remaining
    return Load(
        counts.free,
        counts.cached,
        schedule.waiting,
        schedule.waiting_tokens,
        prefilling,
        prefilling_tokens,
        decoding,
        context,
        began_ns,
        running.predicted_ns if running is not None else Nanos(0),
    )
