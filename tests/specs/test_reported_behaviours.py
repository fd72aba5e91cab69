"""The lists of reported behaviours in `specs/` against the names of tests."""

import re

import pytest

from tests.specs.tables import names_of_tests, read_rows

ROUTERS = ("routing.md", "What users of other routers report")
SERVERS = ("api.md", "What users of other servers report")
POOLS = ("faults.md", "What users of other pools report")
BENCHMARKS = ("studies.md", "What users of other benchmarks report")
LISTS = {"r": (ROUTERS,), "b": (SERVERS, POOLS, BENCHMARKS)}
"""By the letter before the numbers in names of tests."""


def numbers_of_tests(letter: str) -> set[int]:
    marks = [re.match(r"test_((?:[a-z]\d+_)+)", name) for name in names_of_tests()]
    return {int(number) for mark in marks if mark for number in re.findall(rf"{letter}(\d+)_", mark[1])}


@pytest.mark.parametrize("letter", LISTS)
def test_what_is_said_to_be_tested_is_and_nothing_else(letter: str) -> None:
    rows = [row for list_ in LISTS[letter] for row in read_rows(*list_)]
    assert {int(row["number"]) for row in rows if row["here"] == "tested"} == numbers_of_tests(letter)
    assert all(row["report"] and row["here"] for row in rows)


@pytest.mark.parametrize(("page", "heading"), [ROUTERS, SERVERS, POOLS, BENCHMARKS])
def test_numbers_rise(page: str, heading: str) -> None:
    numbers = [int(row["number"]) for row in read_rows(page, heading)]
    assert numbers == sorted(set(numbers))
