"""What this machine has, as far as can be told without torch: cores, GPUs, and the usual folders."""

import math
import os
import re
import tempfile
from collections.abc import Mapping
from pathlib import Path

CGROUP_CPU = Path("/sys/fs/cgroup/cpu.max")


def cores() -> int:
    """Cores that this process may use: its affinity, and in a container the share of processor time it gets."""
    allowed = len(os.sched_getaffinity(0))
    return min(allowed, quota_cores(CGROUP_CPU.read_text())) if CGROUP_CPU.exists() else allowed


def quota_cores(content: str) -> int:
    """Of a `cpu.max` of cgroup version 2: microseconds of processor time allowed in a period, or `max`."""
    quota, period = content.split()
    return 1 << 16 if quota == "max" else max(1, math.ceil(int(quota) / int(period)))


def gpus(environment: Mapping[str, str]) -> int:
    """NVIDIA devices that a child would see; whether they work is only known once torch has tried."""
    visible = environment.get("CUDA_VISIBLE_DEVICES")
    if visible is not None:
        return len([device for device in visible.split(",") if device.strip() not in ("", "-1")])
    return len([name for name in os.listdir("/dev") if re.fullmatch(r"nvidia[0-9]+", name)])


def usual_cache_folder(environment: Mapping[str, str]) -> Path:
    named = environment.get("XDG_CACHE_HOME")
    return (Path(named) if named else Path.home() / ".cache") / "lmpool"


def usual_run_parent(environment: Mapping[str, str]) -> Path:
    """The user's run-time folder, or one of the user's own among the temporary ones."""
    named = environment.get("XDG_RUNTIME_DIR")
    if named and os.access(named, os.W_OK | os.X_OK):
        return Path(named) / "lmpool"
    return Path(tempfile.gettempdir()) / f"lmpool-{os.getuid()}"
