"""specs/sequence.md against the table in the code."""

from lmpool.core.sequence import TRANSITIONS, SequenceEvent, SequenceState
from tests.specs.tables import read_rows

ROWS = read_rows("sequence.md", "Transitions")


def test_rows_and_columns_are_states_and_events() -> None:
    assert [row["state"] for row in ROWS] == [state.value for state in SequenceState]
    assert list(ROWS[0]) == ["state", *(event.value for event in SequenceEvent)]


def test_every_cell() -> None:
    for row in ROWS:
        moves = TRANSITIONS[SequenceState(row["state"])]
        written = {SequenceEvent(name): SequenceState(cell) for name, cell in row.items() if name != "state" and cell}
        assert moves == written
