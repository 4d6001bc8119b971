"""Commands on the pages for operators exist, with their options: of pages that no reader does."""

from __future__ import annotations

import re

import pytest

from tests.cli.test_help import check_named
from tests.support.pages import DOCS

PAGES = (
    *("status", "explain", "on-call", "watch", "console", "console-access", "settings", "policies", "throttles"),
    *("cluster", "processes", "capacity", "databases", "zookeeper", "losses", "older-copies", "upgrades"),
)
_FENCED = re.compile(r"^```.*?^```$", re.M | re.S)
_TYPED = re.compile(r"^(?:\$ )?(foqs .*)$", re.M)
_NAMED = re.compile(r"^    (foqs .*)$|`(foqs [a-z][^`]*)`", re.M)
_NO_COMMANDS = ("foqs listening", "foqs at ")


def commands(page: str) -> list[str]:
    """Return the commands of a page: of its code, and of its sentences, where a line may end in one."""
    found = [line for code in _FENCED.findall(page) for line in _TYPED.findall(code)]
    found += [line or " ".join(span.split()) for line, span in _NAMED.findall(_FENCED.sub("", page))]
    return [re.sub(r"\bN\b", "1", line) for line in found if not line.startswith(_NO_COMMANDS)]


@pytest.mark.parametrize("name", PAGES)
def test_the_commands_of_a_page_exist(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FOQS_CONFIG", "foqs.toml")
    found = commands((DOCS / f"run/{name}.md").read_text())
    assert found
    for line in found:
        check_named(line)


def test_a_wrong_option_is_found() -> None:
    (line,) = commands("Type `foqs shards\nmove 3 --into host-b`.")
    with pytest.raises(Exception, match="--into"):
        check_named(line)
