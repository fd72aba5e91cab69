import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from lmpool import cli

SMALL = """\
schema = 1
name = "small"
question = "Does it work from end to end?"
venue = "simulator"
seed = 1
repetitions = 2
arms = ["round-robin", "default"]
metrics = ["computed_tokens", "reuse"]

[[workload]]
name = "agent-sessions"
requests = 12
rates = [2.0]
scale = 0.1
pauses = 0.1

[budget]
shares = [1.1]

[system]
replicas = 2

[sweep]

[[rule]]
name = "less prefill"
kind = "success"
metric = "computed_tokens"
arm = "default"
against = "round-robin"
statistic = "ratio"
bound = "mean"
at_most = 1.0
"""


def _run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    try:
        code = cli.main(["study", *arguments])
    except SystemExit as end:
        code = int(end.code or 0)
    told = capsys.readouterr()
    return code, told.out, told.err


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Run once, with real trials in fresh processes."""
    place = tmp_path_factory.mktemp("studies")
    (place / "plan.toml").write_text(SMALL)
    assert cli.main(["study", "run", str(place / "plan.toml"), "--out", str(place / "study")]) == 0
    return place / "study"


def test_a_study_runs_is_reported_and_packed(study: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    page, record, packed = tmp_path / "a.html", tmp_path / "a.json", tmp_path / "a.tar.xz"
    code, out, _ = _run(capsys, "report", str(study), "--html", str(page), "--json", str(record))
    assert code == 0
    assert "4 valid trials of 4 planned" in out
    assert "success: met" in out
    found = json.loads(record.read_text())
    assert [trial["is_valid"] for trial in found["trials"]] == [True] * 4
    assert found["points"][0]["arms"][1]["decisions"]["joined"] == 2 * 12
    assert _run(capsys, "report", "--check", str(record))[0] == 0
    assert _run(capsys, "pack", str(study), str(packed))[0] == 0
    again = tmp_path / "b.html"
    assert _run(capsys, "report", str(packed), "--html", str(again))[0] == 0
    assert again.read_bytes() == page.read_bytes()


def test_b77_a_simulated_study_run_twice_has_the_same_figures_whatever_the_host_took(
    study: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """Real scheduler and cache, blocks of the plan, and keys from the trace: figures are equal to the last bit."""
    code, _, err = _run(capsys, "run", str(study / "plan.toml"), "--out", str(tmp_path / "again"))
    assert code == 0
    assert "trial 4 of 4" in err
    records = []
    for folder in (study, tmp_path / "again"):
        assert _run(capsys, "report", str(folder), "--json", str(tmp_path / "record.json"))[0] == 0
        records.append(json.loads((tmp_path / "record.json").read_text()))
    assert records[0]["points"] == records[1]["points"]
    assert [one["seconds"] for one in records[0]["trials"]] != [one["seconds"] for one in records[1]["trials"]]
    assert records[0]["points"][0]["requests"] == 12


def test_a_study_that_is_whole_starts_nothing(study: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = _run(capsys, "run", str(study / "plan.toml"), "--out", str(study))
    assert (code, err) == (0, "")
    assert "4 valid trials" in out


def test_decisions_are_listed_by_trial(study: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = _run(capsys, "decisions", str(study), "--limit", "2")
    assert code == 0
    assert out.count("of 12 decisions passed over the rank with the longest cached prefix") == 4
    name = "agent-sessions_kv1.1_load2_round-robin_r1"
    code, out, _ = _run(capsys, "decisions", str(study), "--trial", name)
    assert (code, out.count("decisions passed over")) == (0, 1)
    assert "its turn" in out
    code, _, err = _run(capsys, "decisions", str(study), "--trial", "knitting")
    assert (code, err) == (1, "lmpool study: no trial is there of the name knitting\n")


def test_a_dry_run_prints_the_matrix_and_starts_nothing(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    (tmp_path / "plan.toml").write_text(SMALL)
    code, out, _ = _run(capsys, "run", str(tmp_path / "plan.toml"), "--out", str(tmp_path / "study"), "--dry-run")
    assert code == 0
    assert "2 arms x 1 points x 2 repetitions: 4 trials, venue simulator" in out
    assert "what a trial takes is not known yet" in out
    assert out.count("agent-sessions_kv1.1_load2_") == 4
    assert not (tmp_path / "study").exists()


def test_what_trials_took_is_what_the_rest_is_expected_to_take(study: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = _run(capsys, "run", str(study / "plan.toml"), "--out", str(study), "--dry-run")
    assert code == 0
    assert "4 have run in" in out


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        (
            "shares = [1.1]",
            "shares = [0.001]",
            "1 blocks of 16 tokens do not hold the longest request of agent-sessions",
        ),
        ("replicas = 2", 'replicas = 2\nrates = "nowhere"', "nowhere is no file that can be read"),
    ],
)
@pytest.mark.parametrize("flag", [("--dry-run",), ("--out", "study")])
def test_what_no_trial_can_be_is_refused_before_anything_begins(
    old: str, new: str, said: str, flag: tuple[str, ...], capsys: pytest.CaptureFixture[str], tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.chdir(tmp_path)
    assert old in SMALL
    Path("plan.toml").write_text(SMALL.replace(old, new))
    code, out, err = _run(capsys, "run", "plan.toml", *flag)
    assert (code, out) == (2, "")
    assert said in err
    assert not Path("study").exists()


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        ((), 2, "the following arguments are required: COMMAND"),
        (("run", "knitting"), 2, "knitting: No such file or directory; ready plans are five-arms"),
        (("run", "residency-quick"), 2, "run needs --out DIR"),
        (("report",), 2, "report needs DIR"),
        (("report", "nowhere"), 1, "nowhere is no study"),
        (("decisions", "nowhere"), 1, "nowhere is no study"),
        (("report", "--check", "nowhere"), 1, "nowhere: No such file or directory"),
    ],
)
def test_errors_are_one_line_with_a_code(
    arguments: tuple[str, ...], code: int, said: str, capsys: pytest.CaptureFixture[str], tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.chdir(tmp_path)
    found, out, err = _run(capsys, *arguments)
    assert (found, out) == (code, "")
    assert said in err
    assert err.startswith("lmpool study: ")


def test_ready_plans_are_listed_with_their_questions(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = _run(capsys, "list")
    assert code == 0
    assert [line.split()[0] for line in out.splitlines()] == [
        "five-arms", "load-crossover", "memory-skew-paced", "residency", "residency-quick", "routing-matrix",
        "routing-matrix-simulator", "skew-paced",
    ]  # fmt: skip
    assert all(line.endswith("?") for line in out.splitlines())


def test_the_schema_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = _run(capsys, "report", "--schema")
    assert code == 0
    assert json.loads(out)["title"] == "StudyReport"


def test_help_has_examples_and_exit_codes(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = _run(capsys, "--help")
    assert code == 0
    assert "lmpool study run residency-quick" in out
    assert "130  interrupted" in out


def test_an_interrupted_study_says_how_to_go_on_and_does(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    plan, out = tmp_path / "plan.toml", tmp_path / "study"
    plan.write_text(SMALL.replace("repetitions = 2", "repetitions = 6"))  # so that it cannot be over before the signal
    heeding = ["env", "--default-signal=INT"]  # which what a shell runs behind `&` does not
    command = [*heeding, sys.executable, "-m", "lmpool", "study", "run", str(plan), "--out", str(out)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        while not (out / "ledger.jsonl").exists() and process.poll() is None:
            time.sleep(0.05)
        process.send_signal(signal.SIGINT)
        _, err = process.communicate()
    assert process.returncode == 130
    assert err.splitlines()[-1] == f"lmpool study: interrupted; the same command goes on from here: {out}"
    assert 1 <= len((out / "ledger.jsonl").read_text().splitlines()) < 12
    code, told, _ = _run(capsys, "run", str(plan), "--out", str(out))
    assert code == 0
    assert "12 valid trials of 12 planned" in told
