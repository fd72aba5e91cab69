import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lmpool.core.ids import MILLISECOND, SECOND, BlockHash, Nanos
from lmpool.core.prefix import chain_length, extend_chain, unpack_tokens
from lmpool.sim.prompts import Prompts, answer
from lmpool.sim.trace import (
    Part,
    Trace,
    TraceError,
    at_speed,
    check_block_size,
    jittered,
    prompt_lengths,
    window,
)
from tests.sim.racks import asked, continued, trace

NAMESPACE = BlockHash(bytes(16))


def _prompts(made: Trace, block_size: int) -> Prompts:
    return Prompts(made, NAMESPACE, block_size, prompt_lengths(made))


def _common(one: bytes, other: bytes) -> int:
    pairs = zip(unpack_tokens(one), unpack_tokens(other), strict=False)
    count = 0
    for mine, yours in pairs:
        if mine != yours:
            break
        count += 1
    return count


def test_prompts_share_tokens_exactly_as_far_as_their_parts() -> None:
    made = trace(asked(0, (1, 20), (2, 10)), asked(0, (1, 20), (3, 10)), asked(0, (1, 12)), asked(0, (4, 5), (1, 20)))
    packed = [_prompts(made, 8).packed(number) for number in range(4)]
    assert [len(prompt) // 4 for prompt in packed] == [30, 30, 12, 25] == prompt_lengths(made)
    assert _common(packed[0], packed[1]) == 20
    assert _common(packed[0], packed[2]) == 12
    assert _common(packed[0], packed[3]) == 0


def test_a_prompt_that_continues_another_begins_with_it_and_its_answer() -> None:
    made = trace(asked(0, (1, 20), output=6), continued(0, 1.0, (2, 9), output=3), continued(1, 1.0, (3, 4)))
    prompts = _prompts(made, 8)
    first, second, third = (prompts.packed(number) for number in range(3))
    assert second.startswith(first + answer(0, 6))
    assert third.startswith(second + answer(1, 3))
    assert len(third) // 4 == prompt_lengths(made)[2] == 20 + 6 + 9 + 3 + 4


def test_answers_of_different_requests_differ_and_have_their_lengths() -> None:
    assert len(answer(0, 7)) == 28
    assert _common(answer(0, 7), answer(1, 7)) == 0


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(1, 40)), min_size=1, max_size=6), st.sampled_from([8, 16]))
def test_chains_are_those_of_the_tokens_however_they_are_come_by(parts: list[tuple[int, int]], block_size: int) -> None:
    made = trace(asked(0, *parts, output=5), continued(0, 0.0, (9, 11)))
    prompts = _prompts(made, block_size)
    for number in (0, 1):
        packed = prompts.packed(number)
        chain = prompts.chain(number, packed)
        assert chain == extend_chain(NAMESPACE, packed, block_size)
        assert chain_length(chain) == prompts.lengths[number] // block_size


def test_blocks_that_neither_divide_nor_consist_of_recorded_ones_are_refused() -> None:
    made = Trace("recorded", 48, trace(asked(0, (1, 96))).requests)
    for fitting in (16, 48, 96):
        check_block_size(made, fitting)
    with pytest.raises(TraceError, match="recorded in blocks of 48 tokens, which blocks of 32 neither divide"):
        check_block_size(made, 32)


def test_a_window_begins_at_time_zero_and_leaves_out_what_continues_an_earlier_request() -> None:
    made = trace(
        asked(0, (1, 8)),
        asked(500, (2, 8)),
        continued(0, 1.0, (3, 8)),
        asked(700, (4, 8)),
        continued(1, 1.0, (5, 8)),
        asked(900, (6, 8)),
    )
    cut = window(made, 1, 4)
    assert [request.parts[0].content for request in cut.requests] == [2, 4, 5]
    assert [request.at_ns for request in cut.requests] == [0, 200 * MILLISECOND, None]
    assert cut.requests[2].continues == 0


def test_a_window_in_which_nothing_begins_is_refused() -> None:
    with pytest.raises(TraceError, match="no request from number 7 on"):
        window(trace(asked(0, (1, 8))), 7, 3)


def test_speed_brings_arrivals_together_and_leaves_pauses() -> None:
    made = trace(asked(0, (1, 8)), asked(1000, (2, 8)), continued(0, 3.0, (3, 8)))
    fast = at_speed(made, 4.0)
    arrivals = [request.at_ns for request in fast.requests if request.at_ns is not None]
    assert arrivals == [0, 250 * MILLISECOND]
    assert [request.pause_ns for request in fast.requests if request.at_ns is None] == [3 * SECOND]


def test_jitter_spreads_a_tick_until_the_next_and_never_beyond() -> None:
    ticks = (0, 3000, 4000, 90_000)
    made = trace(*(asked(tick, (100 * place + number, 8)) for place, tick in enumerate(ticks) for number in range(40)))
    spread = jittered(made, 1)
    arrivals = [request.at_ns for request in spread.requests]
    assert arrivals == sorted(arrivals, key=lambda at_ns: at_ns or 0)
    assert len(set(arrivals)) > 150
    moved: dict[int, list[int]] = {}
    for request in spread.requests:
        assert request.at_ns is not None
        moved.setdefault(request.parts[0].content // 100, []).append(request.at_ns)
    first = min(moved[0])
    assert first == 0
    assert 2.5 * SECOND < max(moved[0]) < 3 * SECOND
    assert max(moved[1]) - min(moved[1]) < SECOND
    assert 2.5 * SECOND < max(moved[3]) - min(moved[3]) < 3 * SECOND


def test_jitter_is_a_matter_of_the_seed_alone() -> None:
    made = trace(*(asked(0, (number, 8)) for number in range(20)))
    assert jittered(made, 1) == jittered(made, 1)
    assert jittered(made, 1) != jittered(made, 2)


def test_what_continues_a_request_finds_it_after_arrivals_have_moved() -> None:
    made = trace(asked(0, (1, 8)), asked(0, (2, 8)), continued(0, 1.0, (3, 8)), continued(1, 1.0, (4, 8)))
    for seed in range(10):
        spread = jittered(made, seed)
        for number, request in enumerate(spread.requests):
            if request.continues is not None:
                assert request.continues < number
                before = spread.requests[request.continues].parts[0].content
                assert before == request.parts[0].content - 2


def test_a_fingerprint_tells_traces_apart() -> None:
    made = trace(asked(0, (1, 8)), asked(5, (2, 8)))
    other = attrs.evolve(made.requests[1], parts=(Part(2, 9),))
    later = attrs.evolve(made.requests[1], at_ns=Nanos(6))
    assert made.fingerprint == trace(*made.requests).fingerprint
    assert (
        len({made.fingerprint, trace(made.requests[0], other).fingerprint, trace(made.requests[0], later).fingerprint})
        == 3
    )
