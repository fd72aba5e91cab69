from pathlib import Path

import pytest
import torch

from lmpool.core.plan import ReplicaError
from lmpool.gpu.calibrate import Bounds
from lmpool.gpu.kv_pool import BlockShape, layout_name, shape_of
from lmpool.gpu.step_curve import curve_probes, measure_step_curve
from tests.gpu.test_replica import Order
from tests.gpu.tiny_models import write_tiny_model

pytestmark = pytest.mark.model


@pytest.mark.parametrize(
    "bounds",
    [
        Bounds(blocks=2000, block_size=16, context_tokens=8192, step_tokens=1024, sequences=16),
        Bounds(blocks=1, block_size=8, context_tokens=8, step_tokens=512, sequences=64),
        Bounds(blocks=3, block_size=8, context_tokens=4096, step_tokens=16, sequences=1),
        Bounds(blocks=50, block_size=16, context_tokens=100, step_tokens=64, sequences=4),
    ],
)
def test_curves_keep_to_the_bounds(bounds: Bounds) -> None:
    prefills, decodes = curve_probes(bounds)
    for probe in (*prefills, *decodes):
        tokens = probe.start + probe.count
        assert probe.start >= 0
        assert tokens <= bounds.context_tokens
        assert probe.rows * -(-tokens // bounds.block_size) <= bounds.blocks
        assert probe.rows * probe.count <= bounds.step_tokens
        assert probe.rows <= bounds.sequences
    assert len(prefills) == len(set(prefills))
    assert all(probe.count > 1 for probe in prefills)
    assert all(probe.count == 1 for probe in decodes)


def test_a_large_pool_has_every_size() -> None:
    prefills, decodes = curve_probes(Bounds(2000, 16, 8192, 1024, 16))
    assert len(prefills) == 12
    assert len(decodes) == 15
    assert max(probe.start + probe.count for probe in prefills) == 4096 + 1024


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_the_shape_is_read_from_its_name(dtype: torch.dtype) -> None:
    shape = BlockShape(layers=30, block_size=16, kv_heads=3, head_dim=64, dtype=dtype)
    assert shape_of(layout_name(shape), 16, str(dtype).removeprefix("torch.")) == shape


def test_a_small_model_is_measured_with_its_facts(tmp_path: Path) -> None:
    folder = write_tiny_model(tmp_path, "llama")
    (folder / "tokenizer.json").write_text("{}")
    counts: list[tuple[int, int]] = []
    curve = measure_step_curve(
        str(folder),
        tmp_path,
        lambda found: Order(str(found), step_tokens_max=64),
        lambda line: None,
        lambda done, of: counts.append((done, of)),
    )
    assert counts == [(number + 1, len(counts)) for number in range(len(counts))]
    assert len(curve.prefills) + len(curve.decodes) == len(counts)
    assert all(seconds > 0 for _, seconds in (*curve.prefills, *curve.decodes))
    assert [probe.count > 1 for probe, _ in curve.prefills] == [True] * len(curve.prefills)
    assert [probe.count for probe, _ in curve.decodes] == [1] * len(curve.decodes)
    assert (curve.device, curve.identity.block_size, curve.shape.layers) == ("cpu", 8, 2)
    assert curve.shape.block_bytes == 2 * 2 * 8 * 2 * 16 * 4


def test_a_model_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ReplicaError):
        measure_step_curve("./nowhere", tmp_path, lambda found: Order(str(found)), lambda _: None, lambda *_: None)
