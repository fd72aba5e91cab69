"""`lmpool bench decision`: the measured cost of decisions as a table against its bounds."""

import argparse
import json
from collections.abc import Sequence

import attrs

from lmpool.bench.decision import DecisionRow, measure
from lmpool.core.route import POLICIES


def main(arguments: Sequence[str]) -> int:
    """The exit code: 1 if a bound is passed."""
    parser = argparse.ArgumentParser("lmpool bench decision", description=__doc__, allow_abbrev=False)
    parser.add_argument("--policy", choices=tuple(POLICIES), default="default")
    parser.add_argument("--resident", type=int, default=1_000_000, metavar="N", help="hashes (default %(default)s)")
    parser.add_argument("--repeats", type=int, default=2_000, metavar="N", help="of each figure (default %(default)s)")
    parser.add_argument("--seed", type=int, default=1, metavar="S")
    parser.add_argument("--json", action="store_true", help="one JSON object a row")
    given = parser.parse_args(arguments)
    rows = measure(given.policy, given.resident, given.repeats, given.seed)
    for line in [json.dumps(attrs.asdict(row)) for row in rows] if given.json else table_lines(rows):
        print(line)
    return 0 if all(row.is_within for row in rows) else 1


def table_lines(rows: Sequence[DecisionRow]) -> list[str]:
    head = f"{'what':<28}{'blocks':>8}{'median':>11}{'p99':>11}{'bound':>11}  unit"
    return [head, *(_line(row) for row in rows)]


def _line(row: DecisionRow) -> str:
    verdict = "" if row.is_within else "  OVER"
    return (
        f"{row.what:<28}{row.chain_blocks:>8}{row.median:>11.1f}{row.p99:>11.1f}{row.bound:>11.1f}  {row.unit}{verdict}"
    )
