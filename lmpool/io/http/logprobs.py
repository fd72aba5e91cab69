"""Log-probabilities in the layouts of the two endpoints, which differ."""

import codecs
from collections.abc import Sequence
from typing import Any

from lmpool.io.generation import NamedLogprob, ScoredToken

LEAST = -9999.0
"""For a probability of zero, as in OpenAI's API: JSON has no infinity."""


def chat_logprobs(tokens: Sequence[ScoredToken]) -> dict[str, Any]:
    content = [_chat_entry(token.chosen) | {"top_logprobs": list(map(_chat_entry, token.best))} for token in tokens]
    return {"content": content, "refusal": None}


def _chat_entry(token: NamedLogprob) -> dict[str, Any]:
    return {"token": token.text, "logprob": _finite(token.logprob), "bytes": list(token.data)}


def _finite(logprob: float | None) -> float | None:
    return None if logprob is None else max(logprob, LEAST)


class CompletionLogprobs:
    """Parallel lists for one choice; remembers how many characters its earlier tokens have completed."""

    __slots__ = ("_characters", "_utf8")

    def __init__(self) -> None:
        self._utf8 = codecs.getincrementaldecoder("utf-8")("replace")
        self._characters = 0

    def layout(self, tokens: Sequence[ScoredToken]) -> dict[str, Any]:
        """Of the next tokens. Each dictionary of best tokens has the chosen one as well."""
        offsets: list[int] = []
        for token in tokens:
            offsets.append(self._characters)
            self._characters += len(self._utf8.decode(token.shown))
        return {
            "tokens": [token.chosen.text for token in tokens],
            "token_logprobs": [_finite(token.chosen.logprob) for token in tokens],
            "top_logprobs": [_best(token) for token in tokens],
            "text_offset": offsets,
        }


def _best(token: ScoredToken) -> dict[str, float | None] | None:
    if token.chosen.logprob is None:
        return None
    named: dict[str, float | None] = {}
    for candidate in (*token.best, token.chosen):
        named.setdefault(candidate.text, _finite(candidate.logprob))
    return named
