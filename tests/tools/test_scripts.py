"""The scripts of tools/ as files: they start from nothing, and say so to a Python that is too old."""

import ast
import os
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SCRIPTS = [file for file in sorted((ROOT / "tools").iterdir()) if file.is_file() and not file.suffix]


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.name)
def test_a_script_can_be_started_by_any_python_3(script: Path) -> None:
    assert os.access(script, os.X_OK)
    assert script.read_text().startswith("#!/usr/bin/env python3\n")
    tree = ast.parse(script.read_text(), feature_version=(3, 7))
    checks = [
        node.lineno for node in tree.body if isinstance(node, ast.If) and "version_info" in ast.unparse(node.test)
    ]
    imports = [node for node in tree.body if isinstance(node, ast.Import | ast.ImportFrom)]
    late = {"environment", "stages", "tomllib"}
    assert checks
    assert all(node.lineno > checks[0] for node in imports if set(names_of(node)) & late)


@pytest.mark.parametrize("file", sorted((ROOT / "tools").glob("*")), ids=lambda file: file.name)
def test_tools_need_only_the_standard_library(file: Path) -> None:
    if not file.is_file():
        return
    ours = {module.stem for module in (ROOT / "tools").glob("*.py")}
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Import | ast.ImportFrom):
            for name in names_of(node):
                assert name.partition(".")[0] in ours | set(sys.stdlib_module_names)


def names_of(node: ast.Import | ast.ImportFrom) -> list[str]:
    return [node.module or ""] if isinstance(node, ast.ImportFrom) else [name.name for name in node.names]


def test_ci_runs_the_tests_and_nothing_else() -> None:
    lines = (ROOT / ".ci" / "run").read_text().splitlines()
    assert lines[-1] == "exec tools/test"
    assert os.access(ROOT / ".ci" / "run", os.X_OK)
