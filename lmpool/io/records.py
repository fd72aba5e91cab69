"""Frozen records to JSON values and back, without any coercion.

A record is an object with every field and no other; a named tuple is a short array; a tuple is an array; an Enum is
its value. An integer is never a bool, a float or a string. A float may be written as an integer, and the three that
JSON lacks are the strings in `NOT_FINITE`. `bytes` pass unchanged: JSON has none, so `wire.py` puts them in place.

Every hook raises only TypeError or ValueError, which cattrs gathers into a BaseValidationError.
"""

import math
from collections.abc import Callable
from enum import Enum
from functools import partial
from itertools import chain
from typing import Any, TypeAlias, TypeVar, get_args, get_origin

import attrs
from cattrs import BaseValidationError, Converter, transform_error
from cattrs.gen import make_dict_structure_fn
from cattrs.v import format_exception

Structure: TypeAlias = Callable[[Any, Any], Any]

NOT_FINITE = {"inf": math.inf, "-inf": -math.inf, "nan": math.nan}

_INT = frozenset((int,))
_REALS = frozenset((int, float))
_LIST = frozenset((list,))
_Leaf = TypeVar("_Leaf", bool, str, bytes)


def _structure_int(value: object, _: object) -> int:
    if type(value) is not int:
        raise TypeError(f"expected an integer, got {type(value).__name__}")
    return value


def _structure_float(value: object, _: object) -> float:
    if type(value) is float:
        return value
    if type(value) is int:
        return float(value)
    if type(value) is str and value in NOT_FINITE:
        return NOT_FINITE[value]
    raise TypeError(f"expected a number, got {type(value).__name__}")


def _exactly(leaf: type[_Leaf]) -> Structure:
    def structure(value: object, _: object) -> _Leaf:
        if type(value) is not leaf:
            raise TypeError(f"expected {leaf.__name__}, got {type(value).__name__}")
        return value

    return structure


def _structure_enum(value: object, enum: type[Enum]) -> Enum:
    if type(value) is not str:
        raise TypeError(f"expected the value of a {enum.__name__}, got {type(value).__name__}")
    try:
        return enum(value)
    except ValueError:
        raise ValueError(f"{value!r} is none of {', '.join(str(member.value) for member in enum)}") from None


def unstructure_float(value: float) -> float | str:
    if math.isfinite(value):
        return value
    return "nan" if math.isnan(value) else "inf" if value > 0 else "-inf"


def _array(value: object) -> list[Any]:
    if type(value) is not list:
        raise TypeError(f"expected an array, got {type(value).__name__}")
    return value


def structure_ints(value: object, _: object) -> tuple[int, ...]:
    column = _array(value)
    if not _INT.issuperset(map(type, column)):
        raise TypeError("expected an array of integers")
    return tuple(column)


def _structure_floats(value: object, _: object) -> tuple[float, ...]:
    column = _array(value)
    if not _REALS.issuperset(map(type, column)):
        return tuple(_structure_float(item, float) for item in column)
    return tuple(map(float, column))


def unstructure_floats(column: tuple[float, ...]) -> tuple[float | str, ...]:
    return column if all(map(math.isfinite, column)) else tuple(map(unstructure_float, column))


def _base(kind: Any) -> Any:
    """What a NewType is at run time."""
    while hasattr(kind, "__supertype__"):
        kind = kind.__supertype__
    return kind


def _is_tuple(kind: Any) -> bool:
    return get_origin(kind) is tuple


def _is_named_tuple(kind: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, tuple) and hasattr(kind, "_fields")


def _named_tuple_items(kind: Any) -> tuple[Any, ...]:
    return tuple(kind.__annotations__[field] for field in kind._fields)


def _is_all_int(kind: Any) -> bool:
    """A named tuple of integers only, of which messages have long columns."""
    return _is_named_tuple(kind) and all(_base(item) is int for item in _named_tuple_items(kind))


def _is_column(kind: Any) -> bool:
    """A tuple of any length whose items JSON has as they are."""
    match get_args(kind) if _is_tuple(kind) else ():
        case (item, last) if last is Ellipsis:
            return _base(item) in (int, str, bytes)
        case _:
            return False


def _is_enum(kind: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, Enum)


def _structure_fixed(converter: Converter, items: tuple[Any, ...], make: Callable[[list[Any]], Any]) -> Structure:
    hooks = [(converter.get_structure_hook(item), item) for item in items]

    def structure(value: object, _: object) -> Any:
        array = _array(value)
        if len(array) != len(hooks):
            raise ValueError(f"expected {len(hooks)} items, got {len(array)}")
        return make([hook(item, kind) for item, (hook, kind) in zip(array, hooks, strict=True)])

    return structure


def _tuple_structure(converter: Converter, kind: Any) -> Structure:
    items = get_args(kind)
    if len(items) != 2 or items[1] is not Ellipsis:
        return _structure_fixed(converter, items, tuple)
    item = _base(items[0])
    if item is int:
        return structure_ints
    if item is float:
        return _structure_floats
    if _is_all_int(item):
        return _structure_rows(item)
    hook = converter.get_structure_hook(items[0])

    def structure(value: object, _: object) -> tuple[Any, ...]:
        return tuple([hook(entry, items[0]) for entry in _array(value)])

    return structure


def _structure_rows(kind: Any) -> Structure:
    widths = frozenset((len(kind._fields),))
    make = partial(tuple.__new__, kind)

    def structure(value: object, _: object) -> tuple[Any, ...]:
        rows = _array(value)
        if not _LIST.issuperset(map(type, rows)) or not widths.issuperset(map(len, rows)):
            raise TypeError(f"expected arrays with the fields of {kind.__name__}")
        if not _INT.issuperset(map(type, chain.from_iterable(rows))):
            raise TypeError("expected arrays of integers")
        return tuple(map(make, rows))

    return structure


def _named_tuple_structure(converter: Converter, kind: Any) -> Structure:
    return _structure_fixed(converter, _named_tuple_items(kind), kind._make)


def _record_structure(converter: Converter, kind: Any) -> Structure:
    fill = make_dict_structure_fn(kind, converter, _cattrs_forbid_extra_keys=True)

    def structure(value: object, _: object) -> Any:
        if type(value) is not dict:
            raise TypeError(f"expected an object, got {type(value).__name__}")
        return fill(value, kind)

    return structure


def _fixed_unstructure(converter: Converter, items: tuple[Any, ...]) -> Callable[[Any], list[Any]]:
    hooks = [converter.get_unstructure_hook(item) for item in items]
    return lambda value: [hook(item) for hook, item in zip(hooks, value, strict=True)]


def _tuple_unstructure(converter: Converter, kind: Any) -> Callable[[Any], Any]:
    items = get_args(kind)
    if len(items) != 2 or items[1] is not Ellipsis:
        return _fixed_unstructure(converter, items)
    if _base(items[0]) is float:
        return unstructure_floats
    if _is_all_int(items[0]):
        return lambda value: list(map(list, value))
    hook = converter.get_unstructure_hook(items[0])
    return lambda value: [hook(item) for item in value]


def _named_tuple_unstructure(converter: Converter, kind: Any) -> Callable[[Any], Any]:
    return list if _is_all_int(kind) else _fixed_unstructure(converter, _named_tuple_items(kind))


def strict_converter() -> Converter:
    """Later registrations are asked first, so the narrower hooks come last."""
    converter = Converter(forbid_extra_keys=True, detailed_validation=True)
    converter.register_structure_hook(int, _structure_int)
    converter.register_structure_hook(float, _structure_float)
    converter.register_structure_hook(bool, _exactly(bool))
    converter.register_structure_hook(str, _exactly(str))
    converter.register_structure_hook(bytes, _exactly(bytes))
    converter.register_structure_hook_func(_is_enum, _structure_enum)
    converter.register_structure_hook_factory(attrs.has, lambda kind: _record_structure(converter, kind))
    converter.register_structure_hook_factory(_is_tuple, lambda kind: _tuple_structure(converter, kind))
    converter.register_structure_hook_factory(_is_named_tuple, lambda kind: _named_tuple_structure(converter, kind))
    converter.register_unstructure_hook(float, unstructure_float)
    converter.register_unstructure_hook(bytes, lambda value: value)
    converter.register_unstructure_hook_func(_is_enum, lambda member: member.value)
    converter.register_unstructure_hook_factory(_is_tuple, lambda kind: _tuple_unstructure(converter, kind))
    converter.register_unstructure_hook_func(_is_column, lambda column: column)
    converter.register_unstructure_hook_factory(_is_named_tuple, lambda kind: _named_tuple_unstructure(converter, kind))
    return converter


def explain(error: BaseValidationError) -> str:
    """Where in the record, and what was wrong: the first three faults."""
    return "; ".join(transform_error(error, format_exception=_said)[:3])


def _said(error: BaseException, kind: type | None) -> str:
    """Hooks say what they expect in words of JSON; the library would name the Python type."""
    if isinstance(error, TypeError | ValueError):
        return str(error)
    return format_exception(error, kind)
