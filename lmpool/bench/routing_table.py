"""How a policy stands against the best known one, entry by entry: a cell, a load and a figure, mean over seeds.

Three times: routing alone against what is known without copies of blocks, on the same replicas; with copies against all
that is known; and ours against what is known on replicas that take prompts one after the other, as other servers do.
"""

from collections.abc import Mapping, Sequence
from math import exp, log
from statistics import fmean
from typing import TypeAlias

import attrs

from lmpool.bench.routing_cells import IN_ARRIVAL_ORDER, WITH_COPIES
from lmpool.bench.table import table_lines

OURS = "marginal-time"
OURS_WITH_COPIES = "marginal-time+copies"
OURS_IN_ARRIVAL_ORDER = "marginal-time+arrival"
METRICS: dict[str, tuple[str, str]] = {
    "ttft mean": ("ttft_s", "mean"),
    "ttft p99": ("ttft_s", "p99"),
    "e2e mean": ("e2e_s", "mean"),
    "e2e p99": ("e2e_s", "p99"),
}
"""With the place of each in a run's figures."""
MEAN_MAX, P99_MAX = 1.10, 1.20
"""Ratios to the best known policy from which on an entry is listed."""

Entry: TypeAlias = tuple[str, float, str]
"""Cell, load, metric."""


@attrs.frozen
class Measured:
    cell: str
    load: float
    seed: int
    policy: str
    figures: Mapping[str, object]


def entries(runs: Sequence[Measured]) -> dict[Entry, dict[str, float]]:
    """By policy the mean over the seeds that every policy of the entry has."""
    values: dict[tuple[str, float], dict[str, dict[int, Measured]]] = {}
    for run in runs:
        values.setdefault((run.cell, run.load), {}).setdefault(run.policy, {})[run.seed] = run
    found: dict[Entry, dict[str, float]] = {}
    for (cell, load), policies in values.items():
        first, *others = [dict.fromkeys(seeds) for seeds in policies.values()]
        paired = [seed for seed in first if all(seed in other for other in others)]
        if not paired:
            continue
        for metric in METRICS:
            found[cell, load, metric] = {
                policy: fmean(value_of(seeds[seed], metric) for seed in paired) for policy, seeds in policies.items()
            }
    return found


def value_of(run: Measured, metric: str) -> float:
    figure, part = METRICS[metric]
    spread = run.figures[figure]
    assert isinstance(spread, dict)
    return float(spread[part])


def best_known(policies: Mapping[str, float]) -> tuple[float, str]:
    return min((value, policy) for policy, value in policies.items() if _is_known(policy))


def _is_known(policy: str) -> bool:
    return policy not in (OURS, OURS_WITH_COPIES, OURS_IN_ARRIVAL_ORDER)


def ratios(found: Mapping[Entry, Mapping[str, float]], policy: str) -> dict[Entry, float]:
    """To the best known policy of each entry."""
    return {entry: values[policy] / best_known(values)[0] for entry, values in found.items() if policy in values}


def geometric_mean(values: Sequence[float]) -> float:
    return exp(fmean(map(log, values)))


def report(runs: Sequence[Measured]) -> list[str]:
    served_alike = [run for run in runs if run.policy not in IN_ARRIVAL_ORDER]
    alone = [run for run in served_alike if run.policy not in WITH_COPIES]
    lines = _section("routing alone", alone, OURS)
    if len(alone) < len(served_alike):
        lines += ["", "", *_section("with copies of blocks", served_alike, OURS_WITH_COPIES)]
    if len(served_alike) < len(runs):
        against_usual = [run for run in runs if run.policy in (OURS, *IN_ARRIVAL_ORDER)]
        lines += ["", "", *_section("known policies on replicas in order of arrival", against_usual, OURS)]
    return lines


def _section(title: str, runs: Sequence[Measured], ours: str) -> list[str]:
    found = {entry: values for entry, values in entries(runs).items() if ours in values and any(map(_is_known, values))}
    if not found:
        missing = f"no entry that {ours} and a known policy have in common"
        return [f"{title}: nothing to compare yet: {len(runs)} runs, and {missing}"]
    mine = ratios(found, ours)
    return [
        f"{title} ({len(runs)} runs)",
        "",
        f"{ours} over the best known policy of each entry",
        *_entry_lines(found, mine),
        "",
        f"each policy over the best known one, and {ours} over each policy, geometric means over the entries",
        *_policy_lines(found, ours),
        "",
        *_listed_lines(found, mine, ours),
    ]


def _entry_lines(found: Mapping[Entry, Mapping[str, float]], mine: Mapping[Entry, float]) -> list[str]:
    places = list(dict.fromkeys((cell, load) for cell, load, _ in found))
    rows = []
    for cell, load in places:
        cells = [f"{cell} {load:g}"]
        for metric in METRICS:
            best = best_known(found[cell, load, metric])[1]
            cells += [f"{mine[cell, load, metric]:.3f}", best]
        rows.append(cells)
    columns = ["cell, load"]
    for metric in METRICS:
        columns += [metric, "best"]
    return table_lines(columns, rows)


def _policy_lines(found: Mapping[Entry, Mapping[str, float]], ours: str) -> list[str]:
    rows = []
    for policy in dict.fromkeys(policy for values in found.values() for policy in values):
        mine = ratios(found, policy)
        by_metric = [
            geometric_mean([ratio for entry, ratio in mine.items() if entry[2] == metric]) for metric in METRICS
        ]
        against = geometric_mean([values[ours] / values[policy] for values in found.values() if policy in values])
        rows.append((geometric_mean(list(mine.values())), policy, [*by_metric, against]))
    rows.sort()
    cells = [[policy, f"{whole:.3f}", *(f"{mean:.3f}" for mean in means)] for whole, policy, means in rows]
    return table_lines(["policy", "all", *METRICS, "ours over it"], cells)


def _listed_lines(found: Mapping[Entry, Mapping[str, float]], mine: Mapping[Entry, float], ours: str) -> list[str]:
    listed = [(entry, ratio) for entry, ratio in mine.items() if ratio > bound(entry)]
    lines = [f"{len(listed)} of {len(mine)} entries above {MEAN_MAX:g} (means) or {P99_MAX:g} (p99)"]
    for (cell, load, metric), ratio in sorted(listed, key=lambda pair: -pair[1]):
        value, best = best_known(found[cell, load, metric])
        seconds = found[cell, load, metric][ours]
        lines.append(f"  {cell} {load:g} {metric}: {ratio:.3f} ({seconds:.3f} s; {best} {value:.3f} s)")
    return lines


def bound(entry: Entry) -> float:
    return MEAN_MAX if entry[2].endswith("mean") else P99_MAX
