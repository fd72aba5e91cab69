"""A random Llama is one that LMPool serves, with blocks of the wanted form."""

from pathlib import Path

import pytest

from lmpool.bench.random_llama import LlamaForm, write_random_llama
from lmpool.io.text.model_text import ModelText


def test_equal_arguments_give_equal_weights(tmp_path: Path) -> None:
    one, other, third = (
        write_random_llama(tmp_path / name, LlamaForm(2, 3, 8), seed) for name, seed in (("a", 1), ("b", 1), ("c", 2))
    )
    weights = [(folder / "model.safetensors").read_bytes() for folder in (one, other, third)]
    assert weights[0] == weights[1] != weights[2]


def test_its_tokens_are_bytes(tmp_path: Path) -> None:
    text = ModelText(write_random_llama(tmp_path / "model", LlamaForm(1, 1, 8), 1))
    try:
        assert text.facts.vocabulary == 257
        assert text.text_bytes(text.facts.ends[0]) == b""
        assert sorted(text.text_bytes(token) for token in range(256)) == [bytes([byte]) for byte in range(256)]
    finally:
        text.close()


@pytest.mark.model
@pytest.mark.parametrize("form", [LlamaForm(3, 3, 16), LlamaForm(2, 1, 8)])
def test_its_blocks_have_the_wanted_form(tmp_path: Path, form: LlamaForm) -> None:
    import torch  # noqa: PLC0415

    from lmpool.gpu.model import load_decoder  # noqa: PLC0415

    folder = write_random_llama(tmp_path / "model", form, 1)
    facts = load_decoder(folder, torch.bfloat16, torch.device("cpu"), lambda line: None).facts
    assert (facts.layers, facts.kv_heads, facts.head_dim) == (form.layers, form.kv_heads, form.head_dim)
    assert facts.vocabulary == 257
