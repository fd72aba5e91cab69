"""`python -m lmpool.bench.trial SPEC FOLDER`: one trial in this process, its evidence in that folder.

Exit codes: 0 valid, 1 not valid or not run, 2 wrong usage, 130 and 143 interrupted. Progress goes to standard error:
a bar on a terminal, else JSON lines.
"""

import argparse
import asyncio
import json
import signal
import sys
import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path

import attrs
import uvloop
from tqdm import tqdm

from lmpool.bench.flags import USAGE_CODE, Parser
from lmpool.bench.trial.checks import problems
from lmpool.bench.trial.evidence import Evidence, EvidenceError, MachineFacts, write_evidence
from lmpool.bench.trial.machine import machine_facts
from lmpool.bench.trial.simulated import simulate
from lmpool.bench.trial.spec import SpecError, TrialSpec, Venue, read_spec
from lmpool.bench.trial.workload import trial_trace
from lmpool.io.errors import LMPoolError
from lmpool.sim.step_time import StepTimeError
from lmpool.sim.trace import TraceError

INTERRUPTED_CODE, TERMINATED_CODE = 130, 143
TOLD_EVERY_S = 1.0
PROGRAM = "lmpool.bench.trial"


class _Progress:
    def __init__(self, requests: int) -> None:
        self._requests = requests
        self._bar = tqdm(total=requests, unit="req", leave=False) if sys.stderr.isatty() else None
        self._told_s = 0.0

    def ended(self, count: int) -> None:
        now_s = time.monotonic()
        if self._bar is not None:
            self._bar.update(count - self._bar.n)
        elif count == self._requests or now_s >= self._told_s + TOLD_EVERY_S:
            self._told_s = now_s
            _tell({"ended": count, "requests": self._requests})

    def close(self) -> None:
        if self._bar is not None:
            self._bar.close()


def _tell(event: dict[str, object]) -> None:
    print(json.dumps(event), file=sys.stderr, flush=True)


def main(arguments: Sequence[str]) -> int:
    parser = Parser(f"python -m {PROGRAM}", description=__doc__, allow_abbrev=False)
    parser.add_argument("spec", type=Path, metavar="SPEC", help="JSON (specs/trials.md)")
    parser.add_argument("folder", type=Path, metavar="FOLDER", help="for the evidence; nothing may be there yet")
    given = parser.parse_args(arguments)
    try:
        spec, requests = _spec(given)
    except (SpecError, EvidenceError, TraceError, OSError) as error:
        return _fail(str(error), USAGE_CODE)
    progress = _Progress(requests)
    try:
        evidence = _run(spec, progress.ended)
    except (LMPoolError, StepTimeError, OSError) as error:
        return _fail(str(error), 1)
    except KeyboardInterrupt:
        return _fail("interrupted", INTERRUPTED_CODE)
    except asyncio.CancelledError:
        return _fail("ended by TERM", TERMINATED_CODE)
    finally:
        progress.close()
    write_evidence(given.folder, evidence)
    found = problems(evidence)
    for problem in found:
        _fail(problem, 1)
    return 1 if found else 0


def _spec(given: argparse.Namespace) -> tuple[TrialSpec, int]:
    """With its number of requests. Raises SpecError, EvidenceError, TraceError, OSError."""
    if given.folder.exists():
        raise EvidenceError(f"{given.folder} is there already")
    spec = read_spec(given.spec.read_text())
    return spec, len(trial_trace(spec).requests)


def _run(spec: TrialSpec, on_ended: Callable[[int], None]) -> Evidence:
    began_at, began_s = datetime.now(UTC).isoformat(timespec="seconds"), time.monotonic()
    machine = machine_facts()
    if spec.venue is Venue.SIMULATOR:
        evidence = simulate(spec, machine, on_ended)
    else:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            evidence = runner.run(_live(spec, machine, on_ended))
    outcome = attrs.evolve(evidence.outcome, began_at=began_at, wall_s=round(time.monotonic() - began_s, 3))
    return attrs.evolve(evidence, outcome=outcome)


async def _live(spec: TrialSpec, machine: MachineFacts, on_ended: Callable[[int], None]) -> Evidence:
    """TERM ends the replicas as well."""
    from lmpool.bench.trial.live import play_live  # noqa: PLC0415 (simulations need none of its extras)

    task = asyncio.current_task()
    assert task is not None
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGTERM, task.cancel)
    try:
        return await play_live(spec, machine, on_ended, lambda line: _tell({"said": line}))
    finally:
        loop.remove_signal_handler(signal.SIGTERM)  # uvloop would leave it behind when it closes


def _fail(line: str, code: int) -> int:
    print(f"{PROGRAM}: {line}", file=sys.stderr)
    return code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
