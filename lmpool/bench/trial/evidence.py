"""What a trial leaves in its folder, and how it is read back. `specs/trials.md` has the files.

A folder is written beside its place and renamed, so that it is whole or absent. Figures are made from it alone.
"""

import json
import os
import shutil
from hashlib import sha256
from math import floor, log10
from pathlib import Path
from typing import Any, TypeVar

import attrs
from cattrs import BaseValidationError

from lmpool.bench.load.measured import Measured
from lmpool.bench.trial.spec import CONVERTER, SpecError, TrialSpec, check_spec, spec_text
from lmpool.core.messages.ingress_control import Decision, StateReported
from lmpool.io.records import explain
from lmpool.sim.bounds import Sharing

SPEC, WORKLOAD, COUNTERS = "spec.json", "workload.json", "counters.json"
SETTINGS, MACHINE, OUTCOME = "settings.json", "machine.json", "outcome.json"
REQUESTS, DECISIONS = "requests.jsonl", "decisions.jsonl"
DIGESTS = "digests.json"
FILES = (SPEC, WORKLOAD, REQUESTS, DECISIONS, COUNTERS, SETTINGS, MACHINE, OUTCOME)
"""All but the digests, which are of these."""
OF_THE_HOUR = (MACHINE, OUTCOME, DIGESTS)
"""What differs between two simulations of one spec."""
COST_DIGITS = 5
"""Of the greatest term or cost of a decision in the log: more than a prediction is worth, and digits fill studies."""

Record = TypeVar("Record")


class EvidenceError(Exception):
    """One line: which folder, which file, what is wrong."""


@attrs.frozen
class WorkloadFacts:
    fingerprint: str
    """Of the trace, scaled and cut."""
    contents: str
    """Of its tokens; empty in the simulator, where they follow from the trace."""
    requests: int
    prompt_tokens: int
    """With the answers that are part of later prompts."""
    output_tokens: int
    in_flight_max: int | None
    continues: tuple[int | None, ...]
    """Of each request: the number of the one that it continues."""
    sharing: Sharing
    """What the trace itself allows, in blocks of the replicas."""


@attrs.frozen
class CountersRead:
    """What control knew of every replica, before the first request and after the last."""

    before: StateReported
    after: StateReported


@attrs.frozen
class GitState:
    commit: str
    is_changed: bool
    """Whether the tree differed from that commit."""


@attrs.frozen
class MachineFacts:
    lmpool: str
    python: str
    packages: dict[str, str]
    """Versions by name."""
    system: str
    processor: str
    """Empty: not told."""
    cores: int
    git: GitState | None
    """None: not run from a checkout, or git is missing."""


@attrs.frozen
class Outcome:
    began_at: str
    """UTC, ISO 8601."""
    wall_s: float
    """With starts, priming and ends."""
    late_p99_s: float
    """How late the client came to a timer of its own; 0 in the simulator."""
    faults: tuple[str, ...]
    """What went wrong beside the requests."""


@attrs.frozen
class Evidence:
    spec: TrialSpec
    workload: WorkloadFacts
    requests: tuple[Measured, ...]
    """In the order of the trace; moments count from the begin of the run."""
    decisions: tuple[Decision, ...]
    """In the order of control, with all terms, which files keep to `COST_DIGITS`; of the measured requests, with the
    moments of control's own clock."""
    counters: CountersRead
    settings: dict[str, Any]
    """As resolved: by section live, of the rack in the simulator."""
    machine: MachineFacts
    outcome: Outcome


def write_evidence(folder: Path, evidence: Evidence) -> None:
    """Raises EvidenceError where something is already, OSError."""
    if folder.exists():
        raise EvidenceError(f"{folder} is there already")
    folder.parent.mkdir(parents=True, exist_ok=True)
    torn = folder.with_name(f".{folder.name}.torn")
    shutil.rmtree(torn, ignore_errors=True)
    torn.mkdir()
    files = _files(evidence)
    for name, content in files.items():
        _write(torn / name, content)
    digests = {name: sha256(content).hexdigest() for name, content in files.items()}
    _write(torn / DIGESTS, _document(digests))
    torn.rename(folder)


def _write(path: Path, content: bytes) -> None:
    with path.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def _files(evidence: Evidence) -> dict[str, bytes]:
    return {
        SPEC: spec_text(evidence.spec).encode(),
        WORKLOAD: _record(evidence.workload),
        REQUESTS: _lines(evidence.requests),
        DECISIONS: _lines(tuple(map(_to_digits, evidence.decisions))),
        COUNTERS: _record(evidence.counters),
        SETTINGS: _document(evidence.settings),
        MACHINE: _record(evidence.machine),
        OUTCOME: _record(evidence.outcome),
    }


def _record(record: object) -> bytes:
    return _document(CONVERTER.unstructure(record))


def _document(value: Any) -> bytes:
    return json.dumps(value, indent=1, allow_nan=False).encode() + b"\n"


def _lines(records: tuple[object, ...]) -> bytes:
    """Not compressed: a whole study is, many times better than each file of it."""
    lines = [json.dumps(CONVERTER.unstructure(record), separators=(",", ":"), allow_nan=False) for record in records]
    return "".join(f"{line}\n" for line in lines).encode()


def _to_digits(decision: Decision) -> Decision:
    """All terms and costs to one decimal place, at which the greatest of them has `COST_DIGITS`."""
    values = [value for one in decision.candidates for value in (*one.terms, one.cost)]
    greatest = max(map(abs, values), default=0.0)
    if not greatest:
        return decision
    places = COST_DIGITS - 1 - floor(log10(greatest))
    candidates = tuple(
        attrs.evolve(one, terms=tuple(round(term, places) for term in one.terms), cost=round(one.cost, places))
        for one in decision.candidates
    )
    return attrs.evolve(decision, candidates=candidates)


def read_evidence(folder: Path) -> Evidence:
    """Raises EvidenceError, also where a file is not the one that was written."""
    if not folder.is_dir():
        raise EvidenceError(f"{folder} is no folder of a trial")
    digests = _parsed(folder, DIGESTS, dict[str, str], _content(folder, DIGESTS))
    content = {name: _content(folder, name) for name in FILES}
    for name in FILES:
        if digests.get(name) != sha256(content[name]).hexdigest():
            raise EvidenceError(f"{folder / name} is not as it was written: its digest differs")

    def one(name: str, kind: type[Record]) -> Record:
        return _parsed(folder, name, kind, content[name])

    spec = one(SPEC, TrialSpec)
    try:
        check_spec(spec)
    except SpecError as error:
        raise EvidenceError(f"{folder / SPEC}: {error}") from error
    return Evidence(
        spec=spec,
        workload=one(WORKLOAD, WorkloadFacts),
        requests=_each(folder, REQUESTS, Measured, content[REQUESTS]),
        decisions=_each(folder, DECISIONS, Decision, content[DECISIONS]),
        counters=one(COUNTERS, CountersRead),
        settings=_object(folder, SETTINGS, content[SETTINGS]),
        machine=one(MACHINE, MachineFacts),
        outcome=one(OUTCOME, Outcome),
    )


def _content(folder: Path, name: str) -> bytes:
    try:
        return (folder / name).read_bytes()
    except OSError as error:
        raise EvidenceError(f"{folder / name} cannot be read: {error.strerror}") from error


def _parsed(folder: Path, name: str, kind: type[Record], content: bytes) -> Record:
    try:
        return CONVERTER.structure(json.loads(content), kind)
    except BaseValidationError as error:
        raise EvidenceError(f"{folder / name}: {explain(error)}") from error
    except (TypeError, ValueError) as error:
        raise EvidenceError(f"{folder / name} cannot be read: {error}") from error


def _each(folder: Path, name: str, kind: type[Record], content: bytes) -> tuple[Record, ...]:
    return tuple([_parsed(folder, name, kind, line) for line in content.splitlines()])


def _object(folder: Path, name: str, content: bytes) -> dict[str, Any]:
    try:
        value = json.loads(content)
    except ValueError as error:
        raise EvidenceError(f"{folder / name} cannot be read: {error}") from error
    if not isinstance(value, dict):
        raise EvidenceError(f"{folder / name} is no object")
    return value
