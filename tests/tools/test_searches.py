import os
import subprocess
import sys
from pathlib import Path

import pytest
from searches import ModelError, Outcome, Search, is_good, read

ROOT = Path(__file__).resolve().parents[2]
CLEAN = "State-vector 160 byte, depth reached 157, errors: 0\n   148560 states, stored\n"
WRONG = "pan:1: assertion violated ((5&&(5!=5))||(block[1]==2)) (at depth 72)\n"
FAILED = "State-vector 160 byte, depth reached 142, errors: 1\n     2721 states, stored\n"

MODEL = Search("one transfer, one fault", "laws", "")
MUTANT = Search("one transfer, one fault", "ONE_OWNER", "FREE_BEFORE_COMPLETION")
ENDLESS = Search("one transfer, one fault", "ends", "NO_SOURCE_DEADLINE")


def test_a_search_without_an_error_is_good_for_the_model_alone() -> None:
    outcome = read(CLEAN)
    assert outcome == Outcome(148_560, 157, True, "")
    assert is_good(MODEL, outcome)
    assert not is_good(MUTANT, outcome)
    assert not is_good(ENDLESS, outcome)


@pytest.mark.parametrize(
    "warning", ["error: max search depth too small\n", "pan: reached -DMEMLIM bound\nWarning: Search not completed\n"]
)
def test_a_search_that_was_cut_short_is_good_for_nothing(warning: str) -> None:
    outcome = read(warning + CLEAN)
    assert not outcome.is_complete
    assert not is_good(MODEL, outcome)
    assert not is_good(MUTANT, outcome)


def test_a_broken_law_is_good_for_its_mutant_alone() -> None:
    outcome = read(WRONG + "Warning: Search not completed\n" + FAILED)
    assert outcome.violation.startswith("assertion violated")
    assert is_good(MUTANT, outcome)
    assert not is_good(MODEL, outcome)
    assert not is_good(ENDLESS, outcome)


@pytest.mark.parametrize(
    "violation", ["assertion violated (!q_full(from_target)) (at depth 9)", "invalid end state (at depth 9)"]
)
def test_a_mutant_that_breaks_something_else_is_not_rejected(violation: str) -> None:
    assert not is_good(MUTANT, read(f"pan:1: {violation}\n{FAILED}"))


def test_a_run_without_an_end_rejects_a_mutant_that_must_not_end() -> None:
    outcome = read("pan:1: acceptance cycle (at depth 40)\n" + FAILED)
    assert is_good(ENDLESS, outcome)
    assert not is_good(MUTANT, outcome)


def test_output_that_is_no_result_is_an_error() -> None:
    with pytest.raises(ModelError, match="out of paper"):
        read("pan: out of paper")


def test_without_spin_it_says_so() -> None:
    done = subprocess.run(
        [sys.executable, ROOT / "tools" / "spin"],
        env=os.environ | {"PATH": ""},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout) == (0, "skipped: spin is not installed\n")
