"""`lmpool simulate`: a trace or a made workload under one policy after another, in virtual time, without a model.

Control plane and workers are those of production; a step lasts what the step-time model says (specs/step_time.md).
The same seed gives the same figures on every machine.
"""

import argparse
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from tqdm import tqdm

from lmpool.bench.flags import INTERRUPTED_CODE, USAGE_CODE, Parser, count, factor, number, output, output_or_dash
from lmpool.bench.simulate_explain import Watch
from lmpool.bench.simulate_figures import PlotError, Run, Study, check_plot, json_text, plot, table
from lmpool.bench.step_rates import rates_named
from lmpool.core.batch import PrefillOrder
from lmpool.core.ids import SECOND, Nanos, Rank
from lmpool.core.limits import BLOCK_SIZE_MAX, BLOCK_SIZE_MIN, DECISIONS_KEPT, RANKS_MAX
from lmpool.core.placement.proposal import USUAL
from lmpool.core.route import POLICIES
from lmpool.sim.bounds import bounds
from lmpool.sim.collection import uncollected
from lmpool.sim.copy_time import assumed_copies
from lmpool.sim.prompts import Prompts
from lmpool.sim.rack import RackSettings
from lmpool.sim.replay import Replay, make_prompts
from lmpool.sim.step_time import ACCELERATOR_DEFAULT, ACCELERATORS, StepTimeError
from lmpool.sim.trace import Trace, TraceError, at_speed, in_bursts, jittered, window
from lmpool.sim.trace_formats import read_trace
from lmpool.sim.workload import WORKLOAD, WORKLOADS, make_workload

BLOCK_SIZE = 64
"""Of clusters for traces that were recorded in none."""
KV_TOKENS = 1_024_000
"""Of a rank: 2,000 blocks of 512."""
SLOW_MAX = 1_000.0
COLD_MAX_S = 1e6
STREAK_MAX = 10_000
PROGRESS_AFTER_S = 2.0
PROGRESS_EVERY_S = 0.5
PROGRESS_REQUESTS = 20

EXAMPLES = """\
examples:
  lmpool simulate conversation_trace.jsonl --speed 3 --policy default --policy longest-prefix
  lmpool simulate conversation_trace.jsonl --requests 2000 --jitter --json figures.json --plot figures.svg
  lmpool simulate workload:agent-sessions --rate 0.5 --explain 3
  lmpool simulate workload:hot-session-skew --rate 2 --policy default --policy round-robin --placement on
  lmpool simulate workload:sibling-bursts --rate 1 --slow 0:2 --cold 7:30
"""


class UsageError(Exception):
    """One line: a flag that cannot be so."""


def main(arguments: Sequence[str]) -> int:
    """The exit code: 1 if a request could not be served, 2 for wrong usage."""
    given = _parser().parse_args(arguments)
    try:
        if given.plot is not None:
            check_plot(given.plot)
        study = _study(given)
        if given.plot is not None:
            plot(study, given.plot)
        _tell(study, given.json)
    except BrokenPipeError:
        raise
    except (TraceError, StepTimeError, UsageError, PlotError, OSError) as error:
        print(f"lmpool simulate: {error}", file=sys.stderr)
        return USAGE_CODE
    except KeyboardInterrupt:
        print("lmpool simulate: interrupted", file=sys.stderr)
        return INTERRUPTED_CODE
    unserved = sum(run.figures.unserved for run in study.runs)
    if unserved:
        print(f"lmpool simulate: {unserved} requests fit no rank and are in no figure of time", file=sys.stderr)
    return 1 if unserved else 0


def _parser() -> argparse.ArgumentParser:
    parser = Parser(
        "lmpool simulate",
        description=__doc__,
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    policies = ", ".join(POLICIES)
    names = ", ".join(WORKLOAD + name for name in WORKLOADS)
    parser.add_argument("trace", metavar="TRACE", help=f"a JSONL file (specs/trace.md), or one of {names}")
    parser.add_argument(
        "--policy",
        action="append",
        choices=tuple(POLICIES),
        metavar="NAME",
        help=f"one of {policies}; again for another (default: each once)",
    )
    load = parser.add_argument_group("load")
    load.add_argument(
        "--requests", type=count, metavar="N", help="at most (default: all; as many as are usual in a workload)"
    )
    load.add_argument("--start", type=number, default=0, metavar="N", help="first request (default %(default)s)")
    load.add_argument("--speed", type=factor, default=1.0, metavar="X", help="arrivals X times as dense")
    load.add_argument("--rate", type=factor, metavar="X", help="arrivals of a workload a second (default 1)")
    load.add_argument("--jitter", action="store_true", help="spread arrivals of one moment until the next (up to 3 s)")
    load.add_argument("--burst", type=count, default=1, metavar="N", help="arrivals N at a time, at the same rate")
    load.add_argument("--seed", type=int, default=0, metavar="S", help="of workload, jitter and chance (default 0)")
    load.add_argument("--trace-block-size", type=count, metavar="N", help="tokens of a hash id, if unusual")
    _add_cluster(parser.add_argument_group("cluster"))
    parser.add_argument(
        "--json", type=output_or_dash, metavar="FILE", help="write the figures there; - for standard output"
    )
    parser.add_argument("--plot", type=output, metavar="FILE", help="draw them (.png, .svg, .pdf)")
    parser.add_argument(
        "--explain", type=count, metavar="N", help="decisions in words: the N that cost most known prefix, by policy"
    )
    return parser


def _add_cluster(rack: argparse._ArgumentGroup) -> None:
    rack.add_argument("--replicas", type=count, default=8, metavar="N", help="(default %(default)s)")
    rack.add_argument("--kv-blocks", type=count, metavar="N", help=f"of a replica (default: {KV_TOKENS:,} tokens)")
    rack.add_argument("--block-size", type=count, metavar="N", help=f"(default: the trace's, or {BLOCK_SIZE})")
    rack.add_argument("--step-tokens", type=count, default=2_048, metavar="N", help="of a step (default %(default)s)")
    rack.add_argument("--sequences", type=count, default=256, metavar="N", help="at a time (default %(default)s)")
    rack.add_argument(
        "--prefill-order",
        choices=[order.value for order in PrefillOrder],
        default=PrefillOrder.SHORT_BETWEEN.value,
        help="how prompts share a step: as replicas do it, or one after the other as other servers do "
        "(default %(default)s)",
    )
    rack.add_argument(
        "--placement",
        choices=("on", "off"),
        default="off",
        help="copy KV blocks between replicas where that saves more than it takes (default %(default)s); pulls for "
        "requests only with marginal-time and mooncake",
    )
    times = rack.add_mutually_exclusive_group()
    times.add_argument("--accelerator", default=ACCELERATOR_DEFAULT, choices=tuple(ACCELERATORS))
    times.add_argument("--profile", metavar="FILE", help="rates (specs/step_time.md), or what lmpool calibrate wrote")
    rack.add_argument("--slow", action="append", default=[], metavar="RANK:X", help="takes X times as long")
    rack.add_argument("--cold", action="append", default=[], metavar="RANK:SECONDS", help="joins empty so much later")


def _study(given: argparse.Namespace) -> Study:
    trace = _trace(given)
    settings = _rack(given, trace)
    prompts = make_prompts(trace, settings.block_size)
    blocks = settings.replicas * settings.kv_blocks
    study = Study(trace, settings, given.seed, bounds(trace, prompts, blocks, settings.block_size), [])
    for policy in given.policy or each_once():
        study.runs.append(_run(study, prompts, policy, given.explain))
    return study


def each_once() -> list[str]:
    """Policies without their other names."""
    return [name for name, policy in POLICIES.items() if policy().name == name]


def _trace(given: argparse.Namespace) -> Trace:
    """Raises TraceError, UsageError."""
    if given.trace.startswith(WORKLOAD):
        name = given.trace.removeprefix(WORKLOAD)
        trace = make_workload(name, given.requests, given.rate or 1.0, given.seed)
    elif given.rate is not None:
        raise UsageError("--rate is for made workloads; a trace has its own, which --speed multiplies")
    else:
        trace = read_trace(Path(given.trace), given.trace_block_size)
    if given.start or given.requests:
        trace = window(trace, given.start, given.requests or len(trace.requests))
    if given.jitter:
        trace = jittered(trace, given.seed)
    return at_speed(trace if given.burst == 1 else in_bursts(trace, given.burst), given.speed)


def _rack(given: argparse.Namespace, trace: Trace) -> RackSettings:
    """Raises StepTimeError, UsageError."""
    block_size = given.block_size or trace.block_size or BLOCK_SIZE
    if not BLOCK_SIZE_MIN <= block_size <= BLOCK_SIZE_MAX:
        raise UsageError(f"--block-size {block_size}: allowed is {BLOCK_SIZE_MIN} to {BLOCK_SIZE_MAX}")
    if given.replicas > RANKS_MAX:
        raise UsageError(f"--replicas {given.replicas}: at most {RANKS_MAX}")
    if given.sequences > given.step_tokens:
        raise UsageError("--sequences is more than --step-tokens: no place would be left for prompts")
    return RackSettings(
        replicas=given.replicas,
        kv_blocks=given.kv_blocks or KV_TOKENS // block_size,
        block_size=block_size,
        step_tokens=given.step_tokens,
        sequences=given.sequences,
        prefill_order=PrefillOrder(given.prefill_order),
        rates=rates_named(given.profile or given.accelerator),
        copies=assumed_copies(block_size),
        slow=_by_rank(given, "--slow", given.slow, SLOW_MAX),
        cold=tuple(
            (rank, Nanos(round(after_s * SECOND)))
            for rank, after_s in _by_rank(given, "--cold", given.cold, COLD_MAX_S)
        ),
        streak_max=STREAK_MAX,
        decisions_kept=DECISIONS_KEPT,
        placement=USUAL if given.placement == "on" else None,
    )


def _by_rank(
    given: argparse.Namespace, flag: str, texts: Sequence[str], largest: float
) -> tuple[tuple[Rank, float], ...]:
    """Raises UsageError."""
    found: dict[Rank, float] = {}
    for text in texts:
        rank, _, value = text.partition(":")
        try:
            number, factor = int(rank), float(value)
        except ValueError:
            raise UsageError(f"{flag} {text}: should be a rank, a colon and a number") from None
        if not 0 <= number < given.replicas or not 0 < factor <= largest:
            raise UsageError(
                f"{flag} {text}: ranks are 0 to {given.replicas - 1}, and the number is more than 0 "
                f"and at most {largest:,.0f}"
            )
        if number in found:
            raise UsageError(f"{flag} {text}: rank {number} has its {flag} already")
        found[Rank(number)] = factor
    return tuple(found.items())


def _run(study: Study, prompts: Prompts, policy: str, explained: int | None) -> Run:
    began = time.perf_counter()
    replay = Replay(study.trace, prompts, study.rack, policy, study.seed)
    watch = Watch(replay) if explained is not None else None
    shown = tqdm(
        total=len(study.trace.requests),
        desc=policy,
        unit="req",
        delay=PROGRESS_AFTER_S,
        mininterval=PROGRESS_EVERY_S,
        leave=False,
    )
    with shown as bar, uncollected():
        while replay.advance(PROGRESS_REQUESTS):
            bar.update(replay.front.closed - bar.n)
            if watch is not None:
                watch.look()
    figures = replay.figures()
    wall_s = time.perf_counter() - began
    return Run(figures, wall_s, watch.lines(explained) if watch is not None and explained is not None else [])


def _tell(study: Study, json_file: str | None) -> None:
    """The table goes to standard error where standard output is for JSON."""
    lines = [*table(study), *(line for run in study.runs for line in run.explained)]
    print("\n".join(lines), file=sys.stderr if json_file == "-" else sys.stdout)
    if json_file == "-":
        print(json_text(study))
    elif json_file is not None:
        Path(json_file).write_text(json_text(study) + "\n")
