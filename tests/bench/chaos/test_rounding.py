"""What rounding explains in a greedy answer, and what it does not."""

import attrs
import pytest

from lmpool.bench.chaos.answer import Answer, ChoiceAnswer, ScoredToken
from lmpool.bench.chaos.rounding import TOLERANCE, faults_beyond_rounding


def scored(token: str, rival: str, lead: float) -> ScoredToken:
    return ScoredToken(token, -0.5, ((token, -0.5), (rival, -0.5 - lead)), None)


CLEAR, TIED, LAST = scored("the", "a", 1.0), scored(" sea", " sky", TOLERANCE / 2), scored(" is", " was", 0.3)
ANSWER = Answer((ChoiceAnswer("the sea is", "length", (CLEAR, TIED, LAST)),), 5, 3)


def told(text: str, *tokens: ScoredToken, finish: str = "length") -> list[str]:
    return faults_beyond_rounding(Answer((ChoiceAnswer(text, finish, tokens),), 5, len(tokens)), ANSWER)


def test_the_same_answer_has_no_fault() -> None:
    assert told("the sea is", CLEAR, TIED, LAST) == []


def test_after_a_near_tie_everything_may_be_different() -> None:
    assert told("the sky", CLEAR, scored(" sky", " sea", 0.0), finish="stop") == []


def test_another_token_where_the_best_was_clearly_best_is_told() -> None:
    (fault,) = told("a sea is", scored("a", "the", 0.1), TIED, LAST)
    assert fault == "choice 0: token 0 is 'a' instead of 'the', best by 1.0000"


def test_other_log_probabilities_before_that_are_told() -> None:
    within = attrs.evolve(CLEAR, logprob=-0.5 - TOLERANCE / 2)
    assert told("the sea is", within, TIED, LAST) == []
    (fault,) = told("the sea is", attrs.evolve(CLEAR, logprob=-0.51), TIED, LAST)
    assert "-0.51 instead of -0.5" in fault


@pytest.mark.parametrize(
    ("text", "tokens", "finish"),
    [
        ("the sea", (CLEAR, TIED), "length"),
        ("the sea is", (CLEAR, TIED, LAST, LAST), "length"),
        ("the sea is", (CLEAR, TIED, LAST), "stop"),
        ("the seais", (CLEAR, TIED, LAST), "length"),
    ],
)
def test_equal_tokens_with_another_end_or_text_are_told(
    text: str, tokens: tuple[ScoredToken, ...], finish: str
) -> None:
    assert len(told(text, *tokens, finish=finish)) == 1


def test_two_tokens_of_one_name_are_as_good_as_equal() -> None:
    nameless = attrs.evolve(CLEAR, best=(("the", -0.5),))
    expected = attrs.evolve(ANSWER, choices=(ChoiceAnswer("the", "length", (nameless,)),))
    other = Answer((ChoiceAnswer("a", "length", (scored("a", "the", 1.0),)),), 5, 1)
    assert faults_beyond_rounding(other, expected) == []
