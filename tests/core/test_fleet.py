import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lmpool.core.booking import Account
from lmpool.core.fleet import RankView, outlook, room_wait_ns, view_rank
from lmpool.core.ids import Epoch, Nanos, Rank
from lmpool.core.messages.worker_control import Load
from tests.core.plane import BLOCK_SIZE, FACTS, IDLE, RATES, question
from tests.core.views import NOTHING, decoding_rank

BOOKED = attrs.evolve(NOTHING, requests=1, prefilling=1, prefill_tokens=1_000, prefill_pairs=0)
QUEUE_NS = 1_000 * RATES.prefill + 2 * RATES.step
"""1,000 tokens in two steps of 512."""


def view(load: Load, account: Account) -> RankView:
    return view_rank(Rank(0), Epoch(1), 1, FACTS, load, RATES, account, 0)


def wait(rank: RankView, now: int) -> float:
    _, (found,) = outlook([rank], [0], question(1, b"", 1), Nanos(now), 128.0)
    return found


def running(prefilling: int) -> Load:
    return attrs.evolve(IDLE, prefilling=prefilling, step_began_ns=Nanos(1_000), step_cost_ns=Nanos(40_000_000))


def test_an_idle_rank_does_not_wait() -> None:
    assert wait(view(IDLE, NOTHING), 5_000) == 0


def test_booked_prefill_is_waited_for_with_its_steps() -> None:
    assert wait(view(IDLE, BOOKED), 5_000) == QUEUE_NS


def test_what_a_running_chunk_has_done_counts() -> None:
    rank = view(running(1), BOOKED)
    assert wait(rank, 1_000) == QUEUE_NS
    assert wait(rank, 10_001_000) == QUEUE_NS - 10_000_000
    assert wait(rank, 900_000_000) == QUEUE_NS - 40_000_000  # no more than the step was meant to take


def test_a_step_without_prefill_comes_on_top() -> None:
    rank = view(running(0), BOOKED)
    assert wait(rank, 10_001_000) == QUEUE_NS + 30_000_000
    assert wait(rank, 900_000_000) == QUEUE_NS


def test_at_least_the_running_step_is_waited_for() -> None:
    last_chunk = attrs.evolve(NOTHING, requests=1, prefilling=1, prefill_tokens=10)
    assert wait(view(running(1), last_chunk), 10_001_000) == 30_000_000


def test_lack_of_blocks_is_time_until_enough_sequences_have_ended() -> None:
    four = decoding_rank(0, 4, 4 * 20 * BLOCK_SIZE)
    full = attrs.evolve(four, blocks_open=0)
    assert room_wait_ns(four, 30 * BLOCK_SIZE, 1, 128.0) == 0
    # 31 blocks are short, each end gives 20: two ends, and one comes every quarter of a mean output
    assert room_wait_ns(full, 30 * BLOCK_SIZE, 1, 128.0) == pytest.approx(2 * 128.0 * four.step_ns / 4)
    assert wait(full, 0) > 0


def test_lack_of_places_is_time_too() -> None:
    crowded = attrs.evolve(decoding_rank(0, 4, 400), sequences_max=4)
    assert room_wait_ns(crowded, 1, 2, 128.0) == pytest.approx(2 * 128.0 * crowded.step_ns / 4)


def test_an_empty_rank_never_waits_for_room() -> None:
    assert room_wait_ns(attrs.evolve(view(IDLE, NOTHING), blocks_open=0), 99, 1, 128.0) == 0


@given(st.integers(1, 40_000), st.integers(1, 4), st.integers(0, 900), st.integers(1, 60), st.integers(0, 90_000))
def test_the_quick_look_at_room_misses_no_shortage(
    tokens: int, choices: int, blocks_open: int, decoding: int, context: int
) -> None:
    rank = attrs.evolve(decoding_rank(0, decoding, context), blocks_open=blocks_open)
    asked = attrs.evolve(question(1, b"", tokens), choices=choices)
    _, (found,) = outlook([rank], [0], asked, Nanos(0), 128.0)
    assert found == room_wait_ns(rank, tokens, choices, 128.0)
