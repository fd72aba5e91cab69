"""Answers of both endpoints, whole and as events, from scripted chunks."""

from typing import Any

import orjson
from hypothesis import given
from hypothesis import strategies as st

from lmpool.core.ids import Epoch, Nanos, RequestId
from lmpool.io.generation import Chunk, FinishReason, NamedLogprob, ScoredToken
from lmpool.io.http.answers import CHAT, COMPLETION, ChatChoice, CompletionChoice, Counts, Events, Head, Usage
from lmpool.io.http.logprobs import LEAST

HEAD = Head("chatcmpl-1", 7, "tiny")
USAGE = Usage(prompt_tokens=5, cached_tokens=4, completion_tokens=3)


def scored(text: str, *, best: tuple[str, ...] = ()) -> ScoredToken:
    data = text.encode()
    others = tuple(NamedLogprob(other, other.encode(), -0.5) for other in best)
    return ScoredToken(NamedLogprob(text, data, -1.0), others, data)


def chunk(text: str, *tokens: ScoredToken, finish: FinishReason | None = None) -> Chunk:
    ids = (7,) * len(tokens)
    return Chunk(RequestId(Epoch(1), 2), 0, text, ids, tokens, finish, 5, 4, len(tokens), Nanos(0))


def joined(events: list[dict[str, Any]]) -> str:
    return "".join(event["delta"].get("content", "") for event in events)


def test_a_chat_stream_begins_with_the_role_and_ends_with_the_reason() -> None:
    choice = ChatChoice(0, wants_logprobs=False)
    events = [*choice.events(chunk("a")), *choice.events(chunk("b", finish="stop"))]
    assert [event["delta"] for event in events] == [
        {"role": "assistant", "content": ""},
        {"content": "a"},
        {"content": "b"},
        {},
    ]
    assert [event["finish_reason"] for event in events] == [None, None, None, "stop"]
    assert all(event["logprobs"] is None for event in events)


def test_b03_held_text_makes_no_empty_events() -> None:
    chat = ChatChoice(0, wants_logprobs=False)
    assert len(chat.events(chunk(""))) == 1
    assert chat.events(chunk("")) == []
    completion = CompletionChoice(0, wants_logprobs=False)
    assert completion.events(chunk("")) == []


def test_b05_a_token_whose_text_is_held_has_its_entry_with_the_next_text() -> None:
    choice = ChatChoice(0, wants_logprobs=True)
    choice.events(chunk("", scored("a")))
    (event,) = choice.events(chunk("ab", scored("b")))
    assert [entry["token"] for entry in event["logprobs"]["content"]] == ["a", "b"]
    *_, last = choice.events(chunk("", scored("c"), finish="stop"))
    assert [entry["token"] for entry in last["logprobs"]["content"]] == ["c"]


def test_b05_the_chat_layout() -> None:
    choice = ChatChoice(0, wants_logprobs=True)
    whole = choice.whole([chunk("é", scored("é", best=("é", "b")), finish="length")])
    assert whole["message"] == {"role": "assistant", "content": "é", "refusal": None}
    assert whole["finish_reason"] == "length"
    assert whole["logprobs"]["content"] == [
        {
            "token": "é",
            "logprob": -1.0,
            "bytes": [195, 169],
            "top_logprobs": [
                {"token": "é", "logprob": -0.5, "bytes": [195, 169]},
                {"token": "b", "logprob": -0.5, "bytes": [98]},
            ],
        }
    ]


def test_b05_the_completions_layout() -> None:
    choice = CompletionChoice(2, wants_logprobs=True)
    whole = choice.whole([chunk("ab", scored("a", best=("x",))), chunk("c", scored("bc"), finish="stop")])
    assert whole == {
        "index": 2,
        "text": "abc",
        "finish_reason": "stop",
        "logprobs": {
            "tokens": ["a", "bc"],
            "token_logprobs": [-1.0, -1.0],
            "top_logprobs": [{"x": -0.5, "a": -1.0}, {"bc": -1.0}],
            "text_offset": [0, 1],
        },
    }


def test_b05_offsets_count_characters_that_are_complete() -> None:
    fox = "🦊".encode()
    tokens = [ScoredToken(NamedLogprob("?", fox[i : i + 1], -1.0), (), fox[i : i + 1]) for i in range(4)]
    whole = CompletionChoice(0, wants_logprobs=True).whole([chunk("🦊!", *tokens, scored("!"), finish="stop")])
    assert whole["logprobs"]["text_offset"] == [0, 0, 0, 0, 1]


def test_the_first_token_of_a_prompt_has_no_log_probability_and_none_is_infinite() -> None:
    first = ScoredToken(NamedLogprob("a", b"a", None), (), b"a")
    never = ScoredToken(NamedLogprob("b", b"b", float("-inf")), (), b"b")
    whole = CompletionChoice(0, wants_logprobs=True).whole([chunk("ab", first, never, finish="length")])
    assert whole["logprobs"]["token_logprobs"] == [None, LEAST]
    assert whole["logprobs"]["top_logprobs"] == [None, {"b": LEAST}]


def content_of(event: bytes) -> Any:
    assert event.startswith(b"data: ")
    assert event.endswith(b"\n\n")
    return orjson.loads(event[6:])


def test_b01_counts_come_once_and_only_if_wanted() -> None:
    entry = {"index": 0, "text": "a", "logprobs": None, "finish_reason": None}
    plain = Events(COMPLETION, HEAD, Counts.NONE, lambda: USAGE)
    assert "usage" not in content_of(plain.of_choice(entry))
    assert plain.end() == b"data: [DONE]\n\n"
    counted = Events(CHAT, HEAD, Counts.LAST, lambda: USAGE)
    assert content_of(counted.of_choice(entry))["usage"] is None
    counts, done, rest = counted.end().split(b"\n\n")
    assert content_of(counts + b"\n\n") == {
        "id": "chatcmpl-1",
        "object": "chat.completion.chunk",
        "created": 7,
        "model": "tiny",
        "choices": [],
        "usage": {
            "prompt_tokens": 5,
            "completion_tokens": 3,
            "total_tokens": 8,
            "prompt_tokens_details": {"cached_tokens": 4},
        },
    }
    assert (done, rest) == (b"data: [DONE]", b"")


pieces = st.lists(st.tuples(st.sampled_from(["", "a", "bc", "é"]), st.integers(0, 2)), max_size=8)


@given(script=pieces)
def test_b02_b05_a_stream_joined_is_the_whole(script: list[tuple[str, int]]) -> None:
    made = [chunk(text, *([scored("t")] * tokens)) for text, tokens in script] + [chunk("", finish="stop")]
    chat_whole = ChatChoice(0, wants_logprobs=True).whole(made)
    chat = ChatChoice(0, wants_logprobs=True)
    chat_events = [event for made_chunk in made for event in chat.events(made_chunk)]
    assert joined(chat_events) == chat_whole["message"]["content"]
    entries = [entry for event in chat_events if event["logprobs"] for entry in event["logprobs"]["content"]]
    assert entries == chat_whole["logprobs"]["content"]
    assert [event["finish_reason"] for event in chat_events].count("stop") == 1
    completion_whole = CompletionChoice(0, wants_logprobs=True).whole(made)
    completion = CompletionChoice(0, wants_logprobs=True)
    events = [event for made_chunk in made for event in completion.events(made_chunk)]
    assert "".join(event["text"] for event in events) == completion_whole["text"]
    for name in ("tokens", "token_logprobs", "top_logprobs", "text_offset"):
        assert [item for event in events for item in event["logprobs"][name]] == completion_whole["logprobs"][name]
