"""`lmpool study`: a plan that is written first, its trials in shuffled order, and a report from what they left.

specs/studies.md says what plans and reports are.
"""

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path

from lmpool.bench.flags import INTERRUPTED_CODE, USAGE_CODE, Parser, count
from lmpool.bench.load.schema import json_schema
from lmpool.bench.step_rates import rates_named
from lmpool.bench.study.decisions import join, passed_over_lines
from lmpool.bench.study.figures import PlotError, check_plots, drawn, pictures
from lmpool.bench.study.folder import Folder, StudyError, begin_folder, open_folder
from lmpool.bench.study.matrix import matrix, misfit, points, trial_spec
from lmpool.bench.study.pack import PACKED_MAX, opened, pack
from lmpool.bench.study.page import html_page
from lmpool.bench.study.plan import Plan
from lmpool.bench.study.plan_text import PlanError, parse_plan
from lmpool.bench.study.ready import plan_bytes, ready_names, ready_plan
from lmpool.bench.study.report import ReportError, StudyReport, read_report, report_text, study_report
from lmpool.bench.study.runner import duration, run_study
from lmpool.bench.study.summary import summary_lines
from lmpool.bench.table import table_lines
from lmpool.bench.trial.evidence import EvidenceError, read_evidence
from lmpool.bench.trial.process import perform_trial
from lmpool.bench.trial.spec import SpecError, Venue
from lmpool.sim.step_time import StepTimeError
from lmpool.sim.trace import TraceError

INVALID_CODE = 1
DECISIONS = 10

ABOUT = """\
Preregistered, shuffled, repeated comparisons of routing, live or in the simulator.

A plan (TOML) names question, workloads, arms, KV budgets, loads, repetitions, metrics and rules before anything runs,
and is frozen in the folder of the study with its digest. Each trial is a fresh process and leaves raw evidence; reports
are made from that alone. An interrupted study goes on with the same command.
"""
EXAMPLES = """\
examples:
  lmpool study list
  lmpool study run residency-quick --out /tmp/quick --dry-run
  lmpool study run residency-quick --out /tmp/quick
  lmpool study run routing-matrix --out matrix --venue simulator
  lmpool study report matrix --html report.html --json report.json --figures figures
  lmpool study decisions matrix --limit 5
  lmpool study pack matrix matrix.tar.xz && lmpool study report matrix.tar.xz --html report.html

exit codes:
  0  done    1  a trial is not valid, or a file is not what it should be    2  wrong usage    130  interrupted
"""


def main(arguments: Sequence[str]) -> int:
    """The exit code. Usage errors end the program with code 2."""
    given = _parser().parse_args(arguments)
    try:
        return int(given.act(given))
    except (PlanError, PlotError, StepTimeError, TraceError, SpecError) as error:
        return _fail(str(error), USAGE_CODE)
    except (StudyError, EvidenceError, ReportError) as error:
        return _fail(str(error), INVALID_CODE)
    except OSError as error:
        return _fail(f"{error.filename}: {error.strerror}" if error.filename else str(error), INVALID_CODE)
    except KeyboardInterrupt:
        go_on = f"; the same command goes on from here: {given.out}" if "out" in given else ""
        return _fail(f"interrupted{go_on}", INTERRUPTED_CODE)


def _fail(line: str, code: int) -> int:
    print(f"lmpool study: {line}", file=sys.stderr)
    return code


def _parser() -> argparse.ArgumentParser:
    parser = Parser(
        "lmpool study",
        description=ABOUT,
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    def command(name: str, about: str, act: object) -> argparse.ArgumentParser:
        added: argparse.ArgumentParser = commands.add_parser(name, help=about, description=about, allow_abbrev=False)
        added.set_defaults(act=act)
        return added

    run = command("run", "run a plan, or go on with it", _run)
    run.add_argument("plan", metavar="PLAN", help="a TOML file, or the name of a ready plan (lmpool study list)")
    run.add_argument("--out", type=Path, metavar="DIR", help="folder of the study; needed unless --dry-run")
    run.add_argument("--venue", choices=[venue.value for venue in Venue], help="(default: as the plan says)")
    run.add_argument("--dry-run", action="store_true", help="print the matrix and what it takes; start nothing")

    report = command("report", "what a study has found, from its raw files", _report)
    report.add_argument("study", type=Path, nargs="?", metavar="DIR", help="a folder, or a packed study")
    report.add_argument("--html", type=Path, metavar="FILE", help="one page with everything in it")
    report.add_argument("--json", type=Path, metavar="FILE", help="the same as a record")
    report.add_argument("--figures", type=Path, metavar="DIR", help="figures as SVG and PNG")
    report.add_argument("--schema", action="store_true", help="print the JSON schema of --json, and end")
    report.add_argument("--check", type=Path, metavar="FILE", help="say whether FILE is such a record, and end")

    decisions = command("decisions", "where a request passed over the rank with most of its prompt", _decisions)
    decisions.add_argument("study", type=Path, metavar="DIR", help="a folder, or a packed study")
    decisions.add_argument("--trial", metavar="NAME", help="only of this one (default: of each)")
    decisions.add_argument("--limit", type=count, default=DECISIONS, metavar="N", help="a trial (default %(default)s)")

    command("list", "ready plans and their questions", _list)

    packing = command("pack", "a study as one compressed file, with the same bytes each time", _pack)
    packing.add_argument("study", type=Path, metavar="DIR")
    packing.add_argument("file", type=Path, metavar="FILE", help="its name should end in .tar.xz")
    packing.add_argument("--size-max", type=count, default=PACKED_MAX, metavar="N", help="bytes (default %(default)s)")
    return parser


def _tell(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def _run(given: argparse.Namespace) -> int:
    data = plan_bytes(given.plan)
    plan = parse_plan(data, given.plan)
    venue = plan.venue if given.venue is None else Venue(given.venue)
    if venue is Venue.SIMULATOR:
        rates_named(plan.system.rates)
    wrong = misfit(plan, venue)
    if wrong is not None:
        return _fail(f"{given.plan}: {wrong}", USAGE_CODE)
    if given.dry_run:
        print("\n".join(_dry_lines(plan, venue, given.out)))
        return 0
    if given.out is None:
        return _fail("run needs --out DIR (or --dry-run)", USAGE_CODE)
    folder = begin_folder(given.out, data, given.plan, venue)
    folder, bad = run_study(folder, perform_trial, _tell)
    print("\n".join(summary_lines(study_report(folder), folder.plan)))
    if bad:
        return _fail(f"{len(bad)} trials are not valid: {', '.join(bad)}", INVALID_CODE)
    return 0


def _dry_lines(plan: Plan, venue: Venue, out: Path | None) -> list[str]:
    trials = matrix(plan)
    specs = [trial_spec(plan, trial, venue) for trial in trials]
    rows = [
        [str(number), trial.name, str(spec.seed), str(spec.kv_blocks)]
        for number, (trial, spec) in enumerate(zip(trials, specs, strict=True), start=1)
    ]
    at_most = " at most, as a load that ends a search ends its workload" if plan.crossover is not None else ""
    return [
        f"{plan.name}: {plan.question}",
        f"{len(plan.arms)} arms x {len(points(plan))} points x {plan.repetitions} repetitions: {len(trials)} trials"
        f"{at_most}, venue {venue.value}",
        _time_line(plan, venue, out, len(trials)),
        "",
        *table_lines(("#", "trial", "seed", "KV blocks"), rows),
    ]


def _time_line(plan: Plan, venue: Venue, out: Path | None, trials: int) -> str:
    if out is not None and out.exists():
        took = [entry.seconds for entry in open_folder(out).ledger if entry.is_valid and entry.seconds]
        if took:
            mean = sum(took) / len(took)
            return f"{len(took)} have run in {mean:.1f} s each: about {duration(mean * trials)} for all"
    expected = plan.expected.live_s if venue is Venue.LIVE else plan.expected.simulator_s
    if expected is None:
        return "what a trial takes is not known yet"
    return f"the plan expects {expected:g} s each: about {duration(expected * trials)}"


def _report(given: argparse.Namespace) -> int:
    if given.schema:
        print(json.dumps(json_schema(StudyReport), indent=1))
        return 0
    if given.check is not None:
        read = read_report(given.check.read_text())
        print(f"{given.check}: a report of {read.name} with {len(read.trials)} trials")
        return 0
    if given.study is None:
        return _fail("report needs DIR (or --schema, or --check FILE)", USAGE_CODE)
    if given.html is not None or given.figures is not None:
        check_plots()
    with opened(given.study) as folder:
        report = study_report(folder)
        _write(given, folder, report)
    print("\n".join(summary_lines(report, folder.plan)))
    return 0


def _write(given: argparse.Namespace, folder: Folder, report: StudyReport) -> None:
    if given.json is not None:
        given.json.write_text(report_text(report))
    if given.html is not None:
        given.html.write_text(html_page(report, folder.plan))
    if given.figures is not None:
        given.figures.mkdir(parents=True, exist_ok=True)
        for picture in pictures(report, folder.plan):
            for form in ("svg", "png"):
                (given.figures / f"{picture.name}.{form}").write_bytes(drawn(picture, form))


def _decisions(given: argparse.Namespace) -> int:
    with opened(given.study) as folder:
        there = [trial for trial in matrix(folder.plan) if folder.trial(trial).exists()]
        wanted = [trial for trial in there if given.trial in (None, trial.name)]
        if not wanted:
            return _fail(f"no trial is there{f' of the name {given.trial}' if given.trial else ''}", INVALID_CODE)
        for trial in sorted(wanted, key=lambda trial: trial.name):
            evidence = read_evidence(folder.trial(trial))
            print("\n".join(["", trial.name, *passed_over_lines(join(evidence), given.limit)]))
    return 0


def _list(_: argparse.Namespace) -> int:
    rows = [[name, str(len(matrix(plan))), plan.venue.value, plan.question] for name, plan in _ready()]
    print("\n".join(f"{name:<26}{trials:>4} trials  {venue:<10} {question}" for name, trials, venue, question in rows))
    return 0


def _ready() -> list[tuple[str, Plan]]:
    return [(name, ready_plan(name)) for name in ready_names()]


def _pack(given: argparse.Namespace) -> int:
    size = pack(open_folder(given.study), given.file, given.size_max)
    print(f"{given.file}: {size:,} bytes")
    return 0
