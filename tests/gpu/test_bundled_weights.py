"""The bundled model with its real weights: hits equal misses, and it knows the capital of France."""

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoTokenizer

from lmpool.gpu.kv_pool import allocate_cpu_pool
from lmpool.gpu.model import Decoder, load_decoder
from lmpool.gpu.runner import TorchRunner
from lmpool.gpu.source import prepare
from tests.gpu.plans import Steps, row, sampling, start
from tests.gpu.tiny_models import plain_logits, plain_model

pytestmark = [pytest.mark.model, pytest.mark.weights, pytest.mark.timeout(600)]

CACHE = Path.home() / ".cache" / "lmpool"
TOLERANCE = 1e-3
SHARED = 96
COUNT = 6


@pytest.fixture(scope="module")
def folder() -> Path:
    return prepare(None, CACHE, lambda line: None)


@pytest.fixture(scope="module")
def decoder(folder: Path) -> Decoder:
    return load_decoder(folder, torch.float32, torch.device("cpu"), lambda line: None)


@pytest.fixture(scope="module")
def plain(folder: Path) -> Any:
    return plain_model(folder, torch.float32)


def test_hits_equal_misses_in_float32(decoder: Decoder, plain: Any) -> None:
    """Six prompts behind one cached prefix, then decodes that attend it together; one prompt comes in chunks."""
    steps = Steps(TorchRunner(decoder, allocate_cpu_pool(decoder.facts.block_shape(16), 80)))
    random = torch.Generator().manual_seed(1)
    shared = torch.randint(0, decoder.facts.vocabulary, (SHARED,), generator=random).tolist()
    prefix = [7, 3, 70, 1, 44, 21]
    steps([row(COUNT, 0, shared[:37], prefix[:3], samples=False)], [start(COUNT, shared)])
    steps([row(COUNT, 37, shared[37:], prefix)])
    settings = sampling(logprobs=20)
    prompts = [
        shared + torch.randint(0, decoder.facts.vocabulary, (5 + 6 * n,), generator=random).tolist()
        for n in range(COUNT)
    ]
    tables = [[*prefix, *range(60 - 3 * n, 63 - 3 * n)] for n in range(COUNT)]
    assert len({block for table in tables for block in table}) == len(prefix) + 3 * COUNT
    rows = [row(n, SHARED, each[SHARED:], tables[n][: -(-len(each) // 16)]) for n, each in enumerate(prompts)]
    result = steps(rows, [start(n, each, settings=settings) for n, each in enumerate(prompts)])
    for _ in range(3):
        for prompt, token, entry in zip(prompts, result.tokens, result.logprobs, strict=True):
            assert entry is not None
            expected = torch.log_softmax(plain_logits(plain, prompt)[-1], -1)
            got = torch.tensor(entry.top_logprobs)
            assert float((got - expected[list(entry.top_tokens)]).abs().max()) <= TOLERANCE
            best = expected.topk(2)
            if float(best.values[0] - best.values[1]) > 2 * TOLERANCE:
                assert token == int(best.indices[0])
            prompt.append(token)
        rows = [row(n, len(each) - 1, (), tables[n][: -(-len(each) // 16)]) for n, each in enumerate(prompts)]
        result = steps(rows)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_it_knows_the_capital_of_france(folder: Path, dtype: torch.dtype) -> None:
    tokenizer = AutoTokenizer.from_pretrained(folder)
    asked = [{"role": "user", "content": "What is the capital of France?"}]
    text = tokenizer.apply_chat_template(asked, add_generation_prompt=True, tokenize=False)
    assert isinstance(text, str)
    prompt: list[int] = tokenizer(text, add_special_tokens=False)["input_ids"]
    decoder = load_decoder(folder, dtype, torch.device("cpu"), lambda line: None)
    steps = Steps(TorchRunner(decoder, allocate_cpu_pool(decoder.facts.block_shape(16), 10)))
    tokens = list(steps([row(0, 0, prompt, range(-(-len(prompt) // 16)))], [start(0, prompt)]).tokens)
    while len(tokens) < 8:
        count = len(prompt) + len(tokens)
        tokens += steps([row(0, count - 1, (), range(-(-count // 16)))]).tokens
    assert str(tokenizer.decode(tokens)).startswith("The capital of France is Paris.")
