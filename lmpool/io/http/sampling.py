"""What both generation endpoints read alike: sampling and stopping, and the fields that no answer can honour."""

from collections.abc import Mapping
from typing import Any, TypeVar

from lmpool.core.limits import LOGIT_BIAS_MAX, STOP_STRING_CHARACTERS_MAX
from lmpool.io.generation import SamplingParams
from lmpool.io.http.answers import Counts
from lmpool.io.http.errors import ApiError, Code
from lmpool.io.http.fields import Body, Kind, wrong_type, wrong_value
from lmpool.io.http.schema import UNSUPPORTED_FIELDS

T = TypeVar("T")


def read_sampling(body: Body, vocabulary: int) -> SamplingParams:
    """What both endpoints name alike; without the limit of tokens and log-probabilities. Raises ApiError."""
    biases = body.biases("logit_bias", vocabulary)
    if len(biases) > LOGIT_BIAS_MAX:
        wrong_value("logit_bias", f"must have at most {LOGIT_BIAS_MAX} tokens, not {len(biases)}")
    return SamplingParams(
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
    )


def or_default(value: T | None, default: T) -> T:
    return default if value is None else value


def read_counts(body: Body) -> Counts:
    """Those of every event are only told with those of the last."""
    options = body.raw("stream_options")
    if options is None:
        return Counts.NONE
    if not isinstance(options, dict):
        wrong_type("stream_options", Kind.OBJECT, options)
    wishes = [_option(options, name) for name in ("include_usage", "continuous_usage_stats")]
    if not wishes[0]:
        return Counts.NONE
    return Counts.EACH if wishes[1] else Counts.LAST


def _option(options: Mapping[str, Any], name: str) -> bool:
    wanted = options.get(name)
    if wanted is not None and type(wanted) is not bool:
        wrong_type(f"stream_options.{name}", Kind.FLAG, wanted)
    return wanted is True


def refuse_unsupported(content: Mapping[str, Any]) -> None:
    """Raises ApiError for a field that asks for something this server cannot do."""
    for name, harmless in UNSUPPORTED_FIELDS.items():
        value = content.get(name)
        if value is None or value in harmless:
            continue
        allowed = "".join(f", or send {option!r}" if option == "" else f", or send {option}" for option in harmless)
        raise ApiError(Code.UNSUPPORTED_FIELD, f"{name} is not supported by this server: leave it out{allowed}.", name)
    best_of = content.get("best_of")
    n = or_default(content.get("n"), 1)
    if best_of is not None and (type(best_of) is not type(n) or best_of != n):
        raise ApiError(
            Code.UNSUPPORTED_FIELD, "best_of is not supported by this server, unless it equals n.", "best_of"
        )
