"""Paged attention behind transformers' attention interface: masks, windows and caps are applied here.

No mask function is registered under the name, so transformers makes no mask and passes None. The name must not
contain `sdpa`, `flash` or `flex_attention`: transformers matches on those.
"""

from typing import Any

import torch
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface

from lmpool.gpu.layout import DecodeCluster, DecodePart, Gathered, PrefillPart, StepTensors

NAME = "lmpool_paged"


class Scoring:
    """What a layer makes of scores: its scale, and a cap `c tanh(s / c)` where it has one."""

    def __init__(self, scale: float, cap: float | None) -> None:
        self.scale = scale
        self.cap = cap

    def attend(
        self, queries: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, mask: torch.Tensor | None
    ) -> torch.Tensor:
        """`[rows, heads, queries, head_dim]`; heads of `queries` are a multiple of those of `keys`. No mask: causal."""
        if self.cap is not None:
            return self._capped(queries, keys, values, mask, self.cap)
        grouped = queries.shape[1] != keys.shape[1]
        return scaled_dot_product_attention(
            queries, keys, values, attn_mask=mask, is_causal=mask is None, scale=self.scale, enable_gqa=grouped
        )

    def _capped(
        self, queries: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, mask: torch.Tensor | None, cap: float
    ) -> torch.Tensor:
        rows, heads, count, dim = queries.shape
        grouped = queries.view(rows, keys.shape[1], -1, count, dim)
        scores = torch.matmul(grouped, keys.unsqueeze(2).transpose(3, 4)) * self.scale
        scores = torch.tanh(scores / cap) * cap
        if mask is None:
            scores = scores.masked_fill(torch.ones_like(scores[0, 0, 0], dtype=torch.bool).triu(1), float("-inf"))
        else:
            scores = scores + (mask.unsqueeze(2) if mask.dim() == 4 else mask)
        weights = torch.softmax(scores, dim=-1, dtype=torch.float32).to(queries.dtype)
        return torch.matmul(weights, values.unsqueeze(2)).view(rows, heads, count, dim)


def _gather(layer: torch.Tensor, gathered: Gathered) -> None:
    torch.index_select(layer[0], 0, gathered.blocks, out=gathered.into[0])
    torch.index_select(layer[1], 0, gathered.blocks, out=gathered.into[1])


def _prefill(
    part: PrefillPart, layer: torch.Tensor, inputs: tuple[torch.Tensor, torch.Tensor, torch.Tensor], scoring: Scoring
) -> torch.Tensor:
    """`[heads, count, head_dim]`; `inputs` are the step's queries, keys and values `[1, heads, tokens, head_dim]`."""
    span = slice(part.first, part.first + part.count)
    queries, keys, values = (tensor[:, :, span] for tensor in inputs)
    if part.gathered is not None:
        _gather(layer, part.gathered)
        keys, values = part.gathered.keys, part.gathered.values
    return scoring.attend(queries, keys, values, part.mask)[0]


def _decode(part: DecodePart, layer: torch.Tensor, queries: torch.Tensor, scoring: Scoring) -> torch.Tensor:
    """`queries` `[count, kv_heads, group, head_dim]`: the heads that share keys stand in the place of positions."""
    _gather(layer, part.gathered)
    return scoring.attend(queries, part.gathered.keys, part.gathered.values, part.mask)


_attend_with_weight = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
"""The CPU kernel behind scaled_dot_product_attention; it also returns the logarithm of the sum of weights."""


def _decode_cluster(
    cluster: DecodeCluster, layer: torch.Tensor, queries: torch.Tensor, scale: float, output: torch.Tensor
) -> None:
    """Attends the common beginning once for all rows, each row's own blocks apart, and merges by weight.

    `queries` and `output` are `[count, kv_heads, group, head_dim]`.
    """
    count, heads, group, dim = queries.shape
    _gather(layer, cluster.shared)
    together = queries.transpose(0, 1).reshape(1, heads, count * group, dim)
    shared, shared_weight = _attend_with_weight(together, cluster.shared.keys, cluster.shared.values, scale=scale)
    shared = shared.view(heads, count, group, dim).transpose(0, 1)
    shared_weight = shared_weight.reshape(heads, count, group).transpose(0, 1)
    for part in cluster.parts:
        rows = slice(part.first - cluster.first, part.first - cluster.first + part.count)
        _gather(layer, part.gathered)
        own, own_weight = _attend_with_weight(
            queries[rows], part.gathered.keys, part.gathered.values, attn_mask=part.mask, scale=scale
        )
        share = torch.sigmoid(shared_weight[rows] - own_weight).unsqueeze(-1).to(own.dtype)
        torch.lerp(own, shared[rows], share, out=output[rows])


def paged_attention(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    **options: Any,
) -> tuple[torch.Tensor, None]:
    """`query` `[1, heads, tokens, head_dim]`, `key` and `value` `[1, kv_heads, tokens, head_dim]`.

    Of `options` count `layout` (StepTensors), `scaling`, `sliding_window` and `softcap`; a model that relies on
    another is refused at load (`model.py`).
    """
    assert attention_mask is None
    layout: StepTensors = options["layout"]
    layer_index: int = module.layer_idx  # type: ignore[assignment]
    scoring = Scoring(options["scaling"], options.get("softcap"))
    layer = layout.pool.layers[layer_index]
    layout.pool.key_slots[layer_index].index_copy_(0, layout.slots, key[0].transpose(0, 1))
    layout.pool.value_slots[layer_index].index_copy_(0, layout.slots, value[0].transpose(0, 1))

    parts = layout.parts(options.get("sliding_window"))
    queries = query[0].transpose(0, 1)
    output = queries.new_empty(queries.shape)
    for prefill in parts.prefills:
        span = slice(prefill.first, prefill.first + prefill.count)
        output[span] = _prefill(prefill, layer, (query, key, value), scoring).transpose(0, 1)
    by_group = (queries.shape[0], key.shape[1], -1, queries.shape[2])
    grouped, grouped_output = queries.reshape(by_group), output.view(by_group)
    for cluster in parts.clusters:
        span = slice(cluster.first, cluster.first + cluster.count)
        _decode_cluster(cluster, layer, grouped[span], scoring.scale, grouped_output[span])
    for decode in parts.decodes:
        span = slice(decode.first, decode.first + decode.count)
        grouped_output[span] = _decode(decode, layer, grouped[span], scoring)
    return output.unsqueeze(0), None


def register() -> None:
    AttentionInterface.register(NAME, paged_attention)
