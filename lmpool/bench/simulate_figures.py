"""What a simulation has found: as a table, as JSON, as a picture."""

import importlib
import json
from collections.abc import Sequence
from pathlib import Path

import attrs

from lmpool.bench.table import table_lines
from lmpool.core.ids import MILLISECOND, SECOND
from lmpool.core.messages.transfer import PlacementShown
from lmpool.sim.bounds import Bounds
from lmpool.sim.rack import RackSettings
from lmpool.sim.replay import Replayed
from lmpool.sim.trace import Trace

COLUMNS = (
    "policy",
    "reuse",
    "computed",
    "ttft s",
    "p50",
    "p99",
    "tpot ms",
    "e2e s",
    "p99",
    "busy",
    "refused",
    "preempted",
    "wall s",
)
PICTURES = (".png", ".svg", ".pdf")


class PlotError(Exception):
    """One line: why there is no picture."""


@attrs.frozen
class Run:
    figures: Replayed
    wall_s: float
    """Of this machine; everything else is virtual."""
    explained: list[str]


@attrs.frozen
class Study:
    trace: Trace
    rack: RackSettings
    seed: int
    bounds: Bounds
    runs: list[Run]


def table(study: Study) -> list[str]:
    trace, rack, most = study.trace, study.rack, study.bounds
    span_s = trace.span_ns / SECOND
    return [
        f"{trace.name}: {len(trace.requests):,} requests, arrivals over {span_s:,.0f} s, "
        f"fingerprint {trace.fingerprint}",
        f"{rack.replicas} replicas of {rack.kv_blocks:,} blocks of {rack.block_size} tokens, seed {study.seed}",
        f"reuse at most {most.pooled:.3f} with one pooled cache (least frequent with ageing; {most.pooled_lru:.3f} by "
        f"recency), {most.infinite:.3f} without end",
        "",
        *table_lines(COLUMNS, [_row(run) for run in study.runs]),
        *[line for run in study.runs for line in placement_lines(run.figures)],
    ]


def placement_lines(figures: Replayed) -> list[str]:
    """What was begun and what not, and how well it was predicted."""
    shown = figures.placement
    if shown is None:
        return []
    blocks = dict(shown.blocks)
    begun = [f"{occasion} {count} ({blocks[occasion]:,} blocks)" for occasion, count in shown.admitted if count]
    refused = [f"{occasion} {gate} {count}" for occasion, gate, count in shown.refused]
    return [
        "",
        f"{figures.policy}, transfers begun: {', '.join(begun) or 'none'}",
        f"  refused: {', '.join(refused) or 'none'}",
        f"  {_prediction(shown)}",
    ]


def _prediction(shown: PlacementShown) -> str:
    if not shown.observed:
        return "none was published"
    took, error = (total / shown.observed / MILLISECOND for total in (shown.observed_ns, shown.error_ns))
    return (
        f"published {shown.observed}, each {took:.1f} ms, {error:.1f} ms from the predicted median; "
        f"{shown.over_p95} over the P95"
    )


def _row(run: Run) -> Sequence[str]:
    figures = run.figures
    return (
        figures.policy,
        f"{figures.reuse:.3f}",
        f"{figures.computed_prefill_tokens:,}",
        f"{figures.ttft_s.mean:.3f}",
        f"{figures.ttft_s.p50:.3f}",
        f"{figures.ttft_s.p99:.3f}",
        f"{figures.tpot_s.mean * 1e3:.2f}",
        f"{figures.e2e_s.mean:.2f}",
        f"{figures.e2e_s.p99:.2f}",
        str(figures.busy),
        str(figures.refused),
        str(figures.preemptions),
        f"{run.wall_s:.1f}",
    )


def json_text(study: Study) -> str:
    """Wall time is not in it: equal runs have equal files."""
    trace = study.trace
    return json.dumps(
        {
            "trace": trace.name,
            "fingerprint": trace.fingerprint,
            "requests": len(trace.requests),
            "arrivals_s": trace.span_ns / SECOND,
            "seed": study.seed,
            "rack": attrs.asdict(study.rack) | {"prefill_order": study.rack.prefill_order.value},
            "bounds": attrs.asdict(study.bounds),
            "runs": [attrs.asdict(run.figures) for run in study.runs],
        },
        indent=1,
    )


def check_plot(path: Path) -> None:
    """Before a long run whether it can be drawn at all. Raises PlotError."""
    if path.suffix not in PICTURES:
        raise PlotError(f"--plot {path}: the name should end in {', '.join(PICTURES)}")
    try:
        importlib.import_module("matplotlib.figure")
    except ImportError as error:
        raise PlotError(f"--plot needs matplotlib ({error}): pip install 'lmpool[plot]'") from error


def plot(study: Study, path: Path) -> None:
    from matplotlib.figure import Figure  # noqa: PLC0415 (an extra)

    names = [run.figures.policy for run in study.runs]
    places = list(range(len(names)))
    figure = Figure(figsize=(13, 1.5 + 0.35 * len(names)), layout="constrained")
    reuse, first, whole = figure.subplots(1, 3, sharey=True)
    reuse.barh(places, [run.figures.reuse for run in study.runs], color="#4c72b0")
    reuse.axvline(study.bounds.pooled, color="black", linestyle="--", label="one pooled cache")
    reuse.axvline(study.bounds.infinite, color="black", linestyle=":", label="endless cache")
    reuse.legend(fontsize="small")
    reuse.set_xlabel("reused share of prompt tokens")
    for axes, label, spreads in (
        (first, "time to first token, s", [run.figures.ttft_s for run in study.runs]),
        (whole, "time to last token, s", [run.figures.e2e_s for run in study.runs]),
    ):
        axes.barh(places, [spread.p99 for spread in spreads], color="#dddddd", label="p99")
        axes.barh(places, [spread.mean for spread in spreads], color="#4c72b0", height=0.5, label="mean")
        axes.set_xlabel(label)
        axes.legend(fontsize="small")
    reuse.set_yticks(places, names)
    reuse.invert_yaxis()
    figure.suptitle(f"{study.trace.name}: {len(study.trace.requests):,} requests, {study.rack.replicas} replicas")
    figure.savefig(path)
