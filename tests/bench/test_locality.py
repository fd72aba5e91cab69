from collections import Counter

import pytest

from lmpool.bench.locality import blocks_at_end, prefill_floor, session_trace
from tests.sim.racks import asked, continued, trace


def test_sessions_have_as_many_turns_as_asked_for_and_share_their_agents() -> None:
    made = session_trace(16, 5, 0.1, 0)
    assert set(Counter(request.session for request in made.requests).values()) == {5}
    firsts = {request.parts[0] for request in made.requests if request.continues is None}
    assert 1 < len(firsts) <= 4


def test_blocks_that_sessions_share_count_once() -> None:
    made = trace(asked(0, (0, 32), (1, 16), output=8), asked(0, (0, 32), (2, 20), output=4))
    # 2 in common; 16 + 8 tokens of the first, 20 + 4 of the second
    assert blocks_at_end(made, 16) == 2 + 2 + 2


def test_the_prefill_floor_of_two_turns_by_hand() -> None:
    made = trace(asked(0, (0, 20), output=4), continued(0, 1.0, (1, 8), output=4))
    # 20 tokens of the first turn; then 24 + 8, of which one block of 16 is complete (the last output has no keys yet)
    assert prefill_floor(made, 16) == 20 + 16


@pytest.mark.parametrize("seed", [1, 2])
def test_seeds_decide_everything(seed: int) -> None:
    assert session_trace(4, 3, 0.1, seed) == session_trace(4, 3, 0.1, seed)
    assert session_trace(4, 3, 0.1, seed).fingerprint != session_trace(4, 3, 0.1, seed + 1).fingerprint
