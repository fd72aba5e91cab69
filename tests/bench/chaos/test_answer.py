"""A stream that lacks, repeats or reorders something is noticed; so is every part of an answer that differs."""

import json

import attrs
import pytest

from lmpool.bench.chaos.answer import (
    Answer,
    ChoiceAnswer,
    MalformedError,
    ScoredToken,
    StreamError,
    StreamReader,
    differences,
    is_beginning,
    well_formed_error,
    whole_answer,
)
from lmpool.bench.chaos.question import Form

A, B = ScoredToken("a", -0.5, (), 0), ScoredToken("b", -0.25, (), 1)
ANSWER = Answer((ChoiceAnswer("ab", "stop", (A, B)), ChoiceAnswer("c", "length", ())), 7, 3)


def event(index: int, text: str, finish: str | None = None) -> str:
    choice = {"index": index, "text": text, "finish_reason": finish, "logprobs": None}
    return "data: " + json.dumps({"choices": [choice], "usage": None})


USAGE = "data: " + json.dumps({"choices": [], "usage": {"prompt_tokens": 3, "completion_tokens": 2}})
DONE = "data: [DONE]"
WHOLE = [event(0, "a"), event(1, "x", "length"), event(0, "b", "stop"), USAGE, DONE]


def read(lines: list[str], *, wants_usage: bool = True) -> Answer:
    reader = StreamReader(Form.COMPLETION, 2, wants_usage=wants_usage)
    for line in lines:
        reader.feed(line)
        reader.feed("")
    return reader.answer()


def test_a_stream_gives_the_answer_that_its_pieces_make() -> None:
    assert read(WHOLE) == Answer((ChoiceAnswer("ab", "stop", ()), ChoiceAnswer("x", "length", ())), 3, 2)


@pytest.mark.parametrize(
    ("lines", "told"),
    [
        (WHOLE[:-1], "without \\[DONE\\]"),
        ([*WHOLE, DONE], "after the end"),
        ([*WHOLE[:3], DONE], "without usage"),
        ([*WHOLE[:3], USAGE, WHOLE[0], DONE], "after the usage"),
        ([event(0, "a", "stop"), event(0, "b")], "goes on"),
        ([event(0, "a", "stop"), event(0, "", "stop")], "goes on"),
        (["event: message"], "a line"),
    ],
)
def test_a_stream_that_breaks_the_form_is_noticed(lines: list[str], told: str) -> None:
    with pytest.raises(MalformedError, match=told):
        read(lines)


def test_usage_that_nobody_asked_for_is_noticed() -> None:
    with pytest.raises(MalformedError, match="without choices"):
        read(WHOLE, wants_usage=False)


def test_an_error_event_is_told_apart_from_one_in_another_form() -> None:
    error = {"message": "m", "type": "t", "param": None, "code": "deadline_exceeded"}
    with pytest.raises(StreamError) as caught:
        read([event(0, "a"), "data: " + json.dumps({"error": error})])
    assert caught.value.code == "deadline_exceeded"
    with pytest.raises(MalformedError):
        read(["data: " + json.dumps({"error": "it broke"})])
    with pytest.raises(MalformedError):
        well_formed_error({"error": {**error, "code": None}})


@pytest.mark.parametrize(
    "changed",
    [
        attrs.evolve(ANSWER, prompt_tokens=8),
        attrs.evolve(ANSWER, completion_tokens=4),
        attrs.evolve(ANSWER, choices=ANSWER.choices[:1]),
        attrs.evolve(ANSWER, choices=(attrs.evolve(ANSWER.choices[0], text="ax"), ANSWER.choices[1])),
        attrs.evolve(ANSWER, choices=(attrs.evolve(ANSWER.choices[0], finish="length"), ANSWER.choices[1])),
        attrs.evolve(ANSWER, choices=(attrs.evolve(ANSWER.choices[0], logprobs=(A,)), ANSWER.choices[1])),
        attrs.evolve(
            ANSWER,
            choices=(attrs.evolve(ANSWER.choices[0], logprobs=(A, attrs.evolve(B, logprob=-0.26))), ANSWER.choices[1]),
        ),
    ],
)
def test_whatever_differs_is_told(changed: Answer) -> None:
    assert len(differences(changed, ANSWER)) == 1


def test_counts_that_were_not_told_are_no_difference() -> None:
    silent = attrs.evolve(ANSWER, prompt_tokens=None, completion_tokens=None)
    assert differences(silent, ANSWER) == []


def test_what_came_before_a_cut_has_to_be_the_beginning() -> None:
    assert is_beginning(["a", ""], ANSWER)
    assert is_beginning((), ANSWER)
    assert not is_beginning(["b", ""], ANSWER)


def test_a_whole_answer_lacks_no_choice() -> None:
    choices = [{"index": 1, "text": "b", "finish_reason": "stop"}]
    document = {"choices": choices, "usage": {"prompt_tokens": 1, "completion_tokens": 1}}
    with pytest.raises(MalformedError):
        whole_answer(Form.COMPLETION, document)
