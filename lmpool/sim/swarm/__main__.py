"""The command behind `tools/sim`."""

import argparse
import os
import sys
import time
from collections.abc import Iterator
from itertools import count, takewhile
from pathlib import Path

from lmpool.sim.swarm.hunt import Tally, new_tally, run_seeds
from lmpool.sim.swarm.knobs import draw_knobs
from lmpool.sim.swarm.narrative import Narrative
from lmpool.sim.swarm.run import Result, run_knobs

PROGRESS_S = 10.0
KEPT = Path("tests/sim/seeds.txt")
"""Seeds that a test replays for ever: one a line, with a note."""


def main() -> int:
    options = _parser().parse_args()
    if options.seed is not None:
        return _tell(options.seed, shown=options.timeline)
    seeds: Iterator[int] = iter(range(options.first, options.first + options.seeds))
    if options.soak is not None:
        end = time.monotonic() + 60 * options.soak
        seeds = takewhile(lambda _: time.monotonic() < end, count(options.first))
    if options.digests:
        for result in run_seeds(seeds, options.jobs):
            _say(f"{result.seed} {result.digest} {result.events} {result.violation}".rstrip())
        return 0
    return _hunt(seeds, options.jobs, keep=options.keep)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="tools/sim",
        description="Runs the pool under faults in virtual time: every seed draws another cluster, load and series of "
        "accidents. Ends with code 1 if a law did not hold.",
    )
    parser.add_argument("--seeds", type=int, default=100, metavar="N", help="how many (default 100)")
    parser.add_argument("--from", type=int, default=0, dest="first", metavar="S", help="the first (default 0)")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, metavar="J", help="processes (default: cores)")
    parser.add_argument("--soak", type=float, metavar="MINUTES", help="as many seeds as there is time for")
    parser.add_argument("--seed", type=int, metavar="S", help="this one alone")
    parser.add_argument("--timeline", action="store_true", help="with --seed: one line an event")
    parser.add_argument("--digests", action="store_true", help="one line a seed, to be compared with another run")
    parser.add_argument("--keep", action="store_true", help=f"add seeds that fail to {KEPT}")
    return parser


def _tell(seed: int, *, shown: bool) -> int:
    narrative = Narrative(_say if shown else _say_nothing)
    knobs = draw_knobs(seed)
    if shown:
        _say(str(knobs))
    result = run_knobs(knobs, narrative)
    narrative.close()
    _say(_line(result))
    return 1 if result.violation else 0


def _hunt(seeds: Iterator[int], jobs: int, *, keep: bool) -> int:
    tally = new_tally()
    told = tally.began
    for result in run_seeds(seeds, jobs):
        tally.add(result)
        if result.violation:
            _say(_line(result))
            if keep:
                _keep(result)
        if time.monotonic() - told > PROGRESS_S:
            told = time.monotonic()
            _say(tally.line())
    _sum_up(tally)
    return 1 if tally.failures else 0


def _keep(result: Result) -> None:
    with KEPT.open("a") as file:
        file.write(f"{result.seed}  {result.violation}\n")


def _sum_up(tally: Tally) -> None:
    _say(tally.line())
    _say(", ".join(f"{what} {number}" for what, number in sorted(tally.counts.items())))
    if tally.failures:
        _say("failed: " + " ".join(str(result.seed) for result in tally.failures))
        _say(f"to see one: tools/sim --seed {tally.failures[0].seed} --timeline")


def _line(result: Result) -> str:
    state = f"FAILED at {result.at_ns / 1e6:.6f} ms: {result.violation}" if result.violation else "held"
    return f"seed {result.seed}: {state} ({result.events} events, {result.requests} requests)"


def _say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def _say_nothing(line: str) -> None:
    """Nobody wants the story."""


if __name__ == "__main__":
    sys.exit(main())
