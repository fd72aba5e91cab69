"""`lmpool bench routing`: every policy on workloads of many kinds, at loads that mean the same for each.

Runs are written as they end, one JSON line each; the same command goes on where it was interrupted, or prints what is
there. `specs/workloads.md` says what cells and loads are.
"""

import argparse
import json
import lzma
import sys
from collections.abc import Collection, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from pathlib import Path
from typing import BinaryIO, Literal, TypeAlias

import attrs
from tqdm import tqdm

from lmpool.bench.flags import INTERRUPTED_CODE, USAGE_CODE, Parser, count, factor, output, profiled
from lmpool.bench.routing_cells import (
    ALONE,
    CELLS,
    CONVERSATION,
    ENTRANTS,
    IN_ARRIVAL_ORDER,
    IN_TICKS,
    WITH_COPIES,
    Cell,
    is_sustained,
    load,
    saturation,
)
from lmpool.bench.routing_table import Measured, report
from lmpool.core.route import POLICIES
from lmpool.sim.replay import replay
from lmpool.sim.trace import TraceError

EACH_IN_ARRIVAL_ORDER = "each+arrival"
LOADS = (0.3, 0.6, 0.8, 0.9)
SEEDS = 5
QUICK = {"cells": ["hot-session-skew"], "loads": [0.6], "seeds": 1, "requests": 300}


@attrs.frozen
class Job:
    """One run, or the search for a cell's saturation if there is no policy."""

    cell: str
    requests: int
    load: float
    rate: float
    seed: int
    policy: str

    @property
    def key(self) -> "Key":
        return self.cell, self.requests, self.load, self.seed, self.policy


Key: TypeAlias = tuple[str, int, float, int, str]
SEARCH = ""


class ResultsError(Exception):
    """One line: what is wrong with a file of results."""


class Results:
    """What was measured so far, in memory and as lines of a file."""

    def __init__(self, path: Path | None) -> None:
        """Raises ResultsError."""
        self._path = path
        self.saturations: dict[tuple[str, int], float] = {}
        """By cell and requests of the search."""
        self.runs: dict[Key, Measured] = {}
        if path is not None and path.exists():
            self._read_all(path)

    def _read_all(self, path: Path) -> None:
        try:
            with _opened(path, "rb") as file:
                for number, line in enumerate(file, start=1):
                    self._read(number, line)
        except (OSError, EOFError, lzma.LZMAError) as error:
            raise ResultsError(f"{path} cannot be read: {error}") from error

    def _read(self, number: int, line: bytes) -> None:
        try:
            fields = json.loads(line)
            if fields["kind"] == "saturation":
                self.saturations[fields["cell"], fields["requests"]] = fields["rate"]
            else:
                job, figures = Job(**fields["job"]), fields["figures"]
                self.runs[job.key] = Measured(job.cell, job.load, job.seed, job.policy, figures)
        except (ValueError, KeyError, TypeError) as error:
            raise ResultsError(f"{self._path}:{number}: no result of this command ({error!r})") from error

    def add_saturation(self, job: Job, rate: float) -> None:
        self.saturations[job.cell, job.requests] = rate
        self._write({"kind": "saturation", "cell": job.cell, "requests": job.requests, "rate": rate})

    def add_run(self, job: Job, figures: dict[str, object]) -> None:
        self.runs[job.key] = Measured(job.cell, job.load, job.seed, job.policy, figures)
        self._write({"kind": "run", "job": attrs.asdict(job), "figures": figures})

    def _write(self, fields: dict[str, object]) -> None:
        """Whole lines only: an interruption loses at most what was not written."""
        if self._path is not None:
            with _opened(self._path, "ab") as file:
                file.write(json.dumps(fields).encode() + b"\n")


def _opened(path: Path, mode: Literal["rb", "ab"]) -> lzma.LZMAFile | BinaryIO:
    """Compressed if it is called so. Raises OSError."""
    return lzma.open(path, mode) if path.suffix == ".xz" else path.open(mode)


def main(arguments: Sequence[str]) -> int:
    """The exit code: 2 for wrong usage."""
    given = profiled(_parser(), QUICK, arguments)
    try:
        results = Results(given.json)
        cells = [CELLS[name] for name in given.cells or _possible(given)]
        if not given.report:
            _measure(given, cells, results)
    except (ResultsError, TraceError) as error:
        print(f"lmpool bench routing: {error}", file=sys.stderr)
        return USAGE_CODE
    except KeyboardInterrupt:
        print("lmpool bench routing: interrupted; the same command goes on from here", file=sys.stderr)
        return INTERRUPTED_CODE
    wanted = [run for run in results.runs.values() if run.cell in [cell.name for cell in cells]]
    print("\n".join(report(wanted)))
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = Parser(
        "lmpool bench routing",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("--cells", nargs="+", choices=tuple(CELLS), metavar="CELL", help=f"of {', '.join(CELLS)}")
    parser.add_argument("--trace", type=Path, metavar="FILE", help=f"of the cells {CONVERSATION} and {IN_TICKS}")
    parser.add_argument(
        "--policies",
        nargs="+",
        choices=(*dict.fromkeys((*POLICIES, *ENTRANTS)), EACH_IN_ARRIVAL_ORDER),
        metavar="NAME",
        help=f"(default: each once); {' and '.join(WITH_COPIES)} have blocks copied between ranks as well; "
        f"NAME+arrival has replicas that take prompts one after the other, and {EACH_IN_ARRIVAL_ORDER} is all of those",
    )
    parser.add_argument("--loads", nargs="+", type=factor, default=list(LOADS), metavar="X", help="of saturation")
    parser.add_argument("--seeds", type=count, default=SEEDS, metavar="N", help="1 to N (default %(default)s)")
    parser.add_argument("--requests", type=count, metavar="N", help="of every run (default: as its cell has it)")
    parser.add_argument("--jobs", type=count, default=1, metavar="N", help="processes (default %(default)s)")
    parser.add_argument(
        "--json",
        type=output,
        metavar="FILE",
        help="lines of results, added to and gone on from; FILE.xz is compressed",
    )
    parser.add_argument("--report", action="store_true", help="run nothing; print what --json has")
    return parser


def _possible(given: argparse.Namespace) -> list[str]:
    is_everything = given.report or given.trace is not None
    return [name for name, cell in CELLS.items() if is_everything or cell.workload]


def _measure(given: argparse.Namespace, cells: Sequence[Cell], results: Results) -> None:
    """Searches first, as their rates are needed; then runs, those of one load together."""
    with ProcessPoolExecutor(given.jobs) as processes:
        searches = [
            Job(name, requests, 1.0, CELLS[name].guess, 0, SEARCH)
            for name, requests in (_searched(given, cell) for cell in cells)
            if (name, requests) not in results.saturations
        ]
        for search, rate in _ended(processes, searches, given.trace, "saturation"):
            assert isinstance(rate, float)
            results.add_saturation(search, rate)
        jobs = [job for job in _jobs(given, cells, results) if job.key not in results.runs]
        for job, figures in _ended(processes, jobs, given.trace, "runs"):
            assert isinstance(figures, dict)
            results.add_run(job, figures)


def _searched(given: argparse.Namespace, cell: Cell) -> tuple[str, int]:
    """The key of a cell's saturation."""
    return cell.name, given.requests or cell.search_requests


def _jobs(given: argparse.Namespace, cells: Sequence[Cell], results: Results) -> Iterator[Job]:
    wanted = given.policies or (*ALONE, *WITH_COPIES)
    policies = dict.fromkeys(policy for name in wanted for policy in _entrants(name))
    for cell in cells:
        rate = results.saturations[_searched(given, cell)]
        for share in given.loads:
            for seed in range(1, given.seeds + 1):
                for policy in policies:
                    yield Job(cell.name, given.requests or cell.requests, share, share * rate, seed, policy)


def _entrants(name: str) -> Collection[str]:
    if name == EACH_IN_ARRIVAL_ORDER:
        return IN_ARRIVAL_ORDER
    return (name if name in ENTRANTS else POLICIES[name]().name,)


def _ended(
    processes: ProcessPoolExecutor, jobs: Sequence[Job], trace: Path | None, about: str
) -> Iterator[tuple[Job, float | dict[str, object]]]:
    futures: dict[Future[float | dict[str, object]], Job] = {processes.submit(perform, job, trace): job for job in jobs}
    try:
        for future in tqdm(
            as_completed(futures), total=len(futures), desc=about, unit="run", delay=2, disable=not jobs
        ):
            yield futures[future], future.result()
    finally:
        for future in futures:
            future.cancel()


def perform(job: Job, trace: Path | None) -> float | dict[str, object]:
    """In a process of its own: the rate of a search, or the figures of a run. Raises TraceError."""
    cell = CELLS[job.cell]
    if job.policy == SEARCH:
        return saturation(job.rate, lambda rate: is_sustained(cell, trace, job.requests, rate))
    ready = load(cell, trace, job.requests, job.rate, job.seed)
    entrant = ENTRANTS[job.policy]
    rack = attrs.evolve(cell.rack, placement=entrant.placement, prefill_order=entrant.prefill_order)
    figures = replay(ready.trace, ready.prompts, rack, entrant.policy, job.seed)
    if figures.placement is not None:
        figures = attrs.evolve(figures, placement=attrs.evolve(figures.placement, placed=(), refusals=()))
    return {"fingerprint": ready.trace.fingerprint, **attrs.asdict(figures)}
