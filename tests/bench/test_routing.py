import json
import lzma
from pathlib import Path
from typing import Any

import pytest

from lmpool import cli
from lmpool.bench.routing_cells import CELLS, IN_ARRIVAL_ORDER
from lmpool.bench.routing_table import OURS, Measured, entries, geometric_mean, ratios, report

SMALL = [
    "--cells", "one-system-prompt", "--policies", "default", "least-loaded", "--loads", "0.5", "--seeds", "2",
    "--requests", "30",
]  # fmt: skip


def _run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    code = cli.main(["bench", "routing", *arguments])
    told = capsys.readouterr()
    return code, told.out, told.err


def _written(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_runs_are_written_as_lines_and_an_interrupted_matrix_goes_on(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    path = tmp_path / "runs.jsonl"
    known = {"kind": "saturation", "cell": "one-system-prompt", "requests": 30, "rate": 40.0}
    path.write_text(json.dumps(known) + "\n")
    code, out, _ = _run(capsys, *SMALL, "--json", str(path))
    assert code == 0
    lines = _written(path)
    assert [line["kind"] for line in lines] == ["saturation", *["run"] * 4]
    assert all(line["job"]["rate"] == 20.0 for line in lines[1:])
    assert {(line["job"]["seed"], line["job"]["policy"]) for line in lines[1:]} == {
        (seed, policy) for seed in (1, 2) for policy in (OURS, "least-loaded")
    }
    assert out.startswith(f"routing alone (4 runs)\n\n{OURS} over the best known policy of each entry\n")
    assert len({line["figures"]["fingerprint"] for line in lines[1:]}) == 2, "policies share the requests of a seed"

    path.write_text("".join(json.dumps(line) + "\n" for line in lines[:-1]))
    code, again, _ = _run(capsys, *SMALL, "--json", str(path))
    assert (code, again) == (0, out)
    assert _written(path)[:-1] == lines[:-1]
    assert _written(path)[-1] == lines[-1]


def test_a_compressed_file_is_gone_on_from_as_well(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    known = {"kind": "saturation", "cell": "one-system-prompt", "requests": 30, "rate": 40.0}
    packed = tmp_path / "runs.jsonl.xz"
    packed.write_bytes(lzma.compress(json.dumps(known).encode() + b"\n"))
    code, out, _ = _run(capsys, *SMALL, "--json", str(packed))
    assert (code, len(lzma.decompress(packed.read_bytes()).splitlines())) == (0, 5)
    assert _run(capsys, *SMALL, "--report", "--json", str(packed)) == (0, out, "")

    packed.write_bytes(packed.read_bytes()[:-20])
    code, _, err = _run(capsys, *SMALL, "--report", "--json", str(packed))
    assert code == 2
    assert "runs.jsonl.xz cannot be read" in err


def test_a_saturation_that_is_not_known_is_searched_once(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lmpool.bench.routing.saturation", lambda guess, sustains: guess / 2)
    path = tmp_path / "runs.jsonl"
    for _ in range(2):
        assert _run(capsys, *SMALL, "--seeds", "1", "--json", str(path))[0] == 0
    rates = [line["rate"] for line in _written(path) if line["kind"] == "saturation"]
    assert rates == [CELLS["one-system-prompt"].guess / 2]


def test_a_report_runs_nothing(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    code, out, _ = _run(capsys, *SMALL, "--report", "--json", str(tmp_path / "none.jsonl"))
    assert code == 0
    assert out.startswith("routing alone: nothing to compare yet: 0 runs")
    assert not (tmp_path / "none.jsonl").exists()


def test_a_file_of_something_else_is_refused(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    path = tmp_path / "runs.jsonl"
    path.write_text('{"hello": 1}\n')
    code, _, err = _run(capsys, *SMALL, "--json", str(path))
    assert code == 2
    assert "runs.jsonl:1: no result of this command" in err


def _measured(policy: str, seed: int, value: float, cell: str = "one", load: float = 0.5) -> Measured:
    spread = {"mean": value, "p99": 3 * value}
    return Measured(cell, load, seed, policy, {"ttft_s": spread, "e2e_s": {"mean": 10.0, "p99": 20.0}})


@pytest.mark.parametrize(
    ("flags", "told"),
    [
        (["--loads", "-1"], "-1 is not more than 0"),
        (["--seeds", "0"], "0 is less than 1"),
        (["--json", "/nowhere/results.jsonl"], "there is no folder /nowhere"),
    ],
)
def test_what_no_matrix_can_be_is_told_before_the_first(
    capsys: pytest.CaptureFixture[str], flags: list[str], told: str
) -> None:
    with pytest.raises(SystemExit) as ended:
        _run(capsys, *flags)
    assert ended.value.code == 2
    error = capsys.readouterr().err
    assert error.startswith("lmpool bench routing: argument ")
    assert told in error


def test_an_entry_is_held_against_the_best_known_policy_of_that_entry() -> None:
    runs = [
        _measured(OURS, 1, 1.0),
        _measured(OURS, 2, 2.0),
        _measured("a", 1, 1.0),
        _measured("a", 2, 1.0),
        _measured("b", 1, 4.0),
        _measured("b", 2, 4.0),
        _measured(OURS, 1, 1.0, cell="two"),
        _measured("a", 1, 9.0, cell="two"),
        _measured("b", 1, 2.0, cell="two"),
    ]
    found = entries(runs)
    assert found["one", 0.5, "ttft mean"] == {OURS: 1.5, "a": 1.0, "b": 4.0}
    ours = ratios(found, OURS)
    assert ours["one", 0.5, "ttft mean"] == 1.5
    assert ours["two", 0.5, "ttft p99"] == 0.5
    assert ours["two", 0.5, "e2e mean"] == 1.0
    assert ratios(found, "a")["two", 0.5, "ttft mean"] == 4.5


def test_only_seeds_that_every_policy_has_count() -> None:
    runs = [_measured(OURS, 1, 1.0), _measured(OURS, 2, 100.0), _measured("a", 1, 2.0), _measured("a", 3, 100.0)]
    assert entries(runs)["one", 0.5, "ttft mean"] == {OURS: 1.0, "a": 2.0}
    assert entries([_measured(OURS, 1, 1.0), _measured("a", 2, 1.0)]) == {}


def test_a_report_lists_what_is_above_its_bound_and_ranks_policies() -> None:
    runs = [_measured(OURS, 1, 1.15), _measured("a", 1, 1.0), _measured("b", 1, 8.0)]
    lines = report(runs)
    assert "1 of 4 entries above 1.1 (means) or 1.2 (p99)" in lines
    assert any(line.startswith("  one 0.5 ttft mean: 1.150 (1.150 s; a 1.000 s)") for line in lines)
    ranking = lines[
        lines.index(
            f"each policy over the best known one, and {OURS} over each policy, geometric means over the entries"
        )
        + 2 :
    ][:3]
    assert [line.split()[0] for line in ranking] == ["a", OURS, "b"]
    assert ranking[1].split()[1] == f"{geometric_mean([1.15, 1.15, 1.0, 1.0]):.3f}"


def test_copies_are_compared_apart_from_routing_alone() -> None:
    copies = "marginal-time+copies"
    runs = [
        _measured(OURS, 1, 1.0),
        _measured("a", 1, 2.0),
        _measured(copies, 1, 0.5),
        _measured("mooncake+pulls", 1, 0.8),
    ]
    lines = report(runs)
    begins = [index for index, line in enumerate(lines) if "over the best known policy of each entry" in line]
    assert [lines[index].split()[0] for index in begins] == [OURS, copies]
    alone, whole = lines[: begins[1]], lines[begins[1] :]
    assert not any(copies in line or "mooncake+pulls" in line for line in alone)
    (entry,) = [line for line in alone if line.startswith("one 0.5")]
    assert entry.split()[2:4] == ["0.500", "a"]
    (entry,) = [line for line in whole if line.startswith("one 0.5")]
    assert entry.split()[2:4] == ["0.625", "mooncake+pulls"]
    (ours,) = [line for line in alone if line.startswith("a ")]
    assert ours.split()[-1] == f"{geometric_mean([0.5, 0.5, 1.0, 1.0]):.3f}"


def test_known_policies_on_usual_replicas_are_compared_apart() -> None:
    runs = [
        _measured(OURS, 1, 1.0),
        _measured("session", 1, 2.0),
        _measured("session+arrival", 1, 4.0),
        _measured("marginal-time+arrival", 1, 3.0),
    ]
    lines = report(runs)
    begin = lines.index("known policies on replicas in order of arrival (3 runs)")
    alone, usual = lines[:begin], lines[begin:]
    assert not any("+arrival" in line for line in alone)
    (entry,) = [line for line in alone if line.startswith("one 0.5")]
    assert entry.split()[2:4] == ["0.500", "session"]
    (entry,) = [line for line in usual if line.startswith("one 0.5")]
    assert entry.split()[2:4] == ["0.250", "session+arrival"]
    assert [line.split()[0] for line in usual if line.startswith("marginal-time")] == [
        OURS,  # of the title
        OURS,
        "marginal-time+arrival",
    ]


def test_prompts_share_a_step_as_the_name_says(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    path = tmp_path / "runs.jsonl"
    known = {"kind": "saturation", "cell": "few-long", "requests": 150, "rate": 60.0}
    path.write_text(json.dumps(known) + "\n")
    wanted = ["--cells", "few-long", "--loads", "0.9", "--seeds", "1", "--requests", "150"]
    assert _run(capsys, *wanted, "--policies", "session", "each+arrival", "--json", str(path))[0] == 0
    means = {line["job"]["policy"]: line["figures"]["ttft_s"]["mean"] for line in _written(path)[1:]}
    assert set(means) == {"session", *IN_ARRIVAL_ORDER}
    assert means["session"] < means["session+arrival"]


def test_blocks_are_copied_only_where_the_name_says_so(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    path = tmp_path / "runs.jsonl"
    known = {"kind": "saturation", "cell": "hot-session-skew", "requests": 150, "rate": 60.0}
    path.write_text(json.dumps(known) + "\n")
    names = ["default", "marginal-time+copies", "mooncake", "mooncake+pulls"]
    wanted = ["--cells", "hot-session-skew", "--loads", "0.9", "--seeds", "1", "--requests", "150"]
    assert _run(capsys, *wanted, "--policies", *names, "--json", str(path))[0] == 0
    begun = {line["job"]["policy"]: line["figures"]["placement"] for line in _written(path)[1:]}
    assert begun[OURS] is None
    assert begun["mooncake"] is None
    occasions = {name: [one for one, count in begun[name]["admitted"] if count] for name in names if "+" in name}
    assert "copy" in occasions["marginal-time+copies"]
    assert occasions["mooncake+pulls"] == ["pull"]
