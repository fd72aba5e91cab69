"""Logits and tokens do not depend on what was cached, how a prompt was cut, or who shared the batch."""

from collections.abc import Sequence
from typing import Any

import pytest
import torch

from lmpool.core.plan import StepResult, TokenLogprobs
from lmpool.gpu.kv_pool import KVPool, allocate_cpu_pool
from lmpool.gpu.model import Decoder, load_decoder
from lmpool.gpu.runner import TorchRunner
from tests.gpu.plans import Steps, row, sampling, start
from tests.gpu.tiny_models import FAMILIES, VOCABULARY, plain_logits, plain_model, write_tiny_model

pytestmark = pytest.mark.model

SIZE = 8
BLOCKS = 120
ALL = sampling(logprobs=VOCABULARY)
"""Greedy, with the whole distribution in the answer."""


class Bench:
    """A runner over a small pool, beside the plain model."""

    def __init__(self, decoder: Decoder, plain: Any, tolerance: float) -> None:
        self.pool: KVPool = allocate_cpu_pool(decoder.facts.block_shape(SIZE), BLOCKS)
        # what nobody wrote must not be read: it would spoil everything
        self.pool.tensor[:, :, :BLOCKS] = float("nan")
        self.steps = Steps(TorchRunner(decoder, self.pool))
        self.plain = plain
        self.tolerance = tolerance
        self._free = torch.randperm(BLOCKS, generator=torch.Generator().manual_seed(3)).tolist()

    def table(self, tokens: int, shared: Sequence[int] = ()) -> list[int]:
        """A block table for `tokens`, in no order, behind `shared` blocks."""
        return [*shared, *(self._free.pop() for _ in range(-(-tokens // SIZE) - len(shared)))]

    def check(self, tokens: Sequence[int], entry: TokenLogprobs | None) -> int:
        """`entry` must be the plain model's distribution after `tokens`; returns its token."""
        assert entry is not None
        self.check_distribution(plain_logits(self.plain, tokens)[-1], entry)
        return entry.token

    def check_distribution(self, logits: torch.Tensor, entry: TokenLogprobs) -> None:
        expected = torch.log_softmax(logits, dim=-1)
        got = torch.empty(VOCABULARY)
        got[list(entry.top_tokens)] = torch.tensor(entry.top_logprobs)
        assert float((got - expected).abs().max()) <= self.tolerance
        assert abs(entry.logprob - float(expected[entry.token])) <= self.tolerance

    def check_greedy(self, tokens: Sequence[int], entry: TokenLogprobs | None) -> int:
        token = self.check(tokens, entry)
        best = plain_logits(self.plain, tokens)[-1].topk(2)
        if float(best.values[0] - best.values[1]) > 2 * self.tolerance:
            assert token == int(best.indices[0])
        return token

    def check_all(self, prompts: Sequence[Sequence[int]], result: StepResult) -> list[int]:
        return [self.check_greedy(each, entry) for each, entry in zip(prompts, result.logprobs, strict=True)]


@pytest.fixture(scope="module", params=list(FAMILIES))
def models(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Decoder, Any]:
    folder = write_tiny_model(tmp_path_factory.mktemp(request.param), request.param)
    decoder = load_decoder(folder, torch.float32, torch.device("cpu"), lambda line: None)
    return decoder, plain_model(folder, torch.float32)


@pytest.fixture
def bench(models: tuple[Decoder, Any]) -> Bench:
    return Bench(*models, tolerance=1e-3)


def text(seed: int, count: int) -> list[int]:
    return torch.randint(0, VOCABULARY, (count,), generator=torch.Generator().manual_seed(seed)).tolist()


def prefill(bench: Bench, slot: int, prompt: list[int], table: list[int]) -> int:
    result = bench.steps([row(slot, 0, prompt, table)], [start(slot, prompt, settings=ALL)])
    return bench.check_all([prompt], result)[0]


def test_cold_prompt_then_decodes(bench: Bench) -> None:
    tokens = text(1, 61)
    table = bench.table(80)
    tokens.append(prefill(bench, 0, tokens, table))
    for _ in range(6):
        blocks = table[: -(-len(tokens) // SIZE)]
        tokens.append(bench.check_all([tokens], bench.steps([row(0, len(tokens) - 1, (), blocks)]))[0])


def test_every_prompt_position_is_scored(bench: Bench) -> None:
    prompt = text(2, 45)
    table = bench.table(45)
    wanted = [start(0, prompt, settings=ALL, prompt_logprobs=VOCABULARY)]
    first = bench.steps([row(0, 0, prompt[:20], table[:3], samples=False)], wanted)
    second = bench.steps([row(0, 20, prompt[20:], table)])
    runs = [*first.prompt_logprobs, *second.prompt_logprobs]
    assert [(run.start, len(run.entries)) for run in runs] == [(1, 20), (21, 24)]
    logits = plain_logits(bench.plain, prompt)
    entries = [entry for run in runs for entry in run.entries]
    assert [entry.token for entry in entries] == prompt[1:]
    for position, entry in enumerate(entries):
        bench.check_distribution(logits[position], entry)


def test_partly_cached_prompt(bench: Bench) -> None:
    first = text(3, 61)
    table = bench.table(61)
    prefill(bench, 0, first, table)
    second = first[:40] + text(4, 19)
    shared = table[:5]
    result = bench.steps(
        [row(1, 40, second[40:], bench.table(59, shared))], [start(1, second, settings=ALL)], departures=[0]
    )
    bench.check_all([second], result)


@pytest.mark.parametrize("cached", [48, 45, 33])
def test_b26_wholly_cached_prompt_computes_one_token_and_writes_nothing(bench: Bench, cached: int) -> None:
    first = text(5, 61)
    table = bench.table(61)
    prefill(bench, 0, first, table)
    before = bench.pool.tensor[:, :, : bench.pool.blocks].clone()
    again = first[:cached]
    blocks = table[: -(-cached // SIZE)]
    result = bench.steps(
        [row(1, cached - 1, again[-1:], blocks, writes=False), row(2, cached - 1, again[-1:], blocks, writes=False)],
        [start(1, again, settings=ALL), start(2, again, settings=ALL)],
    )
    bench.check_all([again, again], result)
    torch.testing.assert_close(bench.pool.tensor[:, :, : bench.pool.blocks], before, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("cuts", [(7, 23, 24, 50), (16, 32, 48), (1, 2, 3, 57), (60,)])
def test_b36_prompt_in_chunks(bench: Bench, cuts: tuple[int, ...]) -> None:
    prompt = text(6, 61)
    table = bench.table(61)
    starts = [start(0, prompt, settings=ALL)]
    for begin, end in zip((0, *cuts), cuts, strict=False):
        bench.steps([row(0, begin, prompt[begin:end], table[: -(-end // SIZE)], samples=False)], starts)
        starts = []
    bench.check_all([prompt], bench.steps([row(0, cuts[-1], prompt[cuts[-1] :], table)]))


def test_mixed_batch_is_one_step(bench: Bench) -> None:
    """Two decodes, a chunk that continues, a prompt behind a cached prefix, a cold one, a wholly cached one."""
    shared = text(7, 24)
    a, b, c, d, e = shared + text(8, 9), text(9, 50), text(10, 40), shared + text(11, 30), text(12, 17)
    tables = {name: bench.table(80) for name in "abce"}
    tables["d"] = bench.table(80, tables["a"][:3])
    a.append(prefill(bench, 0, a, tables["a"][:5]))
    b.append(prefill(bench, 1, b, tables["b"][:7]))
    bench.steps([row(2, 0, c[:13], tables["c"][:2], samples=False)], [start(2, c, settings=ALL)])
    result = bench.steps(
        [
            row(0, len(a) - 1, (), tables["a"][:5]),
            row(3, 24, d[24:], tables["d"][:7]),
            row(2, 13, c[13:], tables["c"][:5]),
            row(5, 23, shared[23:], tables["a"][:3], writes=False),
            row(1, len(b) - 1, (), tables["b"][:7]),
            row(4, 0, e, tables["e"][:3]),
        ],
        [start(3, d, settings=ALL), start(4, e, settings=ALL), start(5, shared, settings=ALL)],
    )
    bench.check_all([a, d, c, shared, b, e], result)


def test_resumes_after_preemption(bench: Bench) -> None:
    """The complete blocks stay; what lay in the last one is computed again elsewhere."""
    tokens = text(13, 30)
    table = bench.table(80)
    tokens.append(prefill(bench, 0, tokens, table[:4]))
    for _ in range(5):
        tokens.append(bench.check_all([tokens], bench.steps([row(0, len(tokens) - 1, (), table[:5])]))[0])
    kept = table[: len(tokens) // SIZE]
    begin = len(kept) * SIZE
    resumed = start(0, tokens[:30], outputs=tokens[30:], settings=ALL)
    result = bench.steps([row(0, begin, tokens[begin:], bench.table(len(tokens), kept))], [resumed], departures=[0])
    bench.check_all([tokens], result)


def test_decodes_that_share_a_prefix_are_attended_together(bench: Bench) -> None:
    """Enough rows behind one prefix, at several lengths, beside rows that share nothing."""
    shared = text(14, 64)
    table = bench.table(64)
    prefill(bench, 0, shared, table)
    prompts = [shared + text(20 + index, 3 + 5 * (index % 3)) for index in range(7)] + [text(15, 5), text(16, 31)]
    tables = [bench.table(len(each), table if index < 7 else ()) for index, each in enumerate(prompts)]
    begins = [64 if index < 7 else 0 for index in range(len(prompts))]
    starts = [start(index, each, settings=ALL) for index, each in enumerate(prompts)]
    rows = [row(i, begin, prompts[i][begin:], tables[i]) for i, begin in enumerate(begins)]
    tokens = bench.check_all(prompts, bench.steps(rows, starts, departures=[0]))
    for _ in range(2):
        prompts = [[*each, token] for each, token in zip(prompts, tokens, strict=True)]
        tables = [bench.table(len(each), blocks) for each, blocks in zip(prompts, tables, strict=True)]
        rows = [row(i, len(each) - 1, (), tables[i]) for i, each in enumerate(prompts)]
        tokens = bench.check_all(prompts, bench.steps(rows))
