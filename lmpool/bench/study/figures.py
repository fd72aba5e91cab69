"""Figures of a report with their intervals, as SVG and PNG. The same report gives the same bytes."""

import importlib
import io
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, TypeAlias

import attrs

from lmpool.bench.study.plan import Plan
from lmpool.bench.study.report import PointReport, StudyReport
from lmpool.bench.study.statistic import Estimate
from lmpool.bench.study.words import metric_name

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

COLOURS = ("#1b6ca8", "#d1495b", "#3a7d44", "#8d6a9f", "#c98a1b", "#4a4e69", "#2a9d8f", "#7f5539")
MARKS = ("o", "s", "^", "D", "v", "P", "X", "*")
ASIDE = 0.012
"""Of an axis, from arm to arm, so that bars do not hide each other."""
SUBPLOT_WIDTH, HEIGHT = 3.8, 3.2
Drawer: TypeAlias = "Callable[[Figure], None]"


class PlotError(Exception):
    """One line: why there are no figures."""


@attrs.frozen
class Picture:
    name: str
    caption: str
    draw: Drawer


@attrs.frozen
class Panel:
    """Points of one subplot, along what varies in it."""

    title: str
    axis: str
    points: tuple[PointReport, ...]


def check_plots() -> None:
    """Raises PlotError."""
    try:
        importlib.import_module("matplotlib.figure")
    except ImportError as error:
        raise PlotError(f"figures need matplotlib ({error}): pip install 'lmpool[plot]'") from error


def pictures(report: StudyReport, plan: Plan) -> Iterator[Picture]:
    """One for each metric that was measured, then ratios to the baseline, then a crossover's."""
    for metric in plan.metrics:
        for is_ratio in (False, True):
            panels = [panel for panel in _panels(report, plan) if _has_values(panel, plan, metric, is_ratio=is_ratio)]
            if panels:
                yield _metric_picture(plan, panels, metric, is_ratio=is_ratio)
    if plan.crossover is not None and any(rung.ratio for one in report.crossover for rung in one.rungs):
        yield Picture(
            "crossover",
            f"{metric_name(plan.crossover.metric)}, ratio to {plan.crossover.against}, by load, up to where an arm no "
            "longer wins: where the whole interval is not on the better side of 1",
            lambda figure: _draw_crossover(figure, report, plan),
        )


def _has_values(panel: Panel, plan: Plan, metric: str, *, is_ratio: bool) -> bool:
    return any(_value(point, arm, metric, is_ratio=is_ratio) for point in panel.points for arm in plan.arms)


def _metric_picture(plan: Plan, panels: Sequence[Panel], metric: str, *, is_ratio: bool) -> Picture:
    about = f"{metric_name(metric)}: " + (
        f"ratio to {plan.baseline}, paired by repetition" if is_ratio else "mean over complete repetitions"
    )
    if metric == "reuse" and not is_ratio:
        about += "; dashed: what the trace itself allows"
    return Picture(
        f"{metric}_ratio" if is_ratio else metric,
        f"{about}. Bars are 95 % intervals.",
        lambda figure: _draw_metric(figure, plan, panels, metric, is_ratio=is_ratio),
    )


def _panels(report: StudyReport, plan: Plan) -> list[Panel]:
    """Budgets along the axis where there are several, else loads, else nothing but the arms."""
    if len(plan.budget.values) > 1:
        axis = "KV budget, share of the blocks at the end" if plan.budget.shares else "KV budget, blocks"
        places = list(dict.fromkeys((point.workload, point.rate) for point in report.points))
        return [
            Panel(
                f"{name}, load {rate:g}",
                axis,
                tuple(point for point in report.points if (point.workload, point.rate) == (name, rate)),
            )
            for name, rate in places
        ]
    names = list(dict.fromkeys(point.workload for point in report.points))
    has_loads = any(len(workload.rates) > 1 for workload in plan.workload)
    return [
        Panel(name, "load" if has_loads else "", tuple(point for point in report.points if point.workload == name))
        for name in names
    ]


def _value(point: PointReport, arm: str, metric: str, *, is_ratio: bool) -> Estimate | None:
    for one in point.arms:
        for found in one.metrics:
            if (one.arm, found.metric) == (arm, metric):
                return found.ratio if is_ratio else found.value
    return None


def _draw_metric(figure: "Figure", plan: Plan, panels: Sequence[Panel], metric: str, *, is_ratio: bool) -> None:
    figure.set_size_inches(max(SUBPLOT_WIDTH * len(panels), 5.0), HEIGHT)
    rows = figure.subplots(1, len(panels), squeeze=False, sharey=is_ratio)
    for place, (axes, panel) in enumerate(zip(rows[0], panels, strict=True)):
        for number, arm in enumerate(plan.arms):
            _draw_arm(axes, plan, panel, number, [_value(one, arm, metric, is_ratio=is_ratio) for one in panel.points])
        if is_ratio:
            axes.axhline(1.0, color="black", linewidth=0.8)
        elif metric == "reuse":
            _draw_allowed(axes, panel)
        axes.set_title(panel.title, fontsize=9)
        axes.set_xlabel(panel.axis)
        if not panel.axis:
            axes.set_xticks(range(len(plan.arms)), plan.arms, rotation=35, ha="right")
            axes.set_xlim(-0.5, len(plan.arms) - 0.5)
        if place == 0:
            axes.set_ylabel(metric_name(metric) + (f" / {plan.baseline}" if is_ratio else ""))
        if not is_ratio:
            axes.set_ylim(bottom=0)
    if panels and panels[0].axis:
        figure.legend(*rows[0][0].get_legend_handles_labels(), loc="outside lower center", ncols=4, fontsize=8)


def _draw_arm(axes: "Axes", plan: Plan, panel: Panel, number: int, found: Sequence[Estimate | None]) -> None:
    kept = [(point, one) for point, one in zip(panel.points, found, strict=True) if one is not None]
    if not kept:
        return
    if not panel.axis:
        places: list[float] = [number]
    else:
        by_budget = len(plan.budget.values) > 1
        places = [point.budget if by_budget else point.rate for point, _ in kept]
        aside = ASIDE * (max(places) - min(places)) * (number - (len(plan.arms) - 1) / 2)
        places = [place + aside for place in places]
    axes.errorbar(
        places,
        [one.mean for _, one in kept],
        yerr=_bars([one for _, one in kept]),
        color=COLOURS[number % len(COLOURS)],
        marker=MARKS[number % len(MARKS)],
        markersize=4,
        linewidth=1.2,
        capsize=2.5,
        label=plan.arms[number],
    )


def _bars(found: Sequence[Estimate]) -> list[list[float]]:
    """Below and above the mean. Without an interval there is none to draw."""
    return [
        [0.0 if one.low is None else one.mean - one.low for one in found],
        [0.0 if one.high is None else one.high - one.mean for one in found],
    ]


def _draw_allowed(axes: "Axes", panel: Panel) -> None:
    allowed = [point.token_sharing for point in panel.points if point.complete]
    if allowed:
        axes.axhline(sum(allowed) / len(allowed), color="black", linestyle="--", linewidth=0.8)


def _draw_crossover(figure: "Figure", report: StudyReport, plan: Plan) -> None:
    names = list(dict.fromkeys(one.workload for one in report.crossover))
    figure.set_size_inches(max(SUBPLOT_WIDTH * len(names), 5.0), HEIGHT)
    rows = figure.subplots(1, len(names), squeeze=False, sharey=True)
    for axes, name in zip(rows[0], names, strict=True):
        for one in (one for one in report.crossover if one.workload == name):
            number = plan.arms.index(one.arm)
            tried = [(rung.rate, rung.ratio) for rung in one.rungs if rung.ratio is not None]
            axes.errorbar(
                [rate for rate, _ in tried],
                [found.mean for _, found in tried],
                yerr=_bars([found for _, found in tried]),
                color=COLOURS[number % len(COLOURS)],
                marker=MARKS[number % len(MARKS)],
                markersize=4,
                capsize=2.5,
                label=one.arm,
            )
        axes.axhline(1.0, color="black", linewidth=0.8)
        axes.set_title(name, fontsize=9)
        axes.set_xlabel("load")
    rows[0][0].set_ylabel("ratio")
    figure.legend(*rows[0][0].get_legend_handles_labels(), loc="outside lower center", ncols=4, fontsize=8)


def drawn(picture: Picture, form: str) -> bytes:
    """`form`: svg or png. Without dates and versions in it."""
    import matplotlib as mpl  # noqa: PLC0415 (an extra)
    from matplotlib.figure import Figure  # noqa: PLC0415

    with mpl.rc_context():
        mpl.rcdefaults()
        mpl.rc("svg", hashsalt="lmpool", fonttype="none")
        mpl.rc("font", family="DejaVu Sans", size=9)
        figure = Figure(layout="constrained")
        picture.draw(figure)
        out = io.BytesIO()
        empty = {"Date": None, "Creator": None} if form == "svg" else {"Software": None}
        figure.savefig(out, format=form, metadata=empty, dpi=150)
    return out.getvalue()
