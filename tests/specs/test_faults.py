"""Every fault of specs/faults.md has tests, and each of them exists."""

import re

import pytest

from tests.specs.tables import SPECS, names_of_tests, read_rows

PAGE = "faults.md"
HEADINGS = [
    heading
    for heading in re.findall(r"^## (.+)$", (SPECS / PAGE).read_text(), flags=re.MULTILINE)
    if not heading.startswith("What users")
]


@pytest.mark.parametrize("heading", HEADINGS)
def test_every_fault_has_tests_that_exist(heading: str) -> None:
    known = names_of_tests()
    rows = read_rows(PAGE, heading)
    assert rows
    for row in rows:
        named = re.findall(r"\w+", row["tests"])
        assert named, row
        assert [name for name in named if name not in known] == []
