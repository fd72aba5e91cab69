"""What the next step computes: a decision about running and queued sequences.

Every sequence that decodes has a row, as long as there are blocks. What is left of the step's tokens goes to prefill:
to the sequence whose turn it is (the first in order of service), but if some are shorter or of a higher class, only
half of it and what they leave of the other half. Then to the rest, higher classes first and short before long. So a
long prompt does not keep short ones waiting, short ones, however many, at most double a long one's time, and prompts
of one length are done one after the other, which is sooner in the mean than all at once.

Who is first in the queue and lacks blocks or a slot is not overtaken in what it lacks. A sequence whose next block is
being written waits for it; that blocks nobody. Waits have no cycles, because a sequence that waits writes nothing.
"""

from enum import Enum
from typing import NamedTuple

import attrs

from lmpool.core.ids import SequenceId
from lmpool.core.prefix import split_chain
from lmpool.core.sequence import Place


class PrefillOrder(Enum):
    """How prompts share the tokens of a step."""

    SHORT_BETWEEN = "short-between"
    """Half to the one whose turn it is, and short ones between, as told above."""
    ARRIVAL = "arrival"
    """One after the other in order of service, as other servers do: what the first is compared with."""


class LeftOut(Enum):
    """Why a sequence that was looked at has no row in the step."""

    NO_TOKENS = "no tokens left in the step"
    NO_SLOT = "sequence limit"
    NO_BLOCKS = "no blocks"
    AWAITS_WRITER = "awaits writer"
    ROWS_RUNNING = "rows of it still run"


class Decodable(NamedTuple):
    """A running sequence whose next input is its last token, known or not, and begins a block."""

    sequence: SequenceId
    place: Place


@attrs.frozen
class Prefillable:
    """A running sequence with prefill tokens that are not planned yet."""

    sequence: SequenceId
    place: Place
    priority: int
    remaining: int


@attrs.frozen
class Queued:
    sequence: SequenceId
    place: Place
    priority: int
    remaining: int
    """Tokens to compute if it begins now."""
    blocks: int
    """What its beginning takes out of the available blocks: new ones, and cached ones that it pins."""
    margin: int
    """Blocks that must be available beyond those, so that it is not preempted at once."""
    is_held: bool
    """Rows of it from before its preemption still run."""
    reads: bool
    """Whether resident blocks serve it. A prompt that is scored must compute them all."""
    unwritten: bytes
    """Packed hashes of the complete blocks that it would write."""


@attrs.frozen
class BatchView:
    prefill_order: PrefillOrder
    step_tokens_max: int
    slots: int
    """Sequences that may still begin."""
    blocks: int
    """Available blocks."""
    is_releasing: bool
    """Blocks will become available when a running step completes."""
    decoding: int
    """Running sequences whose next input is their last token and has its block: each has a row."""
    last_decoding: Decodable | None
    """The last of those in order of service."""
    decodable: tuple[Decodable, ...]
    """In order of service, like the other two."""
    prefillable: tuple[Prefillable, ...]
    queued: tuple[Queued, ...]
    """The first of the queue, without those who wait for a running writer."""


@attrs.frozen
class Portion:
    sequence: SequenceId
    tokens: int


@attrs.frozen
class BatchDecision:
    decodes: tuple[SequenceId, ...]
    """Among those that begin a block."""
    prefills: tuple[Portion, ...]
    begins: tuple[SequenceId, ...]
    """Queued sequences among those of `prefills`."""
    left_out: tuple[tuple[SequenceId, LeftOut], ...]


@attrs.frozen
class Shortage:
    """Nothing can be planned before this sequence, the youngest of the lowest class, has given up its blocks."""

    victim: SequenceId


class _Room:
    """What is left of the step while it is filled."""

    __slots__ = ("begins", "blocks", "claims", "first", "left_out", "portions", "slots", "tokens")

    def __init__(self, view: BatchView, tokens: int, blocks: int, left_out: list[tuple[SequenceId, LeftOut]]) -> None:
        self.tokens = tokens
        self.blocks = blocks
        self.slots = view.slots
        self.first = view.queued[0] if view.queued else None
        """Of the queue: what it needs is kept for it."""
        self.claims: dict[bytes, SequenceId] = {}
        self.portions: dict[SequenceId, int] = {}
        self.begins: list[SequenceId] = []
        self.left_out = left_out

    def give(self, candidate: Prefillable | Queued, tokens_max: int) -> None:
        """As much of its prefill as there is room for, at most `tokens_max` tokens."""
        tokens = min(candidate.remaining, tokens_max, self.tokens)
        obstacle = self._obstacle(candidate, tokens)
        if obstacle is not None:
            self.left_out.append((candidate.sequence, obstacle))
            return
        if isinstance(candidate, Queued):
            self._begin(candidate)
        self.tokens -= tokens
        self.portions[candidate.sequence] = tokens

    def give_more(self, candidate: Prefillable | Queued) -> None:
        """The rest of the step to one that has a portion already."""
        given = self.portions.get(candidate.sequence)
        if given is not None:
            more = min(candidate.remaining - given, self.tokens)
            self.tokens -= more
            self.portions[candidate.sequence] = given + more

    def _obstacle(self, candidate: Prefillable | Queued, tokens: int) -> LeftOut | None:
        if isinstance(candidate, Queued):
            if candidate.is_held:
                return LeftOut.ROWS_RUNNING
            if candidate.reads and candidate.unwritten[:16] in self.claims:
                return LeftOut.AWAITS_WRITER
            kept = self.first if self.first is not None and self.first is not candidate else None
            if self.slots < 1 + (kept is not None):
                return LeftOut.NO_SLOT
            needed = candidate.blocks + candidate.margin
            if self.blocks < needed + (kept.blocks + kept.margin if kept is not None else 0):
                return LeftOut.NO_BLOCKS
        return LeftOut.NO_TOKENS if tokens == 0 else None

    def _begin(self, candidate: Queued) -> None:
        if candidate is self.first:
            self.first = None
        self.slots -= 1
        self.blocks -= candidate.blocks
        self.begins.append(candidate.sequence)
        for digest in split_chain(candidate.unwritten):
            self.claims.setdefault(digest, candidate.sequence)


def choose(view: BatchView) -> BatchDecision | Shortage:
    """The rows of the next step."""
    left_out: list[tuple[SequenceId, LeftOut]] = []
    decodes: list[SequenceId] = []
    blocks = view.blocks
    for decodable in view.decodable:
        if blocks:
            blocks -= 1
            decodes.append(decodable.sequence)
        elif view.is_releasing:
            left_out.append((decodable.sequence, LeftOut.NO_BLOCKS))
        else:
            return Shortage(_youngest(view))
    room = _Room(view, view.step_tokens_max - view.decoding - len(decodes), blocks, left_out)
    _share(view, room)
    portions = tuple(Portion(sequence, tokens) for sequence, tokens in room.portions.items())
    return BatchDecision(tuple(decodes), portions, tuple(room.begins), tuple(left_out))


def _youngest(view: BatchView) -> SequenceId:
    running: list[Decodable | Prefillable] = [*view.decodable, *view.prefillable]
    if view.last_decoding is not None:
        running.append(view.last_decoding)
    return max(running, key=lambda candidate: candidate.place).sequence


def _share(view: BatchView, room: _Room) -> None:
    candidates: list[Prefillable | Queued] = [*view.prefillable, *view.queued]
    if not candidates:
        return
    if view.prefill_order is PrefillOrder.ARRIVAL:
        for candidate in sorted(candidates, key=lambda candidate: candidate.place):
            room.give(candidate, candidate.remaining)
        return
    first = min(candidates, key=lambda candidate: candidate.place)
    others = [candidate for candidate in candidates if candidate is not first]
    others.sort(key=lambda candidate: (candidate.priority, candidate.remaining, candidate.place))
    shorter = [
        candidate
        for candidate in others
        if (candidate.priority, candidate.remaining) < (first.priority, first.remaining)
    ]
    room.give(first, (room.tokens + 1) // 2 if shorter else room.tokens)
    for candidate in shorter:
        room.give(candidate, candidate.remaining)
    room.give_more(first)
    for candidate in others[len(shorter) :]:
        room.give(candidate, candidate.remaining)
