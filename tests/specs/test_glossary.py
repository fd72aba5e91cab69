"""Every public class of core has its word, and no word names what is gone."""

import ast
import re
from pathlib import Path

from tests.specs.tables import SPECS, read_rows

CORE = SPECS.parent / "lmpool" / "core"
GLOSSARY = "glossary.md"
HEADINGS = re.findall(r"^## (.+)$", (SPECS / GLOSSARY).read_text(), flags=re.MULTILINE)
ROWS = [row for heading in HEADINGS for row in read_rows(GLOSSARY, heading)]


def public_names(file: Path) -> list[str]:
    """Classes, unions and nominal ids that a module defines."""
    names = []
    for node in ast.parse(file.read_text()).body:
        match node:
            case ast.ClassDef(name=name):
                names.append(name)
            case ast.AnnAssign(target=ast.Name(id=name), annotation=ast.Name(id="TypeAlias")):
                names.append(name)
            case ast.Assign(targets=[ast.Name(id=name)], value=ast.Call(func=ast.Name(id="NewType"))):
                names.append(name)
            case _:
                pass
    return [name for name in names if not name.startswith("_")]


def in_code() -> dict[str, str]:
    """Name -> module."""
    return {name: file.stem for file in sorted(CORE.rglob("*.py")) for name in public_names(file)}


def in_glossary() -> list[str]:
    return [name for row in ROWS for name in re.findall(r"\w+", row["in core"])]


def test_every_public_class_has_a_word() -> None:
    written = in_glossary()
    missing = [f"{name} ({module}.py)" for name, module in in_code().items() if name not in written]
    assert missing == [], f"give each of these a word in specs/{GLOSSARY}: {', '.join(missing)}"


def test_every_name_in_the_glossary_exists() -> None:
    code = in_code()
    assert [name for name in in_glossary() if name not in code] == []


def test_no_name_and_no_word_stands_twice() -> None:
    for names in ([row["word"] for row in ROWS], in_glossary()):
        assert [name for name in names if names.count(name) > 1] == []
