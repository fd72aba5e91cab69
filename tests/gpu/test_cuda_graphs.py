"""The padded step that CUDA graphs replay, run without a graph: the same hidden states as the step itself."""

from pathlib import Path

import pytest
import torch

from lmpool.gpu.cuda_graphs import PaddedDecode, padded_size
from lmpool.gpu.kv_pool import allocate_cpu_pool
from lmpool.gpu.layout import StepLayout, Workspace
from lmpool.gpu.model import load_decoder
from tests.gpu.plans import row
from tests.gpu.tiny_models import VOCABULARY, write_tiny_model

pytestmark = pytest.mark.model

SIZE = 8


@pytest.mark.parametrize("family", ["llama", "qwen3-sliding", "gemma2"])
@torch.inference_mode()
def test_a_padded_step_is_the_step(family: str, tmp_path: Path) -> None:
    """Twice over the same tensors, so that nothing of the first filling is left in the second."""
    decoder = load_decoder(write_tiny_model(tmp_path, family), torch.float32, torch.device("cpu"), lambda line: None)
    pool = allocate_cpu_pool(decoder.facts.block_shape(SIZE), 60)
    workspace = Workspace(pool)
    tables = [range(7), range(10, 12), range(20, 25)]
    lengths = [50, 9, 33]
    text = torch.randint(0, VOCABULARY, (60,), generator=torch.Generator().manual_seed(4)).tolist()
    prefills = [row(n, 0, text[:length], table) for n, (length, table) in enumerate(zip(lengths, tables, strict=True))]
    decoder.hidden(StepLayout(prefills, pool, workspace, shares=False))
    padded = PaddedDecode(pool, padded_size(3), padded_size(7))
    for chosen in ([0, 1, 2], [2, 1]):
        rows = [row(n, lengths[n] - 1, text[lengths[n] - 1 : lengths[n]], tables[n], writes=n != 1) for n in chosen]
        layout = StepLayout(rows, pool, workspace, shares=False)
        assert layout.decodes_only
        expected = decoder.hidden(layout)
        padded.fill(layout)
        padded.forget_masks()
        torch.testing.assert_close(decoder.body(padded)[: layout.count], expected, rtol=1e-4, atol=1e-5)


def test_sizes_are_powers_of_two() -> None:
    assert [padded_size(count) for count in (1, 2, 3, 8, 9, 200)] == [1, 2, 4, 8, 16, 256]


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@torch.inference_mode()
def test_replays_on_a_device_give_what_the_step_gives(tmp_path: Path) -> None:
    from lmpool.gpu.cuda_graphs import DecodeGraphs  # noqa: PLC0415
    from lmpool.gpu.kv_pool import allocate_cuda_pool  # noqa: PLC0415

    device = torch.device("cuda", 0)
    decoder = load_decoder(write_tiny_model(tmp_path, "llama"), torch.float32, device, lambda line: None)
    pool = allocate_cuda_pool(decoder.facts.block_shape(SIZE), 60, device)
    graphs, workspace = DecodeGraphs(decoder, pool), Workspace(pool)
    decoder.hidden(StepLayout([row(0, 0, range(30), range(4))], pool, workspace, shares=False))
    for token in (5, 6):
        layout = StepLayout([row(0, 30, [token], range(4))], pool, workspace, shares=False)
        assert graphs.takes(layout)
        torch.testing.assert_close(graphs.hidden(layout), decoder.hidden(layout), rtol=1e-3, atol=1e-4)
