"""What is refused before a prompt is tokenised, and what a request's wishes become."""

from typing import Any

import attrs
import pytest

from lmpool.io.errors import BadRequest
from lmpool.io.generation import Chat, SamplingParams
from lmpool.io.request_check import TEMPERATURE_MIN, check_choices, check_length, sampling_settings


@pytest.mark.parametrize("prompt", ["a" * 800, Chat(({"role": "user", "content": "a" * 800},)), (1,) * 9000])
def test_what_may_fit_is_tokenised(prompt: Any) -> None:
    check_length(prompt, 100, 8)


@pytest.mark.parametrize("prompt", ["a" * 801, Chat(({"role": "user", "content": "a"},) * 801)])
def test_a_text_that_cannot_fit_is_refused_by_its_length(prompt: Any) -> None:
    with pytest.raises(BadRequest, match="has 801 characters; not even 800") as caught:
        check_length(prompt, 100, 8)
    assert caught.value.code == "context_length_exceeded"


def test_more_choices_than_places_are_refused() -> None:
    check_choices(SamplingParams(choices=64), 64)
    with pytest.raises(BadRequest, match="n must be at most 64"):
        check_choices(SamplingParams(choices=65), 64)


@pytest.mark.parametrize(
    ("asked", "used"),
    [(0.0, 0.0), (5e-324, 0.0), (1e-46, 0.0), (9e-7, 0.0), (TEMPERATURE_MIN, TEMPERATURE_MIN), (0.7, 0.7)],
)
def test_a_temperature_that_leaves_one_token_is_none(asked: float, used: float) -> None:
    assert sampling_settings(attrs.evolve(SamplingParams(), temperature=asked), 1).temperature == used
