"""A Llama of random weights whose KV blocks have a wanted form, and that computes as little as such a model can.

For measurements of what is around a model. Its tokens are bytes; what it says means nothing.
"""

import json
from pathlib import Path
from typing import Any

import attrs
import numpy as np
import numpy.typing as npt
from safetensors.numpy import save_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

HIDDEN_LEAST = 64
INTERMEDIATE = 64
CONTEXT_TOKENS = 1 << 15
SPREAD = 0.05
"""Standard deviation of weights, norms apart, which are 1."""
END = "<|end|>"


@attrs.frozen
class LlamaForm:
    layers: int
    kv_heads: int
    head_dim: int

    @property
    def hidden(self) -> int:
        """The least multiple of the heads, as transformers wants it."""
        return self.kv_heads * -(-HIDDEN_LEAST // self.kv_heads)


def write_random_llama(folder: Path, form: LlamaForm, seed: int) -> Path:
    """A folder as `lmpool serve` takes it. Equal arguments give equal weights."""
    folder.mkdir(parents=True)
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {character: number for number, character in enumerate([*alphabet, END])}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([END])
    tokenizer.save(str(folder / "tokenizer.json"))
    _write(folder / "tokenizer_config.json", {"eos_token": END, "tokenizer_class": "PreTrainedTokenizerFast"})
    _write(folder / "config.json", _config(form, len(vocabulary), vocabulary[END]))
    save_file(_weights(form, len(vocabulary), seed), folder / "model.safetensors", metadata={"format": "pt"})
    return folder


def _write(path: Path, content: dict[str, Any]) -> None:
    path.write_text(json.dumps(content, indent=1))


def _config(form: LlamaForm, vocabulary: int, end: int) -> dict[str, Any]:
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": vocabulary,
        "hidden_size": form.hidden,
        "intermediate_size": INTERMEDIATE,
        "num_hidden_layers": form.layers,
        "num_attention_heads": form.kv_heads,
        "num_key_value_heads": form.kv_heads,
        "head_dim": form.head_dim,
        "max_position_embeddings": CONTEXT_TOKENS,
        "rms_norm_eps": 1e-6,
        "tie_word_embeddings": True,
        "bos_token_id": end,
        "eos_token_id": end,
        "dtype": "float32",
    }


def _weights(form: LlamaForm, vocabulary: int, seed: int) -> dict[str, npt.NDArray[np.float32]]:
    chance = np.random.default_rng(seed)
    width, hidden = form.kv_heads * form.head_dim, form.hidden
    shapes: dict[str, tuple[int, ...]] = {
        "model.embed_tokens.weight": (vocabulary, hidden),
        "model.norm.weight": (hidden,),
    }
    for layer in range(form.layers):
        names = f"model.layers.{layer}"
        for norm in ("input_layernorm", "post_attention_layernorm"):
            shapes[f"{names}.{norm}.weight"] = (hidden,)
        for head in "qkv":
            shapes[f"{names}.self_attn.{head}_proj.weight"] = (width, hidden)
        shapes[f"{names}.self_attn.o_proj.weight"] = (hidden, width)
        for part in ("gate", "up"):
            shapes[f"{names}.mlp.{part}_proj.weight"] = (INTERMEDIATE, hidden)
        shapes[f"{names}.mlp.down_proj.weight"] = (hidden, INTERMEDIATE)
    return {
        name: np.ones(shape, np.float32) if len(shape) == 1 else chance.normal(0, SPREAD, shape).astype(np.float32)
        for name, shape in shapes.items()
    }
