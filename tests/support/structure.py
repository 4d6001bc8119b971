"""Figures of the product's structure, counted with `ast`.

`python -m tests.support.structure` prints them.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any, TypeGuard

ROOT = Path(__file__).parent.parent.parent
SMALL_LINES = 80
SHARD = "foqs/engine/shard.py"


@cache
def files() -> tuple[Path, ...]:
    """Return the product's Python files."""
    return tuple(sorted(path for top in ("foqs", "foqs_lab") for path in (ROOT / top).rglob("*.py")))


@cache
def tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text())


def shown(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def lines(path: Path) -> int:
    return len(path.read_text().splitlines())


def package_of(path: Path) -> str:
    """Return "foqs" for a file in the folder foqs, else the dotted name of its package below that, such as
    "foqs.engine". The laboratory is one package."""
    top, *inner = path.relative_to(ROOT).parts[:-1]
    return f"foqs.{inner[0]}" if top == "foqs" and inner else top


def lines_by_package() -> dict[str, int]:
    found: dict[str, int] = {}
    for path in files():
        package = package_of(path)
        found[package] = found.get(package, 0) + lines(path)
    return found


# --------------------------------------------------------------------------------------------- small files


def imported(module: ast.Module) -> set[str]:
    """Return every module that an import names, and each name taken from a package as a module."""
    names: set[str] = set()
    for node in ast.walk(module):
        if isinstance(node, ast.Import):
            names.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            names.add(node.module)
            names.update(f"{node.module}.{alias.name}" for alias in node.names)
    return names


def small_with_one_importer() -> list[str]:
    """Return the files below `SMALL_LINES` lines that exactly one other product file imports."""
    importers = {path: imported(tree(path)) for path in files()}
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
        for node in ast.walk(module):
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


def assigned_from_elsewhere(attributes: frozenset[str], elsewhere: Mapping[str, ast.Module]) -> dict[str, list[str]]:
    """Return the attributes of a shard that modules assign, each with these modules. A shard is a variable or an
    attribute with the name `shard`."""
    found: dict[str, list[str]] = {}
    for name, module in elsewhere.items():
        for one in _stores(module):
            holder = one.value
            of_shard = (isinstance(holder, ast.Name) and holder.id == "shard") or (
                isinstance(holder, ast.Attribute) and holder.attr == "shard"
            )
            if of_shard and one.attr in attributes and name not in found.setdefault(one.attr, []):
                found[one.attr].append(name)
    return found


def shard_attributes_assigned_elsewhere() -> dict[str, list[str]]:
    attributes = classes()["foqs.engine.shard.Shard"]
    return assigned_from_elsewhere(attributes, {shown(path): tree(path) for path in files() if shown(path) != SHARD})


if __name__ == "__main__":
    small, assigned = small_with_one_importer(), shard_attributes_assigned_elsewhere()
    print("\n".join(f"{package}: {count}" for package, count in sorted(lines_by_package().items())))
    print(
        f"largest class: {largest_class()}",
        *(f"{name}: {', '.join(users)}" for name, users in assigned.items()),
        sep="\n",
    )
    print(f"{len(assigned)} attributes of the shard that other modules assign", *small, len(small), sep="\n")
