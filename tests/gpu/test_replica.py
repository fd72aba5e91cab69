"""From an order to a replica that answers; orders that cannot be met are refused with the flag that helps."""

from pathlib import Path

import attrs
import pytest
import torch

from lmpool.core.plan import Replica, ReplicaError
from lmpool.gpu.replica import load_replica
from tests.gpu.plans import Steps, row, start
from tests.gpu.tiny_models import VOCABULARY, plain_logits, plain_model, write_tiny_model

pytestmark = pytest.mark.model


@attrs.frozen
class Order:
    model_folder: str
    rank: int = 0
    device: str = "cpu"
    dtype: str = "float32"
    threads: int = 1
    block_size: int = 8
    kv_blocks: int | None = 64
    kv_bytes: int | None = None
    replicas: int = 2
    transfer_path: str = "auto"
    model_tokens_max: int | None = None
    step_tokens_max: int = 64
    sequences_max: int = 8


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(write_tiny_model(tmp_path_factory.mktemp("qwen2"), "qwen2"))


def load(order: Order) -> Replica:
    return load_replica(order, lambda line: None)


def refusal(order: Order) -> ReplicaError:
    with pytest.raises(ReplicaError) as raised:
        load(order)
    assert "\n" not in str(raised.value)
    return raised.value


def test_a_replica_answers_as_the_plain_model_and_tells_its_facts(folder: str) -> None:
    lines: list[str] = []
    replica = load_replica(Order(folder), lines.append)
    assert (replica.blocks, replica.model_tokens_max, replica.vocabulary) == (64, 512, VOCABULARY)
    assert replica.steps_in_flight_max == 1
    assert (replica.identity.kv_dtype, replica.identity.block_size) == ("float32", 8)
    assert min(attrs.astuple(replica.rates)) >= 0
    assert max(attrs.astuple(replica.rates)) > 0
    assert len(lines) >= 3
    for word in ("cpu (as ordered)", "float32", "64 blocks of 8 tokens", "--kv-blocks", "512 tokens"):
        assert word in replica.description
    prompt = list(range(20))
    result = Steps(replica.runner)([row(0, 0, prompt, [5, 9, 2])], [start(0, prompt)])
    logits = plain_logits(plain_model(Path(folder), torch.float32), prompt)
    assert result.tokens == (int(logits[-1].argmax()),)


def test_equal_orders_have_equal_identities_and_others_do_not(folder: str) -> None:
    order = Order(folder)
    identity = load(order).identity
    assert load(attrs.evolve(order, rank=1, kv_blocks=20)).identity == identity
    assert load(attrs.evolve(order, dtype="bfloat16")).identity != identity
    assert load(attrs.evolve(order, block_size=16)).identity != identity


def test_b79_a_pool_smaller_than_the_model_bounds_the_context_and_says_so(folder: str) -> None:
    replica = load(Order(folder, kv_blocks=10))
    assert replica.model_tokens_max == 80
    assert "contexts of 80 tokens" in replica.description
    assert "512" in replica.description
    assert "raise --kv-blocks" in replica.description


def test_b79_an_ordered_context_that_the_pool_cannot_hold_is_refused_with_flags_that_work(folder: str) -> None:
    order = Order(folder, kv_blocks=10, model_tokens_max=200)
    error = refusal(order)
    assert "25 blocks" in error.what
    blocks = int(error.hint.split("--kv-blocks ")[1].split()[0])
    tokens = int(error.hint.split("--max-model-len ")[1].split()[0])
    assert load(attrs.evolve(order, kv_blocks=blocks)).model_tokens_max == 200
    assert load(attrs.evolve(order, model_tokens_max=tokens)).model_tokens_max == tokens


def test_a_context_longer_than_the_model_allows_is_refused(folder: str) -> None:
    assert "--max-model-len 512 or less" in refusal(Order(folder, model_tokens_max=513)).hint


def test_b83_a_pool_larger_than_memory_is_refused_before_anything_is_taken(folder: str) -> None:
    error = refusal(Order(folder, kv_blocks=1 << 30))
    assert "does not fit" in error.what
    assert "--kv-blocks" in error.hint


def test_the_default_pool_is_what_all_sequences_can_use(folder: str) -> None:
    replica = load(Order(folder, kv_blocks=None, sequences_max=2))
    assert replica.blocks == 2 * 512 // 8
    assert "at most" in replica.description


def test_b78_a_missing_device_is_one_line(folder: str) -> None:
    if torch.cuda.is_available():
        pytest.skip("there is a CUDA device")
    assert "--device cpu" in refusal(Order(folder, device="cuda")).hint


def test_the_smallest_orders_work(folder: str) -> None:
    replica = load(Order(folder, kv_blocks=1, sequences_max=1, step_tokens_max=2))
    assert replica.model_tokens_max == 8
