"""The folder of a study: its plan as it was when it began, a folder for each trial, and a line for each that ended.

plan.toml       the plan, byte for byte
study.json      its digest, and where the study runs
trials/NAME     evidence of a trial; NAME.failed-1, NAME.torn-1: what was not whole, or not valid
ledger.jsonl    trials as they ended, with the digest of their evidence
"""

import json
import re
from collections.abc import Collection, Sequence
from hashlib import sha256
from pathlib import Path

import attrs
from cattrs import BaseValidationError

from lmpool.bench.study.matrix import Trial
from lmpool.bench.study.plan import Plan
from lmpool.bench.study.plan_text import parse_plan
from lmpool.bench.trial.evidence import DIGESTS
from lmpool.bench.trial.spec import Venue
from lmpool.io.records import explain, strict_converter

PLAN, STUDY, TRIALS, LEDGER = "plan.toml", "study.json", "trials", "ledger.jsonl"
FAILED, TORN, LOG = "failed", "torn", "log.txt"
ASIDE = re.compile(rf"\.({FAILED}-\d+|{TORN}-\d+|{re.escape(LOG)})$")
"""Behind the name of a trial: what is not its evidence."""


class StudyError(Exception):
    """One line: why a study cannot begin, go on or be read."""


@attrs.frozen
class Frozen:
    plan_sha256: str
    venue: Venue


@attrs.frozen
class Entry:
    """A trial that ended."""

    trial: str
    attempt: int
    is_valid: bool
    seconds: float
    evidence: str
    """Digest of its file of digests; empty: there is none."""
    problems: tuple[str, ...]


@attrs.frozen
class Folder:
    path: Path
    plan: Plan
    plan_bytes: bytes
    frozen: Frozen
    ledger: tuple[Entry, ...]

    def trial(self, trial: Trial) -> Path:
        return self.path / TRIALS / trial.name

    def put_aside(self, trial: Trial, word: str) -> list[Path]:
        """Of a trial: what failed, or was torn."""
        return sorted((self.path / TRIALS).glob(f"{trial.name}.{word}-*"))

    def foreign(self, names: Collection[str]) -> list[str]:
        """What lies among the trials and is of none of these."""
        there = [path.name for path in (self.path / TRIALS).glob("[!.]*")]
        return sorted(name for name in there if ASIDE.sub("", name) not in names)


def digest(data: bytes) -> str:
    return sha256(data).hexdigest()


def evidence_digest(trial: Path) -> str:
    """Of all files, as their own digests are in one."""
    path = trial / DIGESTS
    return digest(path.read_bytes()) if path.exists() else ""


def begin_folder(path: Path, plan_bytes: bytes, source: str, venue: Venue) -> Folder:
    """Freezes the plan, or goes on with the same one. Raises PlanError, StudyError."""
    parse_plan(plan_bytes, source)
    if (path / STUDY).exists():
        folder = open_folder(path)
        if folder.frozen.plan_sha256 != digest(plan_bytes):
            raise StudyError(f"{path} has begun with another plan: take another folder, or the plan that is in it")
        if folder.frozen.venue is not venue:
            raise StudyError(f"{path} has begun in the venue {folder.frozen.venue.value}: take another folder")
        return folder
    if path.exists() and any(path.iterdir()):
        raise StudyError(f"{path} is not empty and no study")
    (path / TRIALS).mkdir(parents=True, exist_ok=True)
    (path / PLAN).write_bytes(plan_bytes)
    frozen = Frozen(digest(plan_bytes), venue)
    (path / STUDY).write_text(json.dumps(strict_converter().unstructure(frozen), indent=1) + "\n")
    return open_folder(path)


def open_folder(path: Path) -> Folder:
    """Raises StudyError, also where the plan is not the one that the study began with; PlanError."""
    try:
        frozen = strict_converter().structure(json.loads((path / STUDY).read_text()), Frozen)
        plan_bytes = (path / PLAN).read_bytes()
    except OSError as error:
        raise StudyError(f"{path} is no study: {Path(error.filename).name}: {error.strerror}") from error
    except BaseValidationError as error:
        raise StudyError(f"{path.name}/{STUDY}: {explain(error)}") from error
    except ValueError as error:
        raise StudyError(f"{path.name}/{STUDY} is no JSON: {error}") from error
    if digest(plan_bytes) != frozen.plan_sha256:
        raise StudyError(f"{path.name}/{PLAN} is not the plan that the study began with: its digest differs")
    return Folder(path, parse_plan(plan_bytes, PLAN), plan_bytes, frozen, tuple(_ledger(path)))


def _ledger(path: Path) -> list[Entry]:
    """The last line counts only if it is whole: an interruption may have cut it. Raises StudyError."""
    file = path / LEDGER
    found: list[Entry] = []
    text = file.read_text() if file.exists() else ""
    for number, line in enumerate(text.splitlines(keepends=True), start=1):
        if not line.endswith("\n"):
            break
        try:
            found.append(strict_converter().structure(json.loads(line), Entry))
        except (BaseValidationError, ValueError) as error:
            raise StudyError(f"{path.name}/{LEDGER}:{number}: no entry of a trial ({error})") from error
    return found


def append_entry(folder: Folder, entry: Entry) -> Folder:
    """A line that was cut is taken away first."""
    file = folder.path / LEDGER
    lines = [json.dumps(strict_converter().unstructure(one)) + "\n" for one in (*folder.ledger, entry)]
    beside = file.with_suffix(".new")
    beside.write_text("".join(lines))
    beside.replace(file)
    return attrs.evolve(folder, ledger=(*folder.ledger, entry))


def last_entries(ledger: Sequence[Entry]) -> dict[str, Entry]:
    return {entry.trial: entry for entry in ledger}
