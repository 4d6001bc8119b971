"""The files at the root that a visitor of the repository reads: their links, and the forms of GitHub."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.api.hosts import ROOT

PAGES = sorted(ROOT.glob("*.md"))
FORMS = sorted((ROOT / ".github" / "ISSUE_TEMPLATE").glob("[!c]*.yml"))
KINDS = {"markdown", "textarea", "input", "dropdown", "checkboxes"}
_CODE = re.compile(r"^```.*?^```$|`[^`\n]*`", re.M | re.S)
_LINK = re.compile(r"\]\(([^)\s]+)\)")


def headings(page: Path) -> set[str]:
    """Return the anchors of a page, as GitHub and the site name them."""
    text = re.sub(r"^```.*?^```$", "", page.read_text(), flags=re.M | re.S)
    found = re.findall(r"^#+ (.*?)(?: \{ #([\w-]+) \})?$", text, re.M)
    return {anchor or re.sub(r"[^\w -]", "", title).strip().lower().replace(" ", "-") for title, anchor in found}


def read(path: Path) -> Any:
    return yaml.safe_load(path.read_text())


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_to_files_and_headings(page: Path) -> None:
    links = [link for link in _LINK.findall(_CODE.sub("", page.read_text())) if "://" not in link]
    for link in links:
        name, _, anchor = link.partition("#")
        target = ROOT / name if name else page
        assert target.exists(), link
        assert not anchor or anchor in headings(target), link


def test_the_scripts_that_contributors_run_exist() -> None:
    named = set(re.findall(r"\bscript/[\w.-]+", (ROOT / "CONTRIBUTING.md").read_text()))
    assert len(named) > 5
    assert [name for name in named if not (ROOT / name).is_file()] == []


@pytest.mark.parametrize("path", FORMS, ids=lambda path: path.name)
def test_a_form_has_what_github_requires(path: Path) -> None:
    form = read(path)
    assert all(isinstance(form[key], str) and form[key] for key in ("name", "description"))
    fields = [field for field in form["body"] if field["type"] != "markdown"]
    assert fields
    for field in form["body"]:
        assert field["type"] in KINDS
        assert field["attributes"]["value" if field["type"] == "markdown" else "label"]
        assert field["type"] not in ("dropdown", "checkboxes") or field["attributes"]["options"]
        assert isinstance(field.get("validations", {}).get("required", False), bool)
    for key in ("id", "label"):  # GitHub refuses a form with two equal ones
        values = [field.get(key) or field["attributes"].get(key) for field in fields]
        assert len(set(values)) == len(fields)
    assert all(re.fullmatch(r"[\w-]+", field["id"]) for field in fields)


def test_a_report_of_a_bug_names_the_system() -> None:
    (path,) = [path for path in FORMS if path.name == "bug.yml"]
    required = {field["id"] for field in read(path)["body"] if field.get("validations", {}).get("required")}
    assert required == {"what", "steps", "version", "database", "doctor"}
    assert "`foqs doctor" in path.read_text()


def test_issues_have_a_form_and_pull_requests_a_short_text() -> None:
    assert len(FORMS) == 2
    assert read(ROOT / ".github" / "ISSUE_TEMPLATE" / "config.yml") == {"blank_issues_enabled": False}
    assert len((ROOT / ".github" / "pull_request_template.md").read_text().splitlines()) <= 10
