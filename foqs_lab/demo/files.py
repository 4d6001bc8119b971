"""The work of the demo without a queue: finds the files, and counts their functions, classes and lines."""

from __future__ import annotations

import ast
import os
import sysconfig
import warnings
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

# Installed packages are not the standard library; Debian has another name for their folder.
_SKIPPED = {"site-packages", "dist-packages", "__pycache__"}
_BLOCKS = ("body", "orelse", "finalbody", "handlers", "cases")


class Source(NamedTuple):
    """One file: its path below the library's folder, and its size in bytes."""

    name: str
    size: int


class Measure(NamedTuple):
    """Counts of one file. A file that does not parse has lines, but no functions and no classes."""

    lines: int
    functions: int
    classes: int
    parses: bool = True


def library() -> Path:
    """The folder of the running Python's standard library."""
    return Path(sysconfig.get_path("stdlib"))


def find(root: Path, limit: int | None = None) -> list[Source]:
    """The readable `.py` files below `root`, by name; `limit` takes that many, from the smallest to the largest
    in even steps."""
    sources = []
    for folder, folders, names in os.walk(root):
        folders[:] = sorted(set(folders) - _SKIPPED)
        for name in sorted(names):
            path = Path(folder, name)
            if path.suffix == ".py" and path.is_file() and os.access(path, os.R_OK):
                sources.append(Source(str(path.relative_to(root)), path.stat().st_size))
    if limit is not None and limit < len(sources):
        by_size = sorted(sources, key=lambda source: (source.size, source.name))
        step = (len(by_size) - 1) / max(1, limit - 1)
        sources = sorted(by_size[round(n * step)] for n in range(limit))
    return sources


def measure(path: Path) -> Measure:
    """Counts lines, functions and classes (nested ones and methods too) of one file."""
    source = path.read_bytes()
    lines = len(source.splitlines())
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError, RecursionError, MemoryError):  # the library tests its parser with such files
        return Measure(lines, 0, 0, parses=False)
    functions = classes = 0
    for statement in _statements(tree):
        functions += isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef)
        classes += isinstance(statement, ast.ClassDef)
    return Measure(lines, functions, classes)


def plain_loop(root: Path, names: Iterable[str], done: Callable[[int], None]) -> dict[str, Measure]:
    """Count all files in one process without a queue; call `done` with the number of finished files."""
    measured = {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of the files' own code
        for name in names:
            measured[name] = measure(root / name)
            done(len(measured))
    return measured


def _statements(tree: ast.Module) -> Iterator[ast.AST]:
    # `ast.walk` takes ten times the time, because it visits expressions, which contain no def or class.
    todo: list[ast.AST] = [tree]
    while todo:
        node = todo.pop()
        for block in _BLOCKS:
            children: list[ast.AST] = getattr(node, block, [])
            if isinstance(children, list):  # a lambda's or a conditional's is an expression
                todo += children
                yield from children
