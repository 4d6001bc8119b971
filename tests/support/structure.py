"""Figures of the product's structure, counted with `ast`.

`python -m tests.support.structure` prints them.
"""

from __future__ import annotations

import ast
import gc
import re
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, TypeGuard

ROOT = Path(__file__).parent.parent.parent
SMALL_LINES = 80


@cache
def files() -> tuple[Path, ...]:
    """Return the product's Python files."""
    return tuple(sorted(path for top in ("foqs", "foqs_lab") for path in (ROOT / top).rglob("*.py")))


def parsed(path: Path) -> ast.Module:
    """Parse a file without garbage collections, which would look through its nodes several times."""
    gc.disable()
    try:
        return ast.parse(path.read_text())
    finally:
        gc.enable()


@cache
def tree(path: Path) -> ast.Module:
    """Return the tree of a file of the product, which several tests walk. No later collection looks through a million
    nodes."""
    made = parsed(path)
    gc.freeze()
    return made


@cache
def nodes(path: Path) -> tuple[ast.AST, ...]:
    """Return the nodes of a file of the product in the order of `ast.walk`."""
    return tuple(ast.walk(tree(path)))


def shown(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def lines(path: Path) -> int:
    return len(path.read_text().splitlines())


def package_of(path: Path) -> str:
    """Return "foqs" for a file in the folder foqs, else the dotted name of its package below that, such as
    "foqs.engine". The laboratory is one package."""
    top, *inner = path.relative_to(ROOT).parts[:-1]
    return f"foqs.{inner[0]}" if top == "foqs" and inner else top


def by_hand() -> list[Path]:
    """Return the files that script/twin.py does not write."""
    return [path for path in files() if not path.read_text().startswith("# Written by script/twin.py")]


def lines_by_package() -> dict[str, int]:
    found: dict[str, int] = {}
    for path in by_hand():
        package = package_of(path)
        found[package] = found.get(package, 0) + lines(path)
    return found


# --------------------------------------------------------------------------------------------- small files


def statements(body: Sequence[ast.AST]) -> Iterator[ast.AST]:
    """Yield the statements of `body` and of its blocks, without their expressions."""
    for node in body:
        yield node
        for block in ("body", "orelse", "finalbody", "handlers", "cases"):
            yield from statements(getattr(node, block, None) or ())


@cache
def imported(path: Path) -> frozenset[str]:
    """Return every module that an import names, and each name taken from a package as a module."""
    names: set[str] = set()
    for node in statements(parsed(path).body):
        if isinstance(node, ast.Import):
            names.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            assert node.level == 0, f"{path}: relative import"
            names.add(node.module)
            names.update(f"{node.module}.{alias.name}" for alias in node.names)
    return frozenset(names)


def small_with_one_importer() -> list[str]:
    """Return the files below `SMALL_LINES` lines that exactly one other product file imports."""
    importers = {path: imported(path) for path in files()}
    found = []
    for path in files():
        name = module_of(path)
        if path.stem not in ("__init__", "__main__") and lines(path) < SMALL_LINES:
            users = [other for other, names in importers.items() if other != path and name in names]
            found += [shown(path)] * (len(users) == 1)
    return found


def bound_again(module: ast.Module) -> list[str]:
    """Return the names that the top of a module binds although it has bound them before."""
    seen: set[str] = set()
    again = []
    for node in module.body:
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            names = {node.name}
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            names = {one.id for target in targets for one in ast.walk(target) if isinstance(one, ast.Name)}
        else:
            continue
        again += sorted(seen & names)
        seen |= names
    return again


# --------------------------------------------------------------------------------------------- attributes


def _stores(node: ast.AST) -> Iterator[ast.Attribute]:
    for one in ast.walk(node):
        if isinstance(one, ast.Attribute) and isinstance(one.ctx, ast.Store):
            yield one


def attributes_of_classes(modules: Mapping[str, ast.Module]) -> dict[str, frozenset[str]]:
    """Return the attributes of the instances of each class, with the inherited ones: the fields of its body, and what
    its methods assign to `self`. Classes are named as `foqs.engine.shard.Shard`. Plain data does not count: tuples and
    configuration have a field for each value."""
    own: dict[str, set[str]] = {}
    bases: dict[str, list[str]] = {}
    for name, module in modules.items():
        known = {node.name: f"{name}.{node.name}" for node in module.body if isinstance(node, ast.ClassDef)}
        for node in statements(module.body):
            if isinstance(node, ast.ImportFrom):
                known.update({alias.asname or alias.name: f"{node.module}.{alias.name}" for alias in node.names})
        for node in module.body:
            if isinstance(node, ast.ClassDef) and not _is_data(node):
                stored = {
                    one.attr for one in _stores(node) if isinstance(one.value, ast.Name) and one.value.id == "self"
                }
                fields = {one.target.id for one in node.body if _is_field(one)}
                own[known[node.name]] = stored | fields
                bases[known[node.name]] = [known.get(ast.unparse(base).partition("[")[0], "") for base in node.bases]

    def whole(name: str) -> frozenset[str]:
        return frozenset(own[name]).union(*(whole(base) for base in bases[name] if base in own))

    return {name: whole(name) for name in own}


def _is_field(node: ast.stmt) -> TypeGuard[Any]:
    return isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name)


def _is_data(node: ast.ClassDef) -> bool:
    names = {ast.unparse(one) for one in (*node.bases, *node.decorator_list)}
    return bool(names & {"NamedTuple", "Enum", "IntEnum", "BaseModel", "Section", "Entry"}) or any(
        name.startswith("dataclass(frozen=True") for name in names
    )


def module_of(path: Path) -> str:
    return ".".join(path.relative_to(ROOT).with_suffix("").parts)


@cache
def classes() -> dict[str, frozenset[str]]:
    return attributes_of_classes({module_of(path): tree(path) for path in files()})


def largest_class() -> tuple[int, str]:
    """Return the number of attributes of the class that has most of them, and its name."""
    return max((len(attributes), name) for name, attributes in classes().items())


SHARD = "foqs.engine.shard.Shard"
PARTS = {
    "owner": "foqs.engine.shard_owner.ShardOwner",
    "queue": "foqs.engine.shard_queue.ShardQueue",
    "memory": "foqs.engine.shard_memory.ShardMemory",
    "filled": "foqs.engine.shard_memory.ShardMemory",
}
"""The attributes of a shard that hold its parts, each with the class of the part."""


class Holders(ast.NodeVisitor):
    """Find assignments to attributes of a shard and of its parts: `stores` has the class and the attribute of each.

    A shard is a name or an attribute `shard`, or a parameter with this type. A part is `shard.memory` and the like, a
    name that is bound to that, or a parameter with its type."""

    def __init__(self) -> None:
        self.stores: list[tuple[str, str]] = []
        self._names: dict[str, str] = {}

    def visit_FunctionDef(self, node: ast.FunctionDef) -> None:
        outside, self._names = self._names, dict(self._names)
        for argument in (*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs):
            named = set(re.findall(r"\w+", ast.unparse(argument.annotation))) if argument.annotation is not None else ()
            self._bind(argument.arg, next((one for one in (SHARD, *PARTS.values()) if _short(one) in named), None))
        self.generic_visit(node)
        self._names = outside

    visit_AsyncFunctionDef = visit_FunctionDef  # type: ignore[assignment]

    def visit_Assign(self, node: ast.Assign) -> None:
        for target in node.targets:
            pairs = [(target, node.value)]
            if isinstance(target, ast.Tuple) and isinstance(node.value, ast.Tuple):
                pairs = list(zip(target.elts, node.value.elts, strict=False))
            for one, value in pairs:
                if isinstance(one, ast.Name):
                    self._bind(one.id, self._class_of(value))
        self.generic_visit(node)

    def visit_NamedExpr(self, node: ast.NamedExpr) -> None:
        self._bind(node.target.id, self._class_of(node.value))
        self.generic_visit(node)

    def visit_Attribute(self, node: ast.Attribute) -> None:
        if not isinstance(node.ctx, ast.Load) and (of := self._class_of(node.value)) is not None:
            self.stores.append((of, node.attr))
        self.generic_visit(node)

    def _bind(self, name: str, of: str | None) -> None:
        self._names.pop(name, None)
        if of is not None:
            self._names[name] = of

    def _class_of(self, node: ast.expr) -> str | None:
        if isinstance(node, ast.Name):
            return self._names.get(node.id, SHARD if node.id == "shard" else None)
        if isinstance(node, ast.Attribute):
            if node.attr == "shard":
                return SHARD
            return PARTS.get(node.attr) if self._class_of(node.value) == SHARD else None
        return None


def _short(name: str) -> str:
    return name.rpartition(".")[2]


def assigned_from_elsewhere(
    attributes: Mapping[str, frozenset[str]], modules: Mapping[str, ast.Module]
) -> dict[str, list[str]]:
    """Return the attributes of a shard and its parts that other modules than that of their class assign, each with
    these modules. `attributes` has those of each class."""
    found: dict[str, list[str]] = {}
    for name, module in modules.items():
        holders = Holders()
        holders.visit(module)
        for of, attribute in holders.stores:
            users = found.setdefault(f"{_short(of)}.{attribute}", []) if attribute in attributes[of] else []
            if name != of.rpartition(".")[0] and name not in users:
                users.append(name)
    return {attribute: users for attribute, users in found.items() if users}


def shard_attributes_assigned_elsewhere() -> dict[str, list[str]]:
    attributes = {name: classes()[name] for name in (SHARD, *PARTS.values())}
    return assigned_from_elsewhere(attributes, {module_of(path): tree(path) for path in files()})


if __name__ == "__main__":
    small, assigned = small_with_one_importer(), shard_attributes_assigned_elsewhere()
    print("\n".join(f"{package}: {count}" for package, count in sorted(lines_by_package().items())))
    print(
        f"largest class: {largest_class()}",
        *(f"{name}: {', '.join(users)}" for name, users in assigned.items()),
        sep="\n",
    )
    print(f"{len(assigned)} attributes of the shard that other modules assign", *small, len(small), sep="\n")
