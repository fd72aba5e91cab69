"""The OpenAPI document, made from the same tables that parse requests."""

from collections.abc import Mapping
from typing import Any

import lmpool
from lmpool.io.http import headers
from lmpool.io.http.errors import Code
from lmpool.io.http.fields import Field, Kind
from lmpool.io.http.schema import CHAT_FIELDS, COMPLETION_FIELDS, DETOKENIZE_FIELDS, TOKENIZE_FIELDS, TRANSFER_FIELDS

TOKEN_LIST = {"type": "array", "items": {"type": "integer", "minimum": 0}}
TEXT_LIST = {"type": "array", "items": {"type": "string"}}
CONTENT = {"anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "object"}}, {"type": "null"}]}
MESSAGE = {
    "type": "object",
    "properties": {"role": {"type": "string"}, "content": CONTENT},
    "required": ["role"],
}

SHAPES: Mapping[Kind, Mapping[str, Any]] = {
    Kind.INTEGER: {"type": "integer"},
    Kind.NUMBER: {"type": "number"},
    Kind.FLAG: {"type": "boolean"},
    Kind.TEXT: {"type": "string"},
    Kind.TEXTS: {"anyOf": [{"type": "string"}, TEXT_LIST, {"type": "null"}]},
    Kind.TOKENS: TOKEN_LIST,
    Kind.TEXT_OR_TOKENS: {"anyOf": [{"type": "string"}, TOKEN_LIST]},
    Kind.PROMPT: {"anyOf": [{"type": "string"}, TEXT_LIST, TOKEN_LIST, {"type": "array", "items": TOKEN_LIST}]},
    Kind.MESSAGES: {"type": "array", "items": MESSAGE},
    Kind.CONTENT: CONTENT,
    Kind.OBJECT: {"type": "object"},
    Kind.BIASES: {"type": "object"},
}

GENERATION_HEADERS = (
    (headers.LABEL, "The client's name for the request; comes back."),
    (headers.SESSION, "Requests of one conversation."),
    (headers.PRIORITY, "From -8 to 8; lower is served first."),
    (headers.DEADLINE, "Milliseconds from arrival after which the request ends with 408."),
)

GET_PATHS = (
    ("/v1/models", "The names that requests may use, and the context limit in force."),
    ("/v1/models/{name}", "One of them."),
    ("/livez", "200 while the process turns."),
    ("/readyz", "200 while requests are taken; 503 while loading or draining."),
    ("/metrics", "Prometheus metrics."),
    ("/openapi.json", "This document."),
    ("/pool/state", "What control knows of every replica."),
    ("/pool/decisions", "The newest routes with every term; query: limit, request."),
)
POST_PATHS = (
    ("/v1/completions", "Continue prompts.", COMPLETION_FIELDS),
    ("/v1/chat/completions", "Answer a chat.", CHAT_FIELDS),
    ("/tokenize", "Tokens of a text or a chat.", TOKENIZE_FIELDS),
    ("/detokenize", "Text of tokens.", DETOKENIZE_FIELDS),
    ("/pool/clear", "Drop every cached block that no request uses; needs an admin key.", ()),
    (
        "/pool/transfer",
        "Begin to copy or move a cached prompt to another replica; needs an admin key.",
        TRANSFER_FIELDS,
    ),
)


def openapi_document() -> dict[str, Any]:
    paths: dict[str, dict[str, Any]] = {}
    for path, about in GET_PATHS:
        paths.setdefault(path, {})["get"] = _operation(about)
    for path, about, fields in POST_PATHS:
        paths.setdefault(path, {})["post"] = _operation(about) | (_request_body(fields) if fields else {})
    for path in ("/v1/completions", "/v1/chat/completions"):
        paths[path]["post"]["parameters"] = [
            {"name": name, "in": "header", "description": about, "schema": {"type": "string"}}
            for name, about in GENERATION_HEADERS
        ]
    paths["/v1/models/{name}"]["get"]["parameters"] = [
        {"name": "name", "in": "path", "required": True, "schema": {"type": "string"}}
    ]
    return {
        "openapi": "3.1.0",
        "info": {"title": "LMPool", "version": lmpool.__version__},
        "paths": paths,
        "components": {"schemas": {"Error": _error_schema()}, "securitySchemes": {"key": _KEY_SCHEME}},
        "security": [{}, {"key": []}],
    }


_KEY_SCHEME = {"type": "http", "scheme": "bearer"}


def _operation(about: str) -> dict[str, Any]:
    error = {"content": {"application/json": {"schema": {"$ref": "#/components/schemas/Error"}}}}
    return {
        "summary": about,
        "responses": {"200": {"description": "Done."}, "default": {"description": "An error."} | error},
    }


def _request_body(fields: tuple[Field, ...]) -> dict[str, Any]:
    schema = {
        "type": "object",
        "properties": {field.name: _schema(field) for field in fields},
        "required": [field.name for field in fields if field.default == "required"],
        "additionalProperties": True,
    }
    return {"requestBody": {"required": True, "content": {"application/json": {"schema": schema}}}}


def _schema(field: Field) -> dict[str, Any]:
    about: dict[str, Any] = {"description": f"{field.about} Default: {field.default}."}
    if field.kind is Kind.BIASES:
        numbers = {"type": "number", "minimum": field.least, "maximum": field.most}
        return about | {"type": ["object", "null"], "additionalProperties": numbers}
    shape = SHAPES[field.kind]
    low, high = _bound_words(field.kind)
    bounds = {word: bound for word, bound in ((low, field.least), (high, field.most)) if bound is not None}
    if isinstance(shape.get("type"), str):
        return about | dict(shape) | bounds | {"type": [shape["type"], "null"]}
    return about | dict(shape)


def _bound_words(kind: Kind) -> tuple[str, str]:
    if kind in (Kind.INTEGER, Kind.NUMBER):
        return "minimum", "maximum"
    return ("minLength", "maxLength") if kind is Kind.TEXT else ("minItems", "maxItems")


def _error_schema() -> dict[str, Any]:
    properties = {
        "message": {"type": "string"},
        "type": {"type": "string", "enum": sorted({code.kind for code in Code})},
        "param": {"type": ["string", "null"]},
        "code": {"type": "string", "enum": [code.word for code in Code]},
    }
    error = {"type": "object", "properties": properties, "required": list(properties)}
    return {"type": "object", "properties": {"error": error}, "required": ["error"]}
