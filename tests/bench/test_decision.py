import json
from pathlib import Path

import attrs
import pytest

from lmpool.bench.decision import BOUNDS_US, CHAIN_BLOCKS, RANKS, DecisionRow, Measured, measure
from lmpool.bench.decision_table import main, report_lines

ROW = DecisionRow(8, 40, 39.0, 99.0, 59.0, 199.0)
MEASURED = Measured((ROW,), 9_000.0, 700.0, 900.0, 87.0, 88.0)


def test_every_promise_has_a_row() -> None:
    measured = measure("default", 4_000, 20, 1, lambda: None)
    rows = {(row.ranks, row.blocks): row for row in measured.decision}
    assert list(rows) == [(ranks, blocks) for ranks in RANKS for blocks in CHAIN_BLOCKS]
    assert set(BOUNDS_US) < set(rows)
    for row in measured.decision:
        assert 0 < row.p50_us <= row.p99_us
        assert 0 < row.booked_p50_us <= row.booked_p99_us
    assert measured.queries_per_s > 0
    assert 0 < measured.ingest_p50_us <= measured.ingest_p99_us
    assert 32 < measured.bytes_per_hash <= measured.peak_bytes_per_hash  # the hash alone takes 16 and its object more


@pytest.mark.parametrize(
    "broken",
    [
        attrs.evolve(MEASURED, decision=(attrs.evolve(ROW, p50_us=40.0),)),
        attrs.evolve(MEASURED, decision=(ROW, attrs.evolve(ROW, booked_p50_us=60.0))),
        attrs.evolve(MEASURED, ingest_p50_us=1_000.0),
        attrs.evolve(MEASURED, bytes_per_hash=130.0),
    ],
    ids=["decision", "booking", "report", "memory"],
)
def test_a_promise_that_is_not_kept_is_told(broken: Measured) -> None:
    assert MEASURED.is_within
    assert not broken.is_within


def test_a_row_over_its_bound_is_marked() -> None:
    assert "OVER" not in "".join(report_lines(MEASURED))
    assert "OVER" in report_lines(attrs.evolve(MEASURED, decision=(attrs.evolve(ROW, p50_us=40.0),)))[1]


def test_figures_as_json_have_stable_names(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["--resident", "20000", "--repeats", "5"]
    main([*arguments, "--json", "-"])
    printed = json.loads(capsys.readouterr().out)
    main([*arguments, "--json", str(tmp_path / "figures.json")])
    assert "questions per second" in capsys.readouterr().out
    written = json.loads((tmp_path / "figures.json").read_text())
    for figures in (printed, written):
        assert figures.keys() >= {"decision", "queries_per_s", "bytes_per_hash"}
        for row in figures["decision"]:
            assert row.keys() >= {"ranks", "blocks", "p50_us", "p99_us", "booked_p50_us"}
