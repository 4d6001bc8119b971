"""docs/reference/logs.md lists every event that the code logs, with its level and its fields, and nothing else."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

from tests.support.structure import nodes

ROOT = Path(__file__).parent.parent
LEVELS = ("debug", "info", "warning", "error")
NAME = re.compile(r"[a-z]+\.[a-z]+(_[a-z]+)*")
ROW = re.compile(r"\| `([^`]+)` \| (\w+) \| (.*) \| (.*) \|")


def events() -> Iterator[tuple[str, str, frozenset[str]]]:
    """(event, level, fields) of each log call of the modules that log with structlog. `...`: fields known at run time
    only."""
    for path in sorted((ROOT / "foqs").rglob("*.py")):
        text = path.read_text()
        if "import structlog" not in text:
            continue
        for node in nodes(path):
            if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)):
                continue
            of, level = node.func.value, node.func.attr
            known = (*LEVELS, "critical", "exception", "log")
            if isinstance(of, ast.Name) and of.id.endswith("log") and level in known:
                assert level in LEVELS, f"{path}:{node.lineno}: no level of foqs"
                (name,) = node.args
                assert isinstance(name, ast.Constant) and NAME.fullmatch(name.value), f"{path}:{node.lineno}: no event"
                fields = frozenset(keyword.arg or "..." for keyword in node.keywords)
                yield name.value, level, frozenset("exception" if one == "exc_info" else one for one in fields)


def told() -> list[tuple[str, str, frozenset[str]]]:
    """The same, of the tables in the documentation."""
    rows = [ROW.fullmatch(line) for line in (ROOT / "docs/reference/logs.md").read_text().splitlines()]
    return [(row[1], row[2], frozenset(re.findall(r"`([^`]+)`", row[4]))) for row in rows if row is not None]


def test_every_event_is_in_the_table_and_the_other_way_round() -> None:
    assert set(told()) == set(events())


def test_an_event_is_one_thing() -> None:
    """The same name at two places has the same level and the same fields."""
    rows = told()
    assert len({name for name, _, _ in rows}) == len(rows) > 30
