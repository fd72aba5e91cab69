import signal
import subprocess
import sys
from pathlib import Path

import attrs

from lmpool.bench.trial.evidence import read_evidence
from lmpool.bench.trial.process import perform_trial
from lmpool.bench.trial.spec import Venue, spec_text
from tests.bench.trial.made import SPEC
from tests.e2e.server import assert_gone, parent_of
from tests.model_folder import write_tiny_folder


def test_a_process_of_its_own_leaves_the_evidence_and_its_words(tmp_path: Path) -> None:
    spec = attrs.evolve(SPEC, venue=Venue.SIMULATOR)
    assert perform_trial(spec, tmp_path / "trial", tmp_path / "log") == 0
    assert read_evidence(tmp_path / "trial").spec == spec
    assert '"ended": 12' in (tmp_path / "log").read_text()
    assert perform_trial(spec, tmp_path / "trial", tmp_path / "log") == 2
    assert "there already" in (tmp_path / "log").read_text()


def test_a_live_trial_that_is_asked_to_end_takes_its_replicas_with_it(tmp_path: Path) -> None:
    """Steps last 200 ms, so that requests are under way when it is asked."""
    model = write_tiny_folder(tmp_path / "model", config={"step_ns": 200_000_000})
    path, folder = tmp_path / "spec.json", tmp_path / "trial"
    path.write_text(spec_text(attrs.evolve(SPEC, model=str(model), arm="routing")))
    command = [sys.executable, "-m", "lmpool.bench.trial", str(path), str(folder)]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        for line in process.stderr:
            if '"ended"' in line:
                break
        children = [int(entry.name) for entry in Path("/proc").iterdir() if _is_child(entry, process.pid)]
        process.send_signal(signal.SIGTERM)
        assert "ended by TERM" in process.stderr.read()
    assert process.returncode == 143
    assert not folder.exists()
    assert len(children) >= 3, "control and two replicas"
    assert_gone(children, 10)


def _is_child(entry: Path, of: int) -> bool:
    return entry.name.isdecimal() and parent_of(entry) == of
