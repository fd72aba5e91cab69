"""What one HTTP request has come to so far, over all its prompts and choices."""

from lmpool.core.explanation import request_word
from lmpool.io.generation import Chunk
from lmpool.io.http.answers import Usage
from lmpool.io.metrics import Meter


class Tally:
    def __init__(self, meter: Meter) -> None:
        self._meter = meter
        self._latest: dict[int, Chunk] = {}
        self._completion_tokens = 0
        self.is_cut = False
        """Whether a limit ended any choice."""

    def count(self, prompt: int, chunk: Chunk) -> None:
        if prompt not in self._latest:
            self._meter.begun(chunk.prompt_tokens, chunk.cached_tokens, chunk.queued_ns)
        self._latest[prompt] = chunk
        if chunk.tokens:
            self._completion_tokens += len(chunk.tokens)
            self._meter.produced(prompt, chunk.choice, len(chunk.tokens))
        if chunk.finish == "length":
            self.is_cut = True

    def usage(self) -> Usage:
        latest = self._latest.values()
        return Usage(
            prompt_tokens=sum(chunk.prompt_tokens for chunk in latest),
            cached_tokens=sum(chunk.cached_tokens for chunk in latest),
            completion_tokens=self._completion_tokens,
        )

    def request_words(self) -> str:
        """Ids of the prompts that have begun, for the header."""
        return ",".join(request_word(chunk.request) for _, chunk in sorted(self._latest.items()))
