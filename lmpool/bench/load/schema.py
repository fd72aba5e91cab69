"""A JSON schema of what an attrs class comes to in JSON, made from its types."""

import types
import typing
from collections.abc import Mapping
from enum import Enum
from typing import Any

import attrs

DIALECT = "https://json-schema.org/draft/2020-12/schema"
NAMES: Mapping[object, str] = {int: "integer", float: "number", str: "string", bool: "boolean", types.NoneType: "null"}


def json_schema(record: type) -> dict[str, Any]:
    assert attrs.has(record)
    return {"$schema": DIALECT, "title": record.__name__, **_of(record)}


def _of(kind: Any) -> dict[str, Any]:
    kind = getattr(kind, "__supertype__", kind)
    if kind in NAMES:
        return {"type": NAMES[kind]}
    if isinstance(kind, type) and issubclass(kind, Enum):
        return {"enum": [member.value for member in kind]}
    if attrs.has(kind):
        hints = typing.get_type_hints(kind)
        return {
            "type": "object",
            "properties": {field.name: _of(hints[field.name]) for field in attrs.fields(kind)},
            "required": [field.name for field in attrs.fields(kind)],
            "additionalProperties": False,
        }
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if origin in (types.UnionType, typing.Union):
        return {"anyOf": [_of(one) for one in arguments]}
    if origin in (tuple, list):
        return {"type": "array", "items": _of(arguments[0])}
    if origin is dict:
        return {"type": "object", "additionalProperties": _of(arguments[1])}
    raise AssertionError(f"no schema for {kind!r}")
