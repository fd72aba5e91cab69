import json
import re
from pathlib import Path

import attrs
import pytest

from lmpool.core.rates import Rates
from lmpool.core.step_cost import StepWork, predict
from lmpool.sim.copy_time import assumed_copies
from lmpool.sim.step_time import (
    ACCELERATOR_DEFAULT,
    ACCELERATORS,
    StepTimeError,
    named_rates,
    read_profile,
    slowed,
)
from tests.specs.tables import read_rows

PAGE = "step_time.md"


def _calculate(arithmetic: str, facts: dict[str, float]) -> float:
    """Products and quotients of the page's facts."""
    assert re.fullmatch(r"[\w\s.+*/()]+", arithmetic)
    return float(eval(arithmetic, {"__builtins__": {}}, dict(facts)))


def test_the_rates_of_the_page_follow_from_its_facts_and_are_those_of_the_code() -> None:
    facts = {row["fact"]: float(row["value"]) for row in read_rows(PAGE, ACCELERATOR_DEFAULT)}
    rates = named_rates(ACCELERATOR_DEFAULT)
    rows = read_rows(PAGE, "Rates")
    assert [row["rate"] for row in rows] == [field.name for field in attrs.fields(Rates)]
    for row in rows:
        calculated = _calculate(row["arithmetic"], facts)
        assert calculated == pytest.approx(float(row["ns"]), rel=1e-4)
        assert calculated == pytest.approx(getattr(rates, row["rate"]), rel=1e-12)


def test_the_copy_rates_of_the_page_follow_from_its_facts_and_are_those_of_the_code() -> None:
    facts = {row["fact"]: float(row["value"]) for row in read_rows(PAGE, "Copies")}
    assert facts["token_bytes"] == ACCELERATORS[ACCELERATOR_DEFAULT][1].kv_bytes
    rows = read_rows(PAGE, "Copy rates")
    assert sorted({row["rate"] for row in rows}) == ["begin", "block"]
    for row in rows:
        calculated = _calculate(row["arithmetic"], {**facts, "block_size": float(row["block_size"])})
        assert calculated == pytest.approx(float(row["ns"]), rel=1e-5)
        assert calculated == pytest.approx(getattr(assumed_copies(int(row["block_size"])), row["rate"]), rel=1e-12)


def test_the_worked_steps_of_the_page_are_so() -> None:
    rates = named_rates(ACCELERATOR_DEFAULT)
    for row in read_rows(PAGE, "Worked steps"):
        work = StepWork(int(row["p"]), int(row["pc"]), int(row["s"]), int(row["c"]))
        assert predict(rates, work) / 1e6 == pytest.approx(float(row["ms"]), abs=5e-4)


def test_a_token_of_llama_has_128_kib_of_keys_and_values() -> None:
    assert ACCELERATORS[ACCELERATOR_DEFAULT][1].kv_bytes == 131_072


def test_a_slowed_rank_takes_its_factor_for_any_step() -> None:
    rates, work = named_rates(ACCELERATOR_DEFAULT), StepWork(16, 760, 2, 350)
    assert predict(slowed(rates, 2.0), work) == pytest.approx(2 * predict(rates, work))


def test_a_profile_gives_the_rates(tmp_path: Path) -> None:
    path = tmp_path / "profile.json"
    names = ("step", "prefill", "prefill_context", "decode", "decode_context")
    path.write_text(json.dumps({f"{name}_ns": number for number, name in enumerate(names, start=1)}))
    assert read_profile(path) == Rates(1.0, 2.0, 3.0, 4.0, 5.0)


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"step_ns": "fast"}'])
def test_what_is_no_profile_is_named_with_what_it_needs(tmp_path: Path, text: str) -> None:
    path = tmp_path / "profile.json"
    path.write_text(text)
    with pytest.raises(StepTimeError, match=r"profile\.json is no profile.*needs the numbers step_ns"):
        read_profile(path)


def test_a_negative_rate_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "profile.json"
    names = ("step", "prefill", "prefill_context", "decode", "decode_context")
    path.write_text(json.dumps({f"{name}_ns": 1 for name in names} | {"decode_ns": -1}))
    with pytest.raises(StepTimeError, match="at least 0"):
        read_profile(path)


def test_an_unknown_accelerator_is_answered_with_the_known_ones() -> None:
    with pytest.raises(StepTimeError, match=ACCELERATOR_DEFAULT):
        named_rates("abacus")
