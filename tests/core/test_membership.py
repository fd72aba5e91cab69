import pytest

from lmpool.core.ids import Epoch, Nanos
from lmpool.core.membership import (
    Complete,
    Down,
    Elapsed,
    Heard,
    Joining,
    Linked,
    Live,
    Membership,
    Mismatched,
    Rejected,
    Suspect,
    Unlinked,
    epoch_of,
    is_stale,
    step,
    why_not,
)


def test_a_life_from_link_to_loss() -> None:
    state: Membership = Down(Epoch(0))
    seen: list[Membership] = []
    for event in (
        Linked(Epoch(1)),
        Heard(Nanos(10)),
        Complete(Nanos(20)),
        Heard(Nanos(30)),
        Elapsed(Nanos(29)),
        Elapsed(Nanos(30)),
        Heard(Nanos(60)),
        Unlinked(Epoch(1)),
    ):
        state, _ = step(state, event)
        seen.append(state)
    assert seen == [
        Joining(Epoch(1)),
        Joining(Epoch(1)),
        Live(Epoch(1), Nanos(20)),
        Live(Epoch(1), Nanos(30)),
        Live(Epoch(1), Nanos(30)),
        Suspect(Epoch(1)),
        Live(Epoch(1), Nanos(60)),
        Down(Epoch(1)),
    ]


def test_links_of_lives_that_are_over_are_stale() -> None:
    assert is_stale(Down(Epoch(2)), Epoch(1))
    assert not is_stale(Down(Epoch(2)), Epoch(2))  # the same life dialled again
    assert is_stale(Live(Epoch(2), Nanos(0)), Epoch(1))
    assert not is_stale(Live(Epoch(2), Nanos(0)), Epoch(3))
    with pytest.raises(AssertionError):
        step(Live(Epoch(2), Nanos(0)), Linked(Epoch(1)))


def test_only_live_ranks_have_no_reason_against_them() -> None:
    assert why_not(Live(Epoch(1), Nanos(0))) == ""
    assert why_not(Suspect(Epoch(1))) == "suspect"
    assert why_not(step(Joining(Epoch(1)), Mismatched("its base differs"))[0]) == "its base differs"
    assert epoch_of(Rejected(Epoch(4), "")) == 4
    assert epoch_of(Down(Epoch(4))) is None
