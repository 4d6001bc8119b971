"""The line of `foqs --version`, and the list of modules that script/build-wheels compiles."""

import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

import foqs
import foqs.item
from foqs.cli.main import app

ROOT = Path(__file__).parent.parent
LISTED = (ROOT / "script" / "compiled.txt").read_text().split()


def version() -> str:
    return CliRunner().invoke(app, ["--version"]).stdout


def test_the_version_says_which_build_runs() -> None:
    beside = [path for path in Path(foqs.__file__).parent.glob("item.*") if path.suffix in {".so", ".pyd"}]
    assert version() == f"foqs {foqs.__version__} ({'compiled' if beside else 'pure Python'})\n"


@pytest.mark.parametrize(("file", "said"), [("item.py", "pure Python"), ("item.abi3.so", "compiled")])
def test_the_file_of_a_hot_module_decides(monkeypatch: pytest.MonkeyPatch, file: str, said: str) -> None:
    monkeypatch.setattr(sys.modules["foqs.item"], "__file__", f"/somewhere/foqs/{file}")
    assert version() == f"foqs {foqs.__version__} ({said})\n"


def test_each_compiled_module_exists_and_is_named_once_in_order() -> None:
    assert [name for name in LISTED if not (ROOT / name).is_file()] == []
    assert sorted(set(LISTED)) == LISTED
    assert "foqs/item.py" in LISTED  # `foqs --version` asks it
