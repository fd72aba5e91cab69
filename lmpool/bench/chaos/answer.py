"""Answers as a client gets them, whole or as a stream, in one form that can be compared."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

import attrs
from openai.types.chat import ChatCompletionChunk

from lmpool.bench.chaos.question import Form

DONE = "[DONE]"
FINISHES = ("stop", "length")


class MalformedError(Exception):
    """What came does not follow the protocol; says what."""


class StreamError(Exception):
    """A stream ended with an error, in the form that is promised for it."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(f"{code}: {message}")
        self.code = code


@attrs.frozen
class ScoredToken:
    token: str
    logprob: float | None
    best: tuple[tuple[str, float], ...]
    """As many as were asked for, in no order of note."""
    place: object
    """Its bytes (chat), or where it begins in the text (completions)."""


@attrs.frozen
class ChoiceAnswer:
    text: str
    finish: str | None
    logprobs: tuple[ScoredToken, ...]
    """One entry a token; empty where none were asked for."""


@attrs.frozen
class Answer:
    choices: tuple[ChoiceAnswer, ...]
    prompt_tokens: int | None
    completion_tokens: int | None
    """None: not told."""


def whole_answer(form: Form, document: Mapping[str, Any]) -> Answer:
    """Raises MalformedError."""
    choices = sorted(document["choices"], key=lambda choice: int(choice["index"]))
    if [choice["index"] for choice in choices] != list(range(len(choices))):
        raise MalformedError(f"choices {[choice['index'] for choice in choices]}")
    return Answer(
        tuple(
            ChoiceAnswer(_text(form, choice), choice["finish_reason"], tuple(entries(form, choice)))
            for choice in choices
        ),
        document["usage"]["prompt_tokens"],
        document["usage"]["completion_tokens"],
    )


def _text(form: Form, choice: Mapping[str, Any]) -> str:
    return str(choice["message"]["content"] if form is Form.CHAT else choice["text"])


def entries(form: Form, choice: Mapping[str, Any]) -> list[ScoredToken]:
    """The log-probabilities of a choice, or of a piece of one."""
    told = choice.get("logprobs")
    if told is None:
        return []
    if form is Form.CHAT:
        return [_chat_entry(entry) for entry in told["content"] or ()]
    columns = (told["tokens"], told["token_logprobs"], told["top_logprobs"] or [None] * len(told["tokens"]))
    return [
        ScoredToken(token, logprob, tuple(sorted((best or {}).items())), offset)
        for token, logprob, best, offset in zip(*columns, told["text_offset"], strict=True)
    ]


def _chat_entry(entry: Mapping[str, Any]) -> ScoredToken:
    best = tuple((other["token"], other["logprob"]) for other in entry["top_logprobs"])
    return ScoredToken(entry["token"], entry["logprob"], best, tuple(entry["bytes"] or ()))


class StreamReader:
    """Takes the lines of a stream one by one and holds each against what a stream may have."""

    def __init__(self, form: Form, choices: int, *, wants_usage: bool) -> None:
        self._form = form
        self._wants_usage = wants_usage
        self._texts = [""] * choices
        self._finishes: list[str | None] = [None] * choices
        self._logprobs: list[list[ScoredToken]] = [[] for _ in range(choices)]
        self._usage: Mapping[str, Any] | None = None
        self._is_done = False

    def feed(self, line: str) -> None:
        """Raises MalformedError, StreamError."""
        if not line or line.startswith(":"):
            return
        if not line.startswith("data: "):
            raise MalformedError(f"a line {line[:80]!r}")
        data = line.removeprefix("data: ")
        if self._is_done:
            raise MalformedError(f"after the end comes {data[:80]!r}")
        if data == DONE:
            self._is_done = True
            return
        event = json.loads(data)
        if "error" in event:
            error = well_formed_error(event)
            raise StreamError(error["code"], error["message"])
        if self._form is Form.CHAT:  # for completions its type knows no event before the last
            ChatCompletionChunk.model_validate(event)
        self._take(event)

    def _take(self, event: Mapping[str, Any]) -> None:
        if self._usage is not None:
            raise MalformedError("an event after the usage")
        if not event["choices"]:
            if not self._wants_usage or not event["usage"]:
                raise MalformedError("an event without choices")
            self._usage = event["usage"]
            return
        if self._wants_usage and ("usage" not in event or event["usage"] is not None):
            raise MalformedError("usage is to be null in all events but the last")
        for choice in event["choices"]:
            self._take_piece(choice)

    def _take_piece(self, choice: Mapping[str, Any]) -> None:
        index = choice["index"]
        if self._finishes[index] is not None:
            raise MalformedError(f"choice {index} goes on after its finish reason")
        piece = (choice["delta"].get("content") if self._form is Form.CHAT else choice["text"]) or ""
        self._texts[index] += piece
        self._logprobs[index] += entries(self._form, choice)
        self._finishes[index] = choice["finish_reason"]

    @property
    def texts(self) -> Sequence[str]:
        """So far."""
        return self._texts

    def answer(self) -> Answer:
        """Raises MalformedError if the stream did not end as it should."""
        if not self._is_done:
            raise MalformedError("the stream ended without [DONE]")
        if self._wants_usage and self._usage is None:
            raise MalformedError("the stream ended without usage")
        choices = zip(self._texts, self._finishes, self._logprobs, strict=True)
        usage = self._usage or {}
        return Answer(
            tuple(ChoiceAnswer(text, finish, tuple(logprobs)) for text, finish, logprobs in choices),
            usage.get("prompt_tokens"),
            usage.get("completion_tokens"),
        )


def well_formed_error(document: object) -> Mapping[str, Any]:
    """The error of a body or event. Raises MalformedError."""
    if not isinstance(document, dict) or not isinstance(document.get("error"), dict):
        raise MalformedError(f"an error in the form {str(document)[:120]!r}")
    error: Mapping[str, Any] = document["error"]
    if set(error) != {"message", "type", "param", "code"} or not all(error[key] for key in ("message", "type", "code")):
        raise MalformedError(f"an error with {error}")
    return error


def faults_of_form(told: Answer, expected: Answer) -> list[str]:
    """What is wrong with an answer whatever its text; empty if nothing."""
    found = []
    if len(told.choices) != len(expected.choices):
        found.append(f"{len(told.choices)} choices instead of {len(expected.choices)}")
    if any(choice.finish not in FINISHES for choice in told.choices):
        found.append(f"finish reasons {[choice.finish for choice in told.choices]}")
    if told.prompt_tokens not in (None, expected.prompt_tokens):
        found.append(f"prompt_tokens {told.prompt_tokens} instead of {expected.prompt_tokens}")
    return found


def differences(told: Answer, expected: Answer) -> list[str]:
    """What a client would notice; empty if nothing. Counts that were not told are not compared."""
    found = []
    if len(told.choices) != len(expected.choices):
        return [f"{len(told.choices)} choices instead of {len(expected.choices)}"]
    for index, (choice, other) in enumerate(zip(told.choices, expected.choices, strict=True)):
        if choice.text != other.text:
            found.append(f"choice {index}: text {choice.text!r} instead of {other.text!r}")
        if choice.finish != other.finish:
            found.append(f"choice {index}: finish {choice.finish} instead of {other.finish}")
        if choice.logprobs != other.logprobs:
            found.append(f"choice {index}: log-probabilities {choice.logprobs} instead of {other.logprobs}")
    for name in ("prompt_tokens", "completion_tokens"):
        count = getattr(told, name)
        if count is not None and count != getattr(expected, name):
            found.append(f"{name} {count} instead of {getattr(expected, name)}")
    return found


def is_beginning(texts: Sequence[str], expected: Answer) -> bool:
    """Whether what came before a stream was cut is how the answer begins; of other answers nothing comes before."""
    return not texts or all(choice.text.startswith(text) for text, choice in zip(texts, expected.choices, strict=True))
