"""specs/block.md against the table in the code."""

from lmpool.core.block import TRANSITIONS, BlockEvent, BlockState
from tests.specs.tables import read_rows

ROWS = read_rows("block.md", "Transitions")


def test_rows_and_columns_are_states_and_events() -> None:
    assert [row["state"] for row in ROWS] == [state.value for state in BlockState]
    assert list(ROWS[0]) == ["state", *(event.value for event in BlockEvent)]


def test_every_cell() -> None:
    for row in ROWS:
        moves = TRANSITIONS[BlockState(row["state"])]
        written = {BlockEvent(name): BlockState(cell) for name, cell in row.items() if name != "state" and cell}
        assert moves == written
