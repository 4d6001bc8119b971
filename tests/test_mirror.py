"""The folders of the tests mirror the code: every module is driven directly by a test of its package's folder."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PACKAGES = ("engine", "peers", "api", "fairness", "policies")


def imported(source: str) -> set[str]:
    """Return every module that an import of `source` names, and each name taken from a package as a module."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            names.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            names.add(node.module)
            names.update(f"{node.module}.{alias.name}" for alias in node.names)
    return names


def undriven(package: str, root: Path = ROOT) -> set[str]:
    """Return the modules of `package` without a test in the folder of its tests.

    A file there imports the module, or has its name and drives it through a rig."""
    tests = root / "tests" / package
    modules = {path.stem for path in (root / "foqs" / package).glob("[!_]*.py")}
    named = {name for name in modules if (tests / f"test_{name}.py").exists()}
    names = set().union(*(imported(path.read_text()) for path in tests.glob("*.py")))
    return {f"foqs.{package}.{name}" for name in modules - named} - names


@pytest.mark.parametrize("package", PACKAGES)
def test_each_module_is_driven_by_a_test_of_its_folder(package: str) -> None:
    assert (ROOT / "foqs" / package).is_dir()
    assert undriven(package) == set()


def test_a_module_without_a_test_is_found(tmp_path: Path) -> None:
    code, tests = tmp_path / "foqs" / "room", tmp_path / "tests" / "room"
    for folder in (code, tests):
        folder.mkdir(parents=True)
    for name in ("__init__", "plain", "named", "rigged", "left"):
        (code / f"{name}.py").touch()
    (tests / "test_rigged.py").touch()
    (tests / "test_room.py").write_text("import foqs.room.plain\nfrom foqs.room import named\n")
    assert undriven("room", tmp_path) == {"foqs.room.left"}
