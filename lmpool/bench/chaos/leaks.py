"""What is left once nobody asks any more, and once the server is gone."""

import asyncio
import re
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import attrs

from lmpool.bench.chaos.server import ChaosServer, command_of, descriptors_of, is_running

QUIET_S = 20.0
"""Within which everything has to be let go after the last answer."""
PAUSE_S = 0.2
SEGMENTS = Path("/dev/shm")  # noqa: S108
SHARED = ("/dev/shm", "/memfd:")  # noqa: S108
WORKER = "worker"


@attrs.frozen
class Descriptors:
    """Open files by process, as many as a quiet server has."""

    counts: Mapping[str, int]
    """All workers as one: the most that any has."""
    segments: int
    """Shared memory held by others than workers."""


@attrs.frozen
class Leaks:
    blocks: int
    sequences: int
    """Sequences and bookings that nobody waits for, and requests that never ended."""
    segments: int
    descriptors: int
    processes: int
    folders: int
    """Run folders, after the end."""


def shared_segments() -> frozenset[str]:
    return frozenset(entry.name for entry in SEGMENTS.iterdir())


def orphans(names: frozenset[str]) -> list[str]:
    """Segments that no process has mapped: those of other programs on this machine are in use."""
    used = "".join(_maps(entry) for entry in Path("/proc").iterdir() if entry.name.isdecimal())
    return sorted(name for name in names if str(SEGMENTS / name) not in used)


def _maps(process: Path) -> str:
    try:
        return (process / "maps").read_text()
    except OSError:
        return ""  # it has ended, or is not ours


def descriptors(server: ChaosServer) -> Descriptors:
    counts: dict[str, int] = {}
    segments = 0
    for name, pid in (*server.lives().items(), ("supervisor", server.process.pid)):
        try:
            files = descriptors_of(pid)
        except OSError:
            continue  # it has just ended
        role = name.partition("-")[0]
        counts[role] = max(counts.get(role, 0), len(files))
        segments += 0 if role == WORKER else len([file for file in files if file.startswith(SHARED)])
    return Descriptors(counts, segments)


async def quiet_descriptors(server: ChaosServer, before: Descriptors | None) -> Descriptors:
    """Once they are no more than `before`, or after a while."""
    until = time.monotonic() + QUIET_S
    while True:
        now = descriptors(server)
        if before is None or not grown(now, before) or time.monotonic() > until:
            return now
        await asyncio.sleep(PAUSE_S)


def grown(now: Descriptors, before: Descriptors) -> int:
    return sum(max(0, count - before.counts.get(role, 0)) for role, count in now.counts.items())


async def held(server: ChaosServer) -> tuple[int, int]:
    """Blocks, and sequences or requests, that are not let go: zeros once all is quiet."""
    until = time.monotonic() + QUIET_S
    while True:
        state, metrics = await server.document("/pool/state"), await server.metrics()
        blocks, sequences = (1, 1) if state is None or not metrics else held_in(state, metrics)
        if not blocks + sequences or time.monotonic() > until:
            return blocks, sequences
        await asyncio.sleep(PAUSE_S)


def held_in(state: Mapping[str, Any], metrics: str) -> tuple[int, int]:
    ranks = state["replicas"]
    blocks = sum(rank["blocks"] - rank["blocks_free"] - rank["blocks_cached"] for rank in ranks)
    sequences = sum(rank["waiting"] + rank["prefilling"] + rank["decoding"] + rank["booked"] for rank in ranks)
    sequences += state["bookings"] + total(metrics, "lmpool_open_prompts") + total(metrics, "lmpool_requests_running")
    started, ended = total(metrics, "lmpool_requests_started_total"), total(metrics, "lmpool_requests_ended_total")
    return blocks, sequences + abs(started - ended)


def total(metrics: str, name: str) -> int:
    """Over all labels."""
    found = re.findall(rf"^{name}(?:\{{.*\}})? (\S+)$", metrics, flags=re.MULTILINE)
    return round(sum(map(float, found)))


def left_processes(server: ChaosServer) -> list[str]:
    """Of all that ever were."""
    return [name for pid, name in server.seen.items() if is_running(pid) and "lmpool" in command_of(pid)]


def left_folders(server: ChaosServer) -> int:
    return len(list(server.runs.iterdir())) if server.runs.exists() else 0
