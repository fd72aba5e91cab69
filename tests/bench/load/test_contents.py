import subprocess
import sys
from functools import lru_cache
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer
from tokenizers.decoders import ByteLevel as ByteLevelDecoder
from tokenizers.models import BPE
from tokenizers.pre_tokenizers import ByteLevel
from tokenizers.trainers import BpeTrainer

from lmpool.bench.load.contents import (
    ProseTexts,
    ProseTokens,
    RandomTokens,
    TokenContents,
    sentence,
    text_fingerprint,
    token_counter,
    token_fingerprint,
)
from lmpool.sim.trace import Part
from lmpool.sim.workload import make_workload


@lru_cache(maxsize=1)
def small_tokenizer() -> Tokenizer:
    """A small byte-level vocabulary, of our own prose."""
    made = Tokenizer(BPE())
    made.pre_tokenizer = ByteLevel(add_prefix_space=False)
    made.decoder = ByteLevelDecoder()
    trainer = BpeTrainer(vocab_size=400, initial_alphabet=ByteLevel.alphabet(), show_progress=False)
    made.train_from_iterator([sentence(Random(number)) for number in range(200)], trainer)
    return made


@pytest.mark.parametrize("kind", ["random", "prose"])
def test_a_shorter_part_is_a_beginning_of_a_longer_one_in_any_order(kind: str) -> None:
    def contents() -> TokenContents:
        return RandomTokens(500, 3) if kind == "random" else ProseTokens(small_tokenizer(), 3)

    one, other = contents(), contents()
    long = one.tokens(Part(5, 300))
    assert other.tokens(Part(5, 20)) == long[:20]
    assert other.tokens(Part(5, 300)) == long
    assert one.tokens(Part(6, 300)) != long
    assert len(long) == 300


def test_random_tokens_keep_to_the_vocabulary_and_leave_its_low_ids() -> None:
    assert {token // 1_000 for token in RandomTokens(5_000, 0).tokens(Part(0, 5_000))} == {1, 2, 3, 4}
    assert min(RandomTokens(300, 0).tokens(Part(0, 5_000))) == 150


@settings(max_examples=40, deadline=None)
@given(st.integers(1, 400), st.integers(0, 1_000))
def test_texts_have_exactly_as_many_tokens_as_their_part(tokens: int, content: int) -> None:
    count = token_counter(small_tokenizer())
    assert count(ProseTexts(count, 1).text(Part(content, tokens))) == tokens


def test_without_a_tokenizer_texts_say_that_they_are_not_exact() -> None:
    contents = ProseTexts(None, 1)
    assert not contents.is_exact
    assert len(contents.text(Part(0, 130)).split()) == 100


def test_another_seed_shares_no_beginning() -> None:
    one, other = (ProseTexts(None, seed).text(Part(0, 100)) for seed in (1, 2))
    assert one.split()[:6] != other.split()[:6]


def test_fingerprints_are_those_of_every_process() -> None:
    program = (
        "from lmpool.bench.load.contents import *; from lmpool.sim.workload import make_workload;"
        "made = make_workload('multi-round-chat', 12, 1.0, 0);"
        "print(text_fingerprint(ProseTexts(None, 7), made), token_fingerprint(RandomTokens(999, 7), made))"
    )
    told = {
        subprocess.run(
            [sys.executable, "-c", program], env={"PYTHONHASHSEED": seed}, capture_output=True, text=True, check=True
        ).stdout.strip()
        for seed in ("1", "2")
    }
    made = make_workload("multi-round-chat", 12, 1.0, 0)
    here = f"{text_fingerprint(ProseTexts(None, 7), made)} {token_fingerprint(RandomTokens(999, 7), made)}"
    assert told == {here}
