"""Comparisons with one arm on evidence made by hand."""

from collections.abc import Mapping, Sequence

import attrs
import pytest

from lmpool.bench.e2e_report import report
from lmpool.bench.e2e_table import report_lines
from lmpool.bench.e2e_trials import Ran, Trial
from tests.bench.test_e2e_trials import SETTINGS
from tests.bench.trial.made import EVIDENCE

WORKLOAD = "agent-sessions"
CACHED = {
    "round-robin": (0, 4, 0, 4, 0),
    "routing": (10, 16, 11, 13, 13),
    "full": (0, 4, 0, 4, 0),
    "transfer": (0, 34, 0, 0, 0),
}
"""Tokens that the last request found cached, by arm and repetition; without them 228 are uncached."""


def _ran(arm: str, repetition: int, cached: int) -> Ran:
    *others, last = EVIDENCE.requests
    spec = attrs.evolve(EVIDENCE.spec, arm=arm, repetition=repetition)
    requests = (*others, attrs.evolve(last, cached_tokens=cached))
    return Ran(Trial(WORKLOAD, arm, repetition), attrs.evolve(EVIDENCE, spec=spec, requests=requests), ())


def _all(cached: Mapping[str, Sequence[int]]) -> list[Ran]:
    return [_ran(arm, number, value) for arm, values in cached.items() for number, value in enumerate(values, start=1)]


OURS = attrs.evolve(SETTINGS, workloads=(WORKLOAD,), arms=("full", "round-robin", "routing", "transfer"), repetitions=5)


def test_paired_differences_have_the_interval_of_a_hand_computation() -> None:
    """Routing leaves 10, 12, 11, 9 and 13 tokens less than round robin: 11, with a deviation of the square root of
    2.5, so half an interval is 2.776 times the square root of a half."""
    shown = report(OURS, list(reversed(_all(CACHED))))
    found = {one.arm: one for one in shown.comparisons if one.metric == "uncached_tokens"}
    routing = found["routing"]
    assert routing.difference == -11
    assert routing.half == pytest.approx(2.776445 * 0.5**0.5, rel=1e-6)
    assert routing.baseline == pytest.approx(228 - 1.6)
    assert {arm: one.verdict for arm, one in found.items()} == {
        "routing": "helps",
        "full": "same",
        "transfer": "not shown",
    }
    (figures,) = [one.figures for one in shown.figures if one.arm == "routing"]
    assert figures["uncached_tokens"].values == (218, 212, 217, 215, 215)


def test_an_arm_that_is_worse_is_said_to_be() -> None:
    shown = report(OURS, _all({"round-robin": (9, 10, 11), "routing": (0, 0, 0)}))
    assert [one.verdict for one in shown.comparisons if one.metric == "uncached_tokens"] == ["harms"]
    assert "  routing against round-robin: worse in uncached_tokens (+4.6%" in "\n".join(report_lines(shown))


def test_arms_are_compared_with_the_one_that_was_named() -> None:
    shown = report(attrs.evolve(OURS, baseline="routing"), _all(CACHED))
    found = {one.arm: one for one in shown.comparisons if one.metric == "uncached_tokens"}
    assert list(found) == ["full", "round-robin", "transfer"]
    assert (found["round-robin"].difference, found["round-robin"].verdict) == (11, "harms")
    assert found["round-robin"].baseline == pytest.approx(228 - 12.6)
    assert "  round-robin against routing: worse in uncached_tokens" in "\n".join(report_lines(shown))


def test_one_repetition_shows_no_difference() -> None:
    shown = report(OURS, _all({"round-robin": (0,), "routing": (90,)}))
    (one,) = [one for one in shown.comparisons if one.metric == "uncached_tokens"]
    assert (one.verdict, one.half, one.repetitions) == ("not shown", None, 1)


def test_only_repetitions_that_both_have_are_compared() -> None:
    missing = [one for one in _all(CACHED) if one.trial != Trial(WORKLOAD, "round-robin", 1)]
    shown = report(OURS, missing)
    (one,) = [one for one in shown.comparisons if (one.arm, one.metric) == ("routing", "uncached_tokens")]
    assert one.repetitions == 4
    assert one.difference == pytest.approx(-(12 + 11 + 9 + 13) / 4)


def test_what_is_not_valid_is_in_no_figure() -> None:
    bad = attrs.evolve(_ran("routing", 2, 1000), problems=("blocks are held",))
    shown = report(OURS, [*_all({"round-robin": (0,), "routing": (0,)}), bad])
    assert [len(one.figures["reuse"].values) for one in shown.figures] == [1, 1]
    assert shown.invalid == ("agent-sessions_routing_r2: blocks are held",)
