"""The folders of the tests mirror the code: each package has a folder of tests that drives it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.support.structure import imported

ROOT = Path(__file__).parent.parent
ELSEWHERE = {
    "config": ("test_config*.py",),
}
"""Packages whose tests are not in the folder with the package's name, as patterns below tests/."""
LEAST = 0.5
"""The share of a package's modules that its tests name. The other modules are driven through a rig."""


def packages(root: Path = ROOT) -> list[str]:
    return sorted(path.name for path in (root / "foqs").iterdir() if list(path.glob("[!_]*.py")))


def driven(package: str, patterns: Sequence[str], root: Path = ROOT) -> float:
    """Return the share of the modules of `package` that a test imports, or that have the name of a test file."""
    tests = [path for pattern in patterns for path in (root / "tests").glob(pattern)]
    names = set().union(*(imported(path) for path in tests))
    stems = {path.stem.removeprefix("test_") for path in tests}
    modules = {path.stem for path in (root / "foqs" / package).glob("[!_]*.py")}
    return sum(f"foqs.{package}.{name}" in names or name in stems for name in modules) / len(modules)


@pytest.mark.parametrize("package", packages())
def test_each_package_is_driven_by_tests_of_its_folder(package: str) -> None:
    assert driven(package, ELSEWHERE.get(package, (f"{package}/*.py",))) >= LEAST


def test_tests_elsewhere_are_those_of_a_package() -> None:
    assert ELSEWHERE.keys() <= set(packages())


def test_a_package_without_tests_is_found(tmp_path: Path) -> None:
    code, tests = tmp_path / "foqs" / "room", tmp_path / "tests" / "room"
    for folder in (code, tests):
        folder.mkdir(parents=True)
    for name in ("__init__", "plain", "named", "rigged", "left"):
        (code / f"{name}.py").touch()
    assert packages(tmp_path) == ["room"]
    assert driven("room", ["room/*.py"], tmp_path) == 0
    (tests / "test_rigged.py").touch()
    (tests / "test_room.py").write_text("import foqs.room.plain\nfrom foqs.room import named\n")
    assert driven("room", ["room/*.py"], tmp_path) == 0.75
