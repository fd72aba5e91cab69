"""The choice of a step's rows, as a function of what it sees."""

from typing import Any

import attrs
from hypothesis import given
from hypothesis import strategies as st

from lmpool.core.batch import (
    BatchDecision,
    BatchView,
    Decodable,
    LeftOut,
    Prefillable,
    PrefillOrder,
    Queued,
    Shortage,
    choose,
)
from lmpool.core.ids import Epoch, RequestId, SequenceId
from lmpool.core.sequence import Place

EMPTY = BatchView(
    prefill_order=PrefillOrder.SHORT_BETWEEN,
    step_tokens_max=64,
    slots=8,
    blocks=100,
    is_releasing=False,
    decoding=0,
    last_decoding=None,
    decodable=(),
    prefillable=(),
    queued=(),
)


def name(number: int) -> SequenceId:
    return SequenceId(RequestId(Epoch(1), number), 0)


def place(number: int) -> Place:
    return (number, name(number).request, 0)


def decodable(number: int) -> Decodable:
    return Decodable(name(number), place(number))


def prefillable(number: int, remaining: int) -> Prefillable:
    return Prefillable(name(number), place(number), 0, remaining)


def queued(number: int, remaining: int, **changes: Any) -> Queued:
    fields: dict[str, Any] = {
        "priority": 0,
        "blocks": -(-remaining // 8),
        "margin": 0,
        "is_held": False,
        "reads": True,
        "unwritten": b"",
    }
    return Queued(name(number), place(number), remaining=remaining, **{**fields, **changes})


def decide(**changes: Any) -> BatchDecision:
    decision = choose(attrs.evolve(EMPTY, **changes))
    assert isinstance(decision, BatchDecision)
    return decision


def portions(decision: BatchDecision) -> dict[int, int]:
    return {portion.sequence.request.counter: portion.tokens for portion in decision.prefills}


def left_out(decision: BatchDecision) -> dict[int, LeftOut]:
    return {sequence.request.counter: reason for sequence, reason in decision.left_out}


def test_nothing_to_do() -> None:
    assert decide() == BatchDecision((), (), (), ())


def test_each_that_decodes_has_a_row_and_prefill_the_rest() -> None:
    decision = decide(decoding=6, decodable=tuple(decodable(number) for number in range(4)), queued=(queued(20, 90),))
    assert len(decision.decodes) == 4
    assert portions(decision) == {20: 54}
    assert decision.begins == (name(20),)


def test_the_first_gets_half_and_shorter_ones_the_other_short_before_long() -> None:
    decision = decide(prefillable=(prefillable(1, 900), prefillable(2, 500)), queued=(queued(3, 20), queued(4, 8)))
    assert portions(decision) == {1: 32, 4: 8, 3: 20, 2: 4}


def test_what_the_others_leave_goes_to_the_first() -> None:
    assert portions(decide(prefillable=(prefillable(1, 900),), queued=(queued(3, 20),))) == {1: 44, 3: 20}


def test_prompts_of_one_length_are_done_one_after_the_other() -> None:
    view: dict[str, Any] = {"prefillable": (prefillable(1, 60), prefillable(2, 60)), "queued": (queued(3, 60),)}
    assert portions(decide(**view)) == {1: 60, 2: 4}


def test_longer_ones_take_nothing_from_the_first_and_get_what_is_left() -> None:
    decision = decide(prefillable=(prefillable(1, 40), prefillable(2, 500)), queued=(queued(3, 90), queued(4, 8)))
    assert portions(decision) == {1: 40, 4: 8, 3: 16}


def test_a_better_class_goes_past_however_long() -> None:
    decision = decide(prefillable=(prefillable(1, 40),), queued=(queued(3, 90, priority=-1),))
    assert portions(decision) == {1: 32, 3: 32}


def test_better_classes_go_first_among_the_others() -> None:
    decision = decide(prefillable=(prefillable(1, 900),), queued=(queued(3, 20), queued(4, 25, priority=-1)))
    assert portions(decision) == {1: 32, 4: 25, 3: 7}


def test_in_order_of_arrival_the_first_takes_what_it_needs_and_the_next_the_rest() -> None:
    prompts = (prefillable(1, 50), prefillable(2, 3), prefillable(3, 90))
    decision = decide(prefill_order=PrefillOrder.ARRIVAL, prefillable=prompts, queued=(queued(0, 9), queued(4, 1)))
    assert portions(decision) == {0: 9, 1: 50, 2: 3, 3: 2}
    assert left_out(decision) == {4: LeftOut.NO_TOKENS}


def test_no_row_without_tokens() -> None:
    decision = decide(prefillable=(prefillable(1, 900),), queued=(queued(3, 32), queued(4, 40)))
    assert portions(decision) == {1: 32, 3: 32}
    assert left_out(decision) == {4: LeftOut.NO_TOKENS}
    assert decision.begins == (name(3),)


def test_no_slot() -> None:
    decision = decide(slots=1, queued=(queued(3, 8), queued(4, 8)))
    assert portions(decision) == {3: 8}
    assert left_out(decision) == {4: LeftOut.NO_SLOT}


def test_no_blocks_for_the_first_in_the_queue_and_so_for_nobody_behind() -> None:
    decision = decide(blocks=9, queued=(queued(3, 80), queued(4, 8)))
    assert portions(decision) == {}
    assert left_out(decision) == {3: LeftOut.NO_BLOCKS, 4: LeftOut.NO_BLOCKS}


def test_the_margin_is_kept_free() -> None:
    assert left_out(decide(blocks=10, queued=(queued(3, 80, margin=1),))) == {3: LeftOut.NO_BLOCKS}
    assert portions(decide(blocks=11, queued=(queued(3, 80, margin=1),))) == {3: 64}


def test_what_the_first_in_the_queue_needs_is_kept_for_it() -> None:
    """The long one is first in the queue and gets no tokens yet; the short one must leave it blocks and a slot."""
    view: dict[str, Any] = {"prefillable": (prefillable(1, 900),), "queued": (queued(3, 90), queued(4, 32))}
    assert 4 in portions(decide(blocks=16, **view))
    assert left_out(decide(blocks=15, **view)) == {4: LeftOut.NO_BLOCKS}
    assert left_out(decide(slots=1, **view)) == {4: LeftOut.NO_SLOT}


def test_one_whose_rows_still_run_does_not_begin() -> None:
    decision = decide(queued=(queued(3, 8, is_held=True), queued(4, 8)))
    assert left_out(decision) == {3: LeftOut.ROWS_RUNNING}
    assert portions(decision) == {4: 8}


def test_siblings_in_one_decision_wait_for_the_first() -> None:
    chain = bytes(range(64))
    siblings = tuple(queued(number, 40, unwritten=chain) for number in (3, 4, 5))
    scorer = queued(6, 20, unwritten=chain, reads=False)
    decision = decide(queued=(*siblings, scorer))
    assert decision.begins == (name(3), name(6))
    assert left_out(decision) == {4: LeftOut.AWAITS_WRITER, 5: LeftOut.AWAITS_WRITER}


def test_blocks_go_to_decodes_in_order_of_service() -> None:
    some = tuple(decodable(number) for number in (1, 2, 3))
    decision = decide(blocks=2, is_releasing=True, decodable=some)
    assert decision.decodes == (name(1), name(2))
    assert left_out(decision) == {3: LeftOut.NO_BLOCKS}


def test_the_youngest_gives_way_where_a_decode_lacks_a_block() -> None:
    view = attrs.evolve(EMPTY, blocks=0, decoding=1, last_decoding=decodable(2), decodable=(decodable(1),))
    assert choose(view) == Shortage(name(2))
    assert choose(attrs.evolve(view, prefillable=(prefillable(5, 9),))) == Shortage(name(5))
    assert choose(attrs.evolve(view, last_decoding=decodable(1), decodable=(decodable(2),))) == Shortage(name(2))


def test_nobody_gives_way_while_blocks_are_coming_back() -> None:
    decision = decide(
        blocks=0,
        is_releasing=True,
        decoding=1,
        last_decoding=decodable(2),
        decodable=(decodable(1),),
        queued=(queued(3, 90),),
    )
    assert decision.decodes == ()
    assert left_out(decision)[1] is LeftOut.NO_BLOCKS


@given(
    decodes=st.integers(0, 8),
    prefills=st.lists(st.integers(1, 200), max_size=5),
    waiting=st.lists(st.integers(1, 200), max_size=8),
    blocks=st.integers(0, 60),
    slots=st.integers(0, 6),
)
def test_limits_hold_and_the_first_gets_half(
    decodes: int, prefills: list[int], waiting: list[int], blocks: int, slots: int
) -> None:
    view = attrs.evolve(
        EMPTY,
        blocks=blocks,
        slots=slots,
        decoding=decodes,
        prefillable=tuple(prefillable(100 + number, left) for number, left in enumerate(prefills)),
        queued=tuple(queued(200 + number, left) for number, left in enumerate(waiting)),
    )
    decision = choose(view)
    assert isinstance(decision, BatchDecision)
    given_out = portions(decision)
    assert decodes + sum(given_out.values()) <= view.step_tokens_max
    assert all(tokens > 0 for tokens in given_out.values())
    assert len(decision.begins) <= slots
    needs = {candidate.sequence: candidate.blocks for candidate in view.queued}
    assert sum(needs[sequence] for sequence in decision.begins) <= blocks
    if prefills:
        assert given_out[100] >= min(prefills[0], (view.step_tokens_max - decodes) // 2)
        if all(left >= prefills[0] for left in (*prefills, *waiting)):
            assert given_out[100] == min(prefills[0], view.step_tokens_max - decodes)
    if prefills or decision.begins:
        spare = view.step_tokens_max - decodes - sum(given_out.values())
        wanting = [left for number, left in enumerate(prefills) if given_out.get(100 + number, 0) < left]
        assert not spare or not wanting
