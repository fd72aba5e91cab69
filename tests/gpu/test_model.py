"""What is served and what is refused, each with one clear line; and a model in the CPU's own format."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM
from transformers.models.deepseek_v3 import DeepseekV3Config
from transformers.models.gpt_oss import GptOssConfig
from transformers.models.llama import LlamaConfig
from transformers.models.mamba import MambaConfig
from transformers.models.qwen3_next import Qwen3NextConfig
from transformers.models.t5 import T5Config

from lmpool.core.plan import ReplicaError, TokenLogprobs
from lmpool.gpu.architecture import context_limit, layer_windows
from lmpool.gpu.kv_pool import allocate_cpu_pool
from lmpool.gpu.model import load_decoder
from lmpool.gpu.probe import LayerCall, objection
from lmpool.gpu.runner import TorchRunner
from tests.gpu.plans import Steps, row, sampling, start
from tests.gpu.tiny_models import FAMILIES, SHAPE, VOCABULARY, plain_logits, plain_model, write_tiny_model

pytestmark = pytest.mark.model

BFLOAT16_TOLERANCE = 0.25
"""Of log-probabilities, paged against plain, both in bfloat16; logits have a standard deviation near 1.5 here. Six
seeds of each family gave at most 0.17; plain bfloat16 is itself up to 0.41 from float32 on them."""

BFLOAT16_RATIO = 1.25
"""Root mean square error to float32, paged over plain: measured 0.92 to 1.0."""


def refused(config: Any, folder: Path) -> ReplicaError:
    config.save_pretrained(folder)
    with pytest.raises(ReplicaError) as raised:
        load_decoder(folder, torch.float32, torch.device("cpu"), lambda line: None)
    assert "\n" not in str(raised.value)
    return raised.value


def test_models_of_other_kinds_are_refused_by_name(tmp_path: Path) -> None:
    error = refused(T5Config(), tmp_path)
    assert "'t5'" in error.what
    assert "encoder" in error.what
    assert "latent" in refused(DeepseekV3Config(), tmp_path).what
    assert "linear_attention" in refused(Qwen3NextConfig(), tmp_path).what


def test_several_models_in_one_are_refused(tmp_path: Path) -> None:
    from transformers.models.llava import LlavaConfig  # noqa: PLC0415

    assert "vision_config" in refused(LlavaConfig(), tmp_path).what


def test_quantised_weights_are_refused(tmp_path: Path) -> None:
    config = LlamaConfig(**SHAPE)
    config.quantization_config = {"quant_method": "gptq", "bits": 4}
    assert "quantised" in refused(config, tmp_path).what


def test_a_folder_that_is_no_model_is_refused(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "nobody-knows"}))
    with pytest.raises(ReplicaError, match="nobody-knows"):
        load_decoder(tmp_path, torch.float32, torch.device("cpu"), lambda line: None)


@pytest.mark.parametrize(
    ("field", "value"), [("hidden_size", "many"), ("num_attention_heads", 0), ("rope_parameters", 7), ("dtype", "x")]
)
def test_a_configuration_of_the_wrong_kind_is_refused_and_names_the_field(
    tmp_path: Path, field: str, value: object
) -> None:
    LlamaConfig(**SHAPE).save_pretrained(tmp_path)
    file = tmp_path / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {field: value}))
    with pytest.raises(ReplicaError, match="cannot be served") as raised:
        load_decoder(tmp_path, torch.float32, torch.device("cpu"), lambda line: None)
    assert "\n" not in str(raised.value)


def test_weights_of_another_shape_are_refused(tmp_path: Path) -> None:
    AutoModelForCausalLM.from_config(LlamaConfig(**SHAPE)).save_pretrained(tmp_path)
    file = tmp_path / "config.json"
    fields = json.loads(file.read_text())
    file.write_text(json.dumps(fields | {"vocab_size": fields["vocab_size"] + 7}))
    with pytest.raises(ReplicaError, match="cannot be served"):
        load_decoder(tmp_path, torch.float32, torch.device("cpu"), lambda line: None)


def test_a_model_without_attention_is_refused(tmp_path: Path) -> None:
    config = MambaConfig(vocab_size=VOCABULARY, hidden_size=32, num_hidden_layers=2, state_size=4)
    AutoModelForCausalLM.from_config(config).save_pretrained(tmp_path)
    assert "'mamba'" in refused(config, tmp_path).what


def test_attention_sinks_are_refused(tmp_path: Path) -> None:
    config = GptOssConfig(**{**SHAPE, "num_local_experts": 4}, head_dim=16, sliding_window=24)
    AutoModelForCausalLM.from_config(config, attn_implementation="eager").save_pretrained(tmp_path)
    assert "sinks" in refused(config, tmp_path).what


def call(layer: int, *, window: int | None = None, key_dim: int = 8, sinks: bool = False) -> LayerCall:
    return LayerCall(layer, 2, key_dim, 8, window, None, sinks)


def test_objections_to_what_layers_ask() -> None:
    full: list[int | None] = [None, None]
    assert objection([call(0), call(1)], 2, full) is None
    assert objection([call(1, window=24), call(0)], 2, [None, 24]) is None
    for calls, word in (
        ([call(0)], "1 of its 2 layers"),
        ([call(0), call(0)], "2 of its 2 layers"),
        ([call(0, key_dim=12), call(1, key_dim=12)], "several shapes"),
        ([call(0), call(1, key_dim=12)], "several shapes"),
        ([call(0), call(1, sinks=True)], "sinks"),
        ([call(0), call(1, window=24)], "layer 1"),
    ):
        assert word in (objection(calls, 2, full) or "")
    assert "layer 0 should see 24" in (objection([call(0), call(1)], 2, [24, None]) or "")


def test_windows_by_configuration() -> None:
    assert layer_windows(FAMILIES["llama"]()) == [None, None]
    assert layer_windows(FAMILIES["qwen2"]()) == [None, None]
    assert layer_windows(FAMILIES["mistral-sliding"]()) == [24, 24]
    assert layer_windows(FAMILIES["gemma2"]()) == [24, None]


def test_context_ends_where_rotations_would_change_with_length() -> None:
    assert context_limit(LlamaConfig(**SHAPE)).tokens == 512
    for kind, tokens in (("longrope", 128), ("dynamic", 128), ("linear", 512)):
        rope = {"rope_type": kind, "rope_theta": 1e4, "factor": 4.0, "original_max_position_embeddings": 128}
        if kind == "longrope":
            rope |= {"short_factor": [1.0] * 8, "long_factor": [2.0] * 8}
        limit = context_limit(LlamaConfig(**SHAPE, rope_parameters=rope))
        assert limit.tokens == tokens
        assert (kind in limit.reason) == (tokens == 128)


def distribution(entry: TokenLogprobs | None) -> torch.Tensor:
    assert entry is not None
    logprobs = torch.empty(VOCABULARY)
    logprobs[list(entry.top_tokens)] = torch.tensor(entry.top_logprobs)
    return logprobs


@pytest.mark.parametrize("family", ["llama", "qwen2", "mistral-sliding", "gemma2"])
def test_bfloat16_stays_within_its_tolerance(family: str, tmp_path: Path) -> None:
    """Packed layers, cached prefix, chunk, shared pass: as near to float32 as the plain pass in bfloat16 is."""
    folder = write_tiny_model(tmp_path, family)
    decoder = load_decoder(folder, torch.bfloat16, torch.device("cpu"), lambda line: None)
    steps = Steps(TorchRunner(decoder, allocate_cpu_pool(decoder.facts.block_shape(8), 60)))
    plain, exact = plain_model(folder, torch.bfloat16), plain_model(folder, torch.float32)
    random = torch.Generator().manual_seed(2)
    shared = torch.randint(0, VOCABULARY, (80,), generator=random).tolist()
    prefix = list(range(10))
    steps([row(9, 0, shared[:50], prefix[:7], samples=False)], [start(9, shared)])
    steps([row(9, 50, shared[50:], prefix)])
    prompts = [shared + torch.randint(0, VOCABULARY, (3 + n,), generator=random).tolist() for n in range(6)]
    tables = [[*prefix, 20 + 2 * n, 21 + 2 * n] for n in range(6)]
    rows = [row(n, 80, each[80:], tables[n][: -(-len(each) // 8)]) for n, each in enumerate(prompts)]
    settings = sampling(logprobs=VOCABULARY)
    result = steps(rows, [start(n, each, settings=settings) for n, each in enumerate(prompts)])
    paged_errors, plain_errors = [], []
    for _ in range(4):
        for prompt, token, entry in zip(prompts, result.tokens, result.logprobs, strict=True):
            got = distribution(entry)
            expected = torch.log_softmax(plain_logits(plain, prompt)[-1], -1)
            reference = torch.log_softmax(plain_logits(exact, prompt)[-1], -1)
            paged_errors.append(got - reference)
            plain_errors.append(expected - reference)
            assert float((got - expected).abs().max()) <= BFLOAT16_TOLERANCE
            best = expected.topk(2)
            if float(best.values[0] - best.values[1]) > 2 * BFLOAT16_TOLERANCE:
                assert token == int(best.indices[0])
            prompt.append(token)
        rows = [row(n, len(each) - 1, (), tables[n][: -(-len(each) // 8)]) for n, each in enumerate(prompts)]
        result = steps(rows)
    assert torch.stack(paged_errors).norm() <= BFLOAT16_RATIO * torch.stack(plain_errors).norm()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_model_that_attends_otherwise_is_refused(
    dtype: torch.dtype, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its own attention adds a bias by distance, of which paged attention hears nothing."""
    from transformers.models.llama import modeling_llama  # noqa: PLC0415

    own = modeling_llama.eager_attention_forward

    def biased(module: Any, query: Any, key: Any, value: Any, mask: torch.Tensor, **options: Any) -> Any:
        distance = torch.arange(key.shape[2]).to(mask.dtype)
        return own(module, query, key, value, mask + 0.1 * distance, **options)

    folder = write_tiny_model(tmp_path, "llama")
    load_decoder(folder, dtype, torch.device("cpu"), lambda line: None)
    monkeypatch.setattr(modeling_llama, "eager_attention_forward", biased)
    with pytest.raises(ReplicaError, match="paged and own attention differ"):
        load_decoder(folder, dtype, torch.device("cpu"), lambda line: None)
