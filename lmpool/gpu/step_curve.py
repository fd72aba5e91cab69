"""What prefill and decode steps take on this device, over many sizes: for `lmpool calibrate`."""

from collections.abc import Callable
from pathlib import Path

import attrs

from lmpool.core.prefix import ModelIdentity
from lmpool.core.rates import Rates
from lmpool.gpu.calibrate import Bounds, Probe, fitted, step_seconds
from lmpool.gpu.device import choose_device
from lmpool.gpu.kv_pool import BlockShape, shape_of
from lmpool.gpu.replica import ReplicaOrder, load_replica
from lmpool.gpu.source import prepare

PREFILLS = (16, 64, 256, 1024)
DECODES = (1, 2, 4, 8, 16)
CONTEXTS = (0, 1024, 4096)
"""Of sizes that the pool or a limit does not allow, the largest that it does is measured in their place."""


@attrs.frozen
class StepCurve:
    identity: ModelIdentity
    shape: BlockShape
    device: str
    rates: Rates
    prefills: tuple[tuple[Probe, float], ...]
    """With the seconds of each, the best of a few."""
    decodes: tuple[tuple[Probe, float], ...]


def curve_probes(bounds: Bounds) -> tuple[list[Probe], list[Probe]]:
    """Prefills and decodes."""
    held = min(bounds.context_tokens, bounds.blocks * bounds.block_size)
    prefills: dict[Probe, None] = {}
    for tokens in PREFILLS:
        count = max(2, min(tokens, bounds.step_tokens, held))
        for context in CONTEXTS:
            prefills[Probe(1, max(min(context, held - count), 0), count)] = None
    decodes: dict[Probe, None] = {}
    for wanted in DECODES:
        rows = max(1, min(wanted, bounds.sequences, bounds.step_tokens, bounds.blocks))
        each = min(bounds.blocks // rows * bounds.block_size, held)
        for context in CONTEXTS:
            decodes[Probe(rows, max(min(context, each - 1), 0), 1)] = None
    return list(prefills), list(decodes)


def measure_step_curve(
    model: str | None,
    cache: Path,
    order_of: Callable[[Path], ReplicaOrder],
    progress: Callable[[str], None],
    measured: Callable[[int, int], None],
) -> StepCurve:
    """`measured` hears how many steps are done, and of how many. Raises ReplicaError."""
    order = order_of(prepare(model, cache, progress))
    replica = load_replica(order, progress)
    bounds = Bounds(
        replica.blocks, order.block_size, replica.model_tokens_max, order.step_tokens_max, order.sequences_max
    )
    prefills, decodes = curve_probes(bounds)
    seconds: list[float] = []
    for probe in (*prefills, *decodes):
        seconds.append(step_seconds(replica.runner, probe, order.block_size))
        measured(len(seconds), len(prefills) + len(decodes))
    rates = fitted([probe.features for probe in (*prefills, *decodes)], seconds)
    shape = shape_of(replica.identity.kv_layout, order.block_size, replica.identity.kv_dtype)
    return StepCurve(
        replica.identity,
        shape,
        str(choose_device(order.device, order.rank).device),
        rates,
        tuple(zip(prefills, seconds, strict=False)),
        tuple(zip(decodes, seconds[len(prefills) :], strict=True)),
    )
