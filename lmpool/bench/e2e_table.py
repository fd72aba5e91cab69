"""The report of `lmpool bench e2e` for a terminal."""

from collections.abc import Mapping, Sequence

import attrs

from lmpool.bench.e2e_report import HARMS, HELPS, NOT_SHOWN, SAME, Comparison, E2EReport, Figure, WorkloadShown
from lmpool.bench.table import table_lines


@attrs.frozen
class _Column:
    title: str
    metric: str
    factor: float
    digits: int


COLUMNS = (
    _Column("tok/s", "throughput", 1, 1),
    _Column("goodput", "goodput", 1, 1),
    _Column("ttft ms", "ttft_mean_s", 1e3, 0),
    _Column("tpot ms", "tpot_mean_s", 1e3, 1),
    _Column("e2e s", "e2e_mean_s", 1, 3),
    _Column("p90 s", "e2e_p90_s", 1, 3),
    _Column("uncached", "uncached_tokens", 1, 0),
    _Column("preempted", "preemptions", 1, 1),
    _Column("copies", "transfers", 1, 1),
    _Column("fetched", "fetched_routes", 1, 1),
)
TITLES = ("arm", *(column.title for column in COLUMNS), "requests by rank")


def report_lines(shown: E2EReport) -> list[str]:
    return [*_head(shown), *(line for workload in shown.workloads for line in _workload_lines(shown, workload))]


def _head(shown: E2EReport) -> list[str]:
    what = f"model {shown.model or 'as bundled'}" if shown.venue == "live" else f"rates {shown.rates or 'as usual'}"
    lines = [
        f"{shown.venue}, {what}, {shown.replicas} replicas, blocks of {shown.block_size} tokens, all lengths and KV "
        f"budgets x {shown.scale:g}",
        f"means of {shown.repetitions} repetitions ± half of the 95 % interval (Student's t) over repetitions; "
        f"goodput: within {shown.e2e_max_s:g} s; caches cold",
        "arms are judged by the interval of their paired difference, each figure alone: of twenty that are equal, one "
        "seems to differ",
    ]
    return [*lines, *(f"not valid, in no figure: {line}" for line in shown.invalid)]


def _workload_lines(shown: E2EReport, workload: WorkloadShown) -> list[str]:
    rows = [[one.arm, *_cells(one.figures)] for one in shown.figures if one.workload == workload.name]
    window = "" if workload.in_flight_max is None else f", {workload.in_flight_max} in flight"
    return [
        "",
        f"{workload.name}: {workload.requests} requests{window}, {workload.prompt_tokens:,} prompt tokens, "
        f"{workload.kv_blocks} KV blocks a replica; the trace shares {workload.request_sharing:.1%} of requests, "
        f"{workload.token_sharing:.1%} of tokens",
        *table_lines(TITLES, rows),
        *_judgements([one for one in shown.comparisons if one.workload == workload.name], shown.baseline),
    ]


def _cells(figures: Mapping[str, Figure]) -> list[str]:
    cells = [_cell(figures.get(column.metric), column) for column in COLUMNS]
    ranks = [f"{figure.mean:.0f}" for name, figure in figures.items() if name.removeprefix("routed_").isdigit()]
    return [*cells, "/".join(ranks)]


def _cell(figure: Figure | None, column: _Column) -> str:
    if figure is None:
        return "-"
    mean = f"{figure.mean * column.factor:,.{column.digits}f}"
    return mean if not figure.half else f"{mean} ±{figure.half * column.factor:,.{column.digits}f}"


def _judgements(comparisons: Sequence[Comparison], baseline: str) -> list[str]:
    """One line an arm: where it helps, where it harms, and where neither is shown."""
    lines: list[str] = []
    for arm in dict.fromkeys(one.arm for one in comparisons):
        own = [one for one in comparisons if one.arm == arm]
        words = [
            f"{word} in {', '.join(found)}"
            for verdict, word in ((HELPS, "better"), (HARMS, "worse"), (NOT_SHOWN, "no difference shown"))
            if (found := [_change(one) for one in own if one.verdict == verdict])
        ]
        same = [one.metric for one in own if one.verdict == SAME]
        words += [f"equal in {', '.join(same)}"] if same else []
        lines.append(f"  {arm} against {baseline}: {'; '.join(words)}")
    return lines


def _change(one: Comparison) -> str:
    """In percent of the baseline where there is one."""
    if not one.baseline:
        return one.metric
    half = "" if one.half is None else f" ±{one.half / one.baseline:.1%}"
    return f"{one.metric} ({one.difference / one.baseline:+.1%}{half})"
