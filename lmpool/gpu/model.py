"""A decoder loaded through transformers, with paged attention in place of its own."""

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import attrs
import torch
from transformers import AutoModelForCausalLM
from transformers.utils import logging as transformers_logging
from typing_extensions import override

from lmpool.core.ids import BlockId, Slot
from lmpool.core.plan import ReplicaError, Row
from lmpool.gpu.architecture import check_config, context_limit, layer_windows, read_config, refusal, told
from lmpool.gpu.attention import NAME, register
from lmpool.gpu.kv_pool import BlockShape, KVPool, allocate_cpu_pool, allocate_cuda_pool
from lmpool.gpu.layout import StepLayout, StepTensors, Workspace
from lmpool.gpu.packed_linear import pack_linears
from lmpool.gpu.probe import PROBE_TOKENS, eager_logits, objection, probe_tokens, recorded_calls, relative_error

PROBE_ERRORS = {torch.float32: 3e-4, torch.float16: 5e-3, torch.bfloat16: 4e-2}
"""Relative error of logits, paged against eager, that counts as rounding; times the root of the number of layers.

Rounding and real differences both grow with depth. Measured in bfloat16 at 2 and 30 layers: right models 0.015 and
0.075, models with a wrong scale, a position bias or ignored sinks at least 0.157 and 0.87; the bounds are 0.057 and
0.22. Right models in float16: 0.002 and 0.008; in float32: 1e-6 and 4e-6."""

PROBE_BLOCK = 8


@attrs.frozen
class ModelFacts:
    layers: int
    kv_heads: int
    head_dim: int
    vocabulary: int
    context_tokens: int
    context_reason: str
    dtype: torch.dtype
    weight_bytes: int
    captures: bool
    """Whether a decode step can be captured: routing to experts asks the host how many tokens each has."""
    shares_prefixes: bool
    """Whether decode rows with a common prefix may attend it together: on CPU, without a cap on scores."""

    def block_shape(self, block_size: int) -> BlockShape:
        return BlockShape(self.layers, block_size, self.kv_heads, self.head_dim, self.dtype)


class _Given(torch.nn.Module):
    """Stands where the body of a decoder stood: hands on what it is given, so that only the head is computed."""

    @override
    def forward(self, inputs_embeds: torch.Tensor, **_: Any) -> Any:
        return _BodyOutput(inputs_embeds)


class _BodyOutput:
    """What a head reads of a body's output: the hidden states, and nothing for whatever else it asks."""

    def __init__(self, last_hidden_state: torch.Tensor) -> None:
        self.last_hidden_state = last_hidden_state

    def __getattr__(self, name: str) -> None:
        return None

    def __getitem__(self, index: int) -> torch.Tensor:
        assert index == 0
        return self.last_hidden_state


class Decoder:
    """The body gives hidden states of all tokens of a step; the head turns chosen ones into logits."""

    def __init__(self, model: Any, facts: ModelFacts) -> None:
        self.facts = facts
        self._model = model
        self._body = getattr(model, model.base_model_prefix)
        self._head = copy.copy(model)
        self._head._modules = dict(model._modules)
        self._head._modules[model.base_model_prefix] = _Given()

    def hidden(self, layout: StepLayout) -> torch.Tensor:
        """`[tokens, hidden]`; writes the step's keys and values to the pool."""
        layout.clear_fresh()
        return self.body(layout)

    def body(self, layout: StepTensors) -> torch.Tensor:
        """The same without clearing what the step begins."""
        output = self._body(input_ids=layout.tokens, position_ids=layout.positions, use_cache=False, layout=layout)
        hidden: torch.Tensor = output.last_hidden_state[0]
        return hidden

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """`[rows, vocabulary]` of `[rows, hidden]`."""
        logits: torch.Tensor = self._head(inputs_embeds=hidden.unsqueeze(0), use_cache=False).logits[0]
        return logits


def _loaded(folder: Path, config: Any, dtype: torch.dtype, device: torch.device) -> Any:
    placed = {} if device.type == "cpu" else {"device_map": {"": device}}
    try:
        model = AutoModelForCausalLM.from_pretrained(
            folder, config=config, dtype=dtype, attn_implementation=NAME, local_files_only=True, **placed
        )
    except torch.cuda.OutOfMemoryError as error:
        raise ReplicaError(f"{device} has no room for the weights of {folder}", "use a smaller model") from error
    except Exception as error:
        raise refusal(str(folder), told(error)) from error
    return model.eval().requires_grad_(False)


def _probe_pieces() -> list[list[Row]]:
    """A prefill, a chunk that continues it, and the rest token by token; over a permuted block table."""
    blocks = tuple(BlockId(number) for number in reversed(range(-(-PROBE_TOKENS // PROBE_BLOCK))))
    ends = [13, 19, *range(20, PROBE_TOKENS + 1)]

    def row(start: int, end: int) -> Row:
        tokens = tuple(range(start, end))
        table = blocks[: -(-end // PROBE_BLOCK)]
        return Row(Slot(0), start, tokens, table, writes=True, samples=False, uniform=0.0, forbids_end=False)

    return [[row(start, end)] for start, end in zip([0, *ends], ends, strict=False)]


def _paged_logits(decoder: Decoder, pool: KVPool, tokens: torch.Tensor) -> torch.Tensor:
    """`[tokens, vocabulary]`, computed in pieces."""
    workspace = Workspace(pool)
    logits: list[torch.Tensor] = []
    for rows in _probe_pieces():
        layout = StepLayout(rows, pool, workspace, shares=False)
        layout.tokens = tokens[:, layout.positions[0]]
        logits.append(decoder.logits(decoder.hidden(layout)))
    return torch.cat(logits)


def _checked(model: Any, config: Any, dtype: torch.dtype) -> Decoder:
    """The decoder, if it attends as assumed. Raises ReplicaError."""
    name = f"a {config.model_type!r} model"
    device = model.device
    tokens = probe_tokens(config.vocab_size, device)
    windows = layer_windows(config)
    calls = recorded_calls(model, tokens)
    problem = objection(calls, config.num_hidden_layers, windows)
    if problem is not None:
        raise refusal(name, problem)
    reference = eager_logits(model, tokens)
    model.config._attn_implementation = NAME
    if device.type == "cpu" and dtype == torch.bfloat16:
        pack_linears(model)
    limit = context_limit(config)
    facts = ModelFacts(
        layers=config.num_hidden_layers,
        kv_heads=calls[0].kv_heads,
        head_dim=calls[0].key_dim,
        vocabulary=reference.shape[1],
        context_tokens=limit.tokens,
        context_reason=limit.reason,
        dtype=dtype,
        weight_bytes=_weight_bytes(model),
        captures=not _has_experts(config),
        shares_prefixes=device.type == "cpu" and all(call.cap is None for call in calls),
    )
    decoder = Decoder(model, facts)
    shape = facts.block_shape(PROBE_BLOCK)
    blocks = -(-PROBE_TOKENS // PROBE_BLOCK)
    pool = allocate_cpu_pool(shape, blocks) if device.type == "cpu" else allocate_cuda_pool(shape, blocks, device)
    error = relative_error(_paged_logits(decoder, pool, tokens), reference)
    if not error <= PROBE_ERRORS[dtype] * facts.layers**0.5:
        raise refusal(name, f"paged and own attention differ (relative error of logits {error:.2g})")
    return decoder


def _has_experts(config: Any) -> bool:
    return any(getattr(config, name, None) for name in ("num_experts", "num_local_experts", "n_routed_experts"))


def _weight_bytes(model: torch.nn.Module) -> int:
    return sum(weight.nelement() * weight.element_size() for weight in model.parameters())


@torch.inference_mode()
def load_decoder(folder: Path, dtype: torch.dtype, device: torch.device, progress: Callable[[str], None]) -> Decoder:
    """Loads a safetensors folder and tries it on a few tokens. Raises ReplicaError with one clear line."""
    register()
    transformers_logging.set_verbosity_error()
    transformers_logging.disable_progress_bar()
    config = read_config(folder)
    check_config(config)
    progress(f"loading weights from {folder}")
    model = _loaded(folder, config, dtype, device)
    progress("checking the model's attention")
    return _checked(model, config, dtype)
