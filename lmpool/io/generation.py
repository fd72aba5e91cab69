"""From a request to pieces of text: the one path that the HTTP server and the embedded engine share."""

from collections.abc import Mapping
from typing import Literal, TypeAlias

import attrs

from lmpool.core.ids import Nanos, RequestId


@attrs.frozen
class Chat:
    """Messages with `role` and `content`, for the model's chat template."""

    messages: tuple[Mapping[str, str], ...]


Prompt: TypeAlias = str | tuple[int, ...] | Chat
"""A text, token ids, or a chat."""


@attrs.frozen(kw_only=True)
class SamplingParams:
    """How an answer is drawn and what ends it; meanings and bounds are those of OpenAI's API and `specs/api.md`."""

    choices: int = 1
    """`n`."""
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    """0 keeps all."""
    min_p: float = 0.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    logit_bias: tuple[tuple[int, float], ...] = ()
    seed: int | None = None
    """None: drawn. The same seed gives different but repeatable choices."""
    max_tokens: int | None = None
    """A wish, cut to what the context holds. None: all that it holds. 0: only with `echo`."""
    min_tokens: int = 0
    stop: tuple[str, ...] = ()
    includes_stop: bool = False
    """A stop string that was found is part of the text."""
    stop_token_ids: tuple[int, ...] = ()
    ignores_eos: bool = False
    logprobs: int | None = None
    """0: of each token; k: of the k best as well."""
    echo: bool = False
    """The prompt's text comes first in each choice; with `logprobs` its tokens are scored too."""


@attrs.frozen(kw_only=True)
class GenerationRequest:
    prompt: Prompt
    sampling: SamplingParams = attrs.field(factory=SamplingParams)
    session: str = ""
    """Requests of one conversation, for policies that keep sessions together."""
    priority: int = 0
    """-8 to 8; lower is served first."""
    deadline_s: float | None = None
    """From arrival."""
    tenant: str = "default"
    """Cached blocks are never shared between tenants."""
    cache_salt: str | None = None
    """Cached blocks are shared only under the same salt."""
    label: str = ""
    """The client's name for it: for logs and explanations alone."""
    answer_id: str = ""
    """Of the document that the answer is sent in, likewise."""
    arrived_ns: Nanos | None = None
    """When it arrived, by `clock.monotonic_now`. None: now."""


@attrs.frozen
class NamedLogprob:
    """A token by its text and bytes."""

    text: str
    data: bytes
    logprob: float | None
    """None: nothing precedes it (the first token of a prompt)."""


@attrs.frozen
class ScoredToken:
    chosen: NamedLogprob
    best: tuple[NamedLogprob, ...]
    """Best first; as many as were asked for."""
    shown: bytes
    """Its part of the text; none for special tokens."""


FinishReason: TypeAlias = Literal["stop", "length"]


@attrs.frozen
class Chunk:
    """What one moment brought for one choice. Texts of a choice, joined, are its whole text."""

    request: RequestId
    choice: int
    text: str
    """Perhaps empty while a character or a possible stop string is held back."""
    tokens: tuple[int, ...]
    """Output tokens that this chunk counts. Tokens beyond a stop are neither sent nor counted."""
    logprobs: tuple[ScoredToken, ...]
    """One a token if asked for, else none. In front of an echo: one for each token of the prompt."""
    finish: FinishReason | None
    """Not None on the last chunk of the choice."""
    prompt_tokens: int
    cached_tokens: int
    """Prompt tokens that were found in the pool."""
    completion_tokens: int
    """Output tokens of this choice so far."""
    queued_ns: Nanos
    """From the request's arrival until the first worker began it."""
