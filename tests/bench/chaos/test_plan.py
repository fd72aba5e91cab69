"""Strikes and questions are drawn from the seed alone; long runs have their outages, and a soak has no strike."""

from itertools import pairwise

import pytest

from lmpool.bench.chaos.plan import OUTAGES_MIN, PAUSE_S, Blow, draw_plan
from lmpool.bench.chaos.question import Form, draw_questions

MANY = 1 << 30


@pytest.mark.parametrize("seed", range(5))
def test_a_long_run_has_its_outages_and_pauses(seed: int) -> None:
    plan = draw_plan(600, seed, MANY)
    assert sum(strike.blow is Blow.OUTAGE for strike in plan) >= OUTAGES_MIN
    pauses = [later.at_s - earlier.at_s for earlier, later in pairwise(plan)]
    assert min(pauses) >= PAUSE_S[0]
    assert max(pauses) <= PAUSE_S[1]
    assert plan[-1].at_s < 600


def test_over_an_hour_every_blow_falls() -> None:
    assert {strike.blow for strike in draw_plan(3600, 1, MANY)} == set(Blow)


def test_a_short_run_has_an_outage_and_a_soak_nothing() -> None:
    assert Blow.OUTAGE in {strike.blow for strike in draw_plan(30, 1, MANY)}
    assert draw_plan(600, 1, 0) == ()
    assert len(draw_plan(600, 1, 3)) == 3


def test_the_seed_decides_everything() -> None:
    assert draw_plan(120, 1, MANY) == draw_plan(120, 1, MANY)
    assert draw_plan(120, 1, MANY) != draw_plan(120, 2, MANY)
    assert draw_questions(20, 1, with_chat=True, with_rivals=False) == draw_questions(
        20, 1, with_chat=True, with_rivals=False
    )
    assert draw_questions(20, 1, with_chat=True, with_rivals=False) != draw_questions(
        20, 2, with_chat=True, with_rivals=False
    )


def test_questions_have_what_servers_have_to_cope_with() -> None:
    questions = draw_questions(200, 1, with_chat=True, with_rivals=False)
    fields = {name for question in questions for name in question.fields}
    wanted = {"prompt", "messages", "stop", "seed", "n", "presence_penalty", "logprobs", "top_logprobs", "echo"}
    assert wanted <= fields
    assert {question.form for question in draw_questions(50, 1, with_chat=False, with_rivals=False)} == {
        Form.COMPLETION
    }


def test_greedy_questions_to_a_real_model_want_the_two_best_and_are_else_the_same() -> None:
    plain = draw_questions(200, 1, with_chat=True, with_rivals=False)
    for question, asked in zip(draw_questions(200, 1, with_chat=True, with_rivals=True), plain, strict=True):
        wanted = {"logprobs": True, "top_logprobs": 2} if question.form is Form.CHAT else {"logprobs": 2}
        assert question.fields == {**asked.fields, **(wanted if asked.is_greedy else {})}
