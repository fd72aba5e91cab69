"""Slots over steps: last tokens, penalties, prompt scores, faults of one row, shared passes."""

from pathlib import Path

import pytest
import torch

from lmpool.core.ids import Slot, StepNumber
from lmpool.core.plan import NOT_FINITE, BatchPlan, TokenLogprobs
from lmpool.core.sampling import uniform
from lmpool.gpu.kv_pool import KVPool, allocate_cpu_pool
from lmpool.gpu.layout import StepLayout, Workspace
from lmpool.gpu.model import Decoder, load_decoder
from lmpool.gpu.runner import LOGIT_ROWS_MAX, TorchRunner
from tests.gpu.plans import Steps, row, sampling, start
from tests.gpu.tiny_models import VOCABULARY, plain_logits, plain_model, write_tiny_model

pytestmark = pytest.mark.model

SIZE = 8


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_model(tmp_path_factory.mktemp("llama"), "llama")


@pytest.fixture(scope="module")
def decoder(folder: Path) -> Decoder:
    return load_decoder(folder, torch.float32, torch.device("cpu"), lambda line: None)


@pytest.fixture
def pool(decoder: Decoder) -> KVPool:
    return allocate_cpu_pool(decoder.facts.block_shape(SIZE), 100)


@pytest.fixture
def steps(decoder: Decoder, pool: KVPool) -> Steps:
    return Steps(TorchRunner(decoder, pool))


def test_a_step_without_sampling_rows_has_an_empty_result(steps: Steps) -> None:
    result = steps([row(0, 0, range(5), [0], samples=False)], [start(0, range(10))])
    assert (result.slots, result.tokens, result.logprobs, result.prompt_logprobs) == ((), (), (), ())


def test_results_are_in_the_order_of_the_plan(steps: Steps) -> None:
    prompts = {3: [5, 6, 7], 0: [9], 7: [1, 2]}
    alone = {}
    for slot, prompt in prompts.items():
        alone[slot] = steps([row(slot, 0, prompt, [slot])], [start(slot, prompt)], [slot]).tokens[0]
    starts = [start(slot, prompt) for slot, prompt in prompts.items()]
    result = steps([row(slot, 0, prompt, [slot + 10]) for slot, prompt in prompts.items()], starts)
    assert result.slots == (3, 0, 7)
    assert result.tokens == tuple(alone[slot] for slot in result.slots)


def test_an_input_may_be_named_or_be_the_last_token(steps: Steps) -> None:
    prompt = [4, 8, 15, 16]
    token = steps([row(0, 0, prompt, [0]), row(1, 0, prompt, [1])], [start(0, prompt), start(1, prompt)]).tokens[0]
    result = steps([row(0, 4, (), [0]), row(1, 4, [token], [1])])
    assert result.tokens[0] == result.tokens[1]


def test_slots_beyond_the_first_allocation(steps: Steps) -> None:
    prompt = [4, 8, 15]
    token = steps([row(1000, 0, prompt, [0])], [start(1000, prompt)]).tokens[0]
    steps([row(0, 0, [*prompt, token], [1])], [start(0, prompt)])
    assert steps([row(1000, 3, (), [0])]).tokens == steps([row(0, 3, [token], [1])]).tokens


def test_penalties_and_seeds_give_the_same_stream_after_a_resume(steps: Steps) -> None:
    """Interrupted anywhere, also on other blocks: the same tokens as without interruption."""
    settings = sampling(temperature=0.9, top_p=0.95, repetition=1.4, presence=0.3, frequency=0.2)
    prompt = [3, 1, 4, 1, 5, 9, 2, 6, 5, 3]
    chances = [uniform(77, 0, index) for index in range(12)]

    def stream(resumes: dict[int, int]) -> list[int]:
        blocks = [0, 1, 2, 3]
        first = row(0, 0, prompt, blocks[:2], uniform=chances[0])
        outputs = list(steps([first], [start(0, prompt, settings=settings)], [0]).tokens)
        while len(outputs) < len(chances):
            count, chance = len(prompt) + len(outputs), chances[len(outputs)]
            if len(outputs) in resumes:
                blocks = [resumes[len(outputs)] + block for block in range(4)]
                again = start(0, prompt, outputs=outputs, settings=settings)
                whole = row(0, 0, [*prompt, *outputs], blocks[: -(-count // SIZE)], uniform=chance)
                outputs += steps([whole], [again], [0]).tokens
            else:
                outputs += steps([row(0, count - 1, (), blocks[: -(-count // SIZE)], uniform=chance)]).tokens
        return outputs

    assert stream({}) == stream({3: 20, 4: 30, 11: 40})


def test_b31_prompt_scores_do_not_depend_on_chunks(steps: Steps, folder: Path) -> None:
    prompt = torch.randint(0, VOCABULARY, (LOGIT_ROWS_MAX + 30,), generator=torch.Generator().manual_seed(1)).tolist()
    blocks = list(range(12))
    wanted = [start(0, prompt, prompt_logprobs=2)]
    whole = steps([row(0, 0, prompt, blocks)], wanted, [0]).prompt_logprobs
    assert [(run.slot, run.start, len(run.entries)) for run in whole] == [(0, 1, len(prompt) - 1)]
    entries: list[TokenLogprobs] = []
    for begin, end in ((0, 1), (1, 40), (40, len(prompt) - 1), (len(prompt) - 1, len(prompt))):
        table = blocks[: -(-end // SIZE)]
        for run in steps([row(0, begin, prompt[begin:end], table)], wanted if begin == 0 else ()).prompt_logprobs:
            assert run.start == len(entries) + 1
            entries += run.entries
    expected = torch.log_softmax(plain_logits(plain_model(folder, torch.float32), prompt), -1)
    for position, (first, second) in enumerate(zip(whole[0].entries, entries, strict=True)):
        assert first.token == second.token == prompt[position + 1]
        assert first.logprob == pytest.approx(float(expected[position, first.token]), abs=1e-3)
        assert second.logprob == pytest.approx(first.logprob, abs=1e-3)
        assert len(first.top_tokens) == 2


def test_nothing_is_scored_beyond_the_prompt(steps: Steps) -> None:
    prompt = [5, 6, 7]
    begun = start(0, prompt, outputs=[8, 9], prompt_logprobs=0)
    result = steps([row(0, 0, [5, 6, 7, 8, 9], [0])], [begun])
    assert [(run.start, len(run.entries)) for run in result.prompt_logprobs] == [(1, 2)]
    assert steps([row(0, 5, (), [0])]).prompt_logprobs == ()


def test_a_single_token_prompt_has_nothing_to_score(steps: Steps) -> None:
    assert steps([row(0, 0, [5], [0])], [start(0, [5], prompt_logprobs=1)]).prompt_logprobs == ()


def test_a_row_that_is_not_finite_fails_alone_and_leaves_nothing_behind(steps: Steps, pool: KVPool) -> None:
    """Its blocks may be anybody's next: what it left there must not spoil the next owner."""
    prompt = [2, 7, 1, 8, 2, 8, 1, 8, 2, 8]
    expected = steps([row(5, 0, prompt, [50, 51])], [start(5, prompt)], [5]).tokens[0]
    steps([row(0, 0, prompt, [0, 1]), row(1, 0, prompt, [2, 3])], [start(0, prompt), start(1, prompt)])
    pool.tensor[:, :, 0:2] = float("nan")
    result = steps([row(0, 10, (), [0, 1]), row(1, 10, (), [2, 3])])
    assert result.tokens[0] == NOT_FINITE
    assert result.tokens[1] >= 0
    # planned before the fault was known: an ordinary step, whose result nobody reads
    steps([row(0, 11, (), [0, 1], writes=False), row(1, 11, (), [2, 3])])
    again = steps([row(2, 0, prompt, [1, 0])], [start(2, prompt)], [0])
    assert again.tokens == (expected,)
    token_by_token = start(3, prompt)
    pool.tensor[:, :, 0:2] = float("nan")
    for position, token in enumerate(prompt):
        blocks = [0, 1][: position // SIZE + 1]
        result = steps([row(3, position, [token], blocks)], [token_by_token] if position == 0 else ())
    assert result.tokens == (expected,)


def test_steps_are_collected_in_the_order_of_launch(decoder: Decoder, pool: KVPool) -> None:
    """Two steps in flight, the second planned before the first's token is known: as on CUDA."""
    prompt = [3, 3, 3]
    runner = TorchRunner(decoder, pool)
    first = BatchPlan(StepNumber(1), (), (start(0, prompt),), (row(0, 0, prompt, [0]),))
    runner.launch(first)
    runner.launch(BatchPlan(StepNumber(2), (), (), (row(0, 3, (), [0]),)))
    one, two = runner.collect(), runner.collect()
    assert (one.step, two.step) == (1, 2)
    again = TorchRunner(decoder, pool)
    again.launch(first)
    again.launch(BatchPlan(StepNumber(2), (), (), (row(0, 3, one.tokens, [0]),)))
    again.collect()
    assert again.collect().tokens == two.tokens


def test_decode_rows_with_a_common_prefix_are_one_cluster(decoder: Decoder, pool: KVPool) -> None:
    prefix = list(range(20))
    rows = [row(slot, 165, [1], [*prefix, 30 + slot]) for slot in range(4)]
    rows += [row(9, 10, [1], [40, 41]), row(10, 0, [1, 2, 3], [42])]
    layout = StepLayout(rows, pool, Workspace(pool), shares=True)
    parts = layout.parts(None)
    assert [(part.first, part.count) for part in parts.prefills] == [(0, 3)]
    assert [(cluster.first, cluster.count, cluster.shared.blocks.tolist()) for cluster in parts.clusters] == [
        (3, 4, prefix)
    ]
    assert [(part.first, part.count) for part in parts.decodes] == [(7, 1)]
    assert layout.firsts == [3, 4, 5, 6, 7, 0]
    assert StepLayout(rows, pool, Workspace(pool), shares=False).parts(None).clusters == ()


def test_rows_that_must_not_write_go_to_the_scratch_block(pool: KVPool) -> None:
    rows = [row(0, 9, [1], [4, 5], writes=False), row(1, 9, [1], [6, 7]), row(2, 8, [1, 2], [8, 9], writes=False)]
    layout = StepLayout(rows, pool, Workspace(pool), shares=True)
    slots = layout.slots.tolist()
    assert [slots[first] // SIZE for first in layout.firsts] == [pool.scratch, 7, pool.scratch]
    assert layout.fresh is None


def test_departed_slots_are_forgotten(steps: Steps) -> None:
    settings = sampling(frequency=100.0)
    prompt = [5, 6]
    first = steps([row(0, 0, prompt, [0])], [start(0, prompt, settings=settings)]).tokens[0]
    assert steps([row(0, 0, prompt, [0])]).tokens[0] != first, "the count of the first stays"
    assert steps([row(0, 0, prompt, [0])], [start(Slot(0), prompt, settings=settings)], [0]).tokens[0] == first
