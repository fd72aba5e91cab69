"""What a request asks for, held against the model's facts before any of it reaches a machine."""

import math
from collections.abc import Sequence
from typing import NoReturn

from lmpool.core.limits import (
    CHOICES_MAX,
    LABEL_BYTES_MAX,
    LOGIT_BIAS_MAX,
    LOGPROBS_MAX,
    PRIORITY_MAX,
    PRIORITY_MIN,
    PROMPT_TOKENS_MAX,
    STOP_STRING_CHARACTERS_MAX,
    STOP_STRINGS_MAX,
    STOP_TOKENS_MAX,
)
from lmpool.core.sampling import SamplingSettings, StopSettings
from lmpool.io.errors import BadRequest
from lmpool.io.generation import Chat, GenerationRequest, Prompt, SamplingParams
from lmpool.io.text.model_text import ModelFacts

SEED_MIN, SEED_MAX = -(1 << 63), (1 << 63) - 1
DEADLINE_S_MAX = 86_400.0
TEMPERATURE_MIN = 1e-6
"""Below it only the likeliest token has any chance in float32, and soon the temperature itself is 0 there."""


def check_request(request: GenerationRequest, facts: ModelFacts) -> None:
    """Everything that can be said before the prompt is tokenised. Raises BadRequest."""
    _check_sampling(request.sampling, facts.vocabulary)
    _within("priority", request.priority, PRIORITY_MIN, PRIORITY_MAX)
    _within("bytes of session", len(request.session.encode()), 0, LABEL_BYTES_MAX)
    _within("bytes of cache_salt", len((request.cache_salt or "").encode()), 0, LABEL_BYTES_MAX)
    if request.deadline_s is not None and not 0 < request.deadline_s <= DEADLINE_S_MAX:
        _wrong("deadline_s", f"must be more than 0 and at most {DEADLINE_S_MAX:g}, not {request.deadline_s}")
    match request.prompt:
        case Chat() if not facts.has_template:
            text = "This model has no chat template, so it cannot chat: ask for a completion of a text."
            raise BadRequest(text, "messages", "no_chat_template")
        case Chat(messages=()):
            _wrong("messages", "is empty: at least one message is needed")
        case Chat(messages=messages):
            for number, message in enumerate(messages):
                for name in ("role", "content"):
                    _check_text(f"messages[{number}].{name}", message.get(name))
        case str() as text:
            _check_text("prompt", text)
        case _:
            pass


def _check_sampling(sampling: SamplingParams, vocabulary: int) -> None:
    _within("n", sampling.choices, 1, CHOICES_MAX)
    _within("temperature", sampling.temperature, 0, 2)
    _within("top_p", sampling.top_p, 0, 1)
    _within("top_k", sampling.top_k, 0, PROMPT_TOKENS_MAX)
    _within("min_p", sampling.min_p, 0, 1)
    _within("presence_penalty", sampling.presence_penalty, -2, 2)
    _within("frequency_penalty", sampling.frequency_penalty, -2, 2)
    _within("repetition_penalty", sampling.repetition_penalty, 0.01, 100)
    _within("logprobs", sampling.logprobs or 0, 0, LOGPROBS_MAX)
    _within("seed", sampling.seed or 0, SEED_MIN, SEED_MAX)
    _within("max_tokens", 1 if sampling.max_tokens is None else sampling.max_tokens, 0, PROMPT_TOKENS_MAX)
    _within("min_tokens", sampling.min_tokens, 0, PROMPT_TOKENS_MAX)
    _within("length of logit_bias", len(sampling.logit_bias), 0, LOGIT_BIAS_MAX)
    _within("length of stop", len(sampling.stop), 0, STOP_STRINGS_MAX)
    _within("length of stop_token_ids", len(sampling.stop_token_ids), 0, STOP_TOKENS_MAX)
    for token, bias in sampling.logit_bias:
        _within("logit_bias", bias, -100, 100)
        _check_tokens("logit_bias", (token,), vocabulary)
    for stop in sampling.stop:
        _within("length of stop", len(stop), 1, STOP_STRING_CHARACTERS_MAX)
    _check_tokens("stop_token_ids", sampling.stop_token_ids, vocabulary)
    if sampling.max_tokens == 0 and not sampling.echo:
        _wrong("max_tokens", "must be at least 1 without echo, not 0")
    if sampling.max_tokens is not None and sampling.min_tokens > sampling.max_tokens:
        _wrong("min_tokens", f"must be at most max_tokens ({sampling.max_tokens}), not {sampling.min_tokens}")


def _check_text(field: str, text: object) -> None:
    if not isinstance(text, str):
        _wrong(field, f"must be a text, not {type(text).__name__}")
    try:
        text.encode()
    except UnicodeEncodeError:
        _wrong(field, "has half of a surrogate pair, which is no character")


def check_prompt(tokens: Sequence[int], vocabulary: int) -> None:
    """Raises BadRequest."""
    if not tokens:
        _wrong("prompt", "is empty: at least one token is needed")
    _check_tokens("prompt", tokens, vocabulary)


def check_choices(sampling: SamplingParams, answers_max: int) -> None:
    """`answers_max`: at a time, of all requests. Raises BadRequest for what would never find its places."""
    if sampling.choices > answers_max:
        _wrong("n", f"must be at most {answers_max}, the answers that are computed at a time, not {sampling.choices}")


def check_length(prompt: Prompt, tokens_max: int, token_characters_max: int) -> None:
    """Whether a text may fit, before it is tokenised: that takes a second for a million characters.

    Raises BadRequest.
    """
    match prompt:
        case Chat(messages=messages):
            characters = sum(len(message["content"]) for message in messages)
        case str() as text:
            characters = len(text)
        case _:
            return
    if characters > tokens_max * token_characters_max:
        fault = (
            f"This server's context limit is {tokens_max} tokens, prompt and answer together. The prompt has "
            f"{characters} characters; not even {tokens_max * token_characters_max} can be so few tokens."
        )
        raise BadRequest(fault, prompt_field(prompt), "context_length_exceeded")


def outputs_within(prompt: Prompt, prompt_tokens: int, asked: int | None, tokens_max: int) -> int:
    """How many output tokens a choice may have: `max_tokens` is a wish, cut to what the context holds.

    Raises BadRequest where the prompt leaves no room for one.
    """
    room = tokens_max - prompt_tokens
    if room < 1:
        wish = "no max_tokens was given" if asked is None else f"{asked} were asked for (max_tokens)"
        text = (
            f"This server's context limit is {tokens_max} tokens, prompt and answer together. The prompt has "
            f"{prompt_tokens} tokens, which leaves no room for an answer of one token; {wish}."
        )
        raise BadRequest(text, prompt_field(prompt), "context_length_exceeded")
    return room if asked is None else min(asked, room)


def prompt_field(prompt: Prompt) -> str:
    return "messages" if isinstance(prompt, Chat) else "prompt"


def sampling_settings(sampling: SamplingParams, seed: int) -> SamplingSettings:
    temperature = float(sampling.temperature)
    return SamplingSettings(
        temperature=temperature if temperature >= TEMPERATURE_MIN else 0.0,
        top_p=float(sampling.top_p),
        top_k=sampling.top_k,
        min_p=float(sampling.min_p),
        presence_penalty=float(sampling.presence_penalty),
        frequency_penalty=float(sampling.frequency_penalty),
        repetition_penalty=float(sampling.repetition_penalty),
        logit_bias=tuple((token, float(bias)) for token, bias in sampling.logit_bias),
        logprobs=sampling.logprobs,
        seed=seed,
    )


def stop_settings(sampling: SamplingParams, ends: tuple[int, ...], outputs_max: int) -> StopSettings:
    """`ends`: the model's own."""
    hidden = () if sampling.ignores_eos else ends
    return StopSettings(
        output_tokens_max=outputs_max,
        output_tokens_min=min(sampling.min_tokens, outputs_max),
        ends=tuple(dict.fromkeys((*hidden, *sampling.stop_token_ids))),
        hidden_ends=hidden,
    )


def _check_tokens(field: str, tokens: Sequence[int], vocabulary: int) -> None:
    for token in tokens:
        if type(token) is not int or not 0 <= token < vocabulary:
            _wrong(field, f"has {token!r}, which is no token: ids are 0 to {vocabulary - 1}")


def _within(field: str, value: float, least: float, most: float) -> None:
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        _wrong(field, f"must be a number, not {value!r}")
    if not least <= value <= most:
        _wrong(field, f"must be {least:g} to {most:g}, not {value}")


def _wrong(field: str, fault: str) -> NoReturn:
    raise BadRequest(f"{field} {fault}.", field.rpartition(" ")[2], "invalid_value")
