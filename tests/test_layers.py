"""Imports point down only; pure modules know no clock, thread, socket or driver."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
VALUES = frozenset(
    f"foqs.{path.stem}" for path in (ROOT / "foqs").glob("*.py") if path.stem not in ("__init__", "__main__")
)
PURE = frozenset({"foqs.prefetch", "foqs.buffers", "foqs.leases", "foqs.shardmgr", "foqs.quotas"})
IO = frozenset({"foqs.store", "foqs.rpc", "foqs.zk"})
MAY_IMPORT = {
    "values": VALUES | {"foqs.buffers.changes", "foqs.prefetch.lane"},  # types of the item, for annotations only
    "foqs.prefetch": VALUES | PURE,
    "foqs.buffers": VALUES | PURE,
    "foqs.leases": VALUES | PURE,
    "foqs.shardmgr": VALUES | PURE,
    "foqs.quotas": VALUES | PURE,
    "foqs.store": VALUES | PURE | {"foqs.store"},
    "foqs.rpc": VALUES | PURE | {"foqs.rpc"},
    "foqs.zk": VALUES | PURE | {"foqs.zk"},
    "foqs.host": VALUES | PURE | IO | {"foqs.host"},
    "foqs.admin": VALUES | PURE | IO | {"foqs.admin", "foqs.host"},
    "foqs.client": VALUES | {"foqs.client"},
    "foqs.spark": VALUES | {"foqs.spark", "foqs.client", "foqs.store", "foqs.zk"},
    "foqs.doctor": VALUES | IO | {"foqs.doctor", "foqs.client", "foqs.shardmgr.facts"},  # asks a host as clients do
    "foqs.cli": None,
    "foqs.lab": None,
}
IMPURE = frozenset(
    {
        "asyncio",
        "kazoo",
        "os",
        "pymysql",
        "queue",
        "random",
        "socket",
        "sqlalchemy",
        "sqlite3",
        "threading",
        "time",
        "uvloop",
    }
)
FILES = sorted((ROOT / "foqs").rglob("*.py"))


def imported(path: Path) -> set[str]:
    """Every module that `path` names in an import, with what is taken from a package made a module of its own."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            assert node.level == 0, f"{path}: relative import"
            names.add(node.module)
            names.update(f"{node.module}.{alias.name}" for alias in node.names)
    return names


def layer_of(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return f"foqs.{parts[1]}" if len(parts) > 2 else "values"


def allowed(name: str, allowance: frozenset[str] | set[str]) -> bool:
    return any(name == one or name.startswith(f"{one}.") for one in allowance)


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_imports_point_down(path: Path) -> None:
    layer = layer_of(path)
    if path.name == "__main__.py":
        return
    assert layer in MAY_IMPORT, f"{layer} has no place in the layers"
    allowance = MAY_IMPORT[layer]
    if allowance is None:
        return
    for name in imported(path):
        if name.startswith("foqs.") and name != "foqs.__version__":
            assert allowed(name, allowance), f"{path.name} imports {name}"


@pytest.mark.parametrize(
    "path", [path for path in FILES if layer_of(path) in PURE], ids=lambda path: str(path.relative_to(ROOT))
)
def test_pure_modules_do_no_io(path: Path) -> None:
    impure = {name.split(".")[0] for name in imported(path)} & IMPURE
    assert not impure, f"{path.name} imports {impure}"


def test_files_stay_readable() -> None:
    long = {str(path): lines for path in FILES if (lines := len(path.read_text().splitlines())) > 400}
    assert not long
