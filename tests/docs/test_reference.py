"""The pages of docs/reference that script/reference.py writes: current, and checked for what the code cannot say."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest

from foqs.admin.families import FAMILIES
from foqs.client import AckPolicy
from foqs.counters import CAUSES
from foqs.errors import Code
from foqs.policies.topic_policy import PolicyEntry
from foqs.rows import FailureCause
from script import docstrings, reference
from script.lookup import cli, idl
from tests.api.hosts import ROOT, environment

PAGES = ROOT / "docs" / "reference"


@pytest.mark.process
def test_every_page_is_current() -> None:
    argv = [sys.executable, "-P", str(ROOT / "script/reference.py"), "--check"]
    done = subprocess.run(argv, capture_output=True, text=True, env=environment(), timeout=120)
    assert done.returncode == 0, done.stderr


def test_a_part_that_is_not_current_is_written_again() -> None:
    page = "by hand\n<!-- a: written by script/reference.py -->\nold\n<!-- end of a -->\nbelow\n"
    made = reference.current(page, {"a": lambda: "new"})
    assert made == "by hand\n<!-- a: written by script/reference.py -->\n\nnew\n\n<!-- end of a -->\nbelow\n"
    assert reference.current(made, {"a": lambda: "new"}) == made


@pytest.mark.parametrize("parts", [(), ("b",), ("a", "b")])
def test_a_page_without_its_parts_is_an_error(parts: tuple[str, ...]) -> None:
    page = "<!-- a: written by script/reference.py -->\n<!-- end of a -->\n"
    with pytest.raises(reference.Wrong, match="it holds the parts a, not"):
        reference.current(page, dict.fromkeys(parts, str))


def test_every_command_has_a_heading() -> None:
    headings = re.findall(r"^### (foqs .*)$", (PAGES / "cli.md").read_text(), re.M)
    assert headings == [one.name for one in cli.every()]
    assert len(headings) > 100


@pytest.mark.parametrize("name", PolicyEntry.model_fields)
def test_a_field_of_a_policy_has_one_row(name: str) -> None:
    policy, _, _ = (PAGES / "settings.md").read_text().partition("<!-- end of topic -->")
    assert policy.count(f"\n| `{name}` |") == 1


@pytest.mark.parametrize("name", AckPolicy.__members__)
def test_an_ack_policy_has_one_row(name: str) -> None:
    """A second table of the same names is forgotten when the first one changes."""
    pages = [page.read_text() for page in (ROOT / "docs" / "do").glob("*.md")]
    assert sum(page.count(f"\n| `{name}`") for page in pages) == 1


def test_every_code_has_a_section_with_remedies() -> None:
    text = (PAGES / "errors.md").read_text()
    sections = re.findall(r"^### (\w+)$(.*?)(?=^##)", text, re.M | re.S)
    told = {re.sub(r"(?<!^)([A-Z])", r"_\1", name).upper(): section for name, section in sections}
    assert told.keys() == {code.name for code in Code} - {"NOT_OWNER"}
    assert not [name for name, section in told.items() if "| remedy |" not in section]


def test_every_type_and_field_of_the_contract_is_found() -> None:
    source = (ROOT / "thrift" / "foqs.thrift").read_text()
    assert len(idl.every()) == len(re.findall(r"^(?:enum|struct|exception) ", source, re.M)) > 100
    shown = len(re.findall(r"^\| \d+ \| `", idl.types(), re.M))
    assert shown == len(re.findall(r"^  (?:\d+: |[A-Z_0-9]+ = \d)", source, re.M))


def test_the_help_of_a_metric_names_each_cause() -> None:
    failures = [cause.name.lower() for cause in FailureCause]
    for name, causes in (("items_removed", CAUSES), ("items_dead", failures), ("attempts_failed", failures)):
        assert not [one for one in causes if f"`{one}`" not in FAMILIES[f"foqs_{name}_total"].help], name


def test_aligned_lines_of_a_docstring_are_a_table() -> None:
    made = docstrings.markdown(
        "A text.\n\nname      a text\nmost,     how many;\nleast       both are numbers\nlong      two\n          lines"
    )
    assert made.splitlines()[2:] == [
        "| name | meaning |",
        "| --- | --- |",
        "| `name` | a text |",
        "| `most, least` | how many; both are numbers |",
        "| `long` | two lines |",
    ]


def test_other_aligned_lines_stay_as_they_are() -> None:
    assert docstrings.markdown("===  ===\na    b\n===  ===") == "```text\n===  ===\na    b\n===  ===\n```"
    assert docstrings.markdown("Plain text.  It has\ntwo lines.") == "Plain text.  It has\ntwo lines."


def test_a_doctest_is_code_without_prompts() -> None:
    made = docstrings.markdown(">>> for a in b:   # doctest: +SKIP\n...     print(a)\n3")
    assert made == "```python\nfor a in b:\n    print(a)\n# 3\n```"
