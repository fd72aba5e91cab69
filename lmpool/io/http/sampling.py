"""What both generation endpoints read alike: sampling and stopping, and the fields that no answer can honour."""

from collections.abc import Mapping
from typing import Any, TypeVar

import attrs

from lmpool.core.limits import LOGIT_BIAS_MAX, STOP_STRING_CHARACTERS_MAX
from lmpool.io.http.errors import ApiError, Code
from lmpool.io.http.fields import Body, Kind, wrong_type, wrong_value
from lmpool.io.http.schema import UNSUPPORTED_FIELDS

T = TypeVar("T")


@attrs.frozen
class Sampling:
    """Fields that both endpoints share, with their defaults."""

    choices: int
    temperature: float
    top_p: float
    top_k: int
    min_p: float
    presence_penalty: float
    frequency_penalty: float
    repetition_penalty: float
    logit_bias: tuple[tuple[int, float], ...]
    seed: int | None
    min_tokens: int
    stop: tuple[str, ...]
    includes_stop: bool
    stop_token_ids: tuple[int, ...]
    ignores_eos: bool
    is_stream: bool
    wants_usage: bool
    cache_salt: str | None


def read_sampling(body: Body, vocabulary: int) -> Sampling:
    """Raises ApiError."""
    biases = body.biases("logit_bias", vocabulary)
    if len(biases) > LOGIT_BIAS_MAX:
        wrong_value("logit_bias", f"must have at most {LOGIT_BIAS_MAX} tokens, not {len(biases)}")
    return Sampling(
        choices=or_default(body.integer("n"), 1),
        temperature=or_default(body.number("temperature"), 1.0),
        top_p=or_default(body.number("top_p"), 1.0),
        top_k=max(0, or_default(body.integer("top_k"), 0)),
        min_p=or_default(body.number("min_p"), 0.0),
        presence_penalty=or_default(body.number("presence_penalty"), 0.0),
        frequency_penalty=or_default(body.number("frequency_penalty"), 0.0),
        repetition_penalty=or_default(body.number("repetition_penalty"), 1.0),
        logit_bias=biases,
        seed=body.integer("seed"),
        min_tokens=or_default(body.integer("min_tokens"), 0),
        stop=body.texts("stop", STOP_STRING_CHARACTERS_MAX),
        includes_stop=body.flag("include_stop_str_in_output"),
        stop_token_ids=body.tokens("stop_token_ids", vocabulary),
        ignores_eos=body.flag("ignore_eos"),
        is_stream=body.flag("stream"),
        wants_usage=_wants_usage(body),
        cache_salt=body.text("cache_salt"),
    )


def or_default(value: T | None, default: T) -> T:
    return default if value is None else value


def _wants_usage(body: Body) -> bool:
    options = body.raw("stream_options")
    if options is None:
        return False
    if not isinstance(options, dict):
        wrong_type("stream_options", Kind.OBJECT, options)
    wanted = options.get("include_usage")
    if wanted is not None and type(wanted) is not bool:
        wrong_type("stream_options.include_usage", Kind.FLAG, wanted)
    return wanted is True


def refuse_unsupported(content: Mapping[str, Any]) -> None:
    """Raises ApiError for a field that asks for something this server cannot do."""
    for name, harmless in UNSUPPORTED_FIELDS.items():
        value = content.get(name)
        if value is None or value in harmless:
            continue
        allowed = "".join(f", or send {option}" for option in harmless)
        raise ApiError(Code.UNSUPPORTED_FIELD, f"{name} is not supported by this server: leave it out{allowed}.", name)
    best_of = content.get("best_of")
    if best_of is not None and best_of != or_default(content.get("n"), 1):
        raise ApiError(
            Code.UNSUPPORTED_FIELD, "best_of is not supported by this server, unless it equals n.", "best_of"
        )


def check_output_bounds(tokens_max: int | None, tokens_min: int, path: str) -> None:
    if tokens_max is not None and tokens_min > tokens_max:
        wrong_value("min_tokens", f"must be at most {path} ({tokens_max}), not {tokens_min}")
