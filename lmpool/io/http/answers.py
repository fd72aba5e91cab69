"""Answers in the words of the two generation endpoints: whole, or event by event.

A choice is fed chunks in order; what it yields for a stream, joined, is what it yields as a whole.
"""

from collections.abc import Callable, Sequence
from enum import Enum
from typing import Any, Protocol

import attrs
import orjson

from lmpool.io.generation import Chunk, ScoredToken
from lmpool.io.http.logprobs import CompletionLogprobs, chat_logprobs

DONE = b"data: [DONE]\n\n"


@attrs.frozen
class Usage:
    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int

    def document(self) -> dict[str, Any]:
        return {
            "prompt_tokens": self.prompt_tokens,
            "completion_tokens": self.completion_tokens,
            "total_tokens": self.prompt_tokens + self.completion_tokens,
            "prompt_tokens_details": {"cached_tokens": self.cached_tokens},
        }


@attrs.frozen
class Head:
    """What every document and event of an answer carries."""

    id: str
    created: int
    model: str


class Choice(Protocol):
    """One choice on its way to the client."""

    def events(self, chunk: Chunk) -> list[dict[str, Any]]:
        """The entries of `choices`, one for each event that this chunk makes."""
        ...

    def whole(self, chunks: Sequence[Chunk]) -> dict[str, Any]:
        """The entry of `choices` of an answer that is no stream."""
        ...


class ChatChoice:
    __slots__ = ("_has_begun", "_index", "_pending", "_wants_logprobs")

    def __init__(self, index: int, *, wants_logprobs: bool) -> None:
        self._index = index
        self._wants_logprobs = wants_logprobs
        self._has_begun = False
        self._pending: list[ScoredToken] = []

    def events(self, chunk: Chunk) -> list[dict[str, Any]]:
        events: list[dict[str, Any]] = []
        if not self._has_begun:
            self._has_begun = True
            events.append(self._event({"role": "assistant", "content": ""}, None, None))
        self._pending.extend(chunk.logprobs)
        if chunk.text:
            events.append(self._event({"content": chunk.text}, self._take_logprobs(), None))
        if chunk.finish is not None:
            events.append(self._event({}, self._take_logprobs() if self._pending else None, chunk.finish))
        return events

    def whole(self, chunks: Sequence[Chunk]) -> dict[str, Any]:
        for chunk in chunks:
            self._pending.extend(chunk.logprobs)
        content = "".join(chunk.text for chunk in chunks)
        return {
            "index": self._index,
            "message": {"role": "assistant", "content": content, "refusal": None},
            "logprobs": self._take_logprobs(),
            "finish_reason": chunks[-1].finish,
        }

    def _event(self, delta: dict[str, Any], logprobs: dict[str, Any] | None, finish: str | None) -> dict[str, Any]:
        return {"index": self._index, "delta": delta, "logprobs": logprobs, "finish_reason": finish}

    def _take_logprobs(self) -> dict[str, Any] | None:
        pending, self._pending = self._pending, []
        return chat_logprobs(pending) if self._wants_logprobs else None


class CompletionChoice:
    __slots__ = ("_index", "_logprobs", "_pending")

    def __init__(self, index: int, *, wants_logprobs: bool) -> None:
        self._index = index
        self._logprobs = CompletionLogprobs() if wants_logprobs else None
        self._pending: list[ScoredToken] = []

    def events(self, chunk: Chunk) -> list[dict[str, Any]]:
        self._pending.extend(chunk.logprobs)
        if not chunk.text and chunk.finish is None:
            return []
        return [self._entry(chunk.text, chunk.finish)]

    def whole(self, chunks: Sequence[Chunk]) -> dict[str, Any]:
        for chunk in chunks:
            self._pending.extend(chunk.logprobs)
        return self._entry("".join(chunk.text for chunk in chunks), chunks[-1].finish)

    def _entry(self, text: str, finish: str | None) -> dict[str, Any]:
        pending, self._pending = self._pending, []
        logprobs = None if self._logprobs is None else self._logprobs.layout(pending)
        return {"index": self._index, "text": text, "logprobs": logprobs, "finish_reason": finish}


@attrs.frozen
class Form:
    """How documents of one endpoint are called."""

    whole: str
    event: str
    id_prefix: str


CHAT = Form("chat.completion", "chat.completion.chunk", "chatcmpl-")
COMPLETION = Form("text_completion", "text_completion", "cmpl-")


def whole_document(form: Form, head: Head, choices: Sequence[dict[str, Any]], usage: Usage) -> bytes:
    return orjson.dumps(_document(form.whole, head, choices) | {"usage": usage.document()})


class Counts(Enum):
    """Which events of a stream have counts."""

    NONE = "none"
    LAST = "last"
    """One of its own, without choices; the others have `usage: null`."""
    EACH = "each"
    """That one, and so far in every other."""


class Events:
    """The events of one stream, ready to be sent. `usage` tells the counts so far."""

    __slots__ = ("_counts", "_form", "_head", "_usage")

    def __init__(self, form: Form, head: Head, counts: Counts, usage: Callable[[], Usage]) -> None:
        self._form = form
        self._head = head
        self._counts = counts
        self._usage = usage

    def of_choice(self, entry: dict[str, Any]) -> bytes:
        document = _document(self._form.event, self._head, [entry])
        if self._counts is not Counts.NONE:
            document["usage"] = self._usage().document() if self._counts is Counts.EACH else None
        return event(orjson.dumps(document))

    def end(self) -> bytes:
        """Counts, if wanted, and the end mark."""
        if self._counts is Counts.NONE:
            return DONE
        document = _document(self._form.event, self._head, []) | {"usage": self._usage().document()}
        return event(orjson.dumps(document)) + DONE


def event(data: bytes) -> bytes:
    return b"data: " + data + b"\n\n"


def _document(kind: str, head: Head, choices: Sequence[dict[str, Any]]) -> dict[str, Any]:
    return {"id": head.id, "object": kind, "created": head.created, "model": head.model, "choices": choices}
