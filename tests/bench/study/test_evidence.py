"""Evidence that is kept beside the code: whole, of the plans that are ready, and saying what is written beside it."""

from functools import cache
from pathlib import Path

import pytest

from lmpool.bench.study.folder import Folder
from lmpool.bench.study.pack import PACKED_MAX, opened
from lmpool.bench.study.ready import plan_bytes, ready_names
from lmpool.bench.study.report import StudyReport, study_report
from lmpool.bench.study.summary import summary_lines
from lmpool.bench.study.words import metric_name
from lmpool.bench.trial.metrics import METRICS
from tests.specs.tables import SPECS, read_rows

KEPT = SPECS / "evidence"
SUFFIX = ".tar.xz"
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


def test_the_table_of_the_five_arms_is_what_their_evidence_says() -> None:
    found, _ = read("five-arms")
    ratios = {
        (point.workload, metric.metric, arm.arm): metric.ratio
        for point in found.points
        for arm in point.arms
        for metric in arm.metrics
    }
    rows = read_rows("evidence.md", "Five arms")
    assert len(rows) == 7
    for row in rows:
        key = next(one for one in METRICS if metric_name(one).split(",")[0] == row["metric"])
        for column, arm in (("routing", "routing"), ("copies", "transfer"), ("both", "full")):
            ratio = ratios[row["workload"], key, arm]
            assert ratio is not None
            assert row[column] == f"{ratio.mean:.2f} [{ratio.low:.2f}, {ratio.high:.2f}]", (row, arm)


def test_the_list_of_studies_is_whole() -> None:
    rows = {row["study"]: row for row in read_rows("evidence.md", "Evidence")}
    assert sorted(rows) == NAMES
    for name, row in rows.items():
        found, _ = read(name)
        assert (row["success"], row["go"]) == (found.success or "", found.go or "")
        assert int(row["trials"].split(",")[0]) == len(found.trials)
