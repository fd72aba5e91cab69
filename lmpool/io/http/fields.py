"""Request fields: one table per endpoint says what each may be; readers check strictly against it.

Nothing is coerced: "5" is no 5, true is no 1, 5.0 is no integer. Null and absent both mean the default. The table is
also the source of the OpenAPI document, and `specs/api.md` is held against it.
"""

import math
from collections.abc import Mapping
from enum import Enum
from typing import Any, NoReturn

import attrs
import orjson

from lmpool.io.http.errors import ApiError, Code

WHOLE_BELOW = 1e18
"""Integers that are written whole in messages."""


class Kind(Enum):
    """The JSON that a field takes, in the words of messages and documents."""

    INTEGER = "an integer"
    NUMBER = "a number"
    FLAG = "true or false"
    TEXT = "a string"
    TEXTS = "a string or a list of strings"
    TOKENS = "a list of token ids"
    BIASES = "an object of token ids and numbers"
    PROMPT = "a string, a list of strings, a list of token ids or a list of such lists"
    TEXT_OR_TOKENS = "a string or a list of token ids"
    MESSAGES = "a list of messages"
    CONTENT = "a string or a list of text parts"
    OBJECT = "an object"


@attrs.frozen
class Field:
    name: str
    kind: Kind
    least: float | None
    most: float | None
    """Bounds of a number; of the length of anything else."""
    default: str
    """In words; `required` where there is none."""
    about: str


class Body:
    """A JSON object from a client, read field by field."""

    def __init__(self, content: Mapping[str, Any], fields: tuple[Field, ...]) -> None:
        self._content = content
        self._fields = {field.name: field for field in fields}

    def unknown(self) -> list[str]:
        return [name for name in self._content if name not in self._fields]

    def has(self, name: str) -> bool:
        return self._content.get(name) is not None

    def field(self, name: str) -> Field:
        return self._fields[name]

    def raw(self, name: str) -> Any:
        """Whatever the client sent, for a reader of its own."""
        assert name in self._fields
        return self._content.get(name)

    def integer(self, name: str) -> int | None:
        field, value = self._fields[name], self._content.get(name)
        if value is None:
            return None
        if type(value) is not int:
            wrong_type(name, field.kind, value)
        check_bounds(field, value, name)
        return value

    def number(self, name: str) -> float | None:
        field, value = self._fields[name], self._content.get(name)
        return None if value is None else checked_number(field, value, name)

    def flag(self, name: str, *, default: bool = False) -> bool:
        value = self._content.get(name)
        if value is None:
            return default
        if type(value) is not bool:
            wrong_type(name, self._fields[name].kind, value)
        return value

    def text(self, name: str) -> str | None:
        field, value = self._fields[name], self._content.get(name)
        if value is None:
            return None
        if not isinstance(value, str):
            wrong_type(name, field.kind, value)
        check_length(field, len(value), name, "characters")
        return value

    def texts(self, name: str, characters_max: int) -> tuple[str, ...]:
        """One string or several, none of them empty; empty where absent."""
        field, value = self._fields[name], self._content.get(name)
        values = [] if value is None else [value] if isinstance(value, str) else value
        if not isinstance(values, list):
            wrong_type(name, field.kind, value)
        check_length(field, len(values), name, "strings")
        for index, item in enumerate(values):
            path = f"{name}[{index}]"
            if not isinstance(item, str):
                wrong_type(path, Kind.TEXT, item)
            if not 1 <= len(item) <= characters_max:
                wrong_value(path, f"must have 1 to {characters_max} characters, not {len(item)}")
        return tuple(values)

    def tokens(self, name: str, vocabulary: int) -> tuple[int, ...]:
        """Empty where absent."""
        field, value = self._fields[name], self._content.get(name)
        if value is None:
            return ()
        if not isinstance(value, list):
            wrong_type(name, field.kind, value)
        check_length(field, len(value), name, "token ids")
        return checked_tokens(value, name, vocabulary)

    def biases(self, name: str, vocabulary: int) -> tuple[tuple[int, float], ...]:
        """Ordered by token id; `least` and `most` of the field bound the biases."""
        field, value = self._fields[name], self._content.get(name)
        if value is None:
            return ()
        if not isinstance(value, dict):
            wrong_type(name, field.kind, value)
        biases: dict[int, float] = {}
        for key, bias in value.items():
            path = f"{name}[{quoted(key)}]"
            if not (key.isascii() and key.isdecimal()) or len(key) > 10:
                wrong_value(path, "must be named by a token id")
            check_token(int(key), path, vocabulary)
            biases[int(key)] = checked_number(field, bias, path)
        return tuple(sorted(biases.items()))


def parse_object(data: bytes) -> dict[str, Any]:
    try:
        content = orjson.loads(data)
    except orjson.JSONDecodeError as error:
        raise ApiError(Code.INVALID_JSON, f"The request body is not valid JSON: {error}.") from error
    if not isinstance(content, dict):
        raise ApiError(Code.INVALID_JSON, "The request body must be a JSON object.")
    return content


def checked_number(field: Field, value: Any, path: str) -> float:
    if type(value) is not int and type(value) is not float:
        wrong_type(path, Kind.NUMBER, value)
    if not math.isfinite(value):
        wrong_value(path, "must be finite")
    check_bounds(field, value, path)
    return float(value)


def checked_tokens(values: list[Any], path: str, vocabulary: int) -> tuple[int, ...]:
    for index, token in enumerate(values):
        if type(token) is not int:
            wrong_type(f"{path}[{index}]", Kind.INTEGER, token)
        if not 0 <= token < vocabulary:
            check_token(token, f"{path}[{index}]", vocabulary)
    return tuple(values)


def check_token(token: int, path: str, vocabulary: int) -> None:
    if not 0 <= token < vocabulary:
        wrong_value(path, f"is no token id of this model, whose ids are 0 to {vocabulary - 1}")


def check_bounds(field: Field, value: float, path: str) -> None:
    if field.least is not None and value < field.least:
        wrong_value(path, f"must be at least {_figure(field.least)}, not {_figure(value)}")
    if field.most is not None and value > field.most:
        wrong_value(path, f"must be at most {_figure(field.most)}, not {_figure(value)}")


def _figure(value: float) -> str:
    return str(int(value)) if abs(value) < WHOLE_BELOW and value == int(value) else f"{value:g}"


def check_length(field: Field, length: int, path: str, unit: str) -> None:
    if field.least is not None and length < field.least:
        wrong_value(path, f"must have at least {_figure(field.least)} {unit}, not {length}")
    if field.most is not None and length > field.most:
        wrong_value(path, f"must have at most {_figure(field.most)} {unit}, not {length}")


def wrong_type(path: str, kind: Kind, value: Any) -> NoReturn:
    raise ApiError(Code.INVALID_TYPE, f"{path} must be {kind.value}, not {described(value)}.", path)


def wrong_value(path: str, rule: str) -> NoReturn:
    raise ApiError(Code.INVALID_VALUE, f"{path} {rule}.", path)


def missing(path: str, kind: Kind) -> NoReturn:
    raise ApiError(Code.MISSING_FIELD, f"{path} is missing: {kind.value}.", path)


def described(value: Any) -> str:
    """The JSON type of a value, for messages: never the value itself, which may be large or private."""
    match value:
        case None:
            return "null"
        case bool():
            return "a boolean"
        case int():
            return "an integer"
        case float() if abs(value) >= 1 << 63:
            return "a number beyond 64 bits"
        case float():
            return "a number with a fraction"
        case str():
            return "a string"
        case list():
            return "a list"
        case _:
            return "an object"


def quoted(name: str) -> str:
    """A name from a client, short and printable."""
    shown = "".join(character if character.isprintable() else "?" for character in name[:40])
    return f"'{shown}'"
