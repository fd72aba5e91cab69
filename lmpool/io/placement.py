"""By which prices, and between which replicas, control may place blocks: what is ordered, as its machine takes it."""

from pathlib import Path
from typing import Any

import attrs
import orjson

from lmpool.core.carrier import PlacementRules
from lmpool.core.ids import Rank
from lmpool.core.placement.price import Pair, TransferProfile, assumed_profile
from lmpool.core.placement.proposal import USUAL
from lmpool.core.plan import ReplicaError
from lmpool.core.prefix import ModelIdentity
from lmpool.io.calibration import (
    Calibration,
    CalibrationError,
    check_model,
    check_pairs,
    read_calibration,
    transfer_profile,
)
from lmpool.io.orders import PlacementOrder

NUMBER_BYTES_MOST = 4
"""Of a number in the KV cache: a price that assumes too many bytes is too high, which does no harm."""


def placement_rules(order: PlacementOrder | None, replicas: int) -> tuple[PlacementRules | None, tuple[str, ...]]:
    """None where it is off, or no replica can read another's blocks. With lines that tell it. Raises ReplicaError."""
    if order is None:
        return None, ()
    if not order.pairs:
        unused = "" if order.calibration_file is None else f", so {order.calibration_file} is not used"
        return None, (f"no placement: {_absence(order, replicas)}{unused}",)
    priced = _profile(order)
    if priced is None:
        return None, ("no placement: the model's config.json does not tell the size of a block; --calibration does",)
    profile, prices = priced
    rules = PlacementRules(USUAL, profile, tuple(Pair(Rank(source), Rank(target)) for source, target in order.pairs))
    every = replicas * (replicas - 1)
    some = "" if len(order.pairs) == every else f" between {len(order.pairs)} of {every} pairs"
    return rules, (f"placement of blocks{some}, by {prices}",)


def _absence(order: PlacementOrder, replicas: int) -> str:
    if replicas == 1:
        return "there is one replica"
    if order.path is None:
        return "replicas on CUDA read each other's blocks only with --transfer-path"
    return "no two replicas are on devices that NVLinks connect; --transfer-pairs lists pairs"


def _profile(order: PlacementOrder) -> tuple[TransferProfile, str] | None:
    """None where nothing tells a price."""
    file = order.calibration_file
    if file is None:
        block_bytes = block_bytes_most(Path(order.model_folder), order.block_size)
        return None if block_bytes is None else (assumed_profile(block_bytes), "assumed prices")
    calibration = _calibration(file)
    known = attrs.evolve(calibration.identity, block_size=order.block_size)  # the rest only the replicas know
    try:
        check_model(calibration, known, calibration.block_bytes)
        check_pairs(calibration, order.pairs)
    except CalibrationError as error:
        raise _refusal(error) from error
    foreign = dict.fromkeys(pair.path for pair in calibration.pairs if pair.path != order.path)
    if foreign:
        raise _refusal(f"{file} has pairs by {', '.join(foreign)}, and workers read by {order.path}")
    return transfer_profile(calibration), f"the prices of {file}"


def check_calibration(file: str | None, identity: ModelIdentity) -> None:
    """Raises ReplicaError if it was made for another model or KV form, which gives the bytes of a block as well."""
    if file is not None:
        calibration = _calibration(file)
        try:
            check_model(calibration, identity, calibration.block_bytes)
        except CalibrationError as error:
            raise _refusal(error) from error


def _calibration(file: str) -> Calibration:
    try:
        return read_calibration(Path(file))
    except CalibrationError as error:
        raise _refusal(error) from error


def _refusal(why: CalibrationError | str) -> ReplicaError:
    return ReplicaError(str(why), "start without --calibration to begin with assumed prices")


def block_bytes_most(model_folder: Path, block_size: int) -> int | None:
    """By the shape in the model's config.json; None if it does not tell."""
    try:
        config: Any = orjson.loads((model_folder / "config.json").read_bytes())
        config = config.get("text_config", config)
        heads = config["num_attention_heads"]
        kv_heads = config.get("num_key_value_heads") or heads
        width = config.get("head_dim") or config["hidden_size"] // heads
        return int(config["num_hidden_layers"] * 2 * block_size * kv_heads * width * NUMBER_BYTES_MOST)
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None
