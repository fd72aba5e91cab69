"""The same seed gives the same batch, and sizes are what the definitions say."""

from lmpool.bench.table import table_lines
from lmpool.bench.workloads import shared_batch


def test_a_batch_shares_its_beginning_and_nothing_else() -> None:
    batch = shared_batch(4, 32, 8, 5, 1000, seed=7)
    assert len({prompt[:32] for prompt in batch.prompts}) == 1
    assert len({prompt[32:] for prompt in batch.prompts}) == 4
    assert {len(prompt) for prompt in batch.prompts} == {40}


def test_seeds_decide_everything() -> None:
    assert shared_batch(3, 4, 8, 5, 1000, seed=1) == shared_batch(3, 4, 8, 5, 1000, seed=1)
    assert shared_batch(3, 4, 8, 5, 1000, seed=1).fingerprint != shared_batch(3, 4, 8, 5, 1000, seed=2).fingerprint


def test_a_table_is_aligned() -> None:
    assert table_lines(("what", "n"), [("a", "1"), ("longer", "22")]) == ["what     n", "a        1", "longer  22"]
