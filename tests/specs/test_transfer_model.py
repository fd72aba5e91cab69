"""specs/transfer.pml: spin finds in it what it should, and its names are those of the code and of specs/transfer.md."""

import re
from typing import get_args

import pytest
from searches import BOUNDS, MODEL, SEARCHES, Search, is_claim, is_good, run, why_skipped

from lmpool.core.messages.transfer import BeginSend, TransferAnswer, TransferOrder
from lmpool.core.transfer.life import SourceState, TargetState, TransferState
from tests.specs.tables import read_rows

TEXT = MODEL.read_text()
LAWS = re.findall(r"#define (\w+) \d+ +/\*", TEXT)
CLAIMS = re.findall(r"^ltl (\w+)", TEXT, re.MULTILINE)
BROKEN = [(search.mutant, search.property) for search in SEARCHES if search.mutant]


def name_of(search: Search) -> str:
    return f"{search.mutant or 'model'}-{search.property}-{search.bounds}".replace(" ", "_").replace(",", "")


@pytest.mark.skipif(bool(why_skipped()), reason=why_skipped())
@pytest.mark.parametrize("search", SEARCHES, ids=name_of)
def test_a_search_finds_what_it_should(search: Search) -> None:
    outcome = run(search)
    assert is_good(search, outcome), outcome


def test_every_law_and_every_claim_that_can_fail_has_a_mutant_that_breaks_it() -> None:
    assert {name for _, name in BROKEN} == {*LAWS, *CLAIMS} - {"publishes"}
    assert len(LAWS) == 8


def test_every_mutant_in_the_model_is_searched() -> None:
    switches = set(re.findall(r"#ifn?def (\w+)|defined\((\w+)\)", TEXT))
    bounds = {bound.partition("=")[0] for given in BOUNDS.values() for bound in given} | {"ONLY"}
    assert {name for pair in switches for name in pair if name} - bounds == {mutant for mutant, _ in BROKEN}


def test_the_model_itself_is_searched_for_every_property() -> None:
    assert {search.property for search in SEARCHES if not search.mutant} == {"laws", *CLAIMS}
    assert all(search.mutant or search.property == "laws" or is_claim(search.property) for search in SEARCHES)


def test_the_page_has_every_property_and_every_mutant() -> None:
    page = MODEL.with_suffix(".md").read_text().partition("\n## The model\n")[2]
    properties = read_rows("transfer.md", "The model")
    assert [row["property"] for row in properties] == [*LAWS, *CLAIMS]
    written = [
        (mutant, row["property"]) for row in properties for mutant in re.findall(r"\w+", row["mutants that break it"])
    ]
    assert sorted(written) == sorted(BROKEN)
    told = re.findall(r"^\| ([A-Z_, ]+) \| [a-z]", page.partition("| mutant | does |")[2], re.MULTILINE)
    assert sorted(", ".join(told).split(", ")) == sorted({mutant for mutant, _ in BROKEN})


def test_states_and_messages_have_the_names_of_the_code() -> None:
    kinds = {kind: re.findall(r"\w+", names) for kind, names in re.findall(r"mtype:(\w+) = \{([^}]*)\}", TEXT)}
    sends = {SourceState.SENDING, SourceState.SENT, SourceState.ENDING}
    assert kinds["control"] == [state.value.capitalize() for state in TransferState]
    assert kinds["source"][1:] == [f"Source_{state.value.capitalize()}" for state in SourceState if state not in sends]
    assert kinds["target"][1:] == [f"Target_{state.value.capitalize()}" for state in TargetState]
    messages = {*get_args(TransferOrder), *get_args(TransferAnswer)} - {BeginSend}
    assert sorted(kinds["message"][1:]) == sorted(message.__name__ for message in messages)
