"""What a measurement of data paths has found: as a table, as JSON, as a picture."""

import importlib
import json
from collections.abc import Sequence
from pathlib import Path

import attrs

from lmpool.bench.table import table_lines

INDEXED_BOUND = (8 << 20, 0.85)
FLAT_BOUND = (64 << 20, 0.8)
"""Bytes from which the shared-memory path should have that share of a plain copy's rate."""
ADDS_BOUND = (8, 0.003)
"""Blocks up to which a whole transfer should take at most so much longer than its copy, on an idle machine."""

COLUMNS = (
    "path",
    "pair",
    "blocks",
    "MiB",
    "p50 ms",
    "p95 ms",
    "GB/s",
    "indexed",
    "runs ms",
    "flat",
    "scattered flat",
    "whole ms",
    "p95 ms",
    "adds ms",
    "",
)
PICTURES = (".png", ".svg", ".pdf")


class PlotError(Exception):
    """One line: why there is no picture."""


@attrs.frozen
class Point:
    """One path on one pair at one size. Shares are rates over those of the fastest plain copy in the same run."""

    path: str
    pair: tuple[int, int]
    blocks: int
    bytes: int
    p50_s: float
    p95_s: float
    """Of scattered blocks, from the order to the last byte."""
    indexed_copy_share: float
    """Scattered blocks, over a copy of the same blocks between two pools of one process."""
    flat_copy_share: float
    """Blocks that are one run at either end, over one contiguous copy of as many bytes."""
    transaction_p50_s: float | None
    """Of whole transfers between workers. None, as the next two: workers cannot use the path."""
    transaction_p95_s: float | None
    transaction_adds_p50_s: float | None
    """What a whole transfer takes beside its own copy."""
    runs_p50_s: float
    scattered_flat_copy_share: float
    """Scattered blocks over the contiguous copy: only told."""
    indexed_copy: str
    flat_copy: str
    """Which of the plain copies was the fastest."""

    @property
    def is_within(self) -> bool:
        if self.path != "shm":
            return True
        is_indexed_well = self.bytes < INDEXED_BOUND[0] or self.indexed_copy_share >= INDEXED_BOUND[1]
        return is_indexed_well and (self.bytes < FLAT_BOUND[0] or self.flat_copy_share >= FLAT_BOUND[1])

    @property
    def is_quick(self) -> bool:
        """Whether the transaction adds no more than it should."""
        adds_s = self.transaction_adds_p50_s
        return adds_s is None or self.blocks > ADDS_BOUND[0] or adds_s < ADDS_BOUND[1]


@attrs.frozen
class Curve:
    """A run: its points, and what they were measured with."""

    points: list[Point]
    left_out: dict[str, str]
    """Paths that this machine has not, and why."""
    layers: int
    block_size: int
    kv_heads: int
    head_dim: int
    dtype: str
    threads: int
    rounds: int
    chunk_bytes: dict[str, int]
    is_summed: bool
    cold_bytes: int
    seed: int


def json_text(curve: Curve) -> str:
    return json.dumps(attrs.asdict(curve), indent=1)


def report_lines(curve: Curve) -> list[str]:
    return [
        *table_lines(COLUMNS, [_cells(point) for point in curve.points]),
        "Every copy was checked byte by byte. indexed: share of the fastest copy of the same scattered blocks inside",
        "one process; flat: share that one run of blocks has of one contiguous copy; scattered flat: only told. whole:",
        "a transfer between two workers, from its order until control heard that it is published; adds: what that took",
        f"beside its own copy, SLOW where more than {ADDS_BOUND[1] * 1e3:.0f} ms for up to {ADDS_BOUND[0]} blocks.",
        *(f"{path}: not measured, {why}" for path, why in curve.left_out.items()),
    ]


def _cells(point: Point) -> list[str]:
    return [
        point.path,
        f"{point.pair[0]}>{point.pair[1]}",
        f"{point.blocks}",
        f"{point.bytes / (1 << 20):.1f}",
        f"{point.p50_s * 1e3:.3f}",
        f"{point.p95_s * 1e3:.3f}",
        f"{point.bytes / point.p50_s / 1e9:.2f}",
        f"{point.indexed_copy_share:.2f}",
        f"{point.runs_p50_s * 1e3:.3f}",
        f"{point.flat_copy_share:.2f}",
        f"{point.scattered_flat_copy_share:.2f}",
        _ms(point.transaction_p50_s),
        _ms(point.transaction_p95_s),
        _ms(point.transaction_adds_p50_s),
        " ".join(word for word, holds in (("BELOW", point.is_within), ("SLOW", point.is_quick)) if not holds),
    ]


def _ms(seconds: float | None) -> str:
    return "" if seconds is None else f"{seconds * 1e3:.3f}"


def check_plot(path: Path) -> None:
    """Before a long run whether it can be drawn at all. Raises PlotError."""
    if path.suffix not in PICTURES:
        raise PlotError(f"--plot {path}: the name should end in {', '.join(PICTURES)}")
    try:
        importlib.import_module("matplotlib.figure")
    except ImportError as error:
        raise PlotError(f"--plot needs matplotlib ({error}): pip install 'lmpool[plot]'") from error


def plot(curve: Curve, path: Path) -> None:
    from matplotlib.figure import Figure  # noqa: PLC0415 (an extra)

    figure = Figure(figsize=(11, 4.5), layout="constrained")
    times, rates = figure.subplots(1, 2)
    for (name, pair), points in _curves(curve.points).items():
        sizes = [point.bytes / (1 << 20) for point in points]
        (line,) = times.plot(
            sizes, [point.p50_s * 1e3 for point in points], marker="o", label=f"{name} {pair[0]}>{pair[1]}"
        )
        times.plot(sizes, [point.p95_s * 1e3 for point in points], linestyle=":", color=line.get_color())
        rates.plot(sizes, [point.bytes / point.p50_s / 1e9 for point in points], marker="o", color=line.get_color())
        runs = [point.bytes / point.runs_p50_s / 1e9 for point in points]
        rates.plot(sizes, runs, marker="s", linestyle="--", color=line.get_color())
    for axes, label in ((times, "ms (line: median, dots: p95)"), (rates, "GB/s (line: scattered, dashes: one run)")):
        axes.set_xscale("log", base=2)
        axes.set_xlabel("MiB")
        axes.set_ylabel(label)
        axes.grid(visible=True, alpha=0.3)
    times.set_yscale("log")
    times.legend(fontsize="small")
    figure.savefig(path)


def _curves(points: Sequence[Point]) -> dict[tuple[str, tuple[int, int]], list[Point]]:
    curves: dict[tuple[str, tuple[int, int]], list[Point]] = {}
    for point in points:
        curves.setdefault((point.path, point.pair), []).append(point)
    return curves
