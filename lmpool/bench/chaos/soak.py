"""Memory, open files and table sizes over time, and whether they stay what they are."""

import asyncio
import re
import time
from collections.abc import Mapping, Sequence
from statistics import fmean

import attrs

from lmpool.bench.chaos.server import ChaosServer, descriptors_of, resident_bytes
from lmpool.bench.table import table_lines

MIB = 1 << 20
GROWTH_SHARE = {"MiB": 0.03, "files": 0.03, "": 0.25}
GROWTH_LEAST = {"MiB": 1.0, "files": 1.0, "": 64.0}
"""By unit: less is no growth. Tables are as large as the load of the moment."""
CONNECTIONS = "ingress files"
"""Those of clients are among them: as a table."""
SAMPLES_MIN = 8
"""For a verdict."""
TABLES = ("lmpool_page_table_hashes", "lmpool_open_prompts", "lmpool_bookings", "lmpool_kv_blocks_cached")


@attrs.frozen
class Sample:
    at_s: float
    values: Mapping[str, float]
    """By name and unit: `ingress MiB`, `control files`, `bookings`."""


@attrs.frozen
class Trend:
    name: str
    first: float
    """Mean of the second quarter of the samples: the first one warms up."""
    last: float
    """Mean of the last quarter."""
    most: float
    per_hour: float

    @property
    def is_flat(self) -> bool:
        unit = "" if self.name == CONNECTIONS else self.name.partition(" ")[2]
        return self.last - self.first <= max(GROWTH_SHARE[unit] * self.first, GROWTH_LEAST[unit])


async def take_sample(server: ChaosServer, began: float) -> Sample:
    values: dict[str, float] = {}
    for name, pid in sorted([*server.lives().items(), ("supervisor", server.process.pid)]):
        try:
            memory, files = resident_bytes(pid) / MIB, float(len(descriptors_of(pid)))
        except OSError:
            continue  # it has just ended
        values[f"{name} MiB"], values[f"{name} files"] = memory, files
    metrics = await server.metrics()
    for table in TABLES if metrics else ():
        found = re.findall(rf"^{table}(?:\{{.*\}})? (\S+)$", metrics, flags=re.MULTILINE)
        values[table.removeprefix("lmpool_")] = sum(map(float, found))
    return Sample(time.monotonic() - began, values)


async def keep_sampling(server: ChaosServer, began: float, pause_s: float, samples: list[Sample]) -> None:
    """Until cancelled."""
    while True:
        samples.append(await take_sample(server, began))
        await asyncio.sleep(pause_s)


def trends(samples: Sequence[Sample]) -> list[Trend]:
    """Of what every sample has; none where there are too few samples."""
    if len(samples) < SAMPLES_MIN:
        return []
    quarter = len(samples) // 4
    early, late = samples[quarter : 2 * quarter], samples[-quarter:]
    hours = (fmean(sample.at_s for sample in late) - fmean(sample.at_s for sample in early)) / 3600
    found = []
    for name in samples[0].values:
        if all(name in sample.values for sample in samples):
            first, last = (fmean(sample.values[name] for sample in part) for part in (early, late))
            most = max(sample.values[name] for sample in samples)
            found.append(Trend(name, first, last, most, (last - first) / hours))
    return found


def trend_lines(found: Sequence[Trend]) -> list[str]:
    return table_lines(
        ("over time", "first", "last", "most", "an hour", "flat"),
        [
            [
                trend.name,
                *(f"{value:.1f}" for value in (trend.first, trend.last, trend.most)),
                f"{trend.per_hour:+.1f}",
                "yes" if trend.is_flat else "NO",
            ]
            for trend in found
        ],
    )


def sample_lines(samples: Sequence[Sample]) -> list[str]:
    """At most a dozen moments of all quantities; a life that ended leaves a gap."""
    step = max(1, len(samples) // 12)
    shown = samples[::step]
    names = list(dict.fromkeys(name for sample in shown for name in sample.values))
    moments = [f"{sample.at_s:.0f} s" for sample in shown]
    rows = [
        [name, *(f"{sample.values[name]:.0f}" if name in sample.values else "-" for sample in shown)] for name in names
    ]
    return table_lines(("at", *moments), rows)
