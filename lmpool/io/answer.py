"""One request's answer, from deliveries to chunks of text.

Deliveries are decoded as they come, so that a stop string ends its choice however slowly the client reads. What the
client has not taken yet is kept together by choice, within a bound.
"""

import asyncio
from collections.abc import Callable, Sequence
from typing import assert_never

import attrs

from lmpool.core.effects import (
    ChoiceEnd,
    CloseRequest,
    DeliverPromptLogprobs,
    DeliverStart,
    DeliverToken,
    Outcome,
)
from lmpool.core.ids import SECOND, Nanos, RequestId
from lmpool.core.plan import TokenLogprobs
from lmpool.io.choice_text import ChoiceText, Cut
from lmpool.io.errors import BadRequest, Busy, DeadlinePassed, Draining, GenerationFailed, LMPoolError, NoReplica
from lmpool.io.generation import Chunk, FinishReason, GenerationRequest, ScoredToken
from lmpool.io.ingress import Delivery
from lmpool.io.request_check import prompt_field
from lmpool.io.scores import echo_text, score_prompt, score_token
from lmpool.io.text.model_text import ModelText

UNREAD_MAX = 65_536
"""Tokens, and neighbours scored with them, that a client may leave unread: some 30 MB at the very worst."""

UNREAD_ALL_MAX = 1 << 20
"""Of all answers of a process. Beyond it, whoever leaves more than `UNREAD_USUAL` unread is ended."""
UNREAD_USUAL = 1_024
"""What comes together while the event loop is busy."""

TOO_SLOW = "The answer was ended because the client did not read it."


@attrs.define
class _Choice:
    text: ChoiceText
    outputs: int
    """Tokens that count."""
    finish: FinishReason | None


@attrs.define
class _Unread:
    """Of one choice, since its last chunk."""

    texts: list[str]
    tokens: list[int]
    logprobs: list[ScoredToken]
    finish: FinishReason | None


@attrs.define
class UnreadTotal:
    """Of all answers of a process, so that memory does not grow with the number of slow clients."""

    count: int = 0


class Answer:
    """`take` is for the ingress, `next_chunks` for the one who reads."""

    def __init__(
        self,
        request_id: RequestId,
        request: GenerationRequest,
        prompt: Sequence[int],
        text: ModelText,
        stop: Callable[[int, int], None],
        abandon: Callable[[], None],
        unread_total: UnreadTotal,
    ) -> None:
        """`stop`: a choice has ended at an output index. `abandon`: nothing more is wanted. `close` it at the end."""
        sampling = request.sampling
        self._id = request_id
        self._request = request
        self._prompt = prompt
        self._text = text
        self._stop = stop
        self._abandon = abandon
        self._choices = [
            _Choice(
                ChoiceText(text.stream(), sampling.stop, sampling.min_tokens, includes_stop=sampling.includes_stop),
                0,
                None,
            )
            for _ in range(sampling.choices)
        ]
        self._unread: dict[int, _Unread] = {}
        self._unread_count = 0
        self._unread_total = unread_total
        self._cached_tokens = 0
        self._queued_ns = Nanos(0)
        self._prompt_logprobs: list[TokenLogprobs] = []
        self._is_echo_due = sampling.echo
        self._close: CloseRequest | None = None
        self._failure: LMPoolError | None = None
        self._wake = asyncio.Event()

    def take(self, delivery: Delivery) -> None:
        """In order; `CloseRequest` is the last."""
        if self._failure is not None:
            return
        match delivery:
            case DeliverToken():
                self._take_token(delivery)
            case DeliverStart():
                self._cached_tokens = delivery.cached_tokens
                self._queued_ns = delivery.queued_ns
                if not self._is_scoring:
                    self.echo()
            case DeliverPromptLogprobs(entries=entries):
                self._prompt_logprobs.extend(entries)
                if not self._is_scoring:
                    self.echo()
            case CloseRequest():
                self._take_close(delivery)
            case _:
                assert_never(delivery)

    async def next_chunks(self) -> list[Chunk]:
        """What has come since the last time, at most one a choice; nothing at the end. Raises LMPoolError."""
        while not self._can_read and self._failure is None and self._close is None:
            self._wake.clear()
            await self._wake.wait()
        if self._failure is not None and not self._can_read:
            raise self._failure
        unread = self._unread
        self.close()
        return [self._chunk(number, part) for number, part in unread.items()]

    def close(self) -> None:
        """Forgets what is unread."""
        self._unread = {}
        self._count_unread(-self._unread_count)

    def echo(self) -> None:
        """The prompt is in front of every choice, if that was asked for; scored, if its scores have come."""
        if not self._is_echo_due:
            return
        self._is_echo_due = False
        later, self._unread = self._unread, {}
        text = echo_text(self._request.prompt, self._prompt, self._text)
        scored = score_prompt(self._request.prompt, self._prompt, self._prompt_logprobs, self._text)
        wants_logprobs = self._request.sampling.logprobs is not None
        for number in range(len(self._choices)):
            self._put(number, text, (), scored if wants_logprobs else (), None)
            if number in later:
                part = later[number]
                self._put(number, "".join(part.texts), part.tokens, part.logprobs, part.finish)

    def end_without_output(self) -> None:
        """For a request of no output tokens."""
        self.echo()
        for number, choice in enumerate(self._choices):
            choice.finish = "length"
            self._put(number, "", (), (), "length")

    @property
    def _is_scoring(self) -> bool:
        sampling = self._request.sampling
        if not sampling.echo or sampling.logprobs is None:
            return False
        return len(self._prompt_logprobs) < len(self._prompt) - 1

    @property
    def _can_read(self) -> bool:
        return bool(self._unread) and not self._is_echo_due

    def _take_token(self, delivery: DeliverToken) -> None:
        number = delivery.choice
        choice = self._choices[number]
        if choice.finish is not None:
            return  # beyond a stop string
        cut = Cut("", is_stopped=False) if delivery.hidden else choice.text.feed(delivery.output_index, delivery.token)
        text = cut.text
        if cut.is_stopped:
            choice.finish = "stop"
            if delivery.end is None:
                self._stop(number, delivery.output_index)
        elif delivery.end is not None:
            last = choice.text.end()
            text += last.text
            choice.finish = "stop" if last.is_stopped or delivery.end is ChoiceEnd.STOP else "length"
        choice.outputs += 1
        scored = () if delivery.logprobs is None else (score_token(delivery.logprobs, delivery.hidden, self._text),)
        self._put(number, text, (delivery.token,), scored, choice.finish)

    def _put(
        self,
        number: int,
        text: str,
        tokens: Sequence[int],
        logprobs: Sequence[ScoredToken],
        finish: FinishReason | None,
    ) -> None:
        part = self._unread.get(number)
        if part is None:
            part = self._unread[number] = _Unread([], [], [], None)
        part.texts.append(text)
        part.tokens.extend(tokens)
        part.logprobs.extend(logprobs)
        part.finish = finish
        self._wake.set()
        self._count_unread(len(tokens) + sum(len(scored.best) for scored in logprobs))
        is_one_of_many = self._unread_count > UNREAD_USUAL and self._unread_total.count > UNREAD_ALL_MAX
        if self._unread_count > UNREAD_MAX or is_one_of_many:
            self._failure = GenerationFailed(TOO_SLOW)
            self.close()
            self._abandon()

    def _count_unread(self, change: int) -> None:
        self._unread_count += change
        self._unread_total.count += change

    def _chunk(self, number: int, part: _Unread) -> Chunk:
        return Chunk(
            request=self._id,
            choice=number,
            text="".join(part.texts),
            tokens=tuple(part.tokens),
            logprobs=tuple(part.logprobs),
            finish=part.finish,
            prompt_tokens=len(self._prompt),
            cached_tokens=self._cached_tokens,
            completion_tokens=self._choices[number].outputs,
            queued_ns=self._queued_ns,
        )

    def _take_close(self, close: CloseRequest) -> None:
        self._close = close
        self._wake.set()
        if close.outcome is not Outcome.COMPLETE:
            self._failure = _error_of(close, self._request)
        elif any(choice.finish is None for choice in self._choices):
            self.end_without_output()


def _error_of(close: CloseRequest, request: GenerationRequest) -> LMPoolError:
    match close.outcome:
        case Outcome.BUSY:
            return Busy(close.detail, close.retry_after_ns / SECOND)
        case Outcome.NEVER_FITS:
            return BadRequest(close.detail, prompt_field(request.prompt), "context_length_exceeded")
        case Outcome.NO_REPLICA:
            return NoReplica(close.detail)
        case Outcome.DEADLINE:
            return DeadlinePassed(close.detail)
        case Outcome.DRAINING:
            return Draining(close.detail)
        case Outcome.FAILED:
            return GenerationFailed(close.detail)
        case Outcome.CANCELLED | Outcome.COMPLETE:
            raise AssertionError(f"{close} is no error of a client that waits")
        case _:
            assert_never(close.outcome)
