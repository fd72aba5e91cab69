"""Log-probabilities with the texts of their tokens, and the prompt as an echo shows it."""

from collections.abc import Sequence

from lmpool.core.plan import TokenLogprobs
from lmpool.io.generation import NamedLogprob, Prompt, ScoredToken
from lmpool.io.text.model_text import ModelText


def score_token(logprobs: TokenLogprobs, hidden: bool, text: ModelText) -> ScoredToken:  # noqa: FBT001
    """`hidden`: its text is not part of the answer."""
    return _scored(logprobs, b"" if hidden else text.text_bytes(logprobs.token), text)


def echo_text(prompt: Prompt, tokens: Sequence[int], text: ModelText) -> str:
    """A text as it was given; of token ids the whole text, special tokens included."""
    return prompt if isinstance(prompt, str) else b"".join(map(text.token_bytes, tokens)).decode(errors="replace")


def score_prompt(
    prompt: Prompt, tokens: Sequence[int], logprobs: Sequence[TokenLogprobs], text: ModelText
) -> tuple[ScoredToken, ...]:
    """All tokens of the prompt; `logprobs` are of all but the first. What they show is the echo's text."""
    parts = _shown(prompt, [text.token_bytes(token) for token in tokens])
    first = ScoredToken(NamedLogprob(text.token_text(tokens[0]), text.token_bytes(tokens[0]), None), (), parts[0])
    return (first, *(_scored(entry, shown, text) for entry, shown in zip(logprobs, parts[1:], strict=False)))


def _shown(prompt: Prompt, parts: list[bytes]) -> list[bytes]:
    """What a tokenizer puts before a text of its own accord is not shown."""
    whole = b"".join(parts)
    given = prompt.encode() if isinstance(prompt, str) else whole
    unseen = len(whole) - len(given) if whole.endswith(given) else 0
    shown: list[bytes] = []
    for part in parts:
        shown.append(part[unseen:])
        unseen = max(0, unseen - len(part))
    return shown


def _scored(logprobs: TokenLogprobs, shown: bytes, text: ModelText) -> ScoredToken:
    best = zip(logprobs.top_tokens, logprobs.top_logprobs, strict=True)
    return ScoredToken(
        _named(logprobs.token, logprobs.logprob, text),
        tuple(_named(token, logprob, text) for token, logprob in best),
        shown,
    )


def _named(token: int, logprob: float, text: ModelText) -> NamedLogprob:
    return NamedLogprob(text.token_text(token), text.token_bytes(token), logprob)
