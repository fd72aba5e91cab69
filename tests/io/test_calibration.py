import json
from pathlib import Path
from typing import Any

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lmpool.core.ids import MILLISECOND, Rank
from lmpool.core.placement.price import INTERFERENCE, RESIDUAL_P50_NS, RESIDUAL_P95_NS, Pair, TransferPrices
from lmpool.core.prefix import ModelIdentity
from lmpool.core.rates import Rates
from lmpool.io.calibration import (
    SCHEMA,
    CalibratedPair,
    Calibration,
    CalibrationError,
    CopyPoint,
    StepPoint,
    calibration_text,
    check_model,
    check_pairs,
    read_calibration,
    transfer_profile,
)

IDENTITY = ModelIdentity("abc", "bfloat16", "layers.kv.blocks.tokens.heads.dim/30x2x3x64", 16)
POINTS = (CopyPoint(1, 0.001, 0.002, None, None), CopyPoint(8, 0.004, 0.009, 0.003, 0.010))
CALIBRATION = Calibration(
    schema=SCHEMA,
    lmpool="1.0",
    identity=IDENTITY,
    block_bytes=368_640,
    device="cpu",
    threads=1,
    rates=Rates(2e6, 1e5, 2.0, 2e5, 10.0),
    prefills=(StepPoint(1, 0, 64, 0.02),),
    decodes=(StepPoint(8, 1024, 1, 0.01),),
    interference=None,
    pairs=(CalibratedPair(0, 1, "shm", POINTS), CalibratedPair(1, 0, "shm", POINTS)),
)


def written(folder: Path, fields: Any) -> Path:
    path = folder / "calibration.json"
    path.write_text(json.dumps(fields))
    return path


def fields() -> dict[str, Any]:
    found: dict[str, Any] = json.loads(calibration_text(CALIBRATION))
    return found


def test_what_was_written_is_read(tmp_path: Path) -> None:
    assert read_calibration(written(tmp_path, fields())) == CALIBRATION


def change(place: str, value: object) -> dict[str, Any]:
    """`place`: names and indices with dots between; the last is replaced, or removed where the value is `...`."""
    whole = fields()
    at: Any = whole
    *path, last = [int(word) if word.isdecimal() else word for word in place.split(".")]
    for step in path:
        at = at[step]
    if value is ...:
        del at[last]
    else:
        at[last] = value
    return whole


@pytest.mark.parametrize(
    ("place", "value", "told"),
    [
        ("schema", 2, "of schema 2, and this is 1: run lmpool calibrate again"),
        ("schema", ..., "of schema None"),
        ("threads", ..., "required field missing"),
        ("threads", "1", "expected an integer, got str @ $.threads"),
        ("surprise", 1, "surprise"),
        ("pairs.0.points.0.blocks", 1.5, "expected an integer, got float @ $.pairs"),
        ("pairs", [], "no pair"),
        ("pairs.1.source", 0, None),
        ("pairs.0.points", [], "pair 0>1: sizes do not rise"),
        ("pairs.0.points.0.blocks", 0, "sizes do not rise"),
        ("pairs.0.points.0.blocks", 8, "sizes do not rise"),
        ("pairs.1.points.1.blocks", 1 << 20, "pair 1>0: sizes do not rise"),
        ("pairs.0.points.0.copy_p50_s", 0.0, "times of 1 blocks"),
        ("pairs.0.points.0.copy_p50_s", -1.0, "times of 1 blocks"),
        ("pairs.0.points.0.copy_p95_s", 0.0005, "P95 is below their median"),
        ("pairs.0.points.0.copy_p95_s", "inf", "times of 1 blocks"),
        ("pairs.0.points.0.copy_p50_s", "nan", "times of 1 blocks"),
        ("pairs.0.points.0.residual_p50_s", 0.1, "1 blocks have one residual"),
        ("pairs.0.points.1.residual_p50_s", -0.005, "times of 8 blocks"),
        ("pairs.0.points.1.residual_p50_s", 0.1, "times of 8 blocks"),
        ("pairs.0.points.1.residual_p95_s", "nan", "times of 8 blocks"),
        ("rates.prefill", -1.0, "a rate is negative"),
        ("rates.prefill", "nan", "a rate is negative or no number"),
        ("rates.prefill", 0.0, "a step or a prefill token takes no time"),
        ("rates.step", 0.0, "a step or a prefill token takes no time"),
        ("interference", 0.5, "less time than alone"),
        ("prefills.0.seconds", 0, "a step took no time"),
    ],
)
def test_a_file_that_makes_no_sense_is_refused_in_one_line(
    tmp_path: Path, place: str, value: object, told: str | None
) -> None:
    path = written(tmp_path, change(place, value))
    if told is None:
        told = "it has no pair, or one twice"
        whole = change(place, value)
        whole["pairs"][1]["target"] = 1
        path = written(tmp_path, whole)
    with pytest.raises(CalibrationError) as raised:
        read_calibration(path)
    assert told in str(raised.value)
    assert str(path) in str(raised.value)
    assert "\n" not in str(raised.value)


def test_a_residual_may_be_negative_where_the_whole_is_not(tmp_path: Path) -> None:
    """Chains lie in runs, and are copied faster than scattered blocks."""
    whole = change("pairs.0.points.0.residual_p50_s", -0.0005)
    whole["pairs"][0]["points"][0]["residual_p95_s"] = -0.0004
    price = TransferPrices(transfer_profile(read_calibration(written(tmp_path, whole)))).price(
        Pair(Rank(0), Rank(1)), 1
    )
    assert price.median_ns / MILLISECOND == pytest.approx(1.2 * 1 - 0.5)
    assert price.p95_ns / MILLISECOND == pytest.approx(1.2 * 2 - 0.4)


@pytest.mark.parametrize("text", ["", "nothing", "[]", "3", '{"schema": true}', "\x00"])
def test_what_is_no_calibration_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "calibration.json"
    path.write_text(text)
    with pytest.raises(CalibrationError):
        read_calibration(path)


def test_a_file_that_is_not_there_is_told() -> None:
    with pytest.raises(CalibrationError, match="cannot read the calibration /nowhere: No such file"):
        read_calibration(Path("/nowhere"))


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)
PLACES = st.sampled_from(
    ["schema", "identity", "rates", "rates.step", "pairs", "pairs.0", "pairs.0.points", "pairs.0.points.1", "decodes"]
)


@given(PLACES, JSON)
def test_whatever_stands_in_a_field_it_is_read_or_refused(
    tmp_path_factory: pytest.TempPathFactory, place: str, value: object
) -> None:
    try:
        found = read_calibration(written(tmp_path_factory.mktemp("any"), change(place, value)))
    except CalibrationError:
        return
    prices = TransferPrices(transfer_profile(found))
    assert prices.price(Pair(Rank(0), Rank(1)), 100).median_ns > 0


@pytest.mark.parametrize(
    ("name", "value", "told"),
    [
        ("revision", "xyz", "made for revision abc, and this is xyz"),
        ("kv_dtype", "float32", "made for kv dtype bfloat16, and this is float32"),
        ("kv_layout", "other", "and this is other"),
        ("block_size", 32, "made for block size 16, and this is 32"),
    ],
)
def test_another_model_or_form_of_blocks_is_refused(name: str, value: Any, told: str) -> None:
    with pytest.raises(CalibrationError, match=told):
        check_model(CALIBRATION, attrs.evolve(IDENTITY, **{name: value}), 368_640)


def test_the_same_model_and_pairs_are_accepted() -> None:
    check_model(CALIBRATION, IDENTITY, 368_640)
    check_pairs(CALIBRATION, [(1, 0), (0, 1)])
    with pytest.raises(CalibrationError, match="block bytes 368640, and this is 1"):
        check_model(CALIBRATION, IDENTITY, 1)


def test_other_pairs_are_refused_by_name() -> None:
    with pytest.raises(CalibrationError, match="lacks the pairs 0>2, 1>2, which can transfer here"):
        check_pairs(CALIBRATION, [(0, 1), (1, 0), (1, 2), (0, 2)])
    with pytest.raises(CalibrationError, match="has the pairs 1>0, which cannot transfer here"):
        check_pairs(CALIBRATION, [(0, 1)])
    with pytest.raises(CalibrationError, match="0>2, 0>3, 0>4, 0>5 and 16 others"):
        check_pairs(CALIBRATION, [(one, other) for one in range(5) for other in range(6) if one != other][:22])


def test_a_profile_has_what_was_measured_and_assumes_the_rest() -> None:
    profile = transfer_profile(CALIBRATION)
    assert profile.interference == INTERFERENCE
    small, large = profile.curves[0].points
    assert (small.residual_p50_ns, small.residual_p95_ns) == (RESIDUAL_P50_NS, RESIDUAL_P95_NS)
    assert (small.copy_p50_ns, small.copy_p95_ns) == (MILLISECOND, 2 * MILLISECOND)
    assert (large.residual_p50_ns, large.residual_p95_ns) == (3 * MILLISECOND, 10 * MILLISECOND)
    assert transfer_profile(attrs.evolve(CALIBRATION, interference=1.0)).interference == 1.0
