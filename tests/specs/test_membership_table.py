from itertools import product

import pytest

from lmpool.core.ids import Epoch, Nanos
from lmpool.core.membership import (
    NAMES,
    Complete,
    Down,
    Draining,
    Elapsed,
    Heard,
    Joining,
    Leaving,
    Linked,
    Live,
    MemberEvent,
    Membership,
    Mismatched,
    Rejected,
    Suspect,
    Unlinked,
    step,
)
from tests.specs.tables import read_rows

STATES: dict[str, Membership] = {
    "down": Down(Epoch(3)),
    "joining": Joining(Epoch(3)),
    "live": Live(Epoch(3), Nanos(100)),
    "suspect": Suspect(Epoch(3)),
    "draining": Draining(Epoch(3)),
    "rejected": Rejected(Epoch(3), "reason"),
}
EVENTS: dict[str, MemberEvent] = {
    "linked": Linked(Epoch(4)),
    "unlinked": Unlinked(Epoch(3)),
    "mismatched": Mismatched("reason"),
    "complete": Complete(Nanos(200)),
    "heard": Heard(Nanos(200)),
    "leaving": Leaving(),
    "elapsed (early)": Elapsed(Nanos(99)),
    "elapsed (late)": Elapsed(Nanos(100)),
}
ROWS = read_rows("membership.md", "Membership of a rank")


def test_the_table_is_complete() -> None:
    named = [(row["state"], row["event"]) for row in ROWS]
    wanted = [("down", "linked"), *product([name for name in STATES if name != "down"], EVENTS)]
    assert sorted(named) == sorted(wanted)
    assert set(NAMES.values()) == set(STATES)


@pytest.mark.parametrize("row", ROWS, ids=lambda row: f"{row['state']}-{row['event']}")
def test_step_agrees(row: dict[str, str]) -> None:
    state, effects = step(STATES[row["state"]], EVENTS[row["event"]])
    assert NAMES[type(state)] == row["next"]
    assert " ".join(effect.value for effect in effects) == row["effects"]
