"""Clients that know beforehand, token by token, what they must get."""

from collections.abc import Callable, Sequence
from itertools import islice

import attrs

from lmpool.core.effects import (
    ChoiceEnd,
    CloseRequest,
    DeliverPromptLogprobs,
    DeliverStart,
    DeliverToken,
    Outcome,
)
from lmpool.core.events import RequestArrived
from lmpool.core.ids import Nanos
from lmpool.core.plan import TokenLogprobs
from lmpool.core.prefix import unpack_tokens
from lmpool.sim.integer_model import reference_choice, reference_scores

Expected = tuple[tuple[int, TokenLogprobs | None], ...]


@attrs.frozen
class Intent:
    """What the client will do of its own accord."""

    stops: tuple[int | None, ...]
    """Per choice: the output index whose text completes a stop string."""
    leaves_after: int | None
    """So many tokens."""


@attrs.define
class Client:
    arrived: RequestArrived
    intent: Intent
    vocabulary: int
    learn: Callable[["Client"], None]
    """Called when the answers are computed."""
    stop: Callable[[int, int], None]
    """Tells the ingress of a stop string: choice, output index."""
    leave: Callable[[], None]
    lengths_max: tuple[int, ...]
    """Longest contexts of the ranks."""
    taken: list[int]
    """Tokens per choice."""
    ends: list[ChoiceEnd | None]
    stopped: list[bool]
    scored: int
    has_begun: bool
    has_left: bool
    close: CloseRequest | None
    is_tainted: bool
    """A step with a row of it failed, or brought nothing finite."""
    answers: tuple[Expected, ...] | None
    """Once somebody wanted to know: many requests never get so far."""
    known_scores: tuple[TokenLogprobs, ...] | None

    @property
    def prompt(self) -> tuple[int, ...]:
        return tuple(unpack_tokens(self.arrived.prompt))

    @property
    def expected(self) -> tuple[Expected, ...]:
        """Per choice: all tokens, computed from the prompt alone."""
        if self.answers is None:
            arrived, prompt = self.arrived, self.prompt
            longest = max(max(self.lengths_max) - len(prompt), 0)
            self.answers = tuple(
                tuple(
                    islice(reference_choice(self.vocabulary, prompt, arrived.sampling, arrived.stop, choice), longest)
                )
                for choice in range(arrived.choices)
            )
            self.learn(self)
        return self.answers

    @property
    def scores(self) -> tuple[TokenLogprobs, ...]:
        """Of the prompt from its second token on."""
        best = self.arrived.prompt_logprobs
        if self.known_scores is None:
            known = () if best is None else tuple(reference_scores(self.vocabulary, self.prompt, best))
            self.known_scores = known
        return self.known_scores

    def take(self, now: Nanos, effect: DeliverStart | DeliverToken | DeliverPromptLogprobs | CloseRequest) -> None:
        assert self.close is None, f"{effect} after {self.close}"
        match effect:
            case DeliverToken():
                self._take_token(effect)
            case DeliverStart():
                assert not self.has_begun, "it begins twice"
                self.has_begun = True
            case DeliverPromptLogprobs(start=start, entries=entries):
                assert start == self.scored + 1, f"scores from {start} after {self.scored}"
                assert entries == self.scores[self.scored : self.scored + len(entries)], "wrong scores"
                self.scored += len(entries)
            case CloseRequest():
                self.close = effect
                self._check_outcome(now, effect)

    def _take_token(self, effect: DeliverToken) -> None:
        choice, index = effect.choice, effect.output_index
        assert self.has_begun, "a token before the start"
        assert self.ends[choice] is None, "a token after the last"
        assert not self.stopped[choice], "a token after the stop was told"
        assert index == self.taken[choice], f"token {index} of choice {choice} after {self.taken[choice]}"
        token, logprobs = self.expected[choice][index]
        assert effect.token == token, f"choice {choice}, output {index}: {effect.token} instead of {token}"
        assert effect.logprobs == logprobs, f"choice {choice}, output {index}: other log-probabilities"
        self.taken[choice] += 1
        end = self._end_of(choice, token, index)
        assert effect.end in end, f"choice {choice} ends with {effect.end} at output {index} instead of {end}"
        self.ends[choice] = effect.end
        assert effect.hidden == (effect.end is ChoiceEnd.STOP and token in self.arrived.stop.hidden_ends)
        if effect.end is None and self.intent.stops[choice] == index:
            self.stop(choice, index)
        if self.intent.leaves_after == sum(self.taken):
            self.leave()

    def _end_of(self, choice: int, token: int, index: int) -> tuple[ChoiceEnd | None, ...]:
        """What may be said with this token."""
        stop = self.arrived.stop
        if token in stop.ends and index >= stop.output_tokens_min:
            return (ChoiceEnd.STOP,)
        if index + 1 == stop.output_tokens_max:
            return (ChoiceEnd.LENGTH,)
        length = len(self.arrived.prompt) // 4 + index + 1
        return (None, ChoiceEnd.LENGTH) if length in self.lengths_max else (None,)

    def note_stop(self, choice: int) -> None:
        """The ingress has been told."""
        self.stopped[choice] = True

    def _check_outcome(self, now: Nanos, close: CloseRequest) -> None:
        arrived = self.arrived
        match close.outcome:
            case Outcome.COMPLETE:
                assert arrived.prompt_logprobs is None or self.scored == len(self.scores), "complete without its scores"
                for choice in range(arrived.choices if arrived.stop.output_tokens_max else 0):
                    assert self.ends[choice] or self.stopped[choice], f"complete, and choice {choice} has no end"
            case Outcome.CANCELLED:
                assert self.has_left, "cancelled by nobody"
            case Outcome.DEADLINE:
                assert arrived.deadline_ns is not None, "a deadline out of nowhere"
                assert now >= arrived.deadline_ns, "ended before its deadline"
            case Outcome.FAILED:
                assert self.is_tainted or "replicas in a row" in close.detail, f"it failed for nothing: {close.detail}"
            case Outcome.NEVER_FITS:
                tokens = len(arrived.prompt) // 4 + min(arrived.stop.output_tokens_max, 1)
                assert tokens > min(self.lengths_max), "it fits everywhere"
            case Outcome.BUSY | Outcome.NO_REPLICA | Outcome.DRAINING:
                assert sum(self.taken) == 0 or close.outcome is Outcome.NO_REPLICA, f"{close.outcome} after tokens"


def new_client(
    arrived: RequestArrived,
    intent: Intent,
    vocabulary: int,
    lengths_max: Sequence[int],
    learn: Callable[[Client], None],
    stop: Callable[[int, int], None],
    leave: Callable[[], None],
) -> Client:
    return Client(
        arrived=arrived,
        intent=intent,
        vocabulary=vocabulary,
        learn=learn,
        stop=stop,
        leave=leave,
        lengths_max=tuple(lengths_max),
        taken=[0] * arrived.choices,
        ends=[None] * arrived.choices,
        stopped=[False] * arrived.choices,
        scored=0,
        has_begun=False,
        has_left=False,
        close=None,
        is_tainted=False,
        answers=None,
        known_scores=None,
    )
