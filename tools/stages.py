"""The stages of `tools/test`: which tests run together, with how many processes, under which hash seed."""

import os
import subprocess
import sys
import tempfile
import time
import xml.etree.ElementTree as ET
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

REPORT = "report.xml"

NO_TESTS = 5
"""pytest's exit code when nothing was selected."""


@dataclass(frozen=True)
class Stage:
    name: str
    paths: tuple[str, ...]
    marks: str
    processes: int
    """More than one where tests neither time anything nor fill the machine themselves."""
    hash_seed: str
    profile: str
    """Of hypothesis; `tests/conftest.py` has them."""


PLAIN = "not model and not weights and not gpu"
STAGES = (
    Stage("fast", ("tests", "--ignore=tests/e2e"), PLAIN, 2, "1", "ci"),
    Stage("hash seed", ("tests/core", "tests/sim"), PLAIN, 2, "2", "quick"),
    Stage("model", ("tests", "--ignore=tests/e2e"), "(model or gpu) and not weights", 1, "0", "ci"),
    Stage("end to end", ("tests/e2e",), "not weights", 1, "0", "ci"),
    Stage("weights", ("tests",), "weights", 1, "0", "ci"),
)
"""All but `hash seed` divide the tests: each test is in exactly one."""


@dataclass(frozen=True)
class Outcome:
    code: int
    passed: int
    failed: int
    errors: int
    skipped: int
    seconds: float

    @property
    def is_good(self) -> bool:
        return self.code in (0, NO_TESTS)


def read_report(report: Path, code: int, seconds: float) -> Outcome:
    """Counts from pytest's JUnit file; a run that died before it wrote one counts as an error."""
    if not report.exists():
        return Outcome(code, 0, 0, int(code not in (0, NO_TESTS)), 0, seconds)
    suites = list(ET.parse(report).getroot().iter("testsuite"))
    tests, failed, errors, skipped = (
        sum(int(suite.attrib[name]) for suite in suites) for name in ("tests", "failures", "errors", "skipped")
    )
    return Outcome(code, tests - failed - errors - skipped, failed, errors, skipped, seconds)


def closing_line(outcomes: Sequence[Outcome]) -> str:
    """One line in the form of pytest's own last line, over all stages."""
    errors = sum(outcome.errors for outcome in outcomes)
    counts = {
        "failed": sum(outcome.failed for outcome in outcomes),
        "passed": sum(outcome.passed for outcome in outcomes),
        "skipped": sum(outcome.skipped for outcome in outcomes),
        "error" if errors == 1 else "errors": errors,
    }
    told = ", ".join(f"{count} {word}" for word, count in counts.items() if count) or "no tests ran"
    return f" {told} in {sum(outcome.seconds for outcome in outcomes):.2f}s ".center(80, "=")


def pytest_command(python: Path, stage: Stage, folder: Path, arguments: Sequence[str]) -> list[str]:
    """A `-m` among the arguments narrows the stage's own marks. Tests get short paths in `folder`, as sockets need."""
    marks, rest, words = stage.marks, [], iter(arguments)
    for word in words:
        if word == "-m":
            marks = f"({marks}) and ({next(words, '')})" if marks else next(words, "")
        else:
            rest.append(word)
    command = [str(python), "-m", "pytest", *stage.paths, f"--hypothesis-profile={stage.profile}"]
    if marks:
        command += ["-m", marks]
    if stage.processes > 1:
        command += ["-n", str(stage.processes)]
    return [*command, f"--junitxml={folder / REPORT}", f"--basetemp={folder / 't'}", *rest]


def run_stage(python: Path, root: Path, stage: Stage, arguments: Sequence[str]) -> Outcome:
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        command = pytest_command(python, stage, folder, arguments)
        surroundings = os.environ | {"PYTHONHASHSEED": stage.hash_seed}
        code = subprocess.run(command, cwd=root, env=surroundings, check=False).returncode
        return read_report(folder / REPORT, code, time.monotonic() - began)


def chosen_stages(root: Path, stages: Sequence[Stage], arguments: Sequence[str]) -> Sequence[Stage]:
    """With paths among the arguments, one stage that runs those, whatever their marks."""
    words = [word.partition("::")[0] for word in arguments if not word.startswith("-")]
    if any(word.startswith("tests/") or (root / word).exists() for word in words):
        return (Stage("selection", (), "", 1, "0", "ci"),)
    return stages


def run_all(python: Path, root: Path, stages: Sequence[Stage], arguments: Sequence[str]) -> int:
    """Returns the exit code: 0 if all was good, pytest's 5 if nothing was selected, else 1."""
    checks_code = 0
    if not arguments:
        checks_code = subprocess.run([sys.executable, str(root / "tools" / "check")], check=False).returncode
    ends_early = any(word in ("-x", "--exitfirst") or word.startswith("--maxfail") for word in arguments)
    outcomes: dict[str, Outcome] = {}
    for stage in chosen_stages(root, stages, arguments):
        print(f"\n######## {stage.name}", flush=True)
        outcomes[stage.name] = run_stage(python, root, stage, arguments)
        if ends_early and not outcomes[stage.name].is_good:
            break
    print("\n######## summary")
    if not arguments:
        print(f"{'ok' if checks_code == 0 else 'FAILED':<7} checks")
    for name, outcome in outcomes.items():
        print(f"{'ok' if outcome.is_good else 'FAILED':<7} {name:<11} {closing_line([outcome]).strip('= ')}")
    print(closing_line(list(outcomes.values())), flush=True)
    if checks_code or not all(outcome.is_good for outcome in outcomes.values()):
        return 1
    return 0 if any(outcome.code == 0 for outcome in outcomes.values()) else NO_TESTS
