"""Facts of this machine and of the code that runs on it."""

import platform
import subprocess
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import lmpool
from lmpool.bench.trial.evidence import GitState, MachineFacts
from lmpool.io.supervision.machine import cores

PACKAGES = ("attrs", "cattrs", "numpy", "orjson", "tokenizers", "torch", "transformers", "uvloop")
"""Those whose version may change figures."""
CPU_FACTS = Path("/proc/cpuinfo")
GIT_WAIT_S = 20.0


def machine_facts() -> MachineFacts:
    return MachineFacts(
        lmpool=lmpool.__version__,
        python=platform.python_version(),
        packages={name: found for name in PACKAGES if (found := _version(name))},
        system=f"{platform.system()} {platform.release()} {platform.machine()}",
        processor=_processor(),
        cores=cores(),
        git=git_state(Path(lmpool.__file__).parents[1]),
    )


def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return ""


def _processor() -> str:
    try:
        lines = CPU_FACTS.read_text().splitlines()
    except OSError:
        return ""
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "")


def git_state(folder: Path) -> GitState | None:
    """None where `folder` is not the root of a checkout."""
    if not (folder / ".git").exists():
        return None
    commit, changes = _git(folder, "rev-parse", "HEAD"), _git(folder, "status", "--porcelain")
    return None if commit is None or changes is None else GitState(commit.strip(), bool(changes.strip()))


def _git(folder: Path, *arguments: str) -> str | None:
    command = ["git", "-C", str(folder), "--no-optional-locks", *arguments]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=GIT_WAIT_S, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout
