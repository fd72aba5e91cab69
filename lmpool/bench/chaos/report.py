"""The figures of a chaos, as a document for programs and as lines for people."""

from collections.abc import Mapping, Sequence

import attrs

from lmpool.bench.chaos.leaks import Leaks
from lmpool.bench.chaos.soak import Sample, Trend, sample_lines, trend_lines
from lmpool.bench.chaos.tally import Fate, Tally
from lmpool.bench.table import table_lines


@attrs.frozen
class Report:
    seconds: float
    """Of the load."""
    seed: int
    tally: Tally
    strikes: Mapping[str, int]
    skipped: int
    """Strikes that the pool was not ready for in time."""
    kills: Mapping[str, int]
    """By kind of process."""
    crashes: Sequence[str]
    """Processes that ended and nobody here had struck them."""
    has_recovered: bool
    """Every replica served again in the end."""
    leaks: Leaks
    exit_code: int | None
    """Of the server after TERM; None if it had to be killed."""
    resumed: int
    """Prompts that went on after the loss of their worker, as the last ingress counts them."""
    samples: Sequence[Sample]
    trends: Sequence[Trend]
    """Only of a run without strikes."""

    @property
    def faults(self) -> list[str]:
        """Empty if all is well."""
        fates = self.tally.fates
        found = [f"{fates[fate]} {fate.value}" for fate in (Fate.WRONG, Fate.LOST) if fates[fate]]
        found += [f"{count} {name} left" for name, count in attrs.asdict(self.leaks).items() if count]
        found += [f"{name} ended of its own accord" for name in self.crashes]
        found += [f"{trend.name} grows" for trend in self.trends if not trend.is_flat]
        if not self.has_recovered:
            found.append("not every replica served again")
        if self.exit_code != 0:
            found.append(f"the server ended with {self.exit_code} after TERM")
        if not fates[Fate.COMPLETED]:
            found.append("no answer at all")
        return found


def report_document(report: Report) -> Mapping[str, object]:
    tally = report.tally
    return {
        "accepted": tally.accepted,
        **{fate.value: tally.fates[fate] for fate in Fate},
        "differing": tally.differing,
        "refusals": dict(sorted(tally.refusals.items())),
        **{f"leaked_{name}": count for name, count in _leaks(report.leaks).items()},
        "crashes": list(report.crashes),
        "kills": dict(report.kills),
        "strikes": dict(report.strikes),
        "strikes_skipped": report.skipped,
        "resumed": report.resumed,
        "longest_gap_s": round(tally.longest_gap_s, 3),
        "seconds": round(report.seconds, 1),
        "seed": report.seed,
        "exit_code": report.exit_code,
        "faults": report.faults,
        "details": tally.details,
        "trends": [{**attrs.asdict(trend), "is_flat": trend.is_flat} for trend in report.trends],
    }


def _leaks(leaks: Leaks) -> Mapping[str, int]:
    return {"fds" if name == "descriptors" else name: count for name, count in attrs.asdict(leaks).items()}


def report_lines(report: Report) -> list[str]:
    tally = report.tally
    rows = [["accepted", str(tally.accepted)]]
    rows += [[fate.value.replace("_", " "), str(tally.fates[fate])] for fate in Fate]
    rows += [["other text than undisturbed", str(tally.differing)]]
    rows += [[f"  {kind}", str(count)] for kind, count in sorted(tally.refusals.items())]
    lines = table_lines(("requests", ""), rows)
    lines += ["", *table_lines(("strikes", ""), [[blow, str(count)] for blow, count in sorted(report.strikes.items())])]
    if report.skipped:
        lines.append(f"{report.skipped} more were left out: the pool had not recovered in time")
    lines += [
        "",
        *table_lines(("left behind", ""), [[name, str(count)] for name, count in _leaks(report.leaks).items()]),
    ]
    if report.samples:
        lines += ["", *sample_lines(report.samples)]
    if report.trends:
        lines += ["", *trend_lines(report.trends)]
    lines += ["", f"longest gap in a stream: {tally.longest_gap_s:.2f} s"]
    lines += [*tally.details, *(f"FAULT: {fault}" for fault in report.faults)]
    verdict = "all well" if not report.faults else f"{len(report.faults)} faults"
    return [*lines, f"{report.seconds:.0f} s with seed {report.seed}: {verdict}"]
