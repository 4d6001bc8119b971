"""Imports point down only; pure modules know no clock, thread, socket or driver."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Mapping, Set
from pathlib import Path

import pytest

from tests.support.structure import imported

ROOT = Path(__file__).parent.parent
VALUES = frozenset(
    f"foqs.{path.stem}" for path in (ROOT / "foqs").glob("*.py") if path.stem not in ("__init__", "__main__")
) | {"foqs.config"}
WIRE = frozenset({"foqs.wire"})
PURE = frozenset(
    {
        "foqs.fairness",
        "foqs.prefetch",
        "foqs.buffers",
        "foqs.shardmgr",
        "foqs.limits",
        "foqs.policies",
        "foqs.hooks",
    }
)
GUARDED = PURE | {"foqs.engine", "foqs.peers", "foqs.wire", "foqs.page"}
SHELLS = frozenset({"foqs/hooks/lockdown.py", "foqs/hooks/runner.py"})  # the process of scripts, beside pure modules
MAY_NAME = {"foqs.engine": {"random"}}  # the type of the generator that is passed in
IO = frozenset({"foqs.store", "foqs.rpc", "foqs.zk"})
MAY_IMPORT = {
    "foqs.config": VALUES,
    "values": VALUES | {"foqs.fairness.keys", "foqs.buffers.checkpoint", "foqs.prefetch.lane"},
    "foqs.fairness": VALUES | PURE,
    "foqs.prefetch": VALUES | PURE,
    "foqs.buffers": VALUES | PURE,
    "foqs.shardmgr": VALUES | PURE,
    "foqs.limits": VALUES | PURE,
    "foqs.policies": VALUES | PURE,
    "foqs.hooks": VALUES | PURE,
    "foqs.store": VALUES | PURE | {"foqs.store"},
    "foqs.wire": VALUES | WIRE,
    "foqs.rpc": VALUES | PURE | WIRE | {"foqs.rpc"},
    "foqs.zk": VALUES | PURE | {"foqs.zk"},
    "foqs.engine": (VALUES | PURE | {"foqs.engine"}) - {"foqs.server.clock", "foqs.event_loop"},
    "foqs.peers": (VALUES | PURE | {"foqs.engine", "foqs.peers"}) - {"foqs.server.clock", "foqs.event_loop"},
    "foqs.api": VALUES | PURE | WIRE | {"foqs.rpc", "foqs.engine", "foqs.peers", "foqs.api"},
    "foqs.server": VALUES | PURE | IO | {"foqs.engine", "foqs.peers", "foqs.api", "foqs.server"},
    "foqs.admin": VALUES | PURE | IO | {"foqs.admin", "foqs.engine", "foqs.peers", "foqs.api", "foqs.server"},
    "foqs.client": VALUES | WIRE | {"foqs.client"},
    "foqs.tasks": VALUES | {"foqs.tasks", "foqs.client"},
    "foqs.outbox": VALUES | WIRE | {"foqs.outbox", "foqs.tasks", "foqs.client"},
    "foqs.push": VALUES | {"foqs.push", "foqs.client"},
    "foqs.page": VALUES | {"foqs.page"},
    "foqs.spark": VALUES | {"foqs.spark", "foqs.client", "foqs.store", "foqs.zk", "foqs.fairness.keys", "foqs.page"},
    "foqs.testing": VALUES | {"foqs.testing", "foqs.client", "foqs.server", "foqs.store", "foqs.rpc"},
    "foqs.console": VALUES
    | {
        "foqs.console",
        "foqs.client",
        "foqs.page",
        "foqs.doctor.system",
        "foqs.doctor.verdict",
        "foqs.zk",
        "foqs.shardmgr",
        "foqs.config",
        "foqs.policies.entries",
        "foqs.policies.layers",  # the throttle that a key has
        "foqs.policies.push",  # what a push target sends where
    },
    "foqs.doctor": VALUES | IO | {"foqs.doctor", "foqs.client", "foqs.shardmgr.facts"},  # asks a host as clients do
    "foqs.contrib": VALUES | {"foqs.contrib", "foqs.tasks", "foqs.client", "foqs.cli"},
    "foqs.cli": None,
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
        "structlog",
        "threading",
        "time",
        "uvloop",
    }
)
FILES = sorted((ROOT / "foqs").rglob("*.py"))
LAB = sorted((ROOT / "foqs_lab").rglob("*.py"))
MAY_USE_LAB = frozenset(f"foqs/cli/{name}.py" for name in ("run", "cluster"))


def layer_of(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return f"foqs.{parts[1]}" if len(parts) > 2 else "values"


LAYERS: dict[str, list[Path]] = {}
for one in FILES:
    if one.name != "__main__.py" and one != ROOT / "foqs" / "__init__.py":  # it loads the names of applications late
        LAYERS.setdefault(layer_of(one), []).append(one)


def allowed(name: str, allowance: frozenset[str] | set[str]) -> bool:
    return any(name == one or name.startswith(f"{one}.") for one in allowance)


@pytest.mark.parametrize("layer", LAYERS)
def test_imports_point_down(layer: str) -> None:
    assert layer in MAY_IMPORT, f"{layer} has no place in the layers"
    allowance = MAY_IMPORT[layer]
    if allowance is None:
        return
    wrong = [
        f"{path.relative_to(ROOT)} imports {name}"
        for path in LAYERS[layer]
        for name in sorted(imported(path))
        if name.startswith("foqs.") and name != "foqs.__version__" and not allowed(name, allowance)
    ]
    assert not wrong


@pytest.mark.process
def test_tests_are_collected_without_spark_and_mysqlclient() -> None:
    """script/check installs neither."""
    program = (
        "import sys; sys.modules.update(dict.fromkeys(('pyspark', 'pyarrow', 'MySQLdb'))); "
        "import pytest; sys.exit(pytest.main(['--collect-only', '--quiet', '-p', 'no:cacheprovider', 'tests']))"
    )
    ran = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert ran.returncode == 0, ran.stdout[-2_000:] + ran.stderr


def test_foqs_does_without_its_laboratory() -> None:
    """Commands of the laboratory import it when they run."""
    users = {
        path.relative_to(ROOT).as_posix()
        for path in FILES
        if any(name.split(".")[0] == "foqs_lab" for name in imported(path))
    }
    assert users == MAY_USE_LAB
    at_the_top = [
        f"{path}: {ast.unparse(node)}"
        for path in sorted(users)
        for node in ast.parse((ROOT / path).read_text()).body
        if isinstance(node, ast.Import | ast.ImportFrom) and "foqs_lab" in ast.unparse(node)
    ]
    assert not at_the_top


@pytest.mark.parametrize("layer", sorted(GUARDED))
def test_pure_modules_do_no_io(layer: str) -> None:
    impure = IMPURE - MAY_NAME.get(layer, set())
    wrong = [
        f"{path.relative_to(ROOT)} imports {name}"
        for path in LAYERS[layer]
        if path.relative_to(ROOT).as_posix() not in SHELLS
        for name in sorted(imported(path))
        if name.split(".")[0] in impure
    ]
    assert not wrong


def test_the_process_of_scripts_imports_little_of_foqs() -> None:
    """It starts quickly, and holds nothing of a host."""
    known = {"foqs.hooks.frames", "foqs.hooks.lockdown"}
    for path in SHELLS:
        names = {name for name in imported(ROOT / path) if name.startswith("foqs.")}
        assert not {name for name in names if not allowed(name, known)}
    assert not {name for name in imported(ROOT / "foqs/hooks/frames.py") if name.startswith("foqs.")}


@pytest.mark.parametrize("name", ["packets", "transaction"])
def test_the_course_of_a_transaction_does_no_io(name: str) -> None:
    """These modules stand in a package that is not pure."""
    assert not {one.split(".")[0] for one in imported(ROOT / "foqs" / "store" / f"{name}.py")} & IMPURE


def name_of(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def circles(modules: Mapping[str, Set[str]]) -> list[list[str]]:
    """Return the groups of modules that import each other, directly or not. Imports under TYPE_CHECKING count."""
    reached: dict[str, set[str]] = {}
    for start in modules:
        seen: set[str] = set()
        todo = [start]
        while todo:
            for name in modules[todo.pop()] & modules.keys():
                if name not in seen:
                    seen.add(name)
                    todo.append(name)
        reached[start] = seen
    rings = {tuple(sorted(o for o in reached[m] if m in reached[o])) for m in modules if m in reached[m]}
    return [list(ring) for ring in sorted(rings)]


def test_circles_are_found() -> None:
    assert circles({"a": {"b"}, "b": {"c"}, "c": {"b", "os"}, "d": {"a"}}) == [["b", "c"]]


def test_no_import_circles() -> None:
    modules = {
        name_of(path): imported(path) for path in [*FILES, *LAB] if path.name != "__init__.py"
    }  # those only pass names on
    assert circles(modules) == []


def test_files_stay_readable() -> None:
    long = {str(path): lines for path in [*FILES, *LAB] if (lines := len(path.read_text().splitlines())) > 600}
    assert not long
