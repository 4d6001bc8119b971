"""No error is kept with its traceback: `foqs.travel.bare` takes that away, wherever an error outlives its `except`.

A traceback holds frames, and one of them mostly leads to the object that keeps the error. Such a circle lives until
the garbage collector runs.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.structure import statements, tree

ROOT = Path(__file__).parent.parent
ENDS_SOON = {"cli", "doctor"}
"""Processes that end with their first error, or that no user runs."""
FILES = sorted(
    path for path in (ROOT / "foqs").rglob("*.py") if path.relative_to(ROOT / "foqs").parts[0] not in ENDS_SOON
)
KEEPERS = {
    "append",
    "set_exception",
    "partial",
    "call_soon",
    "call_soon_threadsafe",
    "put",
    "done",
    "then",
    "setdefault",
}
MAY_RETURN = {f"foqs/client/{twin}/work.py:_attempt" for twin in ("_async", "_sync")}
"""`Work._run` deletes the error that it gets."""


def passes(node: ast.expr, name: str) -> bool:
    """Return True if the value of `node` is, or holds, the variable itself."""
    match node:
        case ast.Name(id=found):
            return found == name
        case ast.Tuple(elts=parts) | ast.List(elts=parts) | ast.BoolOp(values=parts):
            return any(passes(part, name) for part in parts)
        case ast.IfExp(body=one, orelse=other):
            return passes(one, name) or passes(other, name)
        case ast.Call(func=ast.Name(id=made), args=args) if made[0].isupper():
            return any(passes(one, name) for one in args)
    return False


def keeps(node: ast.AST, name: str) -> bool:
    """Return True if `node` makes the variable of an `except` clause outlive it."""
    match node:
        case ast.Assign(value=value) | ast.AnnAssign(value=ast.expr() as value) | ast.NamedExpr(value=value):
            return passes(value, name)
        case ast.Return(value=ast.expr() as value) | ast.Yield(value=ast.expr() as value):
            return passes(value, name)
        case ast.Lambda() | ast.FunctionDef():
            return any(isinstance(one, ast.Name) and one.id == name for one in ast.walk(node))
        case ast.Call(func=ast.Attribute(attr=called) | ast.Name(id=called), args=args):
            return called in KEEPERS and any(passes(one, name) for one in args)
    return False


def kept(module: ast.Module) -> Iterator[tuple[str, int]]:
    """Yield (function, line) for each error that is kept with its traceback."""
    for function in statements(module.body):
        if not isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        for handler in statements(function.body):
            if isinstance(handler, ast.ExceptHandler) and handler.name is not None:
                for node in ast.walk(handler):
                    if keeps(node, handler.name):
                        yield function.name, getattr(node, "lineno", 0)


def raised(module: ast.Module) -> Iterator[int]:
    """Yield the lines that raise an error which a variable of the frame, or an object, keeps on."""
    deleted: set[ast.Raise] = set()
    for node in statements(module.body):
        if isinstance(node, ast.Try):
            names = {
                target.id
                for one in node.finalbody
                if isinstance(one, ast.Delete)
                for target in one.targets
                if isinstance(target, ast.Name)
            }
            for one in statements([node]):
                if isinstance(one, ast.Raise) and {n.id for n in ast.walk(one) if isinstance(n, ast.Name)} & names:
                    deleted.add(one)
    for node in statements(module.body):
        if isinstance(node, ast.Raise) and node not in deleted:
            match node.exc:
                case ast.Name(id=name) if name[0].islower():
                    yield node.lineno
                case ast.Attribute(attr=name) if name.lstrip("_")[0].islower():
                    yield node.lineno
                case ast.Subscript():
                    yield node.lineno


def test_no_error_is_kept_with_its_traceback() -> None:
    wrong = []
    for path in FILES:
        name, module = str(path.relative_to(ROOT)), tree(path)
        wrong += [f"{name}:{line}" for function, line in kept(module) if f"{name}:{function}" not in MAY_RETURN]
        wrong += [f"{name}:{line}: delete the variable in a `finally`" for line in raised(module)]
    assert wrong == []


@pytest.mark.parametrize(
    "line",
    [
        "self.error = error",
        "outcome = None if done else error",
        "return error",
        "return First(1, error)",
        "errors.append(error)",
        "loop.call_soon(done, None, error)",
        "deliver(lambda: done(error))",
        "deliver(partial(done, error))",
        "future.set_exception(error)",
    ],
)
def test_a_kept_error_is_found(line: str) -> None:
    source = f"def work():\n    try:\n        step()\n    except ValueError as error:\n        {line}\n"
    assert list(kept(ast.parse(source))) != []


@pytest.mark.parametrize(
    "line",
    [
        "self.error = bare(error)",
        "return bare(error)",
        "errors.append(bare(error))",
        "deliver(partial(done, bare(error)))",
        "outcome = Failed(str(error))",
        "raise",
    ],
)
def test_an_error_without_its_traceback_may_be_kept(line: str) -> None:
    source = f"def work():\n    try:\n        step()\n    except ValueError as error:\n        {line}\n"
    assert list(kept(ast.parse(source))) == []


def test_a_raised_variable_is_found() -> None:
    assert list(raised(ast.parse("raise found"))) == [1]
    assert list(raised(ast.parse("raise self._error"))) == [1]
    assert list(raised(ast.parse("raise errors[0]"))) == [1]
    assert list(raised(ast.parse("try:\n    raise found\nfinally:\n    del found"))) == []
    assert list(raised(ast.parse("raise Invalid"))) == []
