"""`lmpool bench fidelity`: how far the simulator can be believed, on replicas of this machine.

First what does not depend on time: the same workload under round robin, one request at a time on replicas that are
short of blocks, and one for each replica where there are enough. Where every request goes, how much of it is found
cached, what each replica computes and preempts must be equal live and simulated, else the exit code is 1.

Then times: steps of the model are measured here, on all replicas side by side, and the simulator, which knows nothing
but these, predicts mean time to first token and throughput at three loads. low: one request in flight for each
replica, all blocks fit; medium: four, half of them fit; thrashing: sixteen, and a replica has blocks for three of the
longest. Beside the prediction stand the mean of the live runs and its 95 % interval (Student's t), and whether the
prediction lies inside.

  lmpool bench fidelity                                  the bundled model, two replicas, five runs a load
  lmpool bench fidelity tiny --repetitions 2             a model of random weights, in a few minutes
  lmpool bench fidelity --loads --json counts.json       counts alone
  lmpool bench fidelity --out runs                       keeps every trial; the same command goes on there
"""

import argparse
import json
import os
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from statistics import fmean
from tempfile import TemporaryDirectory
from typing import TypeAlias

import attrs
from tqdm import tqdm

from lmpool.bench import flags
from lmpool.bench.calibrate import CalibrateError, measured_steps
from lmpool.bench.fidelity_figures import Exactness, Timed, exact_lines, exactness, timed, timed_lines
from lmpool.bench.fidelity_trials import (
    EXACT,
    LOADS,
    FidelitySettings,
    Load,
    exact_spec,
    loaded_spec,
    ran,
    simulated,
    write_profile,
)
from lmpool.bench.random_llama import write_random_llama
from lmpool.bench.trial.kept import Kept
from lmpool.bench.trial.live import TINY_FORM, TINY_SEED
from lmpool.bench.trial.spec import TINY, SpecError, TrialSpec, check_spec
from lmpool.core.rates import Rates
from lmpool.sim.step_time import StepTimeError, read_profile
from lmpool.sim.trace import TraceError

QUICK = {"model": TINY, "requests": 48, "repetitions": 2}
TOO_SMALL = f"Steps of {TINY} are shorter than what a server does beside them, and no simulation has: only counts tell."
DTYPES = ("auto", "bfloat16", "float16", "float32")
Run: TypeAlias = Callable[[TrialSpec, str], Kept]
"""A trial under the name of its folder."""


@attrs.frozen
class Fidelity:
    settings: FidelitySettings
    rates: Rates | None
    """None: no load was timed."""
    exact: tuple[Exactness, ...]
    timed: tuple[Timed, ...]
    problems: tuple[str, ...]
    """Of trials that are not valid, and are in no figure."""

    @property
    def is_exact(self) -> bool:
        return not self.problems and not any(each.differences for each in self.exact)


def main(arguments: Sequence[str]) -> int:
    """The exit code: 1 where a count differs, or a trial is not valid; 2 for wrong usage."""
    given = flags.profiled(_parser(), QUICK, arguments)
    try:
        with TemporaryDirectory(prefix="lmpool-fidelity-") as place:
            found = measure(given, given.out or Path(place))
    except (CalibrateError, SpecError, StepTimeError, TraceError, OSError) as error:
        print(f"lmpool bench fidelity: {error}", file=sys.stderr)
        return flags.USAGE_CODE if isinstance(error, SpecError | TraceError) else 1
    document = json.dumps(attrs.asdict(found) | {"is_exact": found.is_exact}, indent=1)
    if given.json == "-":
        print(document)
    else:
        if given.json is not None:
            Path(given.json).write_text(document + "\n")
        print("\n".join(report_lines(found)))
        if found.timed and given.model == TINY:
            print(TOO_SMALL)
    return 0 if found.is_exact else 1


def _parser() -> argparse.ArgumentParser:
    parser = flags.Parser(
        "lmpool bench fidelity",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    names = [load.name for load in LOADS]
    parser.add_argument("model", nargs="?", metavar="MODEL", help=f"as of lmpool serve, or {TINY} (default: bundled)")
    parser.add_argument("--loads", nargs="*", choices=names, default=names, metavar="LOAD", help="(default: all)")
    parser.add_argument("--repetitions", type=flags.count, default=5, metavar="N", help="of each (default %(default)s)")
    parser.add_argument("--workload", default="shared-prefix-x1", metavar="NAME", help="(default %(default)s)")
    parser.add_argument("--requests", type=flags.count, default=96, metavar="N", help="(default %(default)s)")
    parser.add_argument("--scale", type=flags.scale, default=0.1, metavar="X", help="of lengths (default %(default)s)")
    parser.add_argument("--arm", default="routing", help="under the three loads (default %(default)s)")
    parser.add_argument("--replicas", type=flags.count, default=2, metavar="N", help="(default %(default)s)")
    parser.add_argument("--threads", type=flags.count, metavar="N", help="of each (default: cores / replicas)")
    parser.add_argument(
        "--block-size", type=flags.block_size, default=16, metavar="TOKENS", help="(default %(default)s)"
    )
    parser.add_argument("--step-tokens", type=flags.count, default=512, metavar="N", help="(default %(default)s)")
    parser.add_argument("--dtype", choices=DTYPES, default="auto", help="(default %(default)s)")
    parser.add_argument("--seed", type=flags.number, default=1, metavar="S")
    parser.add_argument("--out", type=Path, metavar="DIR", help="keep the trials there")
    parser.add_argument(
        "--json",
        type=flags.output_or_dash,
        metavar="FILE",
        help="write the figures there as well; -: only them, to the output",
    )
    return parser


def measure(given: argparse.Namespace, folder: Path) -> Fidelity:
    """Trials go to `folder`. Raises CalibrateError, SpecError, StepTimeError, TraceError."""
    folder.mkdir(parents=True, exist_ok=True)
    settings = _settings(given, folder)
    for load in LOADS:
        check_spec(loaded_spec(settings, load))
    wanted = [load for load in LOADS if load.name in given.loads]
    with tqdm(total=2 * len(EXACT) + len(wanted) * (1 + settings.repetitions), desc="trials", unit="trial") as bar:

        def run(spec: TrialSpec, name: str) -> Kept:
            kept = ran(spec, folder, name, bar.set_postfix_str)
            bar.update()
            return kept

        return _compared(given, settings, wanted, folder / "step-times.json", run)


def _compared(
    given: argparse.Namespace, settings: FidelitySettings, wanted: Sequence[Load], profile: Path, run: Run
) -> Fidelity:
    """Raises CalibrateError, StepTimeError."""
    exact: list[Exactness] = []
    problems: list[str] = []
    for load in EXACT:
        spec = exact_spec(settings, load)
        name = f"exact_{load.name.replace(' ', '-')}"
        live, virtual = (run(each, f"{name}_{each.venue.value}") for each in (spec, simulated(spec, None)))
        problems += _problems(name, [live, virtual])
        if live.evidence is not None and virtual.evidence is not None:
            exact.append(exactness(load.name, live.evidence, virtual.evidence))
    rates: Rates | None = None
    times: list[Timed] = []
    if wanted:
        # those that were measured before: simulations that are there already are by them
        rates = read_profile(profile) if profile.exists() else _measured_rates(given, settings)
        write_profile(profile, rates)
    for load in wanted:
        found, faults = _timed_load(settings, load, str(profile), run)
        times += found
        problems += faults
    return Fidelity(settings, rates, tuple(exact), tuple(times), tuple(problems))


def _settings(given: argparse.Namespace, folder: Path) -> FidelitySettings:
    model = given.model
    if model == TINY:
        model = str((folder / TINY).absolute())
        if not Path(model).exists():
            write_random_llama(Path(model), TINY_FORM, TINY_SEED)
    return FidelitySettings(
        model=model,
        workload=given.workload,
        requests=given.requests,
        scale=given.scale,
        replicas=given.replicas,
        block_size=given.block_size,
        step_tokens=given.step_tokens,
        threads=given.threads or max(1, (os.cpu_count() or 1) // given.replicas),
        dtype=given.dtype,
        arm=given.arm,
        repetitions=given.repetitions,
        seed=given.seed,
    )


def _measured_rates(given: argparse.Namespace, settings: FidelitySettings) -> Rates:
    """The mean of all replicas, measured side by side as they will run: they share memory. Raises CalibrateError."""
    order = argparse.Namespace(
        model=settings.model,
        cache_folder=None,
        device="auto",
        dtype=given.dtype,
        block_size=given.block_size,
        kv_blocks=None,
    )
    with ThreadPoolExecutor(settings.replicas) as pool:
        curves = list(pool.map(lambda _: measured_steps(order, settings.threads), range(settings.replicas)))
    columns = zip(*(curve["rates"].values() for curve in curves), strict=True)
    return Rates(**dict(zip(curves[0]["rates"], map(fmean, columns), strict=True)))


def _timed_load(settings: FidelitySettings, load: Load, profile: str, run: Run) -> tuple[list[Timed], list[str]]:
    """And what is wrong with trials, which are then in no figure."""
    spec = loaded_spec(settings, load)
    virtual = run(simulated(spec, profile), f"{load.name}_simulator")
    live = [
        run(attrs.evolve(spec, repetition=number), f"{load.name}_live_{number}")
        for number in range(1, settings.repetitions + 1)
    ]
    faults = _problems(load.name, [virtual, *live])
    valid = [each.evidence for each in live if each.evidence is not None and not each.problems]
    if virtual.evidence is None or virtual.problems or not valid:
        return [], faults
    return timed(load.name, valid, virtual.evidence), faults


def _problems(name: str, trials: Sequence[Kept]) -> list[str]:
    return [f"{name}: {problem}" for trial in trials for problem in trial.problems]


def report_lines(found: Fidelity) -> list[str]:
    lines = ["Counts, live against simulated:", *(line for each in found.exact for line in exact_lines(each))]
    if found.timed:
        lines += ["Times; ttft in ms, throughput in output tokens a second:", *timed_lines(found.timed)]
    return [*lines, *(f"not valid: {problem}" for problem in found.problems)]
