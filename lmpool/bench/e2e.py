"""`lmpool bench e2e`: the five arms of the LMPool paper on its five workloads, live on this machine or simulated.

Arms: one replica; round robin; routing; transfer (round robin, blocks copied in the background); full (both). Each
trial runs in a fresh process, in shuffled order, with the same requests for all arms of a repetition. Lengths and KV
budgets are the paper's, times one factor.
"""

import argparse
import json
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory

import attrs

from lmpool.bench.e2e_plot import plot
from lmpool.bench.e2e_report import E2EReport, report
from lmpool.bench.e2e_table import report_lines
from lmpool.bench.e2e_trials import (
    BLOCKS_OF_256,
    E2ESettings,
    FolderError,
    HopelessError,
    run_trials,
    trial_spec,
    trials,
)
from lmpool.bench.flags import INTERRUPTED_CODE, USAGE_CODE, Parser, count, factor, output, scale
from lmpool.bench.load.schema import json_schema
from lmpool.bench.simulate_figures import PlotError, check_plot
from lmpool.bench.step_rates import rates_named
from lmpool.bench.trial.spec import ARMS, BASELINE, PACED, TINY, SpecError, Venue, arm_named, check_spec
from lmpool.sim.step_time import StepTimeError

BUNDLED = "bundled"


@attrs.frozen
class Profile:
    workloads: tuple[str, ...]
    repetitions: int
    requests: int | None


PROFILES = {
    (Venue.LIVE, "quick"): Profile(("shared-prefix-x5",), 2, 64),
    (Venue.LIVE, "full"): Profile(tuple(BLOCKS_OF_256), 5, None),
    (Venue.SIMULATOR, "quick"): Profile(tuple(BLOCKS_OF_256), 2, None),
    (Venue.SIMULATOR, "full"): Profile(tuple(BLOCKS_OF_256), 5, None),
}
"""Quick ones are meant to end within two minutes on two quiet cores, of which starts of replicas take most."""
EXAMPLES = """\
examples:
  lmpool bench e2e --profile quick                    ten trials on two CPU replicas of a tiny model
  lmpool bench e2e --out runs/e2e --json e2e.json     everything, five times; the same command goes on after Ctrl+C
  lmpool bench e2e --simulator --plot e2e.svg         six replicas of an accelerator in virtual time, at full lengths
  lmpool bench e2e --model bundled --workload load-skew --arm round-robin --arm full
  lmpool bench e2e --model paced --replicas 6 --scale 0.5 --workload load-skew --against routing
exit codes: 0, 1 if a trial is not valid, 2 wrong usage, 130 interrupted
"""


def main(arguments: Sequence[str]) -> int:
    given = _parser().parse_args(arguments)
    if given.schema:
        print(json.dumps(json_schema(E2EReport), indent=1))
        return 0
    try:
        settings = _settings(given)
        for trial in trials(settings):
            check_spec(trial_spec(settings, trial))
        if given.plot is not None:
            check_plot(given.plot)
        with ExitStack() as stack:
            folder = given.out or Path(stack.enter_context(TemporaryDirectory(prefix="lmpool-e2e-")))
            shown = report(settings, run_trials(settings, folder, _tell))
        _write(shown, given)
    except (SpecError, FolderError, PlotError, StepTimeError, OSError) as error:
        _tell(f"lmpool bench e2e: {error}")
        return USAGE_CODE
    except HopelessError as error:
        _tell(f"lmpool bench e2e: {error}")
        return 1
    except KeyboardInterrupt:
        advice = f"the same command goes on in {given.out}" if given.out else "with --out DIR it could go on"
        _tell(f"lmpool bench e2e: interrupted; {advice}")
        return INTERRUPTED_CODE
    return 1 if shown.invalid else 0


def _write(shown: E2EReport, given: argparse.Namespace) -> None:
    print(*report_lines(shown), sep="\n")
    if given.json is not None:
        given.json.write_text(json.dumps(attrs.asdict(shown), indent=1) + "\n")
    if given.plot is not None and shown.figures:
        plot(shown, given.plot)


def _parser() -> argparse.ArgumentParser:
    parser = Parser(
        "lmpool bench e2e",
        description=__doc__,
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    add = parser.add_argument
    arms = ", ".join(arm.name for arm in ARMS)
    add("--simulator", action="store_true", help="in virtual time, without a model")
    add("--profile", choices=("quick", "full"), default="full", help="how much of it (default %(default)s)")
    add("--workload", action="append", choices=tuple(BLOCKS_OF_256), metavar="NAME", help="again for another")
    add("--arm", action="append", metavar="NAME", help=f"of {arms}, or any policy; again for another (default: five)")
    add("--against", metavar="NAME", help=f"the arm to compare the others with (default {BASELINE})")
    add("--repetitions", type=count, metavar="N", help="of each trial (default: the profile's)")
    add("--requests", type=count, metavar="N", help="of each workload (default: the profile's)")
    add("--seed", type=int, default=0, metavar="S", help="of the first repetition; each has the next (default 0)")
    add("--replicas", type=count, metavar="N", help="(default 2 live, 6 simulated)")
    add("--scale", type=scale, metavar="X", help="of all lengths and KV budgets (default 0.1 live, 1 simulated)")
    add("--sla", type=factor, default=3.0, metavar="S", help="goodput ends within so many seconds (default 3)")
    live = parser.add_argument_group("live")
    live.add_argument(
        "--model",
        metavar="MODEL",
        help=f"{TINY} (the default: random weights), {PACED} (no weights: real processes whose steps and copies last "
        f"as those of an accelerator, forty times slowed), {BUNDLED}, or as for lmpool serve",
    )
    live.add_argument(
        "--threads", type=count, metavar="N", help="of each replica, in all arms (default: cores / replicas)"
    )
    parser.add_argument_group("simulator").add_argument(
        "--rates", metavar="NAME", help="an accelerator or a profile, as for lmpool simulate"
    )
    add("--out", type=Path, metavar="DIR", help="keep the evidence of every trial there, and go on from it")
    add("--json", type=output, metavar="FILE", help="write the figures there as well")
    add("--plot", type=output, metavar="FILE", help="draw them (.png, .svg, .pdf)")
    add("--schema", action="store_true", help="print the JSON schema of the figures, and end")
    return parser


def _settings(given: argparse.Namespace) -> E2ESettings:
    """Raises SpecError, StepTimeError."""
    venue = Venue.SIMULATOR if given.simulator else Venue.LIVE
    profile, is_live = PROFILES[venue, given.profile], venue is Venue.LIVE
    arms = tuple(dict.fromkeys(given.arm or [arm.name for arm in ARMS]))
    for arm in arms:
        arm_named(arm)
    if given.against is not None and given.against not in arms:
        raise SpecError(f"--against {given.against}: it is not among the arms, which are {', '.join(arms)}")
    foreign = {"--rates": given.rates} if is_live else {"--model": given.model, "--threads": given.threads}
    for flag, value in foreign.items():
        if value is not None:
            raise SpecError(f"{flag} is for {'the simulator' if is_live else 'live trials'}, and these are not")
    rates_named(given.rates)
    return E2ESettings(
        venue=venue,
        workloads=tuple(dict.fromkeys(given.workload or profile.workloads)),
        arms=arms,
        baseline=given.against or BASELINE,
        repetitions=given.repetitions or profile.repetitions,
        requests=given.requests or profile.requests,
        scale=given.scale or (0.1 if is_live else 1.0),
        replicas=given.replicas or (2 if is_live else 6),
        block_size=16 if is_live else 256,
        step_tokens=512 if is_live else 2_048,
        model=None if given.model == BUNDLED or not is_live else given.model or TINY,
        threads=given.threads,
        rates=given.rates,
        e2e_max_s=given.sla,
        seed=given.seed,
    )


def _tell(line: str) -> None:
    print(line, file=sys.stderr, flush=True)
