"""Text and tokens of one model: the only module that imports `tokenizers`.

Reads a converted model folder (config.json, tokenizer.json, tokenizer_config.json, generation_config.json,
chat_template.jinja). Long texts are tokenised on threads, as a batch of one: for a batch `tokenizers` releases the
interpreter lock, for a single text it does not.
"""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache
from pathlib import Path
from typing import Any

import attrs
import orjson
from tokenizers import Tokenizer

from lmpool.io.text.template import load_template, special_tokens
from lmpool.io.text.token_bytes import TextStream, byte_rule

INLINE_CHARACTERS_MAX = 1024
"""Shorter texts take less time to tokenise (about 0.2 ms) than two changes of thread on a busy machine."""

ENCODER_THREADS = 2
"""Enough to keep one long text from delaying the next; workers need the other cores."""

NORMALIZER_FACTOR = 4
"""A normalizer may compose several characters of a text into one."""

TOKENS_CACHED = 1 << 16
"""Token bytes kept: most of what a model ever writes, in some 10 MB."""


@attrs.frozen
class ModelFacts:
    vocabulary: int
    """Token ids are 0 to vocabulary - 1; the tokenizer may know fewer."""
    model_tokens_max: int
    """Longest context of the model; a server may hold less."""
    ends: tuple[int, ...]
    """Token ids that end an answer."""
    has_template: bool


class FolderError(Exception):
    """A model folder lacks something or contradicts itself; one line for the operator."""


class ModelText:
    """Encoding, decoding and the chat template of one model. Safe to use from one event loop; close it at the end."""

    def __init__(self, folder: Path) -> None:
        """Raises FolderError, token_bytes.DecoderError, jinja2.TemplateSyntaxError."""
        config = _read(folder / "config.json")
        tokenizer_config = _read(folder / "tokenizer_config.json")
        description = _read(folder / "tokenizer.json")
        self._tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
        self._tokenizer.no_truncation()
        self._tokenizer.no_padding()
        self._template = load_template(folder, tokenizer_config)
        self._special = frozenset(
            number for number, token in self._tokenizer.get_added_tokens_decoder().items() if token.special
        )
        rule = byte_rule(description["decoder"])
        self.token_bytes = lru_cache(TOKENS_CACHED)(self._bytes_by(rule))
        self.facts = ModelFacts(
            vocabulary=_inner(config)["vocab_size"],
            model_tokens_max=_inner(config)["max_position_embeddings"],
            ends=self._ends(folder, config, tokenizer_config),
            has_template=self._template is not None,
        )
        longest = max(map(len, self._tokenizer.get_vocab(with_added_tokens=True)), default=1)
        self.token_characters_max = longest * (1 if self._tokenizer.normalizer is None else NORMALIZER_FACTOR)
        """A token stands for no more of a text."""
        self._threads = ThreadPoolExecutor(ENCODER_THREADS, thread_name_prefix="encode")

    def close(self) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)

    async def encode(self, text: str, *, add_special_tokens: bool) -> list[int]:
        """`add_special_tokens`: what the tokenizer puts around a text of its own accord, such as a begin token."""

        def work() -> list[int]:
            return self._tokenizer.encode_batch([text], add_special_tokens=add_special_tokens)[0].ids

        return await self._away(work, len(text))

    async def encode_chat(self, messages: Sequence[Mapping[str, str]], *, add_generation_prompt: bool) -> list[int]:
        """Messages have `role` and `content`. Needs a template (`facts.has_template`). Raises ChatError."""
        template = self._template
        assert template is not None

        def work() -> list[int]:
            text = template.render(messages, add_generation_prompt=add_generation_prompt)
            return self._tokenizer.encode_batch([text], add_special_tokens=False)[0].ids

        return await self._away(work, sum(len(message["content"]) for message in messages))

    def decode(self, tokens: Sequence[int]) -> str:
        """The whole text of a sequence that stands for itself, special tokens included."""
        return self._tokenizer.decode(list(tokens), skip_special_tokens=False)

    def stream(self) -> TextStream:
        return TextStream(self.text_bytes)

    def token_text(self, token: int) -> str:
        """One token by itself, as log-probabilities name it; `bytes:\\xNN` where it is no whole character."""
        data = self.token_bytes(token)
        try:
            return data.decode()
        except UnicodeDecodeError:
            return "bytes:" + "".join(f"\\x{byte:02x}" for byte in data)

    def text_bytes(self, token: int) -> bytes:
        """A token's part of a text; none for special tokens."""
        return b"" if token in self._special else self.token_bytes(token)

    def _bytes_by(self, rule: Callable[[str], bytes]) -> Callable[[int], bytes]:
        def token_bytes(token: int) -> bytes:
            """Bytes of any token, special ones included; none for ids the tokenizer does not know."""
            text = self._tokenizer.id_to_token(token)
            return b"" if text is None else rule(text)

        return token_bytes

    async def _away(self, work: Callable[[], list[int]], characters: int) -> list[int]:
        if characters <= INLINE_CHARACTERS_MAX:
            return work()
        return await asyncio.get_running_loop().run_in_executor(self._threads, work)

    def _ends(self, folder: Path, config: Mapping[str, Any], tokenizer_config: Mapping[str, Any]) -> tuple[int, ...]:
        path = folder / "generation_config.json"
        generation = _read(path) if path.exists() else {}
        named: list[int] = []
        for declared in (generation.get("eos_token_id"), _inner(config).get("eos_token_id")):
            named += declared if isinstance(declared, list) else [] if declared is None else [declared]
        token = special_tokens(tokenizer_config).get("eos_token")
        number = None if token is None else self._tokenizer.token_to_id(token)
        return tuple(dict.fromkeys([*named, *([] if number is None else [number])]))


def _read(path: Path) -> dict[str, Any]:
    try:
        content = orjson.loads(path.read_bytes())
    except (OSError, orjson.JSONDecodeError) as error:
        raise FolderError(f"cannot read {path.name} in {path.parent}: {error}") from error
    if not isinstance(content, dict):
        raise FolderError(f"{path} is not a JSON object")
    return content


def _inner(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """Models with several parts keep the facts of the decoder under `text_config`."""
    inner: Mapping[str, Any] = config.get("text_config", config)
    return inner
