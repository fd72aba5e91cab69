"""What people read of a decision and of what became of it, line by line."""

import attrs

from lmpool.core.effects import Outcome
from lmpool.core.explanation import decision_lines, request_lines, unknown_lines
from lmpool.core.history import History, Visit
from lmpool.core.ids import MILLISECOND, Epoch, Nanos, Rank, RequestId
from lmpool.core.messages.ingress_control import Candidate, Decision

REQUEST = RequestId(Epoch(1), 23)
TERMS = ("wait", "prefill", "followers", "stall", "slowdown")


def ms(number: float) -> Nanos:
    return Nanos(round(number * MILLISECOND))


def in_ms(*numbers: float) -> tuple[float, ...]:
    return tuple(float(ms(number)) for number in numbers)


DECISION = Decision(
    number=12,
    request=REQUEST,
    attempt=0,
    at_ns=ms(1000.5),
    policy="marginal-time",
    rank=Rank(1),
    reason="least marginal time, with the longest known prefix",
    prompt_tokens=640,
    chain_blocks=40,
    term_names=TERMS,
    candidates=(
        Candidate(Rank(0), True, "", 0, 0, 640, in_ms(4, 64.409, 0, 0, 0), *in_ms(68.409)),
        Candidate(Rank(1), True, "", 37, 2, 16, in_ms(102, 1.62, 6.5, 0, 0), *in_ms(110.12)),
        Candidate(Rank(2), False, "down", 0, 0, 640, (), 0.0),
    ),
    fetch="",
)
VISIT = Visit(
    attempt=0,
    rank=Rank(1),
    epoch=Epoch(3),
    is_degraded=False,
    submitted_ns=ms(1001),
    begun_ns=ms(1091.5),
    waited_ns=ms(90),
    cached_tokens=624,
    first_token_ns=ms(1095.5),
    end="complete",
)
HISTORY = History(
    request=REQUEST,
    tenant="default",
    arrived_ns=ms(1000),
    prompt_tokens=640,
    output_tokens=24,
    visits=(VISIT,),
    phase="closed",
    outcome=Outcome.COMPLETE,
    detail="",
    ended_ns=ms(1400),
)

DECISION_LINES = [
    "attempt 0: decision 12 of marginal-time, to rank 1: least marginal time, with the longest known prefix",
    "      rank  ready  arriving  uncached    wait  prefill  followers  stall  slowdown    cost",
    "         0      0         0       640    4.00    64.41       0.00   0.00      0.00   68.41",
    "  ->     1     37         2        16  102.00     1.62       6.50   0.00      0.00  110.12",
    "         2  down",
    "  ready and arriving in blocks (the prompt has 40), uncached in tokens after copies, the rest in milliseconds",
    "  expected: 624 of 640 tokens reused, 102.00 ms of waiting, first token after 103.62 ms",
]


def test_a_decision_shows_every_term_of_every_rank_and_what_was_expected() -> None:
    assert decision_lines(DECISION, None) == DECISION_LINES


def test_a_request_shows_what_it_really_met_beside_it() -> None:
    assert request_lines(HISTORY, [DECISION]) == [
        "request 1-23: 640 prompt tokens",
        *DECISION_LINES,
        "  really:   624 tokens reused, 90.00 ms of waiting, first token after 95.00 ms; complete",
        "outcome: complete; 24 output tokens, submitted 1.00 ms after its arrival, first token 95.50 ms after it, "
        "end 400.00 ms after it",
    ]


def test_what_the_rank_could_be_sent_is_shown() -> None:
    lines = decision_lines(attrs.evolve(DECISION, fetch="pull of 3 blocks; admitted"), None)
    assert lines[:-2] == decision_lines(DECISION, None)[:-1]
    assert lines[-2:] == ["  fetch:    pull of 3 blocks; admitted", decision_lines(DECISION, None)[-1]]


def test_a_policy_without_times_shows_its_own_unit_and_predicts_none() -> None:
    decision = attrs.evolve(
        DECISION,
        policy="lmpool-paper",
        reason="owner",
        term_names=("queue", "missing"),
        candidates=(Candidate(Rank(1), True, "", 30, 0, 160, (0.25, 160.0), 160.25),),
    )
    assert decision_lines(decision, None) == [
        "attempt 0: decision 12 of lmpool-paper, to rank 1: owner",
        "      rank  ready  arriving  uncached  queue  missing    cost",
        "  ->     1     30         0       160   0.25      160  160.25",
        "  ready and arriving in blocks (the prompt has 40), uncached in tokens after copies, "
        "the rest in the policy's own unit",
        "  expected: 480 of 640 tokens reused; this policy predicts no times",
    ]


def test_a_decision_for_nobody_says_why_each_rank_was_none() -> None:
    absent = (
        Candidate(Rank(0), False, "down", 0, 0, 640, (), 0.0),
        Candidate(Rank(10), False, "suspect", 0, 0, 0, (), 0.0),
    )
    decision = attrs.evolve(DECISION, rank=None, reason="no replica", candidates=absent)
    assert decision_lines(decision, None) == [
        "attempt 0: decision 12 of marginal-time, nowhere: no replica",
        "         0  down",
        "        10  suspect",
    ]


def test_every_attempt_is_shown_in_order_with_or_without_its_decision() -> None:
    lost = attrs.evolve(VISIT, end="worker lost")
    alone = attrs.evolve(VISIT, attempt=1, rank=Rank(0), is_degraded=True, first_token_ns=None, end="worker lost")
    refused = attrs.evolve(VISIT, attempt=2, begun_ns=None, first_token_ns=None, end="refused: queue full")
    history = attrs.evolve(HISTORY, visits=(lost, alone, refused), outcome=None, phase="routing", ended_ns=None)
    lines = request_lines(history, [attrs.evolve(DECISION, attempt=3, rank=None, candidates=()), DECISION])
    assert lines[0] == "request 1-23: 640 prompt tokens"
    assert lines[8:] == [
        "  really:   624 tokens reused, 90.00 ms of waiting, first token after 95.00 ms; worker lost",
        "attempt 1: to rank 0; routed by the ingress, as control did not answer",
        "  really:   624 tokens reused, 90.00 ms of waiting; worker lost",
        "attempt 2: to rank 1; its decision is forgotten",
        "  really:   not begun; refused: queue full",
        "attempt 3: decision 12 of marginal-time, nowhere: least marginal time, with the longest known prefix",
        "outcome: open (routing); 24 output tokens, submitted 1.00 ms after its arrival, first token 95.50 ms after "
        "it, begun again 1 time",
    ]


def test_what_a_client_was_told_is_part_of_the_outcome() -> None:
    history = attrs.evolve(HISTORY, visits=(), output_tokens=0, outcome=Outcome.BUSY, detail="All are busy.")
    assert request_lines(history, []) == [
        "request 1-23: 640 prompt tokens",
        "outcome: busy (All are busy); 0 output tokens, end 400.00 ms after it",
    ]


def test_of_an_unknown_request_the_bounds_are_told() -> None:
    (line,) = unknown_lines("1-99", 1024)
    assert "'1-99'" in line
    assert "1024 decisions" in line
