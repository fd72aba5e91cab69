"""A picture of `lmpool bench e2e`: figures of every arm on every workload, with their intervals."""

from pathlib import Path
from typing import TYPE_CHECKING

from lmpool.bench.e2e_report import ArmFigures, E2EReport

if TYPE_CHECKING:
    from matplotlib.axes import Axes

DRAWN = {
    "throughput": "output tokens a second",
    "ttft_mean_s": "time to first token, s",
    "e2e_p90_s": "P90 of time to last token, s",
    "uncached_tokens": "uncached prompt tokens",
}
COLOURS = ("#999999", "#4c72b0", "#55a868", "#dd8452", "#c44e52", "#8172b3", "#937860", "#da8bc3")
SALT = "lmpool"
"""Of names inside an SVG, so that equal figures have equal files."""


def plot(shown: E2EReport, path: Path) -> None:
    """Of at least one arm."""
    import matplotlib as mpl  # noqa: PLC0415 (an extra)
    from matplotlib.figure import Figure  # noqa: PLC0415

    workloads = [workload.name for workload in shown.workloads]
    arms = list(dict.fromkeys(one.arm for one in shown.figures))
    with mpl.rc_context({"svg.hashsalt": SALT}):
        figure = Figure(figsize=(4 + 2.2 * len(workloads), 3 * len(DRAWN)), layout="constrained")
        rows = figure.subplots(len(DRAWN), 1)
        for axes, (metric, label) in zip(rows, DRAWN.items(), strict=True):
            for place, arm in enumerate(arms):
                _bars(axes, [one for one in shown.figures if one.arm == arm], metric, workloads, place, len(arms))
            axes.set_xticks(range(len(workloads)), workloads)
            axes.set_ylabel(label)
            axes.set_ylim(bottom=0)
        figure.legend(*rows[0].get_legend_handles_labels(), loc="outside lower center", ncols=len(arms))
        figure.suptitle(f"{shown.venue}, {shown.replicas} replicas, {shown.repetitions} repetitions, 95 % intervals")
        figure.savefig(path, metadata=None if path.suffix == ".png" else {_DATES[path.suffix]: None})


_DATES = {".svg": "Date", ".pdf": "CreationDate"}


def _bars(axes: "Axes", own: list[ArmFigures], metric: str, workloads: list[str], place: int, arms: int) -> None:
    found = [(workloads.index(one.workload), one.figures[metric]) for one in own if metric in one.figures]
    width = 0.8 / arms
    axes.bar(
        [at + (place - (arms - 1) / 2) * width for at, _ in found],
        [figure.mean for _, figure in found],
        width,
        yerr=[figure.half or 0.0 for _, figure in found],
        capsize=2,
        color=COLOURS[place % len(COLOURS)],
        label=own[0].arm,
    )
