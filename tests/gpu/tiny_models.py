"""Tiny random decoders of several families, saved as safetensors folders, and their plain forward pass."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM
from transformers.models.gemma2 import Gemma2Config
from transformers.models.gemma3 import Gemma3TextConfig
from transformers.models.llama import LlamaConfig
from transformers.models.mistral import MistralConfig
from transformers.models.phi3 import Phi3Config
from transformers.models.qwen2 import Qwen2Config
from transformers.models.qwen3 import Qwen3Config
from transformers.models.qwen3_moe import Qwen3MoeConfig

VOCABULARY = 97

SHAPE: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "initializer_range": 0.2,
    "bos_token_id": 0,
    "eos_token_id": 1,
    "pad_token_id": 1,
    "tie_word_embeddings": False,
}
ALTERNATING = ["sliding_attention", "full_attention"]
EXPERTS: dict[str, Any] = {
    "head_dim": 16,
    "num_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 48,
    "norm_topk_prob": True,
}

FAMILIES: dict[str, Any] = {
    "llama": lambda: LlamaConfig(**SHAPE),
    "qwen2": lambda: Qwen2Config(**SHAPE),
    "qwen3": lambda: Qwen3Config(**SHAPE, head_dim=32),
    "qwen3-sliding": lambda: Qwen3Config(
        **SHAPE, head_dim=16, use_sliding_window=True, sliding_window=24, layer_types=ALTERNATING
    ),
    "mistral-sliding": lambda: MistralConfig(**SHAPE, head_dim=16, sliding_window=24),
    "phi3": lambda: Phi3Config(**SHAPE),
    "gemma2": lambda: Gemma2Config(**SHAPE, head_dim=16, query_pre_attn_scalar=20, sliding_window=24),
    "gemma3": lambda: Gemma3TextConfig(**SHAPE, head_dim=16, sliding_window=24, layer_types=ALTERNATING),
    "qwen3-moe": lambda: Qwen3MoeConfig(**SHAPE, **EXPERTS),
}


def write_tiny_model(folder: Path, family: str) -> Path:
    torch.manual_seed(7)
    model = AutoModelForCausalLM.from_config(FAMILIES[family](), attn_implementation="eager")
    model.save_pretrained(folder)
    return folder


def plain_model(folder: Path, dtype: torch.dtype) -> Any:
    """The model with transformers' own attention and no cache."""
    return AutoModelForCausalLM.from_pretrained(folder, dtype=dtype, attn_implementation="eager").eval()


@torch.inference_mode()
def plain_logits(model: Any, tokens: Sequence[int]) -> torch.Tensor:
    """`[tokens, vocabulary]` in float32."""
    logits: torch.Tensor = model(input_ids=torch.tensor([list(tokens)]), use_cache=False).logits[0]
    return logits.float()
