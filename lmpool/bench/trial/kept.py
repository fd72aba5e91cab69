"""What a trial has left in its folder, and room for the next one under the same name."""

from pathlib import Path

import attrs

from lmpool.bench.trial.checks import problems
from lmpool.bench.trial.evidence import Evidence, EvidenceError, read_evidence


@attrs.frozen
class Kept:
    evidence: Evidence | None
    """None: it left none."""
    problems: tuple[str, ...]
    """Empty: it is valid."""


def read_kept(folder: Path, log: Path) -> Kept:
    try:
        evidence = read_evidence(folder)
    except EvidenceError as error:
        why = last_line(log) if not folder.exists() and log.exists() else f"{error}; {last_line(log)}"
        return Kept(None, (why,))
    return Kept(evidence, problems(evidence))


def last_line(log: Path) -> str:
    """That says anything; a hint with the line before it, which has the cause."""
    text = log.read_text(errors="replace") if log.exists() else ""
    lines = [line.strip() for line in text.split("\n") if line.strip()]
    begin = -2 if lines and lines[-1].startswith("hint:") else -1
    return "; ".join(lines[begin:]) or "it said nothing"


def put_aside(folder: Path, word: str) -> None:
    """It stays beside, under the first name with the word and a number that is free."""
    number = 1
    while (aside := folder.with_name(f"{folder.name}.{word}-{number}")).exists():
        number += 1
    folder.rename(aside)
