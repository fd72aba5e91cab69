"""Reads the Markdown tables of specs/, so that tests can hold them against the code."""

import re
from pathlib import Path

TESTS = Path(__file__).parents[1]
SPECS = TESTS.parent / "specs"


def read_rows(name: str, heading: str) -> list[dict[str, str]]:
    """Rows of the first table under `heading` (without its #s) in specs/`name`, as column name -> cell.

    Backticks around a cell are removed; `\\|` stands for a bar.
    """
    lines = (SPECS / name).read_text().splitlines()
    begin = next(i for i, line in enumerate(lines) if line.startswith("#") and line.lstrip("# ").strip() == heading)
    table: list[list[str]] = []
    for line in lines[begin + 1 :]:
        if line.startswith("|"):
            cells = line.replace("\\|", "\0").strip().strip("|").split("|")
            table.append([cell.replace("\0", "|").strip().strip("`") for cell in cells])
        elif table:
            break
    header, _, *rows = table
    return [dict(zip(header, row, strict=True)) for row in rows]


def names_of_tests() -> set[str]:
    """Of all test functions of this project."""
    name = re.compile(r"^(?:async )?def (test_\w+)", re.MULTILINE)
    return {found for path in TESTS.rglob("test_*.py") for found in name.findall(path.read_text())}
