"""The page of promises names each promise of ARCHITECTURE.md, and tests that exist."""

from __future__ import annotations

import ast
import re

import pytest

from tests.api.hosts import ROOT
from tests.support.pages import DOCS

PAGE = (DOCS / "why/promises.md").read_text()
ROWS = dict(re.findall(r"^\| (\d+) \|(.*)$", PAGE, re.M))
NAMED = sorted(set(re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", PAGE)))


def test_each_promise_is_on_the_page() -> None:
    text = (ROOT / "ARCHITECTURE.md").read_text()
    promises = text[text.index("\n## Promises\n") : text.index("\n## The rooms\n")]
    assert list(ROWS) == re.findall(r"^(\d+)\. ", promises, re.M)


@pytest.mark.parametrize("number", ROWS)
def test_each_promise_names_its_test(number: str) -> None:
    assert re.search(r"`tests/[\w/]+\.py::test_\w+`", ROWS[number])


@pytest.mark.parametrize(("file", "name"), NAMED)
def test_a_named_test_exists(file: str, name: str) -> None:
    tree = ast.parse((ROOT / file).read_text())
    assert name in {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)}
