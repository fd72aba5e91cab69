from itertools import product

from lmpool.core.booking import NEXT, BookingEvent, BookingState
from tests.specs.tables import read_rows

ROWS = read_rows("booking.md", "A booking")


def test_the_table_is_complete() -> None:
    states = [state for state in BookingState if state is not BookingState.ENDED]
    wanted = [(state.value, event.value) for state, event in product(states, BookingEvent)]
    assert sorted((row["state"], row["event"]) for row in ROWS) == sorted(wanted)


def test_the_ledger_agrees() -> None:
    for row in ROWS:
        state = NEXT[BookingState(row["state"])][BookingEvent(row["event"])]
        assert state.value == row["next"], row
