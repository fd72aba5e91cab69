"""A worker that answers nonsense, in frames that keep their form: the ingress goes on, and no client gets a gap."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lmpool.core.effects import Outcome
from lmpool.core.ids import Nanos
from lmpool.core.messages import Message
from lmpool.core.messages.ingress_worker import (
    Abort,
    Accepted,
    Ended,
    EndReason,
    Finish,
    PromptScored,
    RefusalReason,
    Refused,
)
from lmpool.core.messages.worker_control import DrainBegun
from lmpool.core.plan import TokenLogprobs
from tests.core.front import W0, arrival, ready_front, request, streaming_front, tokens_produced

ENTRY = TokenLogprobs(3, -0.5, (), ())
COUNTERS = st.sampled_from((1, 1, 1, 2, 77))
ATTEMPTS = st.sampled_from((0, 0, 0, 1, -1))
ROWS = st.tuples(
    COUNTERS,
    ATTEMPTS,
    st.sampled_from((0, 0, 1, 127)),
    st.sampled_from((0, 1, 2, 9)),
    st.sampled_from((0, 5, (1 << 32) - 1)),
    st.sampled_from((None, None, None, *Finish)),
)
IDS = COUNTERS.map(request)
WORDS: st.SearchStrategy[Message] = st.one_of(
    st.lists(ROWS, min_size=1, max_size=4).map(lambda rows: tokens_produced(*rows)),
    st.builds(Accepted, IDS, ATTEMPTS, st.integers(0, 99), st.just(Nanos(5))),
    st.builds(Refused, IDS, ATTEMPTS, st.sampled_from(RefusalReason), st.just(Nanos(0))),
    st.builds(Ended, IDS, ATTEMPTS, st.sampled_from(EndReason)),
    st.builds(PromptScored, IDS, ATTEMPTS, st.integers(0, 40), st.just((ENTRY, ENTRY))),
    st.just(DrainBegun()),
)


@given(st.lists(WORDS, max_size=12), st.sampled_from((None, 2)))
def test_nonsense_ends_requests_and_never_the_ingress(words: list[Message], prompt_logprobs: int | None) -> None:
    """`Front` asserts that clients get each index once, in order, and nothing after the end."""
    front = ready_front()
    for counter in (1, 2):
        front.feed(arrival(counter, choices=2, prompt_logprobs=prompt_logprobs))
        front.decide(front.asked(), W0)
    for word in words:
        front.hear(W0, word)
    front.lose(W0)
    front.wait(200 * 10**9)
    assert not any(count for name, count in front.machine.snapshot().phases if name in ("leaving", "streaming"))


@pytest.mark.parametrize("row", [(1, 0, 0, 3, 5, None), (1, 0, 127, 0, 5, None)], ids=["gap", "no such choice"])
def test_a_gap_in_the_answer_ends_the_request_alone(row: tuple[int, int, int, int, int, Finish | None]) -> None:
    front, submit = streaming_front()
    front.hear(W0, tokens_produced(row))
    assert front.sent(Abort) == [(W0, Abort(submit.request))]
    front.end(W0, submit, EndReason.ABORTED)
    assert front.outcome(1) is Outcome.FAILED
