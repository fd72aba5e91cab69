"""Tries a loaded model on a few tokens: does it attend as the paged attention assumes?

A model is accepted for what it does, not for its name. Its own eager attention over a whole text must give the
logits that paged attention gives for the same text in pieces; state outside of keys and values (convolutions,
recurrences), biases on scores and the like cannot pass that.
"""

from typing import Any

import attrs
import torch
from transformers import AttentionInterface

RECORDING = "lmpool_recording"

PROBE_TOKENS = 24
"""Two blocks of the smallest size and a half: enough for a cached prefix, a chunk that continues and decodes."""

HARMLESS_OPTIONS = frozenset(
    ("layout", "scaling", "dropout", "sliding_window", "softcap", "s_aux", "is_causal", "position_ids", "use_cache")
)


@attrs.frozen
class LayerCall:
    """What one layer asked of its attention function."""

    layer: int
    kv_heads: int
    key_dim: int
    value_dim: int
    window: int | None
    cap: float | None
    sinks: bool


def probe_tokens(vocabulary: int, device: torch.device) -> torch.Tensor:
    """`[1, PROBE_TOKENS]`: spread over the vocabulary, always the same."""
    return ((torch.arange(PROBE_TOKENS, device=device) * 7919 + 13) % vocabulary).unsqueeze(0)


def recorded_calls(model: Any, tokens: torch.Tensor) -> list[LayerCall]:
    """Runs one forward pass whose attention only takes notes. Leaves `model` with the recording attention."""
    calls: list[LayerCall] = []

    def record(
        module: torch.nn.Module,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        attention_mask: torch.Tensor | None,
        **options: Any,
    ) -> tuple[torch.Tensor, None]:
        assert attention_mask is None
        calls.append(
            LayerCall(
                layer=int(module.layer_idx),  # type: ignore[arg-type]
                kv_heads=key.shape[1],
                key_dim=key.shape[3],
                value_dim=value.shape[3],
                window=options.get("sliding_window"),
                cap=options.get("softcap"),
                sinks=options.get("s_aux") is not None,
            )
        )
        return query.new_zeros((1, query.shape[2], query.shape[1], value.shape[3])), None

    AttentionInterface.register(RECORDING, record)
    model.config._attn_implementation = RECORDING
    positions = torch.arange(tokens.shape[1], device=tokens.device).unsqueeze(0)
    model(input_ids=tokens, position_ids=positions, use_cache=False)
    return calls


def eager_logits(model: Any, tokens: torch.Tensor) -> torch.Tensor:
    """`[tokens, vocabulary]` by the model's own attention. Leaves `model` with it."""
    model.config._attn_implementation = "eager"
    logits: torch.Tensor = model(input_ids=tokens, use_cache=False).logits[0]
    return logits


def objection(calls: list[LayerCall], layers: int, windows: list[int | None]) -> str | None:
    """Why these calls cannot be served, or None."""
    if sorted(call.layer for call in calls) != list(range(layers)):
        return f"{len(calls)} of its {layers} layers use transformers' attention interface"
    if any(call.sinks for call in calls):
        return "it has attention sinks"
    shapes = {(call.kv_heads, call.key_dim, call.value_dim): None for call in calls}
    if len(shapes) > 1 or any(key_dim != value_dim for _, key_dim, value_dim in shapes):
        told = ", ".join(f"{heads} heads of {key}/{value}" for heads, key, value in shapes)
        return f"its keys and values have several shapes ({told})"
    for call in calls:
        if call.window != windows[call.layer]:
            return f"layer {call.layer} should see {windows[call.layer]} tokens and asks for {call.window}"
    return None


def relative_error(logits: torch.Tensor, reference: torch.Tensor) -> float:
    """Root mean square difference over the root mean square of the centred reference."""
    reference = reference.float()
    centred = reference - reference.mean(dim=-1, keepdim=True)
    return float((logits.float() - reference).norm() / centred.norm().clamp_min(1e-12))
