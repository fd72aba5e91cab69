import subprocess
import sys
from pathlib import Path

import pytest

from lmpool.gpu.tether import run_tethered


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    return tmp_path / "tethered_sample.py"


def test_lines_are_progress_and_the_last_error_is_the_cause(module: Path) -> None:
    module.write_text("import os, sys\nprint(*sys.argv[1:], os.environ['COLOUR'])\nsys.exit('first\\nlast\\n')")
    told: list[str] = []
    outcome = run_tethered("tethered_sample", ("a", "b"), {"COLOUR": "red"}, told.append)
    assert told == ["a b red"]
    assert outcome.code == 1
    assert outcome.cause == "last"


def test_a_silent_end_is_told_by_its_code(module: Path) -> None:
    module.write_text("import os\nos.kill(os.getpid(), 9)")
    outcome = run_tethered("tethered_sample", (), {}, print)
    assert outcome.code == -9
    assert outcome.cause == "it ended with code -9"


def test_without_its_starter_it_ends(module: Path) -> None:
    module.write_text("import threading\nprint('up', flush=True)\nthreading.Event().wait()")
    command = [sys.executable, "-m", "lmpool.gpu.tether", "tethered_sample"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        assert child.stdin is not None
        assert child.stdout.readline() == "up\n"
        child.stdin.close()
        assert child.wait(60) == 1
