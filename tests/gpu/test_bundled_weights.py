"""The bundled model with real weights: hits and blocks that arrived equal misses. It knows the capital of France."""

import threading
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoTokenizer

from lmpool.gpu.kv_pool import allocate_cpu_pool
from lmpool.gpu.model import Decoder, load_decoder
from lmpool.gpu.paths.port import PathKind
from lmpool.gpu.runner import TorchRunner
from lmpool.gpu.source import prepare
from tests.gpu.paths.pools import order, watch
from tests.gpu.paths.test_ends import opened
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


class Replica:
    """A runner over a pool of its own, in which nobody has written."""

    def __init__(self, decoder: Decoder) -> None:
        self.pool = allocate_cpu_pool(decoder.facts.block_shape(16), 40)
        self.pool.tensor[:, :, :40] = float("nan")
        self._vocabulary = decoder.facts.vocabulary
        self._steps = Steps(TorchRunner(decoder, self.pool))

    def answer(self, prompt: list[int], table: list[int], cached: int) -> tuple[list[int], list[torch.Tensor]]:
        """Greedy tokens and their whole distributions; so many tokens of the prompt are in their blocks."""
        tokens, found = list(prompt), list[torch.Tensor]()
        settings = sampling(logprobs=self._vocabulary)
        rows = [row(0, cached, prompt[cached:], table[: -(-len(prompt) // 16)])]
        result = self._steps(rows, [start(0, prompt, settings=settings)])
        while True:
            (entry,) = result.logprobs
            assert entry is not None
            found.append(torch.empty(self._vocabulary))
            found[-1][list(entry.top_tokens)] = torch.tensor(entry.top_logprobs)
            tokens += result.tokens
            if len(found) == COUNT:
                return tokens[len(prompt) :], found
            result = self._steps([row(0, len(tokens) - 1, (), table[: -(-len(tokens) // 16)])])


@pytest.mark.parametrize("kind", [PathKind.SHARED_MEMORY, PathKind.GLOO])
def test_blocks_that_arrived_by_transfer_give_the_tokens_and_logits_of_computed_ones(
    decoder: Decoder, tmp_path: Path, kind: PathKind
) -> None:
    source, target, alone = (Replica(decoder) for _ in range(3))
    random = torch.Generator().manual_seed(5)
    prompt = torch.randint(0, decoder.facts.vocabulary, (150,), generator=random).tolist()
    there, here = [*range(39, 27, -1)], [3, 17, 4, 30, 8, 9, 10, 21, 0, 5, 6, 7]
    source.answer(prompt, there, 0)
    ordered = order(there[:9], here[:9], chunk_bytes=1 << 20)
    with opened(tmp_path, kind, source.pool, target.pool) as (at_source, at_target):
        thread = threading.Thread(target=lambda: at_source.copy(ordered, watch()))
        thread.start()
        copied = at_target.copy(ordered, watch())
        thread.join()
    assert copied.size_bytes == 9 * source.pool.shape.block_bytes
    tokens, arrived = target.answer(prompt, here, 9 * 16)
    expected, computed = alone.answer(prompt, [*range(12)], 0)
    for one, other in zip(arrived, computed, strict=True):
        assert float((one - other).abs().max()) <= TOLERANCE
    assert tokens == expected


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
