"""A trial in a fresh process of its own: no heat of caches, imports or threads of another trial is in it."""

import signal
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

from lmpool.bench.trial.spec import TrialSpec, spec_text

GRACE_S = 20.0
"""For a trial that is asked to end."""


def perform_trial(spec: TrialSpec, folder: Path, log: Path) -> int:
    """The exit code; `log` gets its words. An interruption waits until the process has ended, and is raised again."""
    with TemporaryDirectory() as place, log.open("wb") as words:
        path = Path(place) / "spec.json"
        path.write_text(spec_text(spec))
        command = [sys.executable, "-m", "lmpool.bench.trial", str(path), str(folder)]
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=words, stderr=subprocess.STDOUT)
        try:
            return process.wait()
        except BaseException:
            _end(process)
            raise


def _end(process: subprocess.Popen[bytes]) -> None:
    """A second interruption meanwhile ends it at once."""
    process.send_signal(signal.SIGTERM)
    try:
        process.wait(GRACE_S)
    except subprocess.TimeoutExpired:
        pass  # it is killed, as it is after a second interruption
    finally:
        process.kill()
        process.wait()
