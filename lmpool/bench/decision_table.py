"""`lmpool bench decision`: the measured cost of decisions as a table against its bounds."""

import argparse
import json
from collections.abc import Sequence
from pathlib import Path

import attrs
from tqdm import tqdm

from lmpool.bench.decision import BOUND_HASH_BYTES, BOUND_INGEST_US, BOUNDS_US, PARTS, DecisionRow, Measured, measure
from lmpool.bench.flags import output_or_dash, profiled
from lmpool.bench.table import table_lines
from lmpool.core.route import POLICIES

QUICK = {"resident": 100_000, "repeats": 500}


def main(arguments: Sequence[str]) -> int:
    """The exit code: 1 if a bound is passed."""
    parser = argparse.ArgumentParser("lmpool bench decision", description=__doc__, allow_abbrev=False)
    parser.add_argument("--policy", choices=tuple(POLICIES), default="default")
    parser.add_argument("--resident", type=int, default=1_000_000, metavar="N", help="hashes (default %(default)s)")
    parser.add_argument("--repeats", type=int, default=2_000, metavar="N", help="of each figure (default %(default)s)")
    parser.add_argument("--seed", type=int, default=1, metavar="S")
    parser.add_argument(
        "--json",
        type=output_or_dash,
        metavar="FILE",
        help="write the figures there as well; -: only them, to the output",
    )
    given = profiled(parser, QUICK, arguments)
    with tqdm(total=PARTS, desc="parts", unit="part") as bar:
        measured = measure(given.policy, given.resident, given.repeats, given.seed, bar.update)
    figures = json.dumps(attrs.asdict(measured), indent=1)
    if given.json == "-":
        print(figures)
        return 0 if measured.is_within else 1
    if given.json:
        Path(given.json).write_text(figures + "\n")
    for line in report_lines(measured):
        print(line)
    return 0 if measured.is_within else 1


def report_lines(measured: Measured) -> list[str]:
    columns = ("ranks", "blocks", "p50", "p99", "bound", "booked p50", "p99", "bound", "")
    return [
        *table_lines(columns, [_cells(row) for row in measured.decision]),
        "Microseconds per decision, without and with its booking; medians must stay below their bounds.",
        "",
        f"{measured.queries_per_s:,.0f} questions per second from frame to frame (8 ranks, 40 blocks)",
        f"{measured.ingest_p50_us:,.0f} us for a report of 1,000 blocks"
        f" (p99 {measured.ingest_p99_us:,.0f}, bound {BOUND_INGEST_US:,.0f})",
        f"{measured.bytes_per_hash:.1f} bytes of page table per hash"
        f" (at most {measured.peak_bytes_per_hash:.1f}, bound {BOUND_HASH_BYTES:.0f})",
    ]


def _cells(row: DecisionRow) -> list[str]:
    alone, booked = [f"{bound:.0f}" for bound in BOUNDS_US.get((row.ranks, row.blocks), ())] or ("-", "-")
    times = [f"{time:.1f}" for time in (row.p50_us, row.p99_us, row.booked_p50_us, row.booked_p99_us)]
    verdict = "" if row.is_within else "OVER"
    return [f"{row.ranks}", f"{row.blocks:,}", *times[:2], alone, *times[2:], booked, verdict]
