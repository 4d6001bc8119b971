"""docs/run/runbook.md: a section for each alert, with links, commands and names that exist."""

from __future__ import annotations

import re
from pathlib import Path
from typing import get_args

import pytest

from foqs.cli import worker_metrics
from foqs.config.load import Config
from tests.cli.test_help import check_named
from tests.deploy.exported import EXPORTED
from tests.deploy.promql import ROOT, RULES, WORKER_RULES, alert_rules

DOCS = ROOT / "docs"
PAGE = (DOCS / "run/runbook.md").read_text()
ALERTS = {rule["alert"]: rule for rule in alert_rules(RULES, WORKER_RULES)}
SECTIONS = dict(re.findall(r"^## (\w+)\n(.*?)(?=^## |\Z)", PAGE, re.M | re.S))
PARTS = ["Meaning", "Affected", "Look", "Do", "Ends"]
SPANS = [" ".join(span.split()) for span in re.findall(r"`([^`]+)`", PAGE)]


def anchors(page: Path) -> set[str]:
    """Return the anchors of a page's headings, as GitHub makes them."""
    titles = re.findall(r"^#+ (.+)$", page.read_text(), re.M)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


def test_each_alert_has_a_section_in_the_order_of_the_rules() -> None:
    assert list(SECTIONS) == list(ALERTS)


@pytest.mark.parametrize("name", ALERTS)
def test_a_section_says_what_an_operator_asks(name: str) -> None:
    assert re.findall(r"^- \*\*(\w+)\.\*\* \S", SECTIONS[name], re.M) == PARTS


@pytest.mark.parametrize("name", ALERTS)
def test_the_link_of_an_alert_leads_to_its_section(name: str) -> None:
    page, _, anchor = ALERTS[name]["annotations"]["runbook_url"].partition("#")
    assert anchor in anchors(ROOT / page)
    assert SECTIONS[name].strip()


def test_links_lead_to_pages_and_sections() -> None:
    links = re.findall(r"\]\(([^)]+)\)", PAGE)
    assert links
    for link in links:
        name, _, anchor = link.partition("#")
        page = DOCS / "run" / (name or "runbook.md")
        assert page.exists(), link
        assert not anchor or anchor in anchors(page), link


def _said() -> list[str]:
    """Return the code in the page and in the alerts, with values for labels."""
    texts = [rule["annotations"]["description"] for rule in ALERTS.values()]
    shown = [span for text in texts for span in re.findall(r"`([^`]+)`", text)]
    return [*SPANS, *[re.sub(r"\{\{[^}]*\}\}", "x", span) for span in shown]]


def test_commands_exist_with_their_options(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FOQS_CONFIG", "foqs.toml")
    commands = [span for span in _said() if span.startswith("foqs ")]
    assert len(commands) > 50
    for line in commands:
        check_named(line)


def test_names_of_events_keys_and_metrics_exist() -> None:
    logs = set(re.findall(r"^\| `([\w.]+)` \| \w+ \|", (DOCS / "reference/logs.md").read_text(), re.M))
    keys = {f"{section}.{key}" for section, field in Config.model_fields.items() for key in _keys(field.annotation)}
    dotted = {span for span in SPANS if re.fullmatch(r"[a-z_]+\.[a-z_]+", span)}
    assert len(dotted) > 20
    assert dotted - logs - keys - {"foqs.toml", "mail.dlq", "monitoring.docs"} == set()
    metrics = {span for span in SPANS if re.fullmatch(r"foqs_[a-z_]+", span)}
    assert metrics <= EXPORTED.keys() | worker_metrics.FAMILIES.keys()


def _keys(section: object) -> set[str]:
    return {key for one in (section, *get_args(section)) for key in getattr(one, "model_fields", ())}
