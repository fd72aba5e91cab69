"""The integer model equals its reference however its steps are cut, and betrays every wrong use of its pool."""

import json
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lmpool.core.ids import BlockId, Nanos, Slot, StepNumber
from lmpool.core.plan import BatchPlan, ReplicaError, Row, SequenceStart, StepResult, TokenLogprobs
from lmpool.core.prefix import pack_tokens
from lmpool.core.rates import Rates
from lmpool.core.sampling import SamplingSettings, StopSettings, greedy, uniform
from lmpool.sim.integer_model import (
    IntegerRunner,
    fresh_slots,
    integer_replica,
    reference_choice,
    reference_tokens,
    step_cost,
)

VOCABULARY = 1000
BLOCK = 8
RATES = Rates(step=1000.0, prefill=10.0, prefill_context=1.0, decode=100.0, decode_context=2.0)
GREEDY = greedy(4)
WARM = attrs.evolve(GREEDY, temperature=0.8, top_p=0.9, top_k=20, min_p=0.01)
PROMPT = tuple(range(100, 121))
ONE, TWO = Slot(1), Slot(2)


def stop(count: int, least: int = 0, ends: tuple[int, ...] = ()) -> StopSettings:
    return StopSettings(output_tokens_max=count, output_tokens_min=least, ends=ends, hidden_ends=())


def table(first: int, tokens: int) -> tuple[BlockId, ...]:
    """Blocks in a row from `first` on."""
    return tuple(BlockId(first + i) for i in range(-(-tokens // BLOCK)))


@attrs.define
class Script:
    """Runs plans that a test writes out."""

    runner: IntegerRunner
    steps: int = 0

    def run(self, *rows: Row, starts: Sequence[SequenceStart] = (), departures: tuple[Slot, ...] = ()) -> StepResult:
        self.steps += 1
        self.runner.launch(BatchPlan(StepNumber(self.steps), departures, tuple(starts), rows))
        return self.runner.collect()

    def generate(
        self, start: SequenceStart, prompt: Sequence[int], count: int, blocks: tuple[BlockId, ...]
    ) -> list[int]:
        """Prefill at once, then decode; the prompt is the whole history."""
        tokens = list(self.run(prefill(start, prompt, 0, len(prompt), blocks), starts=(start,)).tokens)
        for index in range(1, count):
            tokens += self.run(decode(start, len(prompt), index, blocks)).tokens
        return tokens


def fresh(blocks: int = 16) -> Script:
    return Script(IntegerRunner(BLOCK, fresh_slots(BLOCK, blocks), VOCABULARY, RATES, lambda cost: None))


def begin(slot: Slot, prompt: Sequence[int], sampling: SamplingSettings, ends: tuple[int, ...] = ()) -> SequenceStart:
    return SequenceStart(slot, sampling, ends, pack_tokens(prompt), len(prompt), None)


def prefill(start: SequenceStart, prompt: Sequence[int], begin: int, end: int, blocks: tuple[BlockId, ...]) -> Row:
    chance = uniform(start.sampling.seed, 0, 0)
    samples = end == len(prompt)
    return Row(start.slot, begin, tuple(prompt[begin:end]), blocks[: -(-end // BLOCK)], True, samples, chance, False)


def decode(start: SequenceStart, prompt_tokens: int, index: int, blocks: tuple[BlockId, ...]) -> Row:
    """The step that samples output `index` from the one before."""
    place = prompt_tokens + index - 1
    used = blocks[: place // BLOCK + 1]
    return Row(start.slot, place, (), used, True, True, uniform(start.sampling.seed, 0, index), False)


def reference(prompt: Sequence[int], sampling: SamplingSettings, count: int) -> list[int]:
    return list(reference_tokens(VOCABULARY, prompt, sampling, stop(count), 0))


@pytest.mark.parametrize("sampling", [GREEDY, WARM])
def test_a_cold_sequence_equals_the_reference(sampling: SamplingSettings) -> None:
    start = begin(ONE, PROMPT, sampling)
    assert fresh().generate(start, PROMPT, 30, table(3, 60)) == reference(PROMPT, sampling, 30)


def test_seeds_choices_and_temperatures_matter() -> None:
    cold, warm = reference(PROMPT, GREEDY, 20), reference(PROMPT, WARM, 20)
    assert cold != warm
    assert warm != reference(PROMPT, attrs.evolve(WARM, seed=5), 20)
    assert cold == reference(PROMPT, attrs.evolve(GREEDY, seed=5), 20)
    assert warm != list(reference_tokens(VOCABULARY, PROMPT, WARM, stop(20), 1))
    assert len(set(cold)) > 15


@given(
    prompt=st.lists(st.integers(0, VOCABULARY - 1), min_size=1, max_size=40),
    cuts=st.lists(st.integers(1, 39), max_size=5),
    blocks=st.permutations(range(12)),
)
def test_chunks_and_scattered_blocks_change_nothing(prompt: list[int], cuts: list[int], blocks: list[int]) -> None:
    script = fresh()
    start = begin(ONE, prompt, WARM)
    places = tuple(map(BlockId, blocks))
    edges = sorted({0, len(prompt)} | {cut for cut in cuts if cut < len(prompt)})
    tokens: list[int] = []
    for number, (first, end) in enumerate(pairwise(edges)):
        tokens += script.run(prefill(start, prompt, first, end, places), starts=(start,) if number == 0 else ()).tokens
    for index in range(1, 5):
        tokens += script.run(decode(start, len(prompt), index, places)).tokens
    assert tokens == reference(prompt, WARM, 5)


def test_neighbours_in_a_batch_change_nothing() -> None:
    script = fresh()
    other = PROMPT[::-1]
    first, second = begin(ONE, PROMPT, GREEDY), begin(TWO, other, WARM)
    here, there = table(0, 32), table(4, 32)
    begun = script.run(
        prefill(first, PROMPT, 0, 21, here), prefill(second, other, 0, 21, there), starts=(first, second)
    )
    assert begun.slots == (ONE, TWO)
    went_on = script.run(decode(second, 21, 1, there), decode(first, 21, 1, here))
    assert [begun.tokens[0], went_on.tokens[1]] == reference(PROMPT, GREEDY, 2)
    assert [begun.tokens[1], went_on.tokens[0]] == reference(other, WARM, 2)


def test_a_shared_prefix_serves_another_sequence() -> None:
    script = fresh()
    longer = (*PROMPT[:16], 7, 8, 9)
    script.generate(begin(ONE, PROMPT, GREEDY), PROMPT, 3, table(0, 32))
    blocks = (BlockId(0), BlockId(1), BlockId(9))
    second = begin(TWO, longer, GREEDY)
    assert list(script.run(prefill(second, longer, 16, 19, blocks), starts=(second,)).tokens) == reference(
        longer, GREEDY, 1
    )


def test_a_whole_cached_prompt_needs_no_write() -> None:
    script = fresh()
    prompt = PROMPT[:16]
    script.generate(begin(ONE, prompt, GREEDY), prompt, 3, table(0, 32))
    second = begin(TWO, prompt, GREEDY)
    last = prefill(second, prompt, 15, 16, table(0, 16))._replace(writes=False)
    assert list(script.run(last, starts=(second,)).tokens) == reference(prompt, GREEDY, 1)


def test_two_steps_may_run_before_the_first_is_collected() -> None:
    script = fresh()
    start = begin(ONE, PROMPT, WARM)
    blocks = table(0, 32)
    script.runner.launch(BatchPlan(StepNumber(1), (), (start,), (prefill(start, PROMPT, 0, 21, blocks),)))
    script.runner.launch(BatchPlan(StepNumber(2), (), (), (decode(start, 21, 1, blocks),)))
    results = [script.runner.collect(), script.runner.collect()]
    assert [result.step for result in results] == [1, 2]
    assert [token for result in results for token in result.tokens] == reference(PROMPT, WARM, 2)


def test_a_sequence_goes_on_elsewhere_with_its_history() -> None:
    heavy = attrs.evolve(
        WARM, repetition_penalty=1.3, presence_penalty=0.5, frequency_penalty=0.5, logit_bias=((7, 25.0),)
    )
    whole = reference(PROMPT, heavy, 12)
    history = (*PROMPT, *whole[:6])
    again = SequenceStart(TWO, heavy, (), pack_tokens(history), len(PROMPT), None)
    blocks = table(5, 48)
    row = prefill(again, history, 0, 27, blocks)._replace(uniform=uniform(heavy.seed, 0, 6))
    script = fresh()
    tokens = list(script.run(row, starts=(again,)).tokens)
    for index in range(7, 12):
        tokens += script.run(decode(again, len(PROMPT), index, blocks)).tokens
    assert tokens == whole[6:]


def test_a_slot_may_depart_and_start_again_in_one_plan() -> None:
    script = fresh()
    start = begin(ONE, PROMPT, GREEDY)
    script.generate(start, PROMPT, 2, table(0, 32))
    other = (5, 6, 7)
    again = begin(ONE, other, GREEDY)
    result = script.run(prefill(again, other, 0, 3, table(8, 8)), starts=(again,), departures=(ONE,))
    assert list(result.tokens) == reference(other, GREEDY, 1)


RIGHT = table(0, 32)


@pytest.mark.parametrize(
    ("fault", "blocks", "position"),
    [
        ("another's block", (BlockId(0), BlockId(5), BlockId(2)), 21),
        ("blocks in another order", (BlockId(1), BlockId(0), BlockId(2)), 21),
        ("a block that was never written", (BlockId(0), BlockId(1), BlockId(12)), 21),
        ("a position too early", RIGHT[:3], 20),
        ("a position too late", RIGHT[:3], 22),
    ],
)
def test_a_wrong_read_shows(fault: str, blocks: tuple[BlockId, ...], position: int) -> None:
    script = fresh()
    other = PROMPT[::-1]
    script.generate(begin(TWO, other, GREEDY), other, 3, table(4, 32))
    start = begin(ONE, PROMPT, GREEDY)
    (first,) = script.generate(start, PROMPT, 1, RIGHT)
    row = decode(start, 21, 1, RIGHT)._replace(start=position, blocks=blocks)
    (second,) = script.run(row).tokens
    expected = reference(PROMPT, GREEDY, 2)
    assert first == expected[0]
    assert second != expected[1], fault


def test_a_write_into_a_shared_block_shows() -> None:
    script = fresh()
    first, second = begin(ONE, PROMPT, GREEDY), begin(TWO, PROMPT[:16], GREEDY)
    script.generate(first, PROMPT, 1, RIGHT)
    wrong = (*PROMPT[:15], 999)
    script.run(prefill(second, wrong, 15, 16, RIGHT), starts=(second,))
    assert list(script.run(decode(first, 21, 1, RIGHT)).tokens) != reference(PROMPT, GREEDY, 2)[1:]


def test_what_another_row_of_the_same_step_writes_is_not_there_yet() -> None:
    script = fresh()
    first, second = begin(ONE, PROMPT, GREEDY), begin(TWO, PROMPT, GREEDY)
    blocks = (BlockId(0), BlockId(1), BlockId(9))
    result = script.run(
        prefill(first, PROMPT, 0, 21, RIGHT), prefill(second, PROMPT, 16, 21, blocks), starts=(first, second)
    )
    assert result.tokens[0] == reference(PROMPT, GREEDY, 1)[0]
    assert result.tokens[1] != result.tokens[0]


def test_two_rows_of_a_step_that_write_one_slot_are_a_bug() -> None:
    script = fresh()
    first, second = begin(ONE, PROMPT, GREEDY), begin(TWO, PROMPT, GREEDY)
    with pytest.raises(AssertionError, match="two rows"):
        script.run(prefill(first, PROMPT, 0, 21, RIGHT), prefill(second, PROMPT, 0, 21, RIGHT), starts=(first, second))


def test_a_block_table_of_another_length_is_a_bug() -> None:
    start = begin(ONE, PROMPT, GREEDY)
    row = prefill(start, PROMPT, 0, 21, RIGHT)._replace(blocks=RIGHT)
    with pytest.raises(AssertionError, match="block table"):
        fresh().run(row, starts=(start,))


def test_ends_are_not_sampled_while_they_are_forbidden() -> None:
    (best,) = reference(PROMPT, GREEDY, 1)
    start = begin(ONE, PROMPT, GREEDY, ends=(best,))
    row = prefill(start, PROMPT, 0, 21, RIGHT)._replace(forbids_end=True)
    (token,) = fresh().run(row, starts=(start,)).tokens
    assert token != best
    assert reference_tokens(VOCABULARY, PROMPT, GREEDY, stop(5, least=1, ends=(best,)), 0)[0] == token
    assert reference_tokens(VOCABULARY, PROMPT, GREEDY, stop(5, ends=(best,)), 0) == (best,)


def test_filters_narrow_the_choice() -> None:
    seeds = range(40)

    def firsts(sampling: SamplingSettings) -> set[int]:
        return {reference(PROMPT, attrs.evolve(sampling, seed=seed), 1)[0] for seed in seeds}

    (best,) = reference(PROMPT, GREEDY, 1)
    hot = attrs.evolve(GREEDY, temperature=2.0)
    assert len(firsts(hot)) > 8
    for narrow in ({"top_k": 1}, {"top_p": 0.01}, {"min_p": 1.0}):
        assert firsts(attrs.evolve(hot, **narrow)) == {best}
    assert len(firsts(attrs.evolve(hot, top_k=3))) == 3
    assert firsts(attrs.evolve(hot, logit_bias=((5, 100.0),))) == {5}
    assert best not in firsts(attrs.evolve(hot, logit_bias=((best, -100.0),)))


def test_logprobs_describe_the_choice() -> None:
    asked = attrs.evolve(GREEDY, logprobs=20)
    for token, described in reference_choice(VOCABULARY, PROMPT, asked, stop(5), 0):
        assert described is not None
        assert described.token == described.top_tokens[0] == token
        assert described.logprob == described.top_logprobs[0] < 0
        assert list(described.top_logprobs) == sorted(described.top_logprobs, reverse=True)
        assert len(described.top_tokens) == len(set(described.top_tokens)) == 20


@pytest.mark.parametrize("edges", [(0, 21), (0, 8, 21), (0, 1, 2, 20, 21)])
def test_a_prompt_is_scored_the_same_in_chunks(edges: tuple[int, ...]) -> None:
    script = fresh()
    start = attrs.evolve(begin(ONE, PROMPT, GREEDY), prompt_logprobs=2)
    entries: list[TokenLogprobs] = []
    for number, (first, end) in enumerate(pairwise(edges)):
        result = script.run(prefill(start, PROMPT, first, end, RIGHT), starts=(start,) if number == 0 else ())
        for scored in result.prompt_logprobs:
            assert scored.start == len(entries) + 1
            entries += scored.entries
    assert [entry.token for entry in entries] == list(PROMPT[1:])
    assert all(len(entry.top_tokens) == 2 for entry in entries)
    whole = fresh().run(prefill(start, PROMPT, 0, 21, RIGHT), starts=(start,)).prompt_logprobs
    assert tuple(entries) == whole[0].entries


def test_a_step_costs_what_its_rates_say() -> None:
    paid: list[Nanos] = []
    start = begin(ONE, PROMPT, GREEDY)
    script = Script(IntegerRunner(BLOCK, fresh_slots(BLOCK, 16), VOCABULARY, RATES, paid.append))
    script.generate(start, PROMPT, 2, RIGHT)
    assert paid == [1000 + 21 * 10 + 21 * 20 // 2, 1000 + 100 + 2 * 21]
    assert step_cost(RATES, BatchPlan(StepNumber(1), (), (), ())) == 1000


@attrs.frozen
class Order:
    model_folder: str
    block_size: int = 16
    kv_blocks: int | None = None
    kv_bytes: int | None = None
    model_tokens_max: int | None = None


def folder(path: Path, **config: object) -> str:
    facts = {"architectures": ["LMPoolIntegerModel"], "vocab_size": 300, "max_position_embeddings": 512}
    (path / "config.json").write_text(json.dumps(facts | config))
    return str(path)


def test_a_replica_comes_from_a_folder(tmp_path: Path) -> None:
    order = Order(folder(tmp_path, step_ns=5000, steps_in_flight_max=2), kv_blocks=40, model_tokens_max=256)
    replica = integer_replica(order, lambda cost: None)
    assert (replica.blocks, replica.vocabulary, replica.model_tokens_max) == (40, 300, 256)
    assert (replica.rates.step, replica.steps_in_flight_max, replica.identity.block_size) == (5000.0, 2, 16)


def test_a_replica_may_be_sized_in_bytes_or_not_at_all(tmp_path: Path) -> None:
    order = Order(folder(tmp_path), kv_bytes=16 * 8 * 25)
    assert integer_replica(order, lambda cost: None).blocks == 25
    assert integer_replica(attrs.evolve(order, kv_bytes=None), lambda cost: None).blocks == 1024


@pytest.mark.parametrize("config", [{"architectures": ["LlamaForCausalLM"]}, {"vocab_size": None}, {"step_ns": "fast"}])
def test_another_folder_is_refused(tmp_path: Path, config: dict[str, object]) -> None:
    with pytest.raises(ReplicaError, match="integer model"):
        integer_replica(Order(folder(tmp_path, **config)), lambda cost: None)
