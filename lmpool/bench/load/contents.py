"""What the parts of a trace are made of: random token ids, or plain English of an exact number of tokens.

A content is made of the seed and its number alone, so that two prompts share as much as the trace says, on every
machine. Another seed gives prompts that no server has seen.
"""

from collections.abc import Callable
from hashlib import blake2b
from random import Random
from typing import Protocol

from tokenizers import Tokenizer

from lmpool.core.prefix import pack_tokens
from lmpool.sim.trace import Part, Trace

FIRST_PLAIN_TOKEN = 1000
"""Random prompts avoid the low ids, where vocabularies keep their special tokens."""
TOKENS_PER_WORD = 1.3
"""Of English in common vocabularies; used where no tokenizer is at hand."""
PADS = (" a", " I", " so", " on", ".")
"""Words that common vocabularies have as one token, to fill up with."""


def _words(text: str) -> tuple[str, ...]:
    return tuple(text.split())


ARTICLES = ("the", "every", "one", "another", "this", "no")
QUALITIES = _words(
    "quiet old narrow bright heavy distant patient ordinary sudden careful wooden northern early empty honest "
    "curious steady broken golden silent familiar modern gentle bitter"
)
THINGS = _words(
    "river engineer market library teacher bridge machine garden letter station captain mountain kitchen museum "
    "doctor village harbour scientist window railway orchestra forest merchant island journal factory winter"
)
ACTS = _words(
    "follows remembers carries describes repairs crosses visits measures answers watches builds paints forgets "
    "discovers explains borrows keeps"
)
TIMES = ("before dawn", "after the storm", "in late summer", "without a word", "for many years", "once a week")


class TokenContents(Protocol):
    """Makes token ids: a shorter part is a beginning of a longer one of the same content."""

    def tokens(self, part: Part) -> tuple[int, ...]: ...


class RandomTokens:
    """Ids below `vocabulary`, evenly."""

    def __init__(self, vocabulary: int, seed: int) -> None:
        self._ids = range(min(FIRST_PLAIN_TOKEN, vocabulary // 2), vocabulary)
        self._seed = seed
        self._made: dict[int, tuple[int, ...]] = {}

    def tokens(self, part: Part) -> tuple[int, ...]:
        made = self._made.get(part.content, ())
        if len(made) < part.tokens:
            chance = Random(f"{self._seed} {part.content}")
            made = self._made[part.content] = tuple(chance.choices(self._ids, k=part.tokens))
        return made[: part.tokens]


class ProseTokens:
    """English by a tokenizer, sentence by sentence."""

    def __init__(self, tokenizer: Tokenizer, seed: int) -> None:
        self._tokenizer = tokenizer
        self._seed = seed
        self._made: dict[int, tuple[int, ...]] = {}

    def tokens(self, part: Part) -> tuple[int, ...]:
        made = self._made.get(part.content, ())
        if len(made) < part.tokens:
            chance, grown = Random(f"{self._seed} {part.content}"), list[int]()
            while len(grown) < part.tokens:
                grown += self._tokenizer.encode(" " + sentence(chance), add_special_tokens=False).ids
            made = self._made[part.content] = tuple(grown)
        return made[: part.tokens]


class ProseTexts:
    """English for chats. `count` tells the tokens of a text; without it lengths are those of usual vocabularies."""

    def __init__(self, count: Callable[[str], int] | None, seed: int) -> None:
        self._count = count
        self._seed = seed
        self._made: dict[Part, str] = {}

    @property
    def is_exact(self) -> bool:
        return self._count is not None

    def text(self, part: Part) -> str:
        made = self._made.get(part)
        if made is None:
            chance = Random(f"{self._seed} {part.content}")
            made = self._made[part] = (
                _worded(chance, round(part.tokens / TOKENS_PER_WORD))
                if self._count is None
                else _exact(chance, part.tokens, self._count)
            )
        return made


def prepare(contents: TokenContents | ProseTexts, trace: Trace) -> None:
    """Makes all parts now, so that nothing is left to make while requests are sent."""
    for part in parts_of(trace):
        if isinstance(contents, ProseTexts):
            contents.text(part)
        else:
            contents.tokens(part)


def token_counter(tokenizer: Tokenizer) -> Callable[[str], int]:
    return lambda text: len(tokenizer.encode(text, add_special_tokens=False).ids)


def sentence(chance: Random) -> str:
    """With a capital letter and a full stop."""
    words = f"{_noun(chance)} {chance.choice(ACTS)} {_noun(chance)}"
    if chance.random() < 0.4:
        words += f" {chance.choice(TIMES)}"
    return words[0].upper() + words[1:] + "."


def _noun(chance: Random) -> str:
    quality = f"{chance.choice(QUALITIES)} " if chance.random() < 0.6 else ""
    return f"{chance.choice(ARTICLES)} {quality}{chance.choice(THINGS)}"


def _worded(chance: Random, words: int) -> str:
    text: list[str] = []
    while len(text) < words:
        text += sentence(chance).split()
    return " ".join(text[: max(words, 1)])


def _exact(chance: Random, tokens: int, count: Callable[[str], int]) -> str:
    """As many whole words as fit, filled up with short ones. A token or two may be missing in a strange vocabulary."""
    words = _worded(chance, tokens).split()
    low, high = 0, len(words)
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if count(" ".join(words[:middle])) <= tokens else (low, middle - 1)
    text = " ".join(words[:low])
    for _ in range(2 * tokens):
        if count(text) >= tokens:
            break
        text = next((text + pad for pad in PADS if count(text + pad) <= tokens), text)
    return text


def token_fingerprint(contents: TokenContents, trace: Trace) -> str:
    """Of every token of every part, in order."""
    digest = blake2b(digest_size=8)
    for part in parts_of(trace):
        digest.update(pack_tokens(contents.tokens(part)))
    return digest.hexdigest()


def text_fingerprint(contents: ProseTexts, trace: Trace) -> str:
    digest = blake2b(digest_size=8)
    for part in parts_of(trace):
        digest.update(contents.text(part).encode() + b"\0")
    return digest.hexdigest()


def parts_of(trace: Trace) -> dict[Part, None]:
    """Each once, as they come."""
    return dict.fromkeys(part for request in trace.requests for part in request.parts)
