"""Tables of specs/api.md against the code that reads requests and makes errors."""

import json

import pytest

from lmpool.io.explained import Explained
from lmpool.io.http import headers
from lmpool.io.http.errors import Code
from lmpool.io.http.fields import Field
from lmpool.io.http.openapi import openapi_document
from lmpool.io.http.pool import decision_document, explained_document, history_document
from lmpool.io.http.schema import (
    CHAT_FIELDS,
    COMPLETION_FIELDS,
    DETOKENIZE_FIELDS,
    SAMPLING_FIELDS,
    TOKENIZE_FIELDS,
    TRANSFER_FIELDS,
    UNSUPPORTED_FIELDS,
)
from tests.io.http.scripted import DECISION, HISTORY
from tests.specs.tables import SPECS, read_rows


def shown(bound: float | None) -> str:
    if bound is None:
        return ""
    return f"{bound:g}" if abs(bound) < 1e6 else str(bound)


@pytest.mark.parametrize(
    ("heading", "fields"),
    [
        ("Fields of both generation endpoints", SAMPLING_FIELDS),
        ("Fields of completions", [field for field in COMPLETION_FIELDS if field not in SAMPLING_FIELDS]),
        ("Fields of chat", [field for field in CHAT_FIELDS if field not in SAMPLING_FIELDS]),
        ("Fields of tokenize", TOKENIZE_FIELDS),
        ("Fields of detokenize", DETOKENIZE_FIELDS),
        ("Fields of transfers", TRANSFER_FIELDS),
    ],
)
def test_fields_are_those_of_the_specification(heading: str, fields: tuple[Field, ...]) -> None:
    assert read_rows("api.md", heading) == [
        {
            "field": field.name,
            "type": field.kind.value,
            "least": shown(field.least),
            "most": shown(field.most),
            "default": field.default,
            "what": field.about.strip("`"),
        }
        for field in fields
    ]


def test_refused_fields_are_those_of_the_specification() -> None:
    listed = {
        row["field"]: row["values that ask for nothing"] for row in read_rows("api.md", "Fields that are refused")
    }
    assert listed == {name: ", ".join(map(json.dumps, harmless)) for name, harmless in UNSUPPORTED_FIELDS.items()}


def test_error_codes_are_those_of_the_specification() -> None:
    listed = [(row["code"], int(row["status"]), row["type"]) for row in read_rows("api.md", "Errors")]
    assert listed == [(code.word, code.status, code.kind) for code in Code]


def test_headers_are_those_of_the_specification() -> None:
    taken = {row["header"] for row in read_rows("api.md", "Request headers")}
    assert taken == {headers.LABEL, headers.SESSION, headers.PRIORITY, headers.DEADLINE, "authorization"}
    given = {row["header"] for row in read_rows("api.md", "Response headers")}
    assert given == {headers.LABEL, headers.REQUEST, "retry-after"}


def listed_endpoints() -> set[tuple[str, str]]:
    return {(row["method"], row["path"]) for row in read_rows("api.md", "Endpoints")}


def test_endpoints_are_those_of_the_openapi_document() -> None:
    paths = openapi_document()["paths"]
    assert {(method.upper(), path) for path, methods in paths.items() for method in methods} == listed_endpoints()


def test_fields_of_decisions_are_those_of_the_specification() -> None:
    text = (SPECS / "api.md").read_text().split("## Decisions\n")[1].split("\n## ")[0]
    made, history = decision_document(DECISION), history_document(HISTORY)
    told = explained_document(Explained((), ()))
    names = [*made, *made["candidates"][0], *history, *history["visits"][0]]
    assert [name for name in names if f"`{name}`" not in text and name != "candidates"] == []
    assert "{" + ", ".join(f'"{name}"' for name in told) + "}" in text
