"""MODULE:APP of a command line."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from foqs.cli.apps import load, split
from foqs.errors import Invalid

pytestmark = pytest.mark.memory

SHOP = "from foqs import App\napp = App()\n@app.task\ndef work() -> None: ...\nempty = App()\nnumber = 7\n"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder whose modules are forgotten after the test."""
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    before = set(sys.modules)
    yield tmp_path
    for name in set(sys.modules) - before:
        if str(getattr(sys.modules[name], "__file__", "")).startswith(str(tmp_path)):
            del sys.modules[name]


def refused(spec: str, folder: Path) -> str:
    with pytest.raises(Invalid) as caught:
        load(spec, folder)
    return caught.value.message


def test_an_app_is_found(folder: Path) -> None:
    (folder / "package_with_tasks").mkdir()
    (folder / "package_with_tasks" / "tasks.py").write_text(SHOP)
    assert list(load("package_with_tasks.tasks:app", folder).tasks) == ["work"]


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ("shop_module", "shop_module is no App: write MODULE:APP, such as shop.tasks:app"),
        ("shop_module:", "write MODULE:APP"),
        (":app", "write MODULE:APP"),
        ("shop_module:a.b", "write MODULE:APP"),
        ("./shop_module/tasks.py:app", "name its module, shop_module.tasks:app"),
        ("shop_module/tasks:app", "name its module, shop_module.tasks:app"),
        ("../e/good:app", "name its module, --app-dir ../e good:app"),
        ("/srv/e/good.py:shop", "name its module, --app-dir /srv/e good:shop"),
        ("sub/../../good:app", "name its module, --app-dir .. good:app"),
        ("no_such_module:app", "there is no module no_such_module in "),
        ("shop_module.deep:app", "there is no module shop_module.deep"),
        ("shop_module:ap", "module shop_module has no attribute ap; its Apps: app, empty"),
        ("shop_module:number", "shop_module:number is of type int, and not a foqs.App"),
        ("shop_module:empty", "shop_module:empty has no tasks"),
    ],
)
def test_a_wrong_spec_is_named(folder: Path, spec: str, words: str) -> None:
    (folder / "shop_module.py").write_text(SHOP)
    said = refused(spec, folder)
    assert words in said
    assert "Traceback" not in said


@pytest.mark.parametrize(
    ("source", "last"),
    [
        ("def f():\n    return 1 / 0\nf()", "ZeroDivisionError: division by zero"),
        ("import no_such_module", "ModuleNotFoundError: No module named 'no_such_module'"),
        ("def f(:", "SyntaxError: invalid syntax"),
        ("raise SystemExit(3)", "SystemExit: 3"),
    ],
)
def test_a_module_that_fails_shows_its_own_traceback(folder: Path, source: str, last: str) -> None:
    (folder / "failing_module.py").write_text(source)
    said = refused("failing_module:app", folder)
    first, *lines = said.splitlines()
    assert (first, lines[-1].strip()) == ("module failing_module fails:", last)
    files = [line for line in lines if line.strip().startswith("File ")]
    assert files and all("failing_module.py" in line for line in files), said


def test_a_spec_is_read_without_an_import() -> None:
    assert split("shop.tasks:app") == ("shop.tasks", "app")
