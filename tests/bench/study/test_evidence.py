"""Evidence that is kept beside the code: whole, of the plans that are ready, and saying what is written beside it."""

from functools import cache
from pathlib import Path

import pytest

from lmpool.bench.study.folder import Folder
from lmpool.bench.study.pack import PACKED_MAX, opened
from lmpool.bench.study.ready import plan_bytes, ready_names
from lmpool.bench.study.report import MetricReport, StudyReport, study_report
from lmpool.bench.study.summary import summary_lines
from lmpool.bench.study.words import estimate_text, metric_name
from tests.specs.tables import SPECS, read_rows

KEPT = SPECS / "evidence"
SUFFIX = ".tar.xz"
KEYS = ("workload", "budget", "load", "metric", "arm")
TABLES = (("five-arms", "Five arms"), ("residency", "Residency"))
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
def figures(name: str) -> dict[tuple[str, str, str, str, str], MetricReport]:
    """By workload, KV budget, load, metric and arm."""
    found, _ = read(name)
    return {
        (
            point.workload,
            f"{point.budget:g}",
            f"{point.rate:g}",
            metric_name(metric.metric).split(",")[0],
            arm.arm,
        ): metric
        for point in found.points
        for arm in point.arms
        for metric in arm.metrics
    }


def written(metric: MetricReport, *, is_ratio: bool) -> str:
    if not is_ratio:
        return estimate_text(metric.value)
    found = metric.ratio
    return "" if found is None else f"{found.mean:.2f} [{found.low:.2f}, {found.high:.2f}]"


@pytest.mark.parametrize(("name", "heading"), TABLES)
def test_each_cell_of_a_table_is_what_its_evidence_says(name: str, heading: str) -> None:
    """A row has some of workload, budget, load, metric and arm; every other column is an arm or a metric."""
    known = figures(name)
    for row in read_rows("evidence.md", heading):
        given = {key: row.pop(key) for key in KEYS if key in row}
        assert row
        for column, cell in row.items():
            asked = given | {"arm" if "arm" not in given else "metric": column}
            metric, _, ratio = asked["metric"].partition(", ")
            assert ratio in ("", "ratio")
            wanted = [asked.get(key) for key in KEYS[:3]] + [metric, asked["arm"]]
            found = [one for at, one in known.items() if all(w in (None, h) for w, h in zip(wanted, at, strict=True))]
            assert len(found) <= 1, (heading, asked)
            assert cell == "".join(written(one, is_ratio=bool(ratio)) for one in found), (heading, asked)


def test_the_list_of_studies_is_whole() -> None:
    rows = {row["study"]: row for row in read_rows("evidence.md", "Evidence")}
    assert sorted(rows) == NAMES
    for name, row in rows.items():
        found, _ = read(name)
        assert (row["success"], row["go"]) == (found.success or "", found.go or "")
        assert int(row["trials"].split(",")[0]) == len(found.trials)
