"""Sets up `.venv` for the scripts beside it. Standard library only: it runs before anything is installed."""

import fcntl
import hashlib
import json
import os
import re
import subprocess
import sys
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TypedDict

ROOT = Path(__file__).resolve().parents[1]
CONSTRAINTS = ROOT / "constraints.txt"

DOWNLOADS_MB: Mapping[str, int] = {"base": 15, "model": 50, "dev": 150}
"""Wheels of the base install and of each extra on Linux x86-64, without torch, measured."""

TORCH_ADVICE = """\
  torch comes on top. On Linux, PyPI's torch is a CUDA build: about 3 GB with its libraries, 7 GB on disk.
  Without a GPU take a CPU build (about 200 MB): stop this with Ctrl+C, pick Linux, Pip and CPU on
  pytorch.org/get-started/locally, and run again with the index URL shown there:
      PIP_EXTRA_INDEX_URL=URL {script}"""


class Stamp(TypedDict):
    """What a set-up that was completed leaves behind in `.venv`."""

    root: str
    digest: str
    extras: list[str]


Run = Callable[[list[str], Path, str], None]


class SetupError(Exception):
    """Set-up ended early; the message is for the operator."""


class Environment:
    """One virtual environment of a checkout, and what is known to be installed in it."""

    def __init__(self, root: Path, run: Run) -> None:
        self.root = root
        self._run = run
        self.folder = root / ".venv"
        self.python = self.folder / "bin" / "python"
        self._stamp = self.folder / "lmpool-setup.json"
        self._unfinished = self.folder / "lmpool-setup.unfinished"

    def installed(self) -> frozenset[str]:
        """The extras that are installed as the project file and the constraints of this moment ask; else nothing."""
        stamp = self._read_stamp()
        if stamp["root"] != str(self.root) or stamp["digest"] != requirements_digest(self.root):
            return frozenset()
        return frozenset(stamp["extras"]) if self.python.exists() else frozenset()

    def provide(self, extras: Sequence[str], script: str) -> None:
        """Installs what is missing. Costs nothing when nothing is. Raises SetupError."""
        if self.installed().issuperset(extras):
            return
        with _locked(self.root):
            if self.installed().issuperset(extras):
                return
            self._install(sorted({*self._read_stamp()["extras"], *extras}), script)

    def _read_stamp(self) -> Stamp:
        """Of the last set-up that was completed, perhaps of another state of the project."""
        try:
            stamp: Stamp = json.loads(self._stamp.read_text())
        except (FileNotFoundError, NotADirectoryError, json.JSONDecodeError):
            return Stamp(root=str(self.root), digest="", extras=[])
        return stamp

    def _install(self, extras: list[str], script: str) -> None:
        reason = self._why_unusable()
        if reason:
            say(f"Making {self.folder} ({reason})")
            self._run([sys.executable, "-m", "venv", "--clear", str(self.folder)], self.root, "python -m venv")
        announce(self, extras, script)
        self._unfinished.touch()
        self._stamp.unlink(missing_ok=True)
        target = f".[{','.join(extras)}]"
        pip = [str(self.python), "-m", "pip", "install", "--no-input", "--disable-pip-version-check"]
        try:
            self._run([*pip, "--constraint", CONSTRAINTS.name, "--editable", target], self.root, "pip install")
        except SetupError:  # pip took back what it had begun; only after a kill is the state unknown
            self._unfinished.unlink()
            raise
        partial = self._stamp.with_suffix(".partial")
        stamp = Stamp(root=str(self.root), digest=requirements_digest(self.root), extras=extras)
        partial.write_text(json.dumps(stamp))
        partial.replace(self._stamp)
        self._unfinished.unlink()
        say("Set-up is complete.")

    def _why_unusable(self) -> str:
        """Empty if packages can be installed into the environment as it is."""
        if not self.folder.exists():
            return "there is none yet"
        if self._unfinished.exists():
            return "the last set-up was interrupted"
        if self._read_stamp()["root"] != str(self.root):
            return "the one here was moved, and its programs name the old place"
        if not self.python.exists():
            return "the one here has no Python"
        probe = "import sys, pip; print(*sys.version_info[:2])"
        answer = subprocess.run([str(self.python), "-c", probe], capture_output=True, text=True, check=False)
        if answer.returncode:
            return "the one here has no pip"
        major, minor = answer.stdout.split()
        if (int(major), int(minor)) < (3, 11):
            return f"the one here has Python {major}.{minor}"
        return ""


def requirements_digest(root: Path) -> str:
    """Changes with whatever pip would install, and not with the settings of linters and tests."""
    project = tomllib.loads((root / "pyproject.toml").read_text())
    asked = [project["build-system"], project["project"], project.get("tool", {}).get("setuptools")]
    text = json.dumps(asked, sort_keys=True) + (root / CONSTRAINTS.name).read_text()
    return hashlib.sha256(text.encode()).hexdigest()


def pip_sources(config_lines: str) -> list[str]:
    """Where the user's pip settings look for packages, from `pip config list`; passwords are left out."""
    sources = []
    for line in config_lines.splitlines():
        name, _, value = line.partition("=")
        if name.rpartition(".")[2] in {"index-url", "extra-index-url", "find-links", "no-index"}:
            sources.append(f"{name}={re.sub('//[^/@]*@', '//***@', value)}")
    return sources


def announce(environment: Environment, extras: list[str], script: str) -> None:
    """Says what is about to be downloaded, how large, and from where, before it begins."""
    size = sum(DOWNLOADS_MB[part] for part in ("base", *extras))
    say(f"Setting up {environment.folder} for {script}: pip installs lmpool[{','.join(extras)}].")
    say(f"  Packages: about {size} MB to download at most; what is there already is kept.")
    command = [str(environment.python), "-m", "pip", "config", "list"]
    sources = pip_sources(subprocess.run(command, capture_output=True, text=True, check=False).stdout)
    say("  Your pip settings name these sources:" if sources else "  From PyPI; pip settings that you make are used.")
    for source in sources:
        say(f"    {source}")
    has_torch = any((environment.folder / "lib").glob("python3*/site-packages/torch"))
    if "model" in extras and not has_torch:
        say(TORCH_ADVICE.format(script=script))


def say(line: str) -> None:
    """To standard error: standard output belongs to what the scripts start."""
    print(line, file=sys.stderr, flush=True)


def run_visibly(command: list[str], folder: Path, name: str) -> None:
    """Its output goes to standard error. Raises SetupError."""
    code = subprocess.run(command, cwd=folder, stdout=sys.stderr.fileno(), check=False).returncode
    if code:
        hint = "The lines above say why; run the same command again when that is mended."
        raise SetupError(f"Set-up failed: {name} ended with code {code}. {hint}")


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """One set-up at a time in this checkout. The lock is on the folder itself, so that no file is left behind."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say("Waiting for another set-up of this checkout ...")
            fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)


def provide(extras: Sequence[str], script: str) -> Path:
    """Sets up this checkout's environment and returns its Python. Ends the program with one line if that fails."""
    environment = Environment(ROOT, run_visibly)
    try:
        environment.provide(extras, script)
    except SetupError as error:
        sys.exit(str(error))
    except KeyboardInterrupt:
        sys.exit("Set-up was interrupted; the next start repairs it.")
    return environment.python


def is_ready(extras: Sequence[str]) -> bool:
    """Whether this checkout's environment has all of them."""
    return Environment(ROOT, run_visibly).installed().issuperset(extras)
