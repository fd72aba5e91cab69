"""Which device and number format a replica uses, and why."""

from pathlib import Path

import attrs
import torch

from lmpool.core.plan import ReplicaError

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}

BFLOAT16_FLAGS = ("amx_bf16", "avx512_bf16")
"""CPU flags with which bfloat16 products are computed in hardware; without them it is slower than float32."""


@attrs.frozen
class DeviceChoice:
    device: torch.device
    reason: str


@attrs.frozen
class DtypeChoice:
    dtype: torch.dtype
    reason: str


def dtype_name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def cpu_flags(cpuinfo: str) -> frozenset[str]:
    """Flags of the first processor in the text of /proc/cpuinfo ("flags" on x86, "Features" on Arm)."""
    for line in cpuinfo.splitlines():
        name, _, value = line.partition(":")
        if name.strip().lower() in ("flags", "features"):
            return frozenset(value.split())
    return frozenset()


def choose_device(wanted: str, rank: int) -> DeviceChoice:
    """`wanted` is auto, cpu, cuda or cuda:N; ranks take CUDA devices in turn. Raises ReplicaError."""
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if wanted == "cpu":
        return DeviceChoice(torch.device("cpu"), "as ordered")
    if wanted == "auto" and count == 0:
        return DeviceChoice(torch.device("cpu"), f"no CUDA device: {_cuda_absence()}")
    if wanted in ("auto", "cuda") and count > 0:
        return DeviceChoice(torch.device("cuda", rank % count), f"rank {rank} of {count} CUDA devices in turn")
    kind, _, index = wanted.partition(":")
    if kind != "cuda" or (index != "" and not index.isdecimal()):
        raise ReplicaError(f"unknown device {wanted!r}", "use --device auto, cpu, cuda or cuda:N")
    if count == 0:
        what = f"--device {wanted}: looked for a CUDA device and found none ({_cuda_absence()})"
        raise ReplicaError(what, "use --device cpu, or install a CUDA build of torch and the driver")
    if int(index) >= count:
        what = f"--device {wanted}: this machine has {count} CUDA devices, numbered from 0"
        raise ReplicaError(what, f"use --device cuda:0 to cuda:{count - 1}")
    return DeviceChoice(torch.device("cuda", int(index)), "as ordered")


def _cuda_absence() -> str:
    if torch.version.cuda is None:
        return f"torch {torch.__version__} is built without CUDA"
    return f"torch {torch.__version__} is built for CUDA {torch.version.cuda}, but sees no driver or no device"


def choose_dtype(wanted: str, device: torch.device) -> DtypeChoice:
    """`wanted` is auto or a key of `DTYPES`. Raises ReplicaError."""
    if wanted in DTYPES:
        return DtypeChoice(DTYPES[wanted], "as ordered")
    if wanted != "auto":
        raise ReplicaError(f"unknown dtype {wanted!r}", f"use --dtype auto, {', '.join(DTYPES)}")
    if device.type == "cuda":
        if torch.cuda.get_device_capability(device) >= (8, 0):
            return DtypeChoice(torch.bfloat16, "the device has bfloat16")
        return DtypeChoice(torch.float16, "the device has no bfloat16")
    present = cpu_flags(Path("/proc/cpuinfo").read_text())
    for flag in BFLOAT16_FLAGS:
        if flag in present:
            return DtypeChoice(torch.bfloat16, f"the CPU has {flag}")
    return DtypeChoice(torch.float32, f"the CPU has none of {', '.join(BFLOAT16_FLAGS)}")
