"""What the README tells people to type, as far as that can be told without a server."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
TEXT = (ROOT / "README.md").read_text()
BLOCKS = re.findall(r"^```(\w+)\n(.*?)^```$", TEXT, flags=re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize("block", [text for language, text in BLOCKS if language == "sh"])
def test_shell_blocks_are_shell(block: str) -> None:
    subprocess.run(["bash", "-n"], input=block, text=True, check=True)


@pytest.mark.parametrize("block", [text for language, text in BLOCKS if language == "python"])
def test_python_blocks_are_python(block: str) -> None:
    compile(block, "README.md", "exec")


def test_files_and_links_exist() -> None:
    named = re.findall(r"\]\(([\w./-]+)\)", TEXT) + re.findall(r"\b(?:tools|specs|core|lmpool)/[\w./]*\w", TEXT)
    missing = [name for name in named if not any((root / name).exists() for root in (ROOT, ROOT / "lmpool"))]
    assert missing == []


def test_flags_exist() -> None:
    command = [sys.executable, "-m", "lmpool", "serve", "--help"]
    known = re.findall(r"--[\w-]+", subprocess.run(command, capture_output=True, text=True, check=True).stdout)
    ours = [*re.findall(r"`(--[\w-]+)", TEXT), *re.findall(r"lmpool serve (--[\w-]+)", TEXT)]
    assert ours
    assert [flag for flag in ours if flag not in known] == []
