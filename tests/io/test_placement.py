"""What an operator orders of placement, as the machine of control takes it; each refusal is one line with a remedy."""

import json
from pathlib import Path
from typing import Any

import attrs
import pytest

from lmpool.core.ids import Rank
from lmpool.core.placement.price import Pair, TransferPrices, assumed_profile
from lmpool.core.plan import ReplicaError
from lmpool.io.calibration import calibration_text, transfer_profile
from lmpool.io.orders import PlacementOrder
from lmpool.io.placement import block_bytes_most, check_calibration, placement_rules
from lmpool.io.topology import all_pairs
from tests.io.test_calibration import CALIBRATION, IDENTITY

CONFIG = {"num_hidden_layers": 30, "num_attention_heads": 9, "num_key_value_heads": 3, "hidden_size": 576}
BLOCK_BYTES = 30 * 2 * 16 * 3 * 64 * 4
"""Of CONFIG, in numbers of 4 bytes."""


def model(folder: Path, config: object) -> Path:
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def order(folder: Path, calibration: str | None, replicas: int = 2) -> PlacementOrder:
    return PlacementOrder(calibration, str(model(folder, CONFIG)), 16, "shm", all_pairs(replicas))


def file_of(folder: Path, **changes: Any) -> str:
    path = folder / "calibration.json"
    path.write_bytes(calibration_text(attrs.evolve(CALIBRATION, **changes)))
    return str(path)


def test_without_an_order_nothing_is_placed_and_nothing_told() -> None:
    assert placement_rules(None, 2) == (None, ())


def test_with_a_calibration_its_prices_hold_for_all_pairs(tmp_path: Path) -> None:
    file = file_of(tmp_path)
    rules, told = placement_rules(order(tmp_path, file), 2)
    assert rules is not None
    assert rules.profile == transfer_profile(CALIBRATION)
    assert rules.pairs == (Pair(Rank(0), Rank(1)), Pair(Rank(1), Rank(0)))
    assert told == (f"placement of blocks, by the prices of {file}",)


def test_without_a_calibration_the_size_of_a_block_gives_the_prices(tmp_path: Path) -> None:
    rules, told = placement_rules(order(tmp_path, None, 3), 3)
    assert rules is not None
    assert rules.profile == assumed_profile(BLOCK_BYTES)
    assert len(rules.pairs) == 6
    assert told == ("placement of blocks, by assumed prices",)


def test_where_not_all_replicas_can_those_that_can_are_told(tmp_path: Path) -> None:
    rules, told = placement_rules(attrs.evolve(order(tmp_path, None), path="cuda-ipc", pairs=((1, 0), (0, 2))), 3)
    assert rules is not None
    assert rules.pairs == (Pair(Rank(1), Rank(0)), Pair(Rank(0), Rank(2)))
    assert told == ("placement of blocks between 2 of 6 pairs, by assumed prices",)


def test_assumed_prices_are_above_those_that_were_measured(tmp_path: Path) -> None:
    rules, _ = placement_rules(order(tmp_path, None), 2)
    assert rules is not None
    assumed, measured = TransferPrices(rules.profile), TransferPrices(transfer_profile(CALIBRATION))
    pair = Pair(Rank(0), Rank(1))
    assert assumed.price(pair, 64).p95_ns > measured.price(pair, 64).p95_ns


@pytest.mark.parametrize(
    ("replicas", "path", "why"),
    [
        (1, "shm", "one replica"),
        (2, None, "only with --transfer-path"),
        (2, "cuda-ipc", "--transfer-pairs lists pairs"),
    ],
)
def test_without_a_pair_that_can_transfer_nothing_is_placed_and_that_is_told(
    tmp_path: Path, replicas: int, path: str | None, why: str
) -> None:
    without = attrs.evolve(order(tmp_path, None), path=path, pairs=())
    rules, (told,) = placement_rules(without, replicas)
    assert rules is None
    assert why in told
    _, (told,) = placement_rules(attrs.evolve(without, calibration_file="here.json"), replicas)
    assert told.endswith("so here.json is not used")


@pytest.mark.parametrize(
    ("replicas", "path", "told"),
    [(3, "shm", "lacks the pairs 0>2, 1>2, 2>0, 2>1"), (2, "gloo", "has pairs by gloo, and workers read by shm")],
)
def test_a_calibration_of_other_pairs_or_paths_is_refused(tmp_path: Path, replicas: int, path: str, told: str) -> None:
    pairs = tuple(attrs.evolve(pair, path=path) for pair in CALIBRATION.pairs)
    with pytest.raises(ReplicaError) as caught:
        placement_rules(order(tmp_path, file_of(tmp_path, pairs=pairs), replicas), replicas)
    assert told in caught.value.what
    assert "--calibration" in caught.value.hint


def test_a_calibration_of_other_blocks_is_refused_before_a_model_is_loaded(tmp_path: Path) -> None:
    other = attrs.evolve(order(tmp_path, file_of(tmp_path)), block_size=32)
    with pytest.raises(ReplicaError, match=r"was made for block size 16, and this is 32"):
        placement_rules(other, 2)


def test_a_calibration_that_cannot_be_read_is_refused(tmp_path: Path) -> None:
    for use in (lambda file: placement_rules(order(tmp_path, file), 2), lambda file: check_calibration(file, IDENTITY)):
        with pytest.raises(ReplicaError, match="cannot read the calibration"):
            use(str(tmp_path / "none.json"))


def test_a_calibration_of_another_model_is_refused_by_the_replica_that_knows(tmp_path: Path) -> None:
    file = file_of(tmp_path)
    check_calibration(file, IDENTITY)
    check_calibration(None, IDENTITY)
    with pytest.raises(ReplicaError, match="was made for revision abc, and this is xyz"):
        check_calibration(file, attrs.evolve(IDENTITY, revision="xyz"))


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({}, BLOCK_BYTES),
        ({"head_dim": 128}, BLOCK_BYTES * 2),
        ({"num_key_value_heads": None}, BLOCK_BYTES * 3),
    ],
)
def test_the_size_of_a_block_follows_from_the_shape(tmp_path: Path, change: dict[str, Any], expected: int) -> None:
    assert block_bytes_most(model(tmp_path, CONFIG | change), 16) == expected
    assert block_bytes_most(model(tmp_path, {"text_config": CONFIG | change}), 16) == expected


@pytest.mark.parametrize("config", [{}, [], {"num_hidden_layers": 2}, CONFIG | {"num_attention_heads": "9"}])
def test_where_no_shape_is_told_nothing_is_placed_and_the_remedy_is_told(tmp_path: Path, config: object) -> None:
    assert block_bytes_most(model(tmp_path, config), 16) is None
    without = PlacementOrder(None, str(tmp_path), 16, "shm", all_pairs(2))
    rules, (told,) = placement_rules(without, 2)
    assert rules is None
    assert "--calibration" in told
    assert placement_rules(attrs.evolve(without, calibration_file=file_of(tmp_path)), 2)[0] is not None
