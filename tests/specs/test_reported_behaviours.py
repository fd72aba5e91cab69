"""The list of reported behaviours in `specs/routing.md` against the names of tests."""

import re
from pathlib import Path

from tests.specs.tables import read_rows

TESTS = Path(__file__).parents[1]
NAME = re.compile(r"^(?:async )?def test_((?:r\d+_)+)", re.MULTILINE)


def numbers_of_tests() -> set[str]:
    names = [name for path in sorted(TESTS.rglob("test_*.py")) for name in NAME.findall(path.read_text())]
    return {number for name in names for number in re.findall(r"r(\d+)_", name)}


def test_what_is_said_to_be_tested_is_and_nothing_else() -> None:
    rows = read_rows("routing.md", "What users of other routers report")
    assert {row["number"] for row in rows if row["here"] == "tested"} == numbers_of_tests()
    assert all(row["report"] and row["here"] for row in rows)


def test_numbers_rise() -> None:
    numbers = [int(row["number"]) for row in read_rows("routing.md", "What users of other routers report")]
    assert numbers == sorted(set(numbers))
