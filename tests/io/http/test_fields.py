"""Strict reading: nothing is coerced, and every refusal names its field."""

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lmpool.io.http.errors import ApiError, Code
from lmpool.io.http.fields import Body, parse_object
from lmpool.io.http.prompts import read_messages, read_prompts
from lmpool.io.http.sampling import read_counts, read_sampling, refuse_unsupported
from lmpool.io.http.schema import CHAT_FIELDS, COMPLETION_FIELDS

VOCABULARY = 300
ANY_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)


def completion(**content: Any) -> Body:
    return Body(content, COMPLETION_FIELDS)


def chat(**content: Any) -> Body:
    return Body(content, CHAT_FIELDS)


def refusal_of(read: Callable[[], object]) -> ApiError | None:
    try:
        read()
    except ApiError as error:
        return error
    return None


def refused(**content: Any) -> tuple[Code, str | None]:
    """Code and param with which sampling fields are refused."""
    body = completion(**content)
    with pytest.raises(ApiError) as caught:
        (body.text("cache_salt"), read_counts(body), read_sampling(body, VOCABULARY))
    return caught.value.code, caught.value.param


@pytest.mark.parametrize(
    ("name", "value", "param"),
    [
        ("n", "5", "n"),
        ("n", True, "n"),
        ("n", 5.0, "n"),
        ("temperature", "hot", "temperature"),
        ("temperature", False, "temperature"),
        ("ignore_eos", 1, "ignore_eos"),
        ("cache_salt", 7, "cache_salt"),
        ("stop", 7, "stop"),
        ("stop", [7], "stop[0]"),
        ("stop_token_ids", 7, "stop_token_ids"),
        ("stop_token_ids", [True], "stop_token_ids[0]"),
        ("logit_bias", [], "logit_bias"),
        ("logit_bias", {"7": "1"}, "logit_bias['7']"),
        ("stream_options", True, "stream_options"),
        ("stream_options", {"include_usage": 1}, "stream_options.include_usage"),
        ("stream_options", {"continuous_usage_stats": 1}, "stream_options.continuous_usage_stats"),
        ("seed", 1.5, "seed"),
    ],
)
def test_b10_types_are_not_coerced(name: str, value: Any, param: str) -> None:
    assert refused(**{name: value}) == (Code.INVALID_TYPE, param)


@pytest.mark.parametrize(
    ("name", "value", "param"),
    [
        ("n", 0, "n"),
        ("n", 129, "n"),
        ("top_p", 2, "top_p"),
        ("top_p", -0.1, "top_p"),
        ("temperature", float("inf"), "temperature"),
        ("temperature", float("nan"), "temperature"),
        ("temperature", 2.1, "temperature"),
        ("repetition_penalty", 0, "repetition_penalty"),
        ("logit_bias", {"999999": 1}, "logit_bias['999999']"),
        ("logit_bias", {"-1": 1}, "logit_bias['-1']"),
        ("logit_bias", {"x": 1}, "logit_bias['x']"),
        ("logit_bias", {"1": 101}, "logit_bias['1']"),
        ("logit_bias", {str(token): 1 for token in range(1025)}, "logit_bias['300']"),
        ("stop", ["x"] * 10_000, "stop"),
        ("stop", [""], "stop[0]"),
        ("stop", ["x" * 1025], "stop[0]"),
        ("stop_token_ids", [VOCABULARY], "stop_token_ids[0]"),
        ("stop_token_ids", [-1], "stop_token_ids[0]"),
        ("seed", 1 << 63, "seed"),
        ("cache_salt", "", "cache_salt"),
    ],
)
def test_b10_values_are_checked_against_bounds_and_vocabulary(name: str, value: Any, param: str) -> None:
    assert refused(**{name: value}) == (Code.INVALID_VALUE, param)


def test_b07_null_means_the_default() -> None:
    names = [field.name for field in COMPLETION_FIELDS if field.name != "prompt"]
    assert read_sampling(completion(**dict.fromkeys(names)), VOCABULARY) == read_sampling(completion(), VOCABULARY)


def test_defaults_are_those_of_the_api() -> None:
    sampling = read_sampling(completion(), VOCABULARY)
    assert (sampling.choices, sampling.temperature, sampling.top_p, sampling.top_k) == (1, 1.0, 1.0, 0)
    assert (sampling.seed, sampling.stop, sampling.max_tokens, sampling.logprobs) == (None, (), None, None)


def test_one_stop_string_may_stand_alone() -> None:
    assert read_sampling(completion(stop="END"), VOCABULARY).stop == ("END",)


@given(content=st.dictionaries(st.sampled_from([field.name for field in COMPLETION_FIELDS]), ANY_JSON, max_size=4))
def test_b10_whatever_comes_is_read_or_refused_with_its_param(content: dict[str, Any]) -> None:
    body = Body(content, COMPLETION_FIELDS)
    for error in (
        refusal_of(lambda: read_sampling(body, VOCABULARY)),
        refusal_of(lambda: read_prompts(body, VOCABULARY)),
    ):
        if error is not None:
            assert error.code.status == 400
            assert error.param is not None
            assert error.param.split("[")[0].split(".")[0] in content.keys() | {"prompt"}


@given(message=ANY_JSON)
def test_b10_whatever_messages_come_are_read_or_refused(message: Any) -> None:
    for body in (
        chat(messages=message),
        chat(messages=[message]),
        chat(messages=[{"role": "user", "content": message}]),
    ):
        error = refusal_of(partial(read_messages, body))
        if error is not None:
            assert error.code.status == 400
            assert error.param is not None
            assert error.param.startswith("messages")


@pytest.mark.parametrize("data", [b"", b"{", b"[]", b"null", b'{"a": NaN}', b'{"a": "\\ud800"}', b"\xff", b"[" * 5000])
def test_b10_what_is_no_json_object_is_refused(data: bytes) -> None:
    with pytest.raises(ApiError) as caught:
        parse_object(data)
    assert caught.value.code is Code.INVALID_JSON


def test_prompts_of_every_form() -> None:
    assert read_prompts(completion(prompt="a"), VOCABULARY) == ("a",)
    assert read_prompts(completion(prompt=["a", "b"]), VOCABULARY) == ("a", "b")
    assert read_prompts(completion(prompt=[1, 2]), VOCABULARY) == ((1, 2),)
    assert read_prompts(completion(prompt=[[1], [2, 3], "c"]), VOCABULARY) == ((1,), (2, 3), "c")


@pytest.mark.parametrize("prompt", ["", [""], [], [[]], ["a", ""], [[1], []], None])
def test_b32_empty_prompts_are_refused(prompt: Any) -> None:
    with pytest.raises(ApiError) as caught:
        read_prompts(completion(prompt=prompt), VOCABULARY)
    assert caught.value.code.status == 400
    assert str(caught.value.param).startswith("prompt")


@pytest.mark.parametrize("prompt", [[1, "a"], [1.0], [[1, True]], [{}], {}, 7, [VOCABULARY], [[-1]]])
def test_b10_prompts_of_wrong_things_are_refused(prompt: Any) -> None:
    with pytest.raises(ApiError) as caught:
        read_prompts(completion(prompt=prompt), VOCABULARY)
    assert str(caught.value.param).startswith("prompt")


def test_b07_an_assistant_may_have_said_nothing() -> None:
    messages = [{"role": "assistant", "content": None}, {"role": "assistant", "content": ""}, {"role": "assistant"}]
    assert read_messages(chat(messages=messages)) == ({"role": "assistant", "content": ""},) * 3


def test_text_parts_are_joined_and_developers_are_systems() -> None:
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    messages = read_messages(chat(messages=[{"role": "developer", "content": parts}]))
    assert messages == ({"role": "system", "content": "a\nb"},)


@pytest.mark.parametrize(
    ("message", "param"),
    [
        ({"content": "x"}, "messages[0].role"),
        ({"role": "user"}, "messages[0].content"),
        ({"role": "king", "content": "x"}, "messages[0].role"),
        ({"role": "tool", "content": "x"}, "messages[0].role"),
        ({"role": "user", "content": 7}, "messages[0].content"),
        ({"role": "user", "content": [{"type": "image_url", "image_url": {}}]}, "messages[0].content[0].type"),
        ({"role": "assistant", "tool_calls": [{}]}, "messages[0].tool_calls"),
        ("x", "messages[0]"),
    ],
)
def test_messages_that_cannot_be_answered_name_their_part(message: Any, param: str) -> None:
    with pytest.raises(ApiError) as caught:
        read_messages(chat(messages=[message]))
    assert caught.value.param == param


def test_b10_no_messages_are_refused() -> None:
    contents: list[dict[str, Any]] = [{"messages": []}, {}, {"messages": None}]
    for content in contents:
        with pytest.raises(ApiError) as caught:
            read_messages(chat(**content))
        assert caught.value.param == "messages"


@pytest.mark.parametrize(
    "content",
    [
        {"tools": [{"type": "function"}]},
        {"tool_choice": "required"},
        {"response_format": {"type": "json_object"}},
        {"best_of": 3},
        {"best_of": 2, "n": 3},
        {"suffix": "x"},
        {"modalities": ["text", "audio"]},
        {"audio": {"voice": "x"}},
        {"functions": [{}]},
        {"guided_json": {}},
    ],
)
def test_b80_what_would_change_the_answer_is_refused_by_name(content: dict[str, Any]) -> None:
    with pytest.raises(ApiError) as caught:
        refuse_unsupported(content)
    assert caught.value.code is Code.UNSUPPORTED_FIELD
    assert caught.value.param == next(iter(content))
    assert str(caught.value.param) in caught.value.message


@pytest.mark.parametrize(
    "content",
    [
        {"tools": None, "suffix": None, "best_of": None},
        {"tools": [], "tool_choice": "auto"},
        {"tool_choice": "none", "response_format": {"type": "text"}},
        {"best_of": 3, "n": 3},
        {"best_of": 1},
        {"suffix": "", "modalities": ["text"]},
    ],
)
def test_b07_what_asks_for_nothing_is_accepted(content: dict[str, Any]) -> None:
    refuse_unsupported(content)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ({"min_tokens": 1_048_577}, "at most 1048576, not 1048577"),
        ({"temperature": 2.5}, "at most 2, not 2.5"),
        ({"temperature": 1e300}, "at most 2, not 1e+300"),
        ({"seed": 2.0**64}, "must be an integer, not a number beyond 64 bits"),
    ],
)
def test_figures_in_messages_are_those_that_were_sent(content: dict[str, Any], words: str) -> None:
    with pytest.raises(ApiError) as caught:
        read_sampling(completion(**content), VOCABULARY)
    assert words in caught.value.message
