"""What a person reads of runs of the load client, and the log of their requests."""

import json
from collections.abc import Sequence

import attrs

from lmpool.bench.load.figures import Figures, Spread
from lmpool.bench.load.measured import Measured
from lmpool.bench.load.run import LoadReport, LoadRun
from lmpool.bench.table import table_lines

COLUMNS = ("ms", "requests", "mean", "p50", "p90", "p95", "p99", "most")


def report_lines(report: LoadReport) -> list[str]:
    lines = [f"{report.model} at {report.url}"]
    for run in report.runs:
        lines += ["", *_run_lines(run)]
    return lines


def _run_lines(run: LoadRun) -> list[str]:
    given, found, cache = run.input, run.figures, run.cache
    loop = "closed loop" if given.is_closed_loop else "open loop"
    bound = f", at most {given.in_flight_max} in flight" if given.in_flight_max is not None else ""
    exact = "" if given.are_lengths_exact else " (lengths are estimates: no --tokenizer)"
    allows = ", ".join(f"{one.tokens:.1%} in blocks of {one.block_size}" for one in run.sharing)
    reuse = "unknown" if cache.reuse is None else f"{cache.reuse:.1%}"
    lines = [
        f"{given.workload}: seed {given.seed}, scale {given.scale:g}{exact}, {loop}{bound}, {given.fingerprint}",
        f"  {found.successes} of {found.requests} requests succeeded; times are theirs",
        *(f"  {number} x {kind}" for kind, number in found.errors.items()),
        f"  {found.planned_rate:.2f} requests/s planned, {found.reached_rate:.2f} reached; "
        f"{found.in_flight_mean:.1f} in flight, at most {found.in_flight_most}",
        f"  {found.throughput:.1f} output tokens/s, goodput {found.goodput:.1f}; "
        f"{found.prompt_tokens} prompt and {found.output_tokens} output tokens in {found.window_s:.1f} s",
        f"  cache {cache.condition}: {reuse} of prompt tokens reused ({cache.source}); the trace allows {allows}",
        *("  " + line for line in table_lines(COLUMNS, _rows(found))),
    ]
    lines += [f"  NOT VALID: {fault}" for fault in run.faults]
    return lines + [f"  warning: {warning}" for warning in run.warnings]


def _rows(found: Figures) -> list[list[str]]:
    named = {
        "TTFT": found.ttft_s,
        "TTFT of later turns": found.resumed_ttft_s,
        "TPOT": found.tpot_s,
        f"gaps, per {found.itl_per}": found.itl_s,
        "E2E": found.e2e_s,
        "late in sending": found.lateness_s,
    }
    return [[name, *_cells(spread)] for name, spread in named.items() if spread is not None]


def _cells(spread: Spread) -> list[str]:
    times = (spread.mean, spread.p50, spread.p90, spread.p95, spread.p99, spread.most)
    return [str(spread.count), *(f"{seconds * 1e3:.1f}" for seconds in times)]


def written_log(report: LoadReport, logs: Sequence[Sequence[Measured]]) -> str:
    """One JSON object a request and line; moments in nanoseconds of the client's clock."""
    return "".join(
        json.dumps({"workload": run.input.workload, **attrs.asdict(one)}) + "\n"
        for run, log in zip(report.runs, logs, strict=True)
        for one in log
    )
