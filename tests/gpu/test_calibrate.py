import pytest
import torch

from lmpool.core.rates import Rates
from lmpool.gpu.calibrate import Bounds, Probe, fitted, measure_floors, probes

pytestmark = pytest.mark.model


def cost(rates: Rates, probe: Probe) -> float:
    factors = (rates.step, rates.prefill, rates.prefill_context, rates.decode, rates.decode_context)
    return sum(rate * feature for rate, feature in zip(factors, probe.features, strict=True)) / 1e9


USUAL = Bounds(blocks=2000, block_size=16, context_tokens=8192, step_tokens=512, sequences=64)


def test_rates_are_found_again() -> None:
    rates = Rates(step=2e7, prefill=4e5, prefill_context=40.0, decode=1e6, decode_context=700.0)
    measured = probes(USUAL)
    found = fitted([probe.features for probe in measured], [cost(rates, probe) for probe in measured])
    for name in ("step", "prefill", "prefill_context", "decode", "decode_context"):
        assert getattr(found, name) == pytest.approx(getattr(rates, name), rel=1e-3)


def test_no_rate_is_negative_whatever_was_measured() -> None:
    measured = probes(USUAL)
    found = fitted([probe.features for probe in measured], [0.05, 0.3, 0.05, 0.08, 0.02, 0.021])
    assert min(found.step, found.prefill, found.prefill_context, found.decode, found.decode_context) >= 0


@pytest.mark.parametrize(
    "bounds",
    [
        USUAL,
        Bounds(blocks=1, block_size=8, context_tokens=8, step_tokens=512, sequences=64),
        Bounds(blocks=3, block_size=8, context_tokens=4096, step_tokens=16, sequences=1),
        Bounds(blocks=50, block_size=16, context_tokens=100, step_tokens=64, sequences=4),
    ],
)
def test_measured_steps_keep_to_the_bounds(bounds: Bounds) -> None:
    for probe in probes(bounds):
        tokens = probe.start + probe.count
        assert probe.start >= 0
        assert tokens <= bounds.context_tokens
        assert probe.rows * -(-tokens // bounds.block_size) <= bounds.blocks
        assert probe.rows * probe.count <= bounds.step_tokens
        assert probe.rows <= bounds.sequences


def test_floors_are_positive() -> None:
    floors = measure_floors(torch.device("cpu"), torch.float32)
    assert floors.read_bytes_per_s > 1e8
    assert floors.matrix_flops_per_s > 1e8
