"""The part of a calibration that loads the model, in a process of its own, so that its memory is free again for the
pools of `transfer_pair.py`.

One JSON line each on standard output: `{"told": line}`, `{"done": n, "of": m}`, then one of `{"curve": ...}` and
`{"failed": line}`.
"""

import json
import os
import sys
from pathlib import Path
from typing import Any, TextIO

import attrs

from lmpool.core.plan import ReplicaError
from lmpool.gpu.calibrate import Probe
from lmpool.gpu.device import dtype_name
from lmpool.gpu.step_curve import StepCurve, measure_step_curve


@attrs.frozen
class StepsOrder:
    """Also a `gpu.replica.ReplicaOrder`, once there is a folder."""

    model: str | None
    cache: str
    model_folder: str
    device: str
    dtype: str
    threads: int
    block_size: int
    kv_blocks: int | None
    rank: int = 0
    kv_bytes: int | None = None
    replicas: int = 1
    transfer_path: str = "auto"
    model_tokens_max: int | None = None
    step_tokens_max: int = 1024
    sequences_max: int = 16


def curve_fields(curve: StepCurve) -> dict[str, Any]:
    shape = curve.shape
    return {
        "identity": attrs.asdict(curve.identity),
        "shape": {
            "layers": shape.layers,
            "block_size": shape.block_size,
            "kv_heads": shape.kv_heads,
            "head_dim": shape.head_dim,
            "dtype": dtype_name(shape.dtype),
        },
        "block_bytes": shape.block_bytes,
        "device": curve.device,
        "rates": attrs.asdict(curve.rates),
        "prefills": [_step_fields(*step) for step in curve.prefills],
        "decodes": [_step_fields(*step) for step in curve.decodes],
    }


def _step_fields(probe: Probe, seconds: float) -> dict[str, float]:
    return {"rows": probe.rows, "context": probe.start, "tokens": probe.count, "seconds": seconds}


def main() -> None:
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # whatever libraries print must not end up among the answers
    order = StepsOrder(**json.loads(sys.argv[1]))
    try:
        curve = measure_step_curve(
            order.model,
            Path(order.cache),
            lambda folder: attrs.evolve(order, model_folder=str(folder)),
            lambda line: _say(answers, {"told": line}),
            lambda done, of: _say(answers, {"done": done, "of": of}),
        )
    except ReplicaError as error:
        _say(answers, {"failed": str(error)})
        return
    _say(answers, {"curve": curve_fields(curve)})


def _say(answers: TextIO, answer: dict[str, Any]) -> None:
    print(json.dumps(answer), file=answers, flush=True)


if __name__ == "__main__":
    main()
