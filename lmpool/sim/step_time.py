"""How long steps last where nothing runs: rates from a profile that was measured, or from a device's data sheet.

`specs/step_time.md` has the arithmetic and the assumptions.
"""

import json
from pathlib import Path

import attrs

from lmpool.core.rates import Rates

RATE_NAMES = ("step", "prefill", "prefill_context", "decode", "decode_context")
"""With `_ns` behind it each is a key of a profile."""


class StepTimeError(Exception):
    """One line: what is wrong with a profile or a name."""


@attrs.frozen
class Accelerator:
    flops_per_s: float
    """Dense products in the model's number format."""
    bytes_per_s: float
    """Of its memory."""


@attrs.frozen
class ModelShape:
    layers: int
    attention_width: int
    """Query heads x head size."""
    kv_width: int
    """KV heads x head size."""
    parameters: float
    """That multiply for each token."""
    bytes_per_number: int

    @property
    def kv_bytes(self) -> int:
        """Of one token."""
        return 2 * self.layers * self.kv_width * self.bytes_per_number


@attrs.frozen
class Efficiency:
    """What of a data sheet is reached, and what no data sheet has."""

    flops: float
    weight_bytes: float
    kv_bytes: float
    step_ns: float
    """Launches and host work of every step."""
    row_ns: float
    """Sampling and small kernels of every decoding sequence."""


H200 = Accelerator(flops_per_s=989e12, bytes_per_s=4.8e12)
LLAMA_3_1_8B = ModelShape(layers=32, attention_width=4096, kv_width=8 * 128, parameters=8.03e9, bytes_per_number=2)
ASSUMED = Efficiency(flops=0.5, weight_bytes=0.8, kv_bytes=0.7, step_ns=1.5e6, row_ns=1e4)

ACCELERATORS: dict[str, tuple[Accelerator, ModelShape]] = {"h200-llama-3.1-8b-bf16": (H200, LLAMA_3_1_8B)}
ACCELERATOR_DEFAULT = "h200-llama-3.1-8b-bf16"


def rates_of(accelerator: Accelerator, shape: ModelShape, reached: Efficiency) -> Rates:
    flops = accelerator.flops_per_s * reached.flops
    weights = shape.parameters * shape.bytes_per_number
    return Rates(
        step=reached.step_ns + 1e9 * weights / (accelerator.bytes_per_s * reached.weight_bytes),
        prefill=1e9 * 2 * shape.parameters / flops,
        prefill_context=1e9 * 4 * shape.attention_width * shape.layers / flops,
        decode=reached.row_ns,
        decode_context=1e9 * shape.kv_bytes / (accelerator.bytes_per_s * reached.kv_bytes),
    )


def named_rates(name: str) -> Rates:
    """Raises StepTimeError."""
    known = ACCELERATORS.get(name)
    if known is None:
        raise StepTimeError(f"no accelerator named {name!r}; there is {', '.join(ACCELERATORS)}")
    return rates_of(*known, ASSUMED)


def read_profile(path: Path) -> Rates:
    """Raises StepTimeError."""
    try:
        profile = json.loads(path.read_text())
        rates = Rates(**{name: float(profile[f"{name}_ns"]) for name in RATE_NAMES})
    except OSError as error:
        known = ", ".join(ACCELERATORS)
        raise StepTimeError(f"{path} is no file that can be read ({error.strerror}), and none of {known}") from error
    except (ValueError, KeyError, TypeError) as error:
        needed = ", ".join(f"{name}_ns" for name in RATE_NAMES)
        raise StepTimeError(f"{path} is no profile: {error!r}; it needs the numbers {needed}") from error
    if min(attrs.astuple(rates)) < 0 or rates.step <= 0:
        raise StepTimeError(f"{path}: every rate is at least 0, and step_ns more")
    return rates


def slowed(rates: Rates, factor: float) -> Rates:
    """Of a rank that takes `factor` times as long for everything."""
    return Rates(*(rate * factor for rate in attrs.astuple(rates)))
