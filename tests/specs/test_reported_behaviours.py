"""The lists of reported behaviours in `specs/` against the names of tests."""

import re
from pathlib import Path

import pytest

from tests.specs.tables import read_rows

TESTS = Path(__file__).parents[1]
LISTS = [
    ("routing.md", "What users of other routers report", "r"),
    ("api.md", "What users of other servers report", "b"),
]


def numbers_of_tests(letter: str) -> set[int]:
    name = re.compile(rf"^(?:async )?def test_((?:{letter}\d+_)+)", re.MULTILINE)
    names = [found for path in sorted(TESTS.rglob("test_*.py")) for found in name.findall(path.read_text())]
    return {int(number) for found in names for number in re.findall(rf"{letter}(\d+)_", found)}


@pytest.mark.parametrize(("page", "heading", "letter"), LISTS)
def test_what_is_said_to_be_tested_is_and_nothing_else(page: str, heading: str, letter: str) -> None:
    rows = read_rows(page, heading)
    assert {int(row["number"]) for row in rows if row["here"] == "tested"} == numbers_of_tests(letter)
    assert all(row["report"] and row["here"] for row in rows)


@pytest.mark.parametrize(("page", "heading"), [list_[:2] for list_ in LISTS])
def test_numbers_rise(page: str, heading: str) -> None:
    numbers = [int(row["number"]) for row in read_rows(page, heading)]
    assert numbers == sorted(set(numbers))
