"""How much memory there is, was promised to this container, and is still free."""

from pathlib import Path

import attrs

CGROUP = Path("/sys/fs/cgroup")
LIMIT_FILES = (
    (CGROUP / "memory.max", CGROUP / "memory.current"),
    (CGROUP / "memory/memory.limit_in_bytes", CGROUP / "memory/memory.usage_in_bytes"),
)
"""Of version 2 and version 1 of control groups, as a container sees its own."""


@attrs.frozen
class HostMemory:
    """Bytes; the machine's, or the container's where its limit is lower."""

    total: int
    free: int


def size_text(size_bytes: int) -> str:
    for unit, name in ((1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")):
        if size_bytes >= unit:
            return f"{size_bytes / unit:.1f} {name}"
    return f"{size_bytes} B"


def host_memory() -> HostMemory:
    figures = dict(line.split(":") for line in Path("/proc/meminfo").read_text().splitlines())
    total, free = (int(figures[name].split()[0]) * 1024 for name in ("MemTotal", "MemAvailable"))
    for limit_file, usage_file in LIMIT_FILES:
        if limit_file.exists() and usage_file.exists():
            limit = limit_file.read_text().strip()
            if limit != "max":
                total = min(total, int(limit))
                free = min(free, max(0, int(limit) - int(usage_file.read_text())))
    return HostMemory(total=total, free=free)
