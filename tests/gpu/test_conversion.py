"""GGUF files: a tiny one written here, and the bundled one."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from gguf import GGUFWriter, TokenType
from safetensors.torch import load_file
from tokenizers import Tokenizer
from transformers import AutoModelForCausalLM

from lmpool.gpu.source import SourceError, prepare
from tests.model_folder import byte_characters

pytestmark = pytest.mark.model

HIDDEN, HEADS, HEAD, WIDE = 32, 2, 16, 64


def ignore(line: str) -> None:
    """Progress that nobody reads."""


def write_gguf(file: Path, architecture: str) -> dict[str, np.ndarray]:
    """A random llama of one layer with a byte-level tokenizer; returns its tensors by GGUF name."""
    writer = GGUFWriter(file, architecture)
    vocabulary = [*byte_characters(), "he", "<|im_end|>"]
    writer.add_context_length(128)
    writer.add_embedding_length(HIDDEN)
    writer.add_block_count(1)
    writer.add_feed_forward_length(WIDE)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(HEADS)
    writer.add_rope_dimension_count(HEAD)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_freq_base(10_000.0)
    writer.add_vocab_size(len(vocabulary))
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("smollm")
    writer.add_token_list(vocabulary)
    writer.add_token_types([TokenType.NORMAL] * (len(vocabulary) - 1) + [TokenType.CONTROL])
    writer.add_token_merges(["h e"])
    writer.add_bos_token_id(len(vocabulary) - 1)
    writer.add_eos_token_id(len(vocabulary) - 1)
    writer.add_chat_template("{{ messages[0]['content'] }}")
    shapes = {
        "token_embd.weight": (len(vocabulary), HIDDEN),
        "output_norm.weight": (HIDDEN,),
        "blk.0.attn_norm.weight": (HIDDEN,),
        "blk.0.ffn_norm.weight": (HIDDEN,),
        "blk.0.ffn_gate.weight": (WIDE, HIDDEN),
        "blk.0.ffn_up.weight": (WIDE, HIDDEN),
        "blk.0.ffn_down.weight": (HIDDEN, WIDE),
    } | {f"blk.0.attn_{part}.weight": (HIDDEN, HIDDEN) for part in ("q", "k", "v", "output")}
    random = np.random.default_rng(1)
    tensors = {name: random.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()}
    for name, tensor in tensors.items():
        writer.add_tensor(name, tensor)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return tensors


@pytest.mark.parametrize("named_by", ["file", "folder"])
def test_a_gguf_file_is_converted_once(tmp_path: Path, named_by: str) -> None:
    file = tmp_path / "tiny.F32.gguf"
    tensors = write_gguf(file, "llama")
    model = str(file if named_by == "file" else tmp_path)
    cache = tmp_path / "cache"
    told: list[str] = []
    folder = prepare(model, cache, told.append)
    assert folder.name == "tiny.F32"
    assert told[0] == "converting tiny.F32.gguf to float32 safetensors (once)"
    weights = load_file(folder / "model.safetensors")
    assert np.array_equal(weights["model.embed_tokens.weight"].numpy(), tensors["token_embd.weight"])
    assert np.array_equal(weights["model.layers.0.mlp.down_proj.weight"].numpy(), tensors["blk.0.ffn_down.weight"])
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    assert tokenizer.encode("hello<|im_end|>").tokens == ["he", "l", "l", "o", "<|im_end|>"]
    assert (folder / "chat_template.jinja").read_text() == "{{ messages[0]['content'] }}"

    program = (
        "import sys; from pathlib import Path; from lmpool.gpu.source import prepare\n"
        "print(prepare(sys.argv[1], Path(sys.argv[2]), print), 'torch' in sys.modules)"
    )
    again = subprocess.run(
        [sys.executable, "-c", program, model, str(cache)], capture_output=True, text=True, check=True
    )
    assert again.stdout == f"{folder} False\n"


def test_what_transformers_cannot_read_is_refused_in_one_line(tmp_path: Path) -> None:
    write_gguf(tmp_path / "tiny.gguf", "perceptron")
    with pytest.raises(SourceError, match=r"tiny\.gguf cannot be converted: .*perceptron") as caught:
        prepare(str(tmp_path / "tiny.gguf"), tmp_path / "cache", ignore)
    assert "safetensors" in caught.value.hint
    assert not list((tmp_path / "cache").rglob("*.safetensors"))


def test_a_cut_file_is_refused_in_one_line(tmp_path: Path) -> None:
    write_gguf(tmp_path / "tiny.gguf", "llama")
    os.truncate(tmp_path / "tiny.gguf", 4000)
    with pytest.raises(SourceError, match="cannot be converted: ") as caught:
        prepare(str(tmp_path / "tiny.gguf"), tmp_path / "cache", ignore)
    assert "\n" not in caught.value.what


@pytest.mark.weights
@pytest.mark.slow
@pytest.mark.timeout(600)
def test_the_bundled_model_answers(tmp_path: Path) -> None:
    told: list[str] = []
    folder = prepare(None, tmp_path, told.append)
    assert "93 MB" in told[0]
    assert prepare(None, tmp_path, pytest.fail) == folder
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    asked = "<|im_start|>user\nWhat is the capital of France?<|im_end|>\n<|im_start|>assistant\n"
    prompt = torch.tensor([tokenizer.encode(asked, add_special_tokens=False).ids])
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    outputs = model.generate(prompt, attention_mask=torch.ones_like(prompt), max_new_tokens=12, do_sample=False)
    assert tokenizer.decode(outputs[0, prompt.shape[1] :].tolist()) == "The capital of France is Paris."
