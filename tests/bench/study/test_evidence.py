"""Evidence that is kept beside the code: whole, of the plans that are ready, and saying what is written beside it."""

from functools import cache
from pathlib import Path

import pytest

from lmpool.bench.study.folder import Folder
from lmpool.bench.study.pack import PACKED_MAX, opened
from lmpool.bench.study.ready import plan_bytes, ready_names
from lmpool.bench.study.report import StudyReport, study_report
from lmpool.bench.study.summary import summary_lines
from lmpool.bench.study.words import estimate_text, metric_name
from tests.specs.tables import SPECS, read_rows

KEPT = SPECS / "evidence"
SUFFIX = ".tar.xz"
KEYS = ("workload", "budget", "load", "arm", "metric")
TABLES = (
    ("five-arms", "Five arms"),
    ("skew-paced", "Skew on six paced ranks"),
    ("memory-skew-paced", "Skewed memory on six paced ranks"),
    ("residency", "Residency"),
    ("routing-matrix", "Routing matrix, live"),
    ("routing-matrix-simulator", "Routing matrix, simulated"),
)
NAMES = sorted(file.name.removesuffix(SUFFIX) for file in KEPT.glob(f"*{SUFFIX}"))


@cache
def read(name: str) -> tuple[StudyReport, list[str]]:
    with opened(KEPT / f"{name}{SUFFIX}") as folder:
        found = study_report(folder)
        return found, summary_lines(found, folder.plan)


def test_each_is_of_a_ready_plan_and_has_its_summary_beside_it() -> None:
    assert NAMES
    assert set(NAMES) <= set(ready_names())
    assert sorted(file.stem for file in KEPT.glob("*.txt")) == NAMES


@pytest.mark.parametrize("name", NAMES)
def test_it_is_whole_and_of_the_plan_as_it_is_now(name: str) -> None:
    found, _ = read(name)
    assert found.plan.encode() == plan_bytes(name)
    assert len(found.trials) + found.needless == found.planned
    assert all(trial.is_valid for trial in found.trials)
    assert found.departures == ()
    assert (KEPT / f"{name}{SUFFIX}").stat().st_size <= PACKED_MAX


@pytest.mark.parametrize("name", NAMES)
def test_the_raw_files_alone_say_again_what_is_written_beside_them(name: str) -> None:
    _, lines = read(name)
    assert "\n".join(lines) + "\n" == (KEPT / f"{name}.txt").read_text()


@pytest.mark.parametrize("name", NAMES)
def test_no_file_of_it_names_a_place_of_the_machine_that_it_is_from(name: str) -> None:
    with opened(KEPT / f"{name}{SUFFIX}") as folder:
        assert not [file for file in _files(folder) if b"/tmp/" in file.read_bytes()]


def _files(folder: Folder) -> list[Path]:
    return [file for file in folder.path.rglob("*") if file.is_file()]


@cache
def cells(name: str) -> dict[tuple[str, ...], str]:
    """What may stand in a table: by workload, KV budget, load, metric and arm."""
    found, _ = read(name)
    texts: dict[tuple[str, ...], str] = {}
    for point in found.points:
        for arm in point.arms:
            at = (point.workload, f"{point.budget:g}", f"{point.rate:g}", arm.arm)
            joined = arm.decisions
            texts[*at, "passed over"] = f"{joined.passed_over:,} of {joined.joined:,}"
            texts[*at, "computed again"] = f"{joined.recomputed_tokens:,}"
            for metric in arm.metrics:
                word = metric_name(metric.metric).split(",")[0]
                texts[*at, word] = estimate_text(metric.value)
                if (ratio := metric.ratio) is not None:
                    texts[*at, f"{word}, ratio"] = f"{ratio.mean:.2f} [{ratio.low:.2f}, {ratio.high:.2f}]"
    return texts


@pytest.mark.parametrize(("name", "heading"), TABLES)
def test_each_cell_of_a_table_is_what_its_evidence_says(name: str, heading: str) -> None:
    """A row has some of workload, budget, load, arm and metric; every other column is an arm or a metric."""
    for row in read_rows("evidence.md", heading):
        given = {key: row.pop(key) for key in KEYS if key in row}
        assert row
        for column, cell in row.items():
            asked = given | {"arm" if "metric" in given else "metric": column}
            wanted = [asked.get(key) for key in KEYS]
            found = [
                text for at, text in cells(name).items() if all(w in (None, h) for w, h in zip(wanted, at, strict=True))
            ]
            assert found == [cell] or (not found and not cell), (heading, asked)


def test_the_crossovers_are_what_the_search_found() -> None:
    found, _ = read("load-crossover")

    def load(rate: float | None) -> str:
        return "" if rate is None else f"{rate:g}"

    wanted = [
        (one.workload, one.arm, one.search.value, load(one.last_won), load(one.first_lost)) for one in found.crossover
    ]
    assert [tuple(row.values()) for row in read_rows("evidence.md", "Load crossover")] == wanted


def test_the_list_of_studies_is_whole() -> None:
    rows = {row["study"]: row for row in read_rows("evidence.md", "Evidence")}
    assert sorted(rows) == NAMES
    for name, row in rows.items():
        found, _ = read(name)
        assert (row["success"], row["go"]) == (found.success or "", found.go or "")
        assert int(row["trials"].split(",")[0]) == len(found.trials)
