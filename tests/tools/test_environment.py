import subprocess
import sys
import venv
from pathlib import Path

import pytest
from environment import Environment, SetupError, pip_sources

PROJECT = """
[build-system]
requires = ["setuptools"]
[project]
name = "sample"
version = "{version}"
[tool.ruff]
line-length = {width}
"""


class Machine:
    """Carries out what an environment asks for, without a network; pip is a package that does nothing."""

    def __init__(self, fault: BaseException | None) -> None:
        self.fault = fault
        """What happens to the next `pip install`."""
        self.commands: list[str] = []

    def run(self, command: list[str], folder: Path, name: str) -> None:
        if name == "python -m venv":
            self.commands.append("venv")
            make_venv(folder)
            return
        self.commands.append(command[-1])
        fault, self.fault = self.fault, None
        if fault is not None:
            raise fault


def make_venv(root: Path) -> None:
    venv.create(root / ".venv", clear=True, symlinks=True)
    (packages,) = (root / ".venv" / "lib").glob("python*/site-packages")
    (packages / "pip").mkdir()
    (packages / "pip" / "__init__.py").touch()
    (packages / "pip" / "__main__.py").touch()


def write_project(root: Path, version: str, width: int) -> None:
    (root / "pyproject.toml").write_text(PROJECT.format(version=version, width=width))
    (root / "constraints.txt").write_text("attrs==26.1.0\n")


@pytest.fixture
def root(tmp_path: Path) -> Path:
    write_project(tmp_path, "1", 100)
    return tmp_path


@pytest.fixture
def machine() -> Machine:
    return Machine(fault=None)


def commands_of(root: Path, machine: Machine, *extras: str) -> list[str]:
    """What one start runs."""
    machine.commands.clear()
    Environment(root, machine.run).provide(extras, "tools/launch")
    return list(machine.commands)


def test_the_second_start_runs_nothing(root: Path, machine: Machine) -> None:
    assert commands_of(root, machine, "model") == ["venv", ".[model]"]
    assert commands_of(root, machine, "model") == []


def test_extras_add_up(root: Path, machine: Machine) -> None:
    assert commands_of(root, machine, "model") == ["venv", ".[model]"]
    assert commands_of(root, machine, "dev") == [".[dev,model]"]
    assert commands_of(root, machine, "model", "dev") == []


def test_only_what_pip_reads_makes_it_install_again(root: Path, machine: Machine) -> None:
    commands_of(root, machine, "model")
    write_project(root, "1", 120)
    assert commands_of(root, machine, "model") == []
    write_project(root, "2", 120)
    assert commands_of(root, machine, "model") == [".[model]"]
    (root / "constraints.txt").write_text("attrs==26.2.0\n")
    assert commands_of(root, machine, "model") == [".[model]"]


def test_an_interrupted_set_up_begins_anew(root: Path) -> None:
    machine = Machine(fault=KeyboardInterrupt())
    with pytest.raises(KeyboardInterrupt):
        commands_of(root, machine, "model")
    assert commands_of(root, machine, "model") == ["venv", ".[model]"]
    assert commands_of(root, machine, "model") == []


def test_after_a_failed_download_the_environment_is_kept(root: Path) -> None:
    machine = Machine(fault=SetupError("no network"))
    with pytest.raises(SetupError):
        commands_of(root, machine, "model")
    assert commands_of(root, machine, "model") == [".[model]"]


def test_an_environment_made_by_hand_is_kept(root: Path, machine: Machine) -> None:
    make_venv(root)
    assert commands_of(root, machine, "model") == [".[model]"]


@pytest.mark.parametrize("damage", ["pip", "python", "moved"])
def test_a_broken_environment_is_made_anew(root: Path, machine: Machine, damage: str, tmp_path: Path) -> None:
    commands_of(root, machine, "model")
    match damage:
        case "pip":
            (package,) = (root / ".venv" / "lib").glob("python*/site-packages/pip/__init__.py")
            package.write_text("raise ImportError")
            (root / ".venv" / "lmpool-setup.json").unlink()
        case "python":
            (root / ".venv" / "bin" / "python").unlink()
        case _:
            moved = tmp_path / "elsewhere"
            moved.mkdir()
            write_project(moved, "1", 100)
            (root / ".venv").rename(moved / ".venv")
            root = moved
    assert commands_of(root, machine, "model") == ["venv", ".[model]"]
    assert commands_of(root, machine, "model") == []


def test_sizes_sources_and_the_cpu_build_are_told_before_it_begins(
    root: Path, machine: Machine, capsys: pytest.CaptureFixture[str]
) -> None:
    commands_of(root, machine, "model")
    told = capsys.readouterr()
    assert told.out == ""
    assert "about 65 MB" in told.err
    assert "CUDA build: about 3 GB" in told.err
    assert "PIP_EXTRA_INDEX_URL=URL tools/launch" in told.err


def test_sources_are_shown_without_passwords() -> None:
    lines = "global.timeout='3'\nglobal.index-url='https://me:secret@example.org/simple'\n:env:.find-links='/wheels'\n"
    assert pip_sources(lines) == [
        "global.index-url='https://***@example.org/simple'",
        ":env:.find-links='/wheels'",
    ]


def test_a_set_up_keeps_others_out(root: Path, machine: Machine) -> None:
    program = "import fcntl, os, sys; fcntl.flock(os.open(sys.argv[1], os.O_RDONLY), fcntl.LOCK_EX | fcntl.LOCK_NB)"

    def run(command: list[str], folder: Path, name: str) -> None:
        other = [sys.executable, "-c", program, str(folder)]
        assert "BlockingIOError" in subprocess.run(other, capture_output=True, text=True, check=False).stderr
        machine.run(command, folder, name)

    Environment(root, run).provide(["model"], "tools/launch")
    assert commands_of(root, machine, "model") == []
