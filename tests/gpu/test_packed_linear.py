import copy

import pytest
import torch
from torch import nn

from lmpool.gpu.packed_linear import JoinedPart, PackedLinear, pack_linears, packs_bfloat16

pytestmark = pytest.mark.model
packing = pytest.mark.skipif(not packs_bfloat16(), reason="this CPU has no kernels for packed bfloat16")


class Layer(nn.Module):
    def __init__(self, *, bias: bool) -> None:
        super().__init__()
        self.q_proj = nn.Linear(64, 96, bias=bias)
        self.k_proj = nn.Linear(64, 32, bias=bias)
        self.v_proj = nn.Linear(64, 32, bias=bias)
        self.o_proj = nn.Linear(96, 64, bias=False)


@packing
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("rows", [1, 7, 300])
@torch.inference_mode()
def test_packed_and_joined_layers_give_what_the_plain_ones_give(bias: bool, rows: int) -> None:
    torch.manual_seed(5)
    plain = Layer(bias=bias).bfloat16()
    packed = copy.deepcopy(plain)
    pack_linears(packed)
    assert isinstance(packed.o_proj, PackedLinear)
    assert isinstance(packed.v_proj, JoinedPart)
    for _ in range(2):
        inputs = torch.randn(1, rows, 64).bfloat16()
        for name in ("q_proj", "k_proj", "v_proj"):
            torch.testing.assert_close(getattr(packed, name)(inputs), getattr(plain, name)(inputs))
        wide = torch.randn(1, rows, 96).bfloat16()
        torch.testing.assert_close(packed.o_proj(wide), plain.o_proj(wide))


@packing
@torch.inference_mode()
def test_siblings_with_different_inputs_are_right_too() -> None:
    plain = Layer(bias=True).bfloat16()
    packed = copy.deepcopy(plain)
    pack_linears(packed)
    one, two = torch.randn(2, 1, 3, 64).bfloat16()
    for inputs, name in ((one, "q_proj"), (two, "k_proj"), (one, "v_proj"), (two, "q_proj"), (two, "v_proj")):
        torch.testing.assert_close(getattr(packed, name)(inputs), getattr(plain, name)(inputs))


@torch.inference_mode()
def test_a_cpu_without_the_kernels_computes_bfloat16_with_plain_layers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lmpool.gpu.packed_linear.packs_bfloat16", lambda: False)
    layer = Layer(bias=True).bfloat16()
    pack_linears(layer)
    assert type(layer.q_proj) is nn.Linear
    assert layer.q_proj(torch.randn(1, 3, 64).bfloat16()).dtype == torch.bfloat16


def test_float32_layers_stay() -> None:
    layer = Layer(bias=True)
    pack_linears(layer)
    assert type(layer.q_proj) is nn.Linear
