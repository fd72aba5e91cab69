"""The searches of `tools/spin`: what spin goes through of specs/transfer.pml, and what it must find."""

import re
import shutil
import subprocess
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

MODEL = Path(__file__).resolve().parents[1] / "specs" / "transfer.pml"
MEMORY_MIB = 2_000
DEPTH = 10_000
"""Steps of one run of the model; it needs a few hundred."""
TIME_S = 300

LAWS = "laws"
"""All of the model's assertions, and no side stuck within a step."""


@dataclass(frozen=True)
class Search:
    """Of the model within some bounds; or of a mutant, which must break the property."""

    bounds: str
    property: str
    """`laws`, one law, or a temporal claim (in small letters)."""
    mutant: str


BOUNDS: Mapping[str, tuple[str, ...]] = {
    "one transfer, one fault": ("TRANSFERS=1", "FAULTS=1", "REUSES=2"),
    "one transfer, two faults": ("TRANSFERS=1", "FAULTS=2", "REUSES=0"),
    "one transfer, two faults, reuse": ("TRANSFERS=1", "FAULTS=2", "REUSES=1"),
    "two transfers, late words": ("TRANSFERS=2", "FAULTS=0", "REUSES=1", "LEFTOVERS=2"),
    "two transfers, one fault": ("TRANSFERS=2", "FAULTS=1", "REUSES=0"),
    "two transfers, healthy": ("TRANSFERS=2", "HEALTHY"),
}

_ONE_FAULT = "one transfer, one fault"
_LATE_WORDS = "two transfers, late words"
_TWO_TRANSFERS = "two transfers, one fault"

SEARCHES = (
    Search(_ONE_FAULT, LAWS, ""),
    Search(_ONE_FAULT, "ends", ""),
    Search("one transfer, two faults", LAWS, ""),
    Search(_LATE_WORDS, LAWS, ""),
    Search(_LATE_WORDS, "ends", ""),
    Search(_TWO_TRANSFERS, LAWS, ""),
    Search(_TWO_TRANSFERS, "ends", ""),
    Search("two transfers, healthy", "publishes", ""),
    Search(_ONE_FAULT, "RIGHT_BYTES", "WITHOUT_CONFIRM"),
    Search(_ONE_FAULT, "CONFIRMED_FIRST", "WITHOUT_CONFIRM"),
    Search(_ONE_FAULT, "HELD_THROUGHOUT", "CONFIRM_BY_HASH"),
    Search(_ONE_FAULT, "ONE_OWNER", "FREE_BEFORE_COMPLETION"),
    Search(_ONE_FAULT, "RELEASED_ONCE", "PUBLISH_TWICE"),
    Search(_ONE_FAULT, "MOVED_AFTER", "FINALIZE_BEFORE_PUBLISH"),
    Search(_ONE_FAULT, "BACK_EMPTY", "KEEPS_OLD_EPOCH"),
    Search("one transfer, two faults, reuse", "RIGHT_BYTES", "ID_WITHOUT_EPOCH"),
    Search(_LATE_WORDS, "RIGHT_BYTES", "LATE_COMPLETION"),
    Search(_TWO_TRANSFERS, "ONE_TRANSFER", "LOST_ABORT"),
    Search(_TWO_TRANSFERS, "ONE_TRANSFER", "FORGETS_ENDED"),
    Search(_ONE_FAULT, "ends", "NO_SOURCE_DEADLINE"),
    Search(_ONE_FAULT, "ends", "NO_TARGET_DEADLINE"),
    Search(_ONE_FAULT, "ends", "NO_CONTROL_DEADLINE"),
)


@dataclass(frozen=True)
class Outcome:
    states: int
    depth: int
    is_complete: bool
    """All states were seen, or an error was found before."""
    violation: str
    """What spin calls it; empty: none."""


class ModelError(Exception):
    """Spin or the compiler refused the model; the message is theirs."""


def why_skipped() -> str:
    """Empty if searches can be run here."""
    if shutil.which("spin") is None:
        return "spin is not installed"
    return "" if shutil.which("cc") is not None else "there is no C compiler (cc)"


def is_good(search: Search, outcome: Outcome) -> bool:
    """A mutant must break its own property, not another one and not the model's bounds."""
    if not search.mutant:
        return outcome.is_complete and not outcome.violation
    if is_claim(search.property):
        return outcome.violation.startswith("acceptance cycle")
    return re.match(r"assertion violated \(\((\d+)&&\(\1!=\1\)\)\|\|", outcome.violation) is not None


def is_claim(name: str) -> bool:
    return name.islower() and name != LAWS


def run(search: Search) -> Outcome:
    """Raises ModelError."""
    defines = [f"-D{bound}" for bound in BOUNDS[search.bounds]]
    if search.mutant:
        defines.append(f"-D{search.mutant}")
    if is_claim(search.property):
        is_fair = search.property == "publishes"
        build = [] if is_fair else ["-DNOFAIR"]
        look = ["-a", *(["-f"] if is_fair else []), "-N", search.property]
        if search.mutant:
            look.append("-A")
    else:
        build, look = ["-DSAFETY", "-DNOCLAIM"], []
        if search.property != LAWS:
            defines.append(f"-DONLY={search.property}")
    with tempfile.TemporaryDirectory() as folder:
        _call(["spin", *defines, "-a", str(MODEL)], folder)
        _call(["cc", "-O0", "-w", f"-DMEMLIM={MEMORY_MIB}", *build, "-o", "pan", "pan.c"], folder)
        return read(_call(["./pan", "-w20", f"-m{DEPTH}", *look], folder))


def read(text: str) -> Outcome:
    """What a verifier has printed."""
    states, depth, errors = (
        re.search(pattern, text) for pattern in (r"(\d+) states, stored", r"depth reached (\d+)", r"errors: (\d+)")
    )
    if states is None or depth is None or errors is None:
        raise ModelError(text.strip()[-2_000:])
    found = re.search(r"pan:\d+: (.*)", text)
    cut_short = found is None and ("Search not completed" in text or "search depth too small" in text)
    return Outcome(int(states[1]), int(depth[1]), not cut_short, "" if found is None else found[1])


def _call(command: list[str], folder: str) -> str:
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False, timeout=TIME_S)
    if done.returncode and command[0] != "./pan":
        raise ModelError(f"{command[0]}: {(done.stdout + done.stderr).strip()[-2_000:]}")
    return done.stdout
