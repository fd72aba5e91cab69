import attrs
import pytest

from lmpool.bench.study.decisions import join, passed_over_lines, summary, together
from lmpool.bench.study.matrix import matrix, trial_spec
from lmpool.bench.study.plan_text import parse_plan
from lmpool.bench.trial.evidence import Evidence
from lmpool.bench.trial.spec import Venue
from lmpool.core.ids import MILLISECOND
from tests.bench.study.made import PLAN, evidence


def _evidence(cached: int) -> Evidence:
    plan = parse_plan(PLAN.encode(), "plan")
    trial = next(one for one in matrix(plan) if one.arm == "default")
    return evidence(trial_spec(plan, trial, Venue.SIMULATOR), cached)


def test_each_request_meets_its_decision_its_holder_and_what_became_of_it() -> None:
    first, *others = join(_evidence(16))
    assert (first.chosen.rank, first.holder.rank, first.is_passed_over, first.recomputed_tokens) == (0, 0, False, 0)
    assert len(others) == 3
    for one in others:
        assert (one.chosen.rank, one.holder.rank, one.is_passed_over) == (1, 0, True)
        assert one.predicted == -2.0 * MILLISECOND
        assert one.expected_tokens == 16
        assert one.recomputed_tokens == 64 - 16
        assert one.measured.queued_ns == 5 * MILLISECOND


def test_a_request_that_found_more_than_was_known_computed_less_again() -> None:
    assert [one.recomputed_tokens for one in join(_evidence(48))] == [0, 16, 16, 16]


def test_a_request_that_was_routed_again_meets_its_last_decision() -> None:
    made = _evidence(16)
    again = attrs.evolve(made.decisions[1], number=9, attempt=1, rank=made.decisions[1].candidates[0].rank)
    joined = join(attrs.evolve(made, decisions=(*made.decisions, again)))
    assert [one.is_passed_over for one in joined] == [False, False, True, True]


def test_requests_without_a_decision_are_not_joined() -> None:
    made = _evidence(16)
    lost = attrs.evolve(made, requests=(attrs.evolve(made.requests[0], request="7-7"), *made.requests[1:]))
    assert summary(join(lost), 4).joined == 3


def test_a_summary_adds_up_over_trials() -> None:
    one = summary(join(_evidence(16)), 4)
    both = together([one, one])
    assert (one.passed_over, one.recomputed_tokens, one.expected_tokens, one.reused_tokens) == (3, 144, 48, 48)
    assert both.queued_s == pytest.approx(2 * 0.020)
    assert (both.requests, both.joined, both.recomputed_tokens) == (8, 8, 288)


def test_the_dearest_are_listed_first_and_the_rest_are_counted() -> None:
    made = _evidence(16)
    spared = attrs.evolve(made.requests[1], cached_tokens=60)
    lines = passed_over_lines(join(attrs.evolve(made, requests=(made.requests[0], spared, *made.requests[2:]))), 2)
    assert lines[0].startswith("3 of 4 decisions passed over the rank with the longest cached prefix, and 100 tokens")
    assert [line.split()[0] for line in lines[3:5]] == ["1-2", "1-3"]
    assert lines[-1] == "1 more: --limit 3"
