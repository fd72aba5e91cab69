"""specs/transfer.md against the tables, bounds and reasons in the code."""

import re
from collections.abc import Mapping
from enum import Enum
from typing import get_args

import pytest

from lmpool.core.effects import CopyEffect
from lmpool.core.events import CopyEvent
from lmpool.core.ids import SECOND
from lmpool.core.limits import TRANSFER_BLOCKS_MAX
from lmpool.core.messages.transfer import TransferDenial, TransferEnd, TransferRefusal
from lmpool.core.transfer import exchange, inbound, leases, outbound
from lmpool.core.transfer.life import (
    SOURCE_TRANSITIONS,
    TARGET_TRANSITIONS,
    TRANSFER_TRANSITIONS,
    SourceEvent,
    SourceState,
    TargetEvent,
    TargetState,
    TransferEvent,
    TransferState,
)
from tests.specs.tables import SPECS, read_rows

PAGE = "transfer.md"
TABLES: list[tuple[str, type[Enum], type[Enum], Mapping[Enum, Mapping[Enum, Enum]]]] = [
    ("Source", SourceState, SourceEvent, SOURCE_TRANSITIONS),  # type: ignore[list-item]
    ("Target", TargetState, TargetEvent, TARGET_TRANSITIONS),  # type: ignore[list-item]
    ("Control", TransferState, TransferEvent, TRANSFER_TRANSITIONS),  # type: ignore[list-item]
]


@pytest.mark.parametrize(("heading", "states", "events", "table"), TABLES, ids=[row[0] for row in TABLES])
def test_every_cell(
    heading: str, states: type[Enum], events: type[Enum], table: Mapping[Enum, Mapping[Enum, Enum]]
) -> None:
    rows = read_rows(PAGE, heading)
    assert [row["state"] for row in rows] == [state.value for state in states]
    assert list(rows[0]) == ["state", *(event.value for event in events)]
    for row in rows:
        written = {events(name): states(cell) for name, cell in row.items() if name != "state" and cell}
        assert table[states(row["state"])] == written, row["state"]


@pytest.mark.parametrize("states", [SourceState, TargetState, TransferState])
def test_every_state_can_be_reached_and_left(states: type[Enum]) -> None:
    table = next(table for _, of, _, table in TABLES if of is states)
    first, *others = states
    reached = {first} | {after for moves in table.values() for after in moves.values()}
    assert reached == {first, *others}
    assert [state.value for state in states if not table[state]] in (["ended"], ["published", "ended"])


def test_every_refusal_and_every_end_is_explained_and_no_other() -> None:
    assert sorted(row["reason"] for row in read_rows(PAGE, "Refusals")) == sorted(
        each.value for each in TransferRefusal
    )
    assert sorted(row["denial"] for row in read_rows(PAGE, "Denials")) == sorted(each.value for each in TransferDenial)
    assert sorted(row["end"] for row in read_rows(PAGE, "Ends")) == sorted(each.value for each in TransferEnd)


def test_every_effect_and_every_event_of_the_driver_is_named() -> None:
    rows = read_rows(PAGE, "The driver")
    assert [row["effect"] for row in rows] == [kind.__name__ for kind in get_args(CopyEffect)]
    named = re.findall(r"`(\w+)`", " ".join(row["and answers, exactly once"] for row in rows))
    assert named == [kind.__name__ for kind in get_args(CopyEvent)]


def test_the_bounds_in_the_text_are_those_in_force() -> None:
    text = (SPECS / PAGE).read_text()
    assert f"one block in {outbound.COPY_SHARE} would be pinned" in text
    assert f"one block in {inbound.ARRIVAL_SHARE} would be reserved" in text
    assert f"on at most one block in {leases.LEASE_SHARE}." in text
    assert f"at most {exchange.WAITERS_LEASE_NS // SECOND} s" in text
    assert f"more than {TRANSFER_BLOCKS_MAX:,} blocks are wanted" in text
    assert f"takes part in {exchange.SIDES_MAX} already" in text
    assert f"({exchange.ANSWERS_KEPT:,} of them at a worker)" in text
