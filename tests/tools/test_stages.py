import sys
from pathlib import Path

import pytest
from stages import (
    NO_TESTS,
    STAGES,
    Outcome,
    Stage,
    chosen_stages,
    closing_line,
    pytest_command,
    read_report,
    run_all,
)

STAGE = Stage("fast", ("tests", "--ignore=tests/e2e"), "not model", 2, "1", "ci")


def test_a_stage_is_one_call_of_pytest() -> None:
    command = pytest_command(Path("python"), STAGE, Path("/tmp/x"), ["-k", "name", "-x"])
    assert command == [
        *("python", "-m", "pytest", "tests", "--ignore=tests/e2e", "--hypothesis-profile=ci", "-m", "not model"),
        *("-n", "2", "--junitxml=/tmp/x/report.xml", "--basetemp=/tmp/x/t", "-k", "name", "-x"),
    ]


def test_marks_of_the_user_narrow_those_of_the_stage() -> None:
    command = pytest_command(Path("python"), STAGE, Path("/tmp/x"), ["-m", "slow"])
    assert command[command.index("pytest") + 1 :].count("-m") == 1
    assert "(not model) and (slow)" in command


@pytest.mark.parametrize("folder", ["core", "gpu", "e2e"])
@pytest.mark.parametrize("marks", [set(), {"model"}, {"gpu"}, {"weights"}, {"model", "weights"}, {"gpu", "model"}])
def test_each_test_is_in_one_stage(folder: str, marks: set[str]) -> None:
    def takes(stage: Stage) -> bool:
        is_there = folder == "e2e" if stage.paths == ("tests/e2e",) else f"--ignore=tests/{folder}" not in stage.paths
        values = {mark: mark in marks for mark in ("model", "gpu", "weights")}
        return is_there and bool(eval(stage.marks, {}, values))

    assert sum(takes(stage) for stage in STAGES if stage.name != "hash seed") == 1


def test_two_hash_seeds_are_fixed() -> None:
    seeds = {stage.name: stage.hash_seed for stage in STAGES}
    assert seeds["fast"] != seeds["hash seed"]


def test_paths_make_a_stage_of_their_own() -> None:
    root = Path(__file__).parents[2]
    assert chosen_stages(root, STAGES, ["-k", "chain"]) == STAGES
    for path in ("tests/tools/test_stages.py::test_x", "tests/no_such.py", "tests"):
        assert [stage.paths for stage in chosen_stages(root, STAGES, [path, "-q"])] == [()]


def test_counts_come_from_the_report(tmp_path: Path) -> None:
    report = tmp_path / "report.xml"
    report.write_text('<testsuites><testsuite tests="9" failures="2" errors="1" skipped="3" time="1"/></testsuites>')
    assert read_report(report, 1, 2.5) == Outcome(code=1, passed=3, failed=2, errors=1, skipped=3, seconds=2.5)
    assert read_report(tmp_path / "none.xml", 139, 1.0).errors == 1
    assert read_report(tmp_path / "none.xml", NO_TESTS, 1.0).errors == 0


def test_the_closing_line_sums_up() -> None:
    good = Outcome(code=0, passed=10, failed=0, errors=0, skipped=1, seconds=1.25)
    bad = Outcome(code=1, passed=3, failed=2, errors=0, skipped=0, seconds=2.0)
    nothing = Outcome(code=NO_TESTS, passed=0, failed=0, errors=0, skipped=0, seconds=0.5)
    broken = Outcome(code=2, passed=0, failed=0, errors=1, skipped=0, seconds=0.5)
    assert closing_line([good, bad, nothing]).strip("=") == " 2 failed, 13 passed, 1 skipped in 3.75s "
    assert closing_line([broken]).strip("=") == " 1 error in 0.50s "
    assert closing_line([nothing]).strip("=") == " no tests ran in 0.50s "


SMALL_STAGES = (
    Stage("plain", ("tests",), "not model", 1, "1", "default"),
    Stage("model", ("tests",), "model", 1, "2", "default"),
)
MODEL_TEST = "import pytest\n@pytest.mark.model\ndef test_b(): pass\n"
PROJECT = {
    "pyproject.toml": "[tool.pytest.ini_options]\nmarkers = ['model']\n",
    "tests/test_a.py": "def test_a(): pass\n",
    "tests/test_b.py": MODEL_TEST,
    "tools/check": "",
}


@pytest.fixture
def project(tmp_path: Path) -> Path:
    for name, text in PROJECT.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    return tmp_path


@pytest.mark.slow
@pytest.mark.parametrize(
    ("changed", "text", "arguments", "code", "closing"),
    [
        ("tools/check", "", ["-k", "test_b"], 0, "1 passed"),
        ("tools/check", "", ["-k", "nothing"], NO_TESTS, "no tests ran"),
        ("tests/test_b.py", MODEL_TEST.replace("pass", "assert False"), ["-q"], 1, "1 failed, 1 passed"),
        ("tools/check", "raise SystemExit(1)", [], 1, "2 passed"),
    ],
    ids=["a selection", "nothing selected", "a failing stage", "a failing check"],
)
def test_all_stages(
    project: Path,
    capfd: pytest.CaptureFixture[str],
    changed: str,
    text: str,
    arguments: list[str],
    code: int,
    closing: str,
) -> None:
    (project / changed).write_text(text)
    assert run_all(Path(sys.executable), project, SMALL_STAGES, arguments) == code
    lines = capfd.readouterr().out.splitlines()
    assert lines[-1].startswith("====")
    assert closing in lines[-1]
    summary = lines[lines.index("######## summary") :]
    failing = [line.split()[1] for line in summary if line.startswith("FAILED")]
    culprit = {"tools/check": "checks", "tests/test_b.py": "model"}[changed]
    assert failing == ([culprit] if code == 1 else [])
