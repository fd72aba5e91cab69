import json
from pathlib import Path

from lmpool.bench.e2e_trials import BLOCKS_OF_256
from lmpool.bench.interval import t_quantile
from lmpool.bench.trial.evidence import DIGESTS, FILES, OF_THE_HOUR
from lmpool.bench.trial.metrics import METRICS
from lmpool.bench.trial.paced import COPY_BLOCK_TOKENS, SLOWNESS, write_paced_folder
from lmpool.bench.trial.spec import ARMS
from lmpool.io.placement import block_bytes_most
from tests.bench.trial.test_checks import PLANTED
from tests.specs.tables import SPECS, read_rows

PAGE = "trials.md"


def test_arms_of_the_page_are_those_of_the_code() -> None:
    told = [(row["arm"], row["replicas"], row["policy"], row["placement"]) for row in read_rows(PAGE, "Arms")]
    assert told == [
        (arm.name, "as asked" if arm.replicas is None else str(arm.replicas), arm.policy, arm.placement.value)
        for arm in ARMS
    ]


def test_metrics_of_the_page_are_those_of_the_code() -> None:
    rows = read_rows(PAGE, "Metrics")
    told = {row["metric"]: (row["unit"], row["better"], row["optional"], row["what"]) for row in rows}
    assert list(told) == list(METRICS)
    assert told == {
        name: (metric.unit, metric.better.value, "" if metric.is_always else "yes", metric.about)
        for name, metric in METRICS.items()
    }


def test_files_of_the_page_are_those_of_the_code() -> None:
    rows = read_rows(PAGE, "Evidence")
    assert [row["file"] for row in rows] == [*FILES, DIGESTS]
    assert tuple(row["file"] for row in rows if row["of the hour"]) == OF_THE_HOUR


def test_every_check_of_the_page_is_planted_in_a_test_and_the_other_way_round() -> None:
    assert [row["planted"] for row in read_rows(PAGE, "Checks")] == list(PLANTED)


def test_budgets_and_the_quantile_of_the_page_are_those_of_the_code() -> None:
    assert {row["workload"]: int(row["blocks of 256"]) for row in read_rows(PAGE, "Budgets")} == BLOCKS_OF_256
    assert f"({t_quantile(4):.3f} deviations of the mean for five)" in (SPECS / PAGE).read_text()


def test_paced_replicas_have_the_figures_of_the_page(tmp_path: Path) -> None:
    facts = {row["fact"]: int(row["value"]) for row in read_rows(PAGE, "paced")}
    folder = write_paced_folder(tmp_path / "paced")
    config = json.loads((folder / "config.json").read_text())
    assert facts == {
        "slowness": SLOWNESS,
        "copy_block_ns": config["copy_block_ns"],
        "block_bytes": block_bytes_most(folder, COPY_BLOCK_TOKENS),
    }
