"""What is written of the policies is what the kept lines of results say."""

from functools import cache

import pytest

from lmpool import cli
from lmpool.bench.routing import LOADS, Results
from lmpool.bench.routing_cells import ALONE, CELLS, IN_ARRIVAL_ORDER, WITH_COPIES, Entrant
from lmpool.bench.routing_table import OURS, OURS_WITH_COPIES, report
from tests.specs.tables import SPECS, read_rows

FILE = SPECS / "evidence" / "policies.jsonl.xz"


@cache
def kept() -> Results:
    return Results(FILE)


@pytest.mark.parametrize(
    ("heading", "ours"),
    [
        ("Routing alone", OURS),
        ("With copies of blocks", OURS_WITH_COPIES),
        ("Known policies on replicas in order of arrival", OURS),
    ],
)
def test_the_tables_are_of_the_kept_lines(heading: str, ours: str) -> None:
    lines = report(list(kept().runs.values()))
    lines = lines[next(index for index, line in enumerate(lines) if line.startswith(heading.lower())) :]
    title = f"each policy over the best known one, and {ours} over each policy, geometric means over the entries"
    begin = lines.index(title) + 2
    rows = [list(row.values()) for row in read_rows("evidence.md", heading)]
    assert rows == [line.split() for line in lines[begin : begin + len(rows)]]
    assert lines[begin + len(rows)] == ""


@pytest.mark.parametrize("policies", [{**ALONE, **WITH_COPIES}, IN_ARRIVAL_ORDER], ids=["usual", "arrival order"])
def test_they_are_of_every_cell_and_every_policy(policies: dict[str, Entrant]) -> None:
    """At each load with each of its seeds, which not every load has as many of."""
    runs = [key for key in kept().runs if key[-1] in policies]
    passes = dict.fromkeys((load, seed) for _, _, load, seed, _ in runs)
    assert {load for load, _ in passes} <= set(LOADS)
    wanted = {
        (cell.name, cell.requests, load, seed, policy)
        for cell in CELLS.values()
        for load, seed in passes
        for policy in policies
    }
    assert set(runs) == wanted


def test_policies_of_a_seed_had_the_same_requests() -> None:
    fingerprints: dict[tuple[object, ...], set[object]] = {}
    for (cell, _, load, seed, _), run in kept().runs.items():
        fingerprints.setdefault((cell, load, seed), set()).add(run.figures["fingerprint"])
    assert all(len(found) == 1 for found in fingerprints.values())


def test_a_report_of_them_needs_no_trace(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["bench", "routing", "--report", "--json", str(FILE)]) == 0
    assert capsys.readouterr().out.splitlines() == report(list(kept().runs.values()))
