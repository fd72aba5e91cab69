"""A streamed answer of the OpenAI API, line by line."""

import json
from typing import Any

import attrs

from lmpool.bench.load.measured import Piece
from lmpool.core.ids import Nanos

DONE = "[DONE]"


@attrs.define
class Stream:
    """What has come so far. Fields of servers that we do not know are no fault."""

    pieces: list[Piece] = attrs.field(factory=list)
    text: str = ""
    prompt_tokens: int | None = None
    cached_tokens: int | None = None
    output_tokens: int | None = None
    fault: str = ""
    detail: str = ""
    is_finished: bool = False
    """A reason to end has come."""
    is_done: bool = False
    _counted: int = 0

    def feed(self, line: str, at_ns: Nanos) -> None:
        """A line of the body without its end, and when it came."""
        if self.fault or not line.startswith("data:"):
            return
        data = line[5:].strip()
        if data == DONE:
            self.is_done = True
            return
        try:
            event = json.loads(data)
            error = event.get("error")
            if error is not None:
                self.fault, self.detail = f"stream {error.get('code') or error.get('type')}", str(error.get("message"))
                return
            self._take(event, at_ns)
        except (ValueError, AttributeError, TypeError, KeyError, IndexError) as error:
            self.fault, self.detail = "malformed", f"{error!r} in {data[:200]}"

    def close(self) -> None:
        """Nothing more comes."""
        if self.fault:
            return
        if not self.is_finished:
            self.fault, self.detail = "cut", f"the stream ended after {len(self.pieces)} events with content"
        elif not self.pieces:
            self.fault, self.detail = "no content", "no event had any"

    def _take(self, event: dict[str, Any], at_ns: Nanos) -> None:
        counted = self._take_usage(event.get("usage"))
        text = ""
        for choice in event.get("choices") or ():
            delta = choice.get("delta") or {}
            text += choice.get("text") or delta.get("content") or delta.get("reasoning_content") or ""
            if choice.get("finish_reason"):
                self.is_finished = True
        if text:
            self.text += text
            self.pieces.append(Piece(at_ns, None if counted is None else counted - self._counted))
            self._counted = self._counted if counted is None else counted

    def _take_usage(self, usage: dict[str, Any] | None) -> int | None:
        """Output tokens so far, if this event says so."""
        if not usage:
            return None
        self.prompt_tokens = usage.get("prompt_tokens", self.prompt_tokens)
        self.output_tokens = usage.get("completion_tokens", self.output_tokens)
        details = usage.get("prompt_tokens_details") or {}
        self.cached_tokens = details.get("cached_tokens", self.cached_tokens)
        return self.output_tokens
