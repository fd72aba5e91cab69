"""The five arms in virtual time, and what is said of trials that are missing, torn or of another run."""

import json
from pathlib import Path

import jsonschema_rs
import pytest

from lmpool.bench import e2e_trials
from lmpool.bench.e2e import main
from lmpool.bench.e2e_report import E2EReport
from lmpool.bench.load.schema import json_schema
from lmpool.bench.trial.__main__ import main as run_trial
from lmpool.bench.trial.evidence import OUTCOME, read_evidence
from lmpool.bench.trial.spec import ARMS, TrialSpec, spec_text

SMALL = ["--simulator", "--workload", "load-skew", "--requests", "24", "--scale", "0.1", "--replicas", "2"]
TWICE = ["--repetitions", "2"]


def perform_here(spec: TrialSpec, folder: Path, log: Path) -> int:
    path = folder.with_suffix(".spec")
    path.write_text(spec_text(spec))
    log.write_text("some words\nthe last words\n")
    return run_trial([str(path), str(folder)])


@pytest.fixture
def performed(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Trials in this process, which is quicker; their names as they are run."""
    names: list[str] = []

    def perform(spec: TrialSpec, folder: Path, log: Path) -> int:
        names.append(folder.name)
        return perform_here(spec, folder, log)

    monkeypatch.setattr(e2e_trials, "perform_trial", perform)
    return names


def test_every_arm_stands_in_the_table_with_intervals_and_a_verdict(
    tmp_path: Path, performed: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    picture = tmp_path / "e2e.svg"
    code = main([*SMALL, *TWICE, "--workload", "memory-skew", "--out", str(tmp_path / "out"), "--plot", str(picture)])
    printed = capsys.readouterr()
    assert code == 0
    assert len(performed) == 2 * 2 * len(ARMS)
    for arm in ARMS:
        assert any(line.startswith(f"{arm.name} ") and "±" in line for line in printed.out.splitlines())
        assert arm.name == "round-robin" or f"  {arm.name} against round-robin: " in printed.out
    assert "x 0.1" in printed.out
    assert "about" in printed.err
    assert picture.read_text().startswith("<?xml")


def test_figures_keep_their_schema_and_are_the_same_when_made_from_what_is_there(
    tmp_path: Path, performed: list[str]
) -> None:
    files = [tmp_path / "one.json", tmp_path / "two.json"]
    arguments = [*SMALL, *TWICE, "--arm", "full", "--arm", "round-robin", "--out", str(tmp_path)]
    for file in files:
        assert main([*arguments, "--json", str(file), "--plot", str(file.with_suffix(".svg"))]) == 0
    assert len(performed) == 4
    assert files[0].read_bytes() == files[1].read_bytes()
    assert files[0].with_suffix(".svg").read_bytes() == files[1].with_suffix(".svg").read_bytes()
    report = json.loads(files[0].read_text())
    jsonschema_rs.validate(json_schema(E2EReport), report)
    assert [one["arm"] for one in report["figures"]] == ["full", "round-robin"]
    assert {one["arm"] for one in report["comparisons"]} == {"full"}
    assert len(dict.fromkeys(report["workloads"][0]["fingerprints"])) == 2


def test_arms_of_a_repetition_have_the_same_requests(tmp_path: Path, performed: list[str]) -> None:
    assert main([*SMALL, "--repetitions", "1", "--out", str(tmp_path)]) == 0
    found = [read_evidence(tmp_path / name).workload.fingerprint for name in performed]
    assert len(found) == len(ARMS)
    assert len(set(found)) == 1


def test_a_torn_trial_is_run_again_and_kept_beside(tmp_path: Path, performed: list[str]) -> None:
    arguments = [*SMALL, "--repetitions", "1", "--arm", "routing", "--out", str(tmp_path)]
    assert main(arguments) == 0
    (tmp_path / performed[0] / OUTCOME).write_text("{}")
    assert main(arguments) == 0
    assert performed == ["load-skew_routing_r1"] * 2
    assert (tmp_path / "load-skew_routing_r1.failed-1" / OUTCOME).read_text() == "{}"
    read_evidence(tmp_path / "load-skew_routing_r1")


def test_a_trial_that_is_not_valid_is_in_no_figure(
    tmp_path: Path, performed: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A budget that holds no prompt."""
    monkeypatch.setitem(e2e_trials.BLOCKS_OF_256, "load-skew", 12)
    file = tmp_path / "e2e.json"
    arguments = [*SMALL, "--repetitions", "1", "--arm", "routing", "--out", str(tmp_path), "--json", str(file)]
    assert main([*arguments, "--plot", str(tmp_path / "e2e.png")]) == 1
    assert not (tmp_path / "e2e.png").exists()
    assert performed == ["load-skew_routing_r1"] * 2
    report = json.loads(file.read_text())
    assert (report["figures"], report["workloads"]) == ([], [])
    assert "requests failed" in report["invalid"][0]
    assert "not valid, in no figure: load-skew_routing_r1" in capsys.readouterr().out


def test_a_trial_without_evidence_is_told_with_its_last_words(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def perform_or_not(spec: TrialSpec, folder: Path, log: Path) -> int:
        if spec.repetition == 1:
            return perform_here(spec, folder, log)
        log.write_text("much\nno memory\n")
        return 1

    monkeypatch.setattr(e2e_trials, "perform_trial", perform_or_not)
    assert main([*SMALL, *TWICE, "--arm", "routing", "--out", str(tmp_path)]) == 1
    assert "load-skew_routing_r2: no memory" in capsys.readouterr().out


def test_a_folder_of_another_run_is_refused(
    tmp_path: Path, performed: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = [*SMALL, "--repetitions", "1", "--arm", "routing", "--out", str(tmp_path)]
    assert main(arguments) == 0
    assert main([*arguments, "--seed", "5"]) == 2
    assert "is of another run" in capsys.readouterr().err
    assert len(performed) == 1


def test_an_unknown_arm_is_usage(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*SMALL, "--arm", "best"]) == 2
    assert "there is no arm 'best'" in capsys.readouterr().err


def test_where_the_first_trial_leaves_nothing_no_other_is_begun(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    begun: list[str] = []

    def perform(spec: TrialSpec, folder: Path, log: Path) -> int:
        begun.append(folder.name)
        log.write_text("the start failed: no model '/nope'\n")
        return 1

    monkeypatch.setattr(e2e_trials, "perform_trial", perform)
    assert main([*SMALL, *TWICE, "--out", str(tmp_path)]) == 1
    told = capsys.readouterr().err.splitlines()[-1]
    assert told == ("lmpool bench e2e: the first trial left nothing, so none would: the start failed: no model '/nope'")
    assert len(begun) == 2, "once more, and no other"


def test_a_folder_that_cannot_be_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "file"
    file.write_text("")
    for out, why in ((file, "File exists"), (tmp_path / "none" / "deeper", "No such file or directory")):
        assert main([*SMALL, "--out", str(out)]) == 2
        assert f"lmpool bench e2e: --out {out}: {why}" in capsys.readouterr().err


def test_an_interruption_says_how_to_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def perform(spec: TrialSpec, folder: Path, log: Path) -> int:
        raise KeyboardInterrupt

    monkeypatch.setattr(e2e_trials, "perform_trial", perform)
    assert main([*SMALL, "--out", str(tmp_path)]) == 130
    assert f"the same command goes on in {tmp_path}" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("flags", "told"),
    [
        (["--arm", "routing", "--arm", "full", "--against", "single"], "--against single: it is not among the arms"),
        (["--simulator", "--model", "paced"], "--model is for live trials"),
        (["--simulator", "--threads", "2"], "--threads is for live trials"),
        (["--rates", "h200"], "--rates is for the simulator"),
        (["--simulator", "--rates", "h200"], "h200 is no file that can be read"),
        (["--replicas", "65"], "replicas is 65: at most 64"),
        (["--scale", "0.00001"], "kv_blocks is 1: at least 2"),
    ],
)
def test_what_no_trial_can_be_is_told_before_the_first(
    performed: list[str], capsys: pytest.CaptureFixture[str], flags: list[str], told: str
) -> None:
    assert main(["--repetitions", "1", *flags]) == 2
    assert capsys.readouterr().err.startswith(f"lmpool bench e2e: {told}")
    assert not performed
