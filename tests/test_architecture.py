"""What no linter says: core is deterministic by its form, and files and functions stay small enough to read."""

import ast
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[1] / "lmpool"
CORE = PACKAGE / "core"

FILE_LINES_MAX = 400
FUNCTION_LINES_MAX = 60
CORE_MAY_IMPORT = (*sys.stdlib_module_names, "attrs", "lmpool.core")
CORE_MUST_NOT_CALL = ("hash", "id", "print", "open", "input", "eval", "exec", "vars", "globals", "locals")
MODULE_NAMES_THAT_SAY_NOTHING = ("utils", "util", "helpers", "helper", "manager", "base", "common", "misc", "tools")
SET_NAMES = ("set", "frozenset", "Set", "FrozenSet", "MutableSet", "AbstractSet")
ORDER_BLIND = ("sorted", "len", "min", "max", "sum", "any", "all", "set", "frozenset", "bool")
"""Calls that give the same result in whatever order a set is walked."""

Function = ast.FunctionDef | ast.AsyncFunctionDef
Check = Callable[[ast.Module], Iterator[str]]


def suspension(tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.AsyncFunctionDef | ast.Await | ast.AsyncFor | ast.AsyncWith):
            yield f"{node.lineno}: {type(node).__name__}"


def rebinding(tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Global | ast.Nonlocal):
            yield f"{node.lineno}: {type(node).__name__.lower()} {', '.join(node.names)}"


def forbidden_calls(tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in CORE_MUST_NOT_CALL:
            yield f"{node.lineno}: {node.func.id}()"


def float_time(tree: ast.Module) -> Iterator[str]:
    """Moments are integers, and nothing in core is in seconds. A predicted duration may be a float of nanoseconds."""
    for node in ast.walk(tree):
        match node:
            case ast.AnnAssign(target=ast.Name(id=name), annotation=ast.Name(id="float")) if is_time(name):
                yield f"{node.lineno}: {name}: float"
            case ast.arg(arg=name, annotation=ast.Name(id="float")) if is_time(name):
                yield f"{node.lineno}: {name}: float"
            case ast.FunctionDef(name=name, returns=ast.Name(id="float")) if is_time(name):
                yield f"{node.lineno}: {name}() -> float"
            case _:
                pass


def is_time(name: str) -> bool:
    return name in ("now", "deadline_ns", "at_ns") or name.endswith(
        ("_at_ns", "_began_ns", "_ms", "_us", "_seconds", "_s")
    )


def default_arguments(tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, Function) and (node.args.defaults or any(node.args.kw_defaults)):
            yield f"{node.lineno}: {node.name}() has default arguments"


def set_iteration(tree: ast.Module) -> Iterator[str]:
    """Order of a set is that of its hashes: different in every process."""
    sets = set(_names_of_sets(tree))
    blind = [argument for node in ast.walk(tree) if _is_order_blind(node) for argument in node.args]  # type: ignore[attr-defined]
    for node in ast.walk(tree):
        if any(node is argument for argument in blind):
            continue
        for walked in _walked_by(node):
            if _is_set(walked, sets):
                yield f"{walked.lineno}: {ast.unparse(walked)} is walked"


def _is_order_blind(node: ast.AST) -> bool:
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in ORDER_BLIND


def _walked_by(node: ast.AST) -> list[ast.expr]:
    match node:
        case ast.For(iter=walked) | ast.Starred(value=walked) | ast.YieldFrom(value=walked):
            return [walked]
        case ast.ListComp() | ast.GeneratorExp() | ast.DictComp():
            return [generator.iter for generator in node.generators]
        case ast.Call(func=ast.Name(id="list" | "tuple" | "iter" | "enumerate" | "zip" | "map" | "filter" | "next")):
            return node.args
        case ast.Call(func=ast.Attribute(attr="join" | "extend" | "fromkeys")):
            return node.args
        case ast.Call(func=ast.Attribute(value=owner, attr="pop"), args=[]):
            return [owner]
        case _:
            return []


def _names_of_sets(tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        match node:
            case ast.AnnAssign(target=ast.Name(id=name) | ast.Attribute(attr=name), annotation=annotation):
                if _is_set_type(annotation):
                    yield name
            case ast.arg(arg=name, annotation=ast.expr() as annotation) if _is_set_type(annotation):
                yield name
            case ast.Assign(targets=[ast.Name(id=name) | ast.Attribute(attr=name)], value=value) if _is_set(
                value, set()
            ):
                yield name
            case ast.FunctionDef(name=name, returns=ast.expr() as annotation) if _is_set_type(annotation):
                yield name
            case _:
                pass


def _is_set_type(annotation: ast.expr) -> bool:
    outer = annotation.value if isinstance(annotation, ast.Subscript) else annotation
    name = outer.attr if isinstance(outer, ast.Attribute) else getattr(outer, "id", None)
    return name in SET_NAMES


def _is_set(node: ast.expr, sets: set[str]) -> bool:
    match node:
        case ast.Set() | ast.SetComp():
            return True
        case ast.Call(func=ast.Name(id=name) | ast.Attribute(attr=name)):
            return name in ("set", "frozenset") or name in sets
        case ast.Name(id=name) | ast.Attribute(attr=name):
            return name in sets
        case ast.BinOp(left=left, op=ast.BitAnd() | ast.BitOr() | ast.Sub() | ast.BitXor(), right=right):
            return _is_set(left, sets) or _is_set(right, sets)
        case _:
            return False


def foreign_imports(tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        match node:
            case ast.Import(names=names):
                modules = [name.name for name in names]
            case ast.ImportFrom(module=module, level=level):
                modules = ["." * level + (module or "")]
            case _:
                continue
        for module in modules:
            if not any(module == allowed or module.startswith(f"{allowed}.") for allowed in CORE_MAY_IMPORT):
                yield f"{node.lineno}: import of {module}"


def long_files(tree: ast.Module) -> Iterator[str]:
    lines = max((node.end_lineno or 0 for node in tree.body), default=0)
    if lines > FILE_LINES_MAX:
        yield f"{lines} lines, more than {FILE_LINES_MAX}"


def long_functions(tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, Function):
            lines = (node.end_lineno or node.lineno) - node.lineno + 1
            if lines > FUNCTION_LINES_MAX:
                yield f"{node.lineno}: {node.name}() has {lines} lines, more than {FUNCTION_LINES_MAX}"


CORE_CHECKS: tuple[Check, ...] = (
    suspension,
    rebinding,
    forbidden_calls,
    float_time,
    default_arguments,
    set_iteration,
    foreign_imports,
)
SIZE_CHECKS: tuple[Check, ...] = (long_files, long_functions)


def findings(root: Path, check: Check) -> list[str]:
    return [
        f"{file.relative_to(PACKAGE.parent)}:{found}"
        for file in sorted(root.rglob("*.py"))
        for found in check(ast.parse(file.read_text()))
    ]


@pytest.mark.parametrize("check", CORE_CHECKS)
def test_core_holds(check: Check) -> None:
    assert findings(CORE, check) == []


@pytest.mark.parametrize("check", SIZE_CHECKS)
def test_sizes_hold(check: Check) -> None:
    assert findings(PACKAGE, check) == []


def test_module_names_say_something() -> None:
    names = [file.relative_to(PACKAGE) for file in sorted(PACKAGE.rglob("*.py"))]
    assert [name for name in names if name.stem in MODULE_NAMES_THAT_SAY_NOTHING] == []
    assert [name for name in names if name.parent.name in MODULE_NAMES_THAT_SAY_NOTHING] == []


@pytest.mark.parametrize(
    ("check", "source"),
    [
        (suspension, "async def f(): pass"),
        (suspension, "async def f(x):\n    async with x: pass"),
        (rebinding, "def f():\n    global x\n    x = 1"),
        (rebinding, "def f():\n    x = 0\n    def g():\n        nonlocal x"),
        (forbidden_calls, "key = hash('a')"),
        (forbidden_calls, "key = id(object())"),
        (forbidden_calls, "print('routed')"),
        (float_time, "def f(now: float) -> None: ..."),
        (float_time, "deadline_ns: float = 0.0"),
        (float_time, "def wait_s() -> float: ..."),
        (default_arguments, "def f(a, b=1): ..."),
        (default_arguments, "def f(*, b=None): ..."),
        (set_iteration, "for x in {1, 2}: ..."),
        (set_iteration, "for x in set(y): ..."),
        (set_iteration, "def f(ranks: frozenset[int]):\n    return [r for r in ranks]"),
        (
            set_iteration,
            "class A:\n    def __init__(self):\n        self.live: set[int] = set()\n        tuple(self.live)",
        ),
        (set_iteration, "seen = {1}\nfirst = seen.pop()"),
        (set_iteration, "seen = {1}\nrows = [*(seen - {2})]"),
        (set_iteration, "def held() -> set[int]: ...\nfor x in held(): ..."),
        (set_iteration, "seen = {b'a'}\nb''.join(seen)"),
        (foreign_imports, "import numpy"),
        (foreign_imports, "from lmpool.io import wire"),
        (foreign_imports, "from . import ids"),
        (long_files, "x = 0\n" * (FILE_LINES_MAX + 1)),
        (long_functions, "def f():\n" + "    x = 0\n" * FUNCTION_LINES_MAX),
    ],
)
def test_checks_reject(check: Check, source: str) -> None:
    assert list(check(ast.parse(source))) != []


@pytest.mark.parametrize(
    ("check", "source"),
    [
        (set_iteration, "seen = {1}\nfor x in sorted(seen): ..."),
        (set_iteration, "seen = {1}\nlongest = max(x for x in [1])\nfound = 1 in seen"),
        (set_iteration, "rows = {}\nfor x in rows: ..."),
        (float_time, "def f(now: Nanos, share: float) -> None: ..."),
        (foreign_imports, "import attrs\nfrom hashlib import blake2b\nfrom lmpool.core.ids import Rank"),
        (long_files, "x = 0\n" * FILE_LINES_MAX),
        (long_functions, "def f():\n" + "    x = 0\n" * (FUNCTION_LINES_MAX - 1)),
    ],
)
def test_checks_accept(check: Check, source: str) -> None:
    assert list(check(ast.parse(source))) == []
