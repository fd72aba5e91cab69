"""Small parts of the worker machine: order of reclaim, deadlines, step costs, chains of sequences."""

from hypothesis import given
from hypothesis import strategies as st

from lmpool.core.deadlines import Deadlines
from lmpool.core.ids import BlockHash, BlockId, Epoch, Nanos, RequestId, SequenceId
from lmpool.core.prefix import extend_chain, pack_tokens
from lmpool.core.rates import Rates
from lmpool.core.reclaim_order import ReclaimOrder
from lmpool.core.sequence import Sequence
from lmpool.core.step_cost import RATIO_MAX, StepWork, correct, predict

RATES = Rates(step=5e6, prefill=2e5, prefill_context=10.0, decode=1e5, decode_context=100.0)
TRUE = Rates(step=9e6, prefill=1e5, prefill_context=40.0, decode=3e5, decode_context=50.0)
DECODE = StepWork(0, 0, 16, 16 * 500)
PREFILL = StepWork(512, 512 * 300, 0, 0)


def request(number: int) -> RequestId:
    return RequestId(Epoch(1), number)


def test_a_prediction_is_the_sum_of_its_terms() -> None:
    assert predict(RATES, StepWork(10, 100, 3, 40)) == 5e6 + 2e6 + 1000 + 3e5 + 4000


def test_rates_come_to_predict_what_is_observed() -> None:
    rates = RATES
    for _ in range(200):
        for work in (DECODE, PREFILL, StepWork(100, 5000, 8, 4000)):
            rates = correct(rates, work, round(predict(TRUE, work)))
    for work in (DECODE, PREFILL):
        assert abs(predict(rates, work) / predict(TRUE, work) - 1) < 0.05


def test_a_step_without_prefill_says_nothing_about_prefill() -> None:
    rates = correct(RATES, DECODE, 10**9)
    assert (rates.prefill, rates.prefill_context) == (RATES.prefill, RATES.prefill_context)
    assert rates.step > RATES.step


def test_one_stalled_step_hardly_shows() -> None:
    stalled = correct(RATES, DECODE, 3600 * 10**9)
    assert predict(stalled, DECODE) < 1.4 * predict(RATES, DECODE)
    assert predict(correct(RATES, DECODE, 0), DECODE) > predict(RATES, DECODE) / RATIO_MAX


@given(
    changes=st.lists(st.tuples(st.integers(0, 5), st.none() | st.integers(0, 50)) | st.integers(0, 50), max_size=200)
)
def test_deadlines_as_a_dictionary_has_them(changes: list[tuple[int, int | None] | int]) -> None:
    deadlines = Deadlines()
    model: dict[RequestId, Nanos] = {}
    for change in changes:
        match change:
            case (number, None):
                deadlines.drop(request(number))
                model.pop(request(number), None)
            case (number, int(deadline)):
                deadlines.drop(request(number))
                deadlines.set(request(number), Nanos(deadline))
                model[request(number)] = Nanos(deadline)
            case int(now):
                expired = [each for each, deadline in model.items() if deadline <= now]
                assert sorted(deadlines.expired(Nanos(now))) == sorted(expired)
                for each in expired:
                    del model[each]
            case _:
                raise AssertionError
        assert deadlines.earliest() == min(model.values(), default=None)


def test_deadlines_of_ended_requests_do_not_pile_up() -> None:
    deadlines = Deadlines()
    for number in range(100_000):
        deadlines.set(request(number), Nanos(10**9 + number))
        deadlines.drop(request(number))
    deadlines.set(request(1), Nanos(5))
    assert deadlines.earliest() == 5
    assert deadlines.digest_parts() == ((request(1), Nanos(5)),)


@given(data=st.data())
def test_the_order_of_reclaim_as_written_down(data: st.DataObject) -> None:
    """The least (key, last use, id) of what is offered, through many uses, offers and sweeps."""
    order = ReclaimOrder(6)
    uses, keys, last, clock = [0] * 6, [0] * 6, [0] * 6, 0
    cached: list[int] = []
    for now in range(1, data.draw(st.integers(1, 120))):
        block = data.draw(st.integers(0, 5))
        if block in cached:
            order.withdraw(BlockId(block))
            order.use([BlockId(block)])
            cached.remove(block)
            uses[block] += 1
            keys[block] = clock + uses[block]
        else:
            order.begin_life(BlockId(block))
            uses[block], keys[block] = 1, clock + 1
        order.end_use([BlockId(block)])
        last[block] = now
        order.offer(BlockId(block))
        cached.append(block)
        if data.draw(st.integers(0, 3)) == 0:
            victim = min(cached, key=lambda each: (keys[each], last[each], each))
            assert order.take() == victim
            cached.remove(victim)
            clock = keys[victim]
        assert [block for block in range(6) if order.is_offered(BlockId(block))] == sorted(cached)


@given(
    tokens=st.lists(st.integers(0, 9), min_size=1, max_size=60), cuts=st.tuples(st.integers(1, 60), st.integers(1, 60))
)
def test_a_sequence_extends_its_chain_through_prompt_and_output(tokens: list[int], cuts: tuple[int, int]) -> None:
    root = BlockHash(b"root of a chain.")
    begin, end = sorted(cuts)
    prompt, output, later = tokens[:begin], tokens[begin:end], tokens[end:]
    known = extend_chain(root, pack_tokens(prompt), 8)
    sequence = Sequence(
        SequenceId(request(1), 0), (0, request(1), 0), 0, root, pack_tokens(prompt), pack_tokens(output), known, 99
    )
    sequence.extend_chain(8)
    assert sequence.chain == extend_chain(root, pack_tokens(prompt + output), 8)
    for token in later:
        sequence.history.append(token)
        sequence.extend_chain(8)
    assert sequence.chain == extend_chain(root, pack_tokens(tokens), 8)
    assert sequence.outputs == len(tokens) - len(prompt)
