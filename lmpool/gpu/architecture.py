"""What a configuration says about a model, and the refusal of what paged attention cannot serve exactly."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import attrs
from transformers import MODEL_FOR_CAUSAL_LM_MAPPING, AutoConfig

from lmpool.core.plan import ReplicaError

SERVED = "LMPool serves decoders with full or sliding-window attention through transformers"

LAYER_TYPES = ("full_attention", "sliding_attention")

LENGTH_DEPENDENT_ROPES = ("dynamic", "longrope")
"""They change all rotations when the longest context of a batch passes the original length."""


@attrs.frozen
class ContextLimit:
    tokens: int
    reason: str


def refusal(name: str, why: str) -> ReplicaError:
    return ReplicaError(f"{name} cannot be served: {why}", SERVED)


def told(error: Exception) -> str:
    """In one line what transformers says of a file: its checks raise errors of many kinds, some with a title line."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    text = " ".join(lines[:2] if lines and lines[0].endswith(":") else lines[:1])
    return text if isinstance(error, ValueError | OSError) and text else f"{type(error).__name__}: {text}"


def read_config(folder: Path) -> Any:
    """The transformers configuration of a model folder. Raises ReplicaError."""
    try:
        return AutoConfig.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
    except Exception as error:
        raise refusal(str(folder), f"its config.json cannot be read: {told(error)}") from error


def check_config(config: Any) -> None:
    """Raises ReplicaError for what is known from the configuration alone; `probe.py` tries the rest."""
    name = f"a {config.model_type!r} model"
    if config.is_encoder_decoder:
        raise refusal(name, "it has an encoder and a decoder")
    if config.sub_configs:
        raise refusal(name, f"it is made of several models ({', '.join(sorted(config.sub_configs))})")
    if type(config) not in MODEL_FOR_CAUSAL_LM_MAPPING:
        raise refusal(name, "transformers has no decoder for it")
    quantization = getattr(config, "quantization_config", None)
    if quantization is not None:
        raise refusal(name, "its weights are quantised; use a GGUF file or unquantised weights")
    if getattr(config, "kv_lora_rank", None) is not None:
        raise refusal(name, "it has multi-head latent attention")
    others = sorted(set(getattr(config, "layer_types", None) or ()) - set(LAYER_TYPES))
    if others:
        raise refusal(name, f"it has layers of another kind than full or sliding attention ({', '.join(others)})")
    if getattr(config, "num_kv_shared_layers", None):
        raise refusal(name, "layers share keys and values")


def layer_windows(config: Any) -> list[int | None]:
    """The window of each layer as the configuration has it; None is full attention."""
    count: int = config.num_hidden_layers
    window: int | None = getattr(config, "sliding_window", None)
    kinds = getattr(config, "layer_types", None)
    if kinds is None:
        return [window] * count
    return [window if kind == "sliding_attention" else None for kind in kinds]


def _rope_parameters(config: Any) -> Iterator[dict[str, Any]]:
    parameters = getattr(config, "rope_parameters", None) or {}
    if "rope_type" in parameters:
        yield parameters
    else:
        yield from (nested for nested in parameters.values() if isinstance(nested, dict))


def context_limit(config: Any) -> ContextLimit:
    """The longest context for which equal prefixes have equal keys and values. Raises ReplicaError."""
    limit: int | None = getattr(config, "max_position_embeddings", None)
    if limit is None:
        raise refusal(f"a {config.model_type!r} model", "its configuration has no max_position_embeddings")
    for parameters in _rope_parameters(config):
        kind = parameters["rope_type"]
        original = parameters.get("original_max_position_embeddings") or getattr(
            config, "original_max_position_embeddings", None
        )
        if kind in LENGTH_DEPENDENT_ROPES and original is not None and original < limit:
            return ContextLimit(original, f"the model's limit before {kind} rotations change with length")
    return ContextLimit(limit, "the model's limit")
