"""Python modules run as programs that end when their starter does: `python -m lmpool.gpu.tether MODULE ARGUMENT ...`.

The tether is the program's standard input: at its end the program ends, wherever it is.
"""

import os
import runpy
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from threading import Thread

import attrs

from lmpool.gpu.model_cache import Progress


@attrs.frozen
class Outcome:
    code: int
    """Negative: the signal that ended it."""
    errors: tuple[str, ...]
    """What it wrote to standard error, without empty lines."""

    @property
    def cause(self) -> str:
        """The last words, or the exit code where there are none."""
        return self.errors[-1].strip() if self.errors else f"it ended with code {self.code}"


def run_tethered(module: str, arguments: Sequence[str], added: Mapping[str, str], progress: Progress) -> Outcome:
    """Runs `module` with `added` in its environment; lines of its standard output are progress."""
    command = [sys.executable, "-m", "lmpool.gpu.tether", module, *arguments]
    with (
        tempfile.TemporaryFile("w+") as errors,
        subprocess.Popen(
            command,
            env=os.environ | added,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
        ) as child,
    ):
        assert child.stdout is not None
        for line in child.stdout:
            progress(line.rstrip())
        code = child.wait()
        errors.seek(0)
        return Outcome(code, tuple(line for line in errors.read().splitlines() if line.strip()))


def _end_with_starter() -> None:
    while os.read(0, 1024):  # not through sys.stdin, whose lock would stop the interpreter from ending
        pass
    os._exit(1)


def main() -> None:
    Thread(target=_end_with_starter, daemon=True).start()
    del sys.argv[0]
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
