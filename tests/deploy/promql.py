"""The alert rules and the dashboard as they are delivered, and what their queries ask for."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any, NamedTuple

import yaml

ROOT = Path(__file__).parents[2]
PROMETHEUS = ROOT / "deploy" / "prometheus"
RULES = PROMETHEUS / "foqs.rules.yaml"
WORKER_RULES = PROMETHEUS / "workers.rules.yaml"
DASHBOARD = ROOT / "deploy" / "grafana" / "foqs.json"
TARGET_LABELS = {"job", "instance"}
"""Those that Prometheus adds."""
_GROUPING = re.compile(r"\b(?:by|without|on|ignoring|group_left|group_right)\s*\(([^)]*)\)")
_TIME = re.compile(r"\[[^]]*\]|\boffset \w+")
_SELECTOR = re.compile(r"\b([a-zA-Z_:][\w:]*)\b(\{[^}]*\})?(?!\s*\()")
_OPERATORS = {"and", "or", "unless", "bool"}


class Selector(NamedTuple):
    """`matchers` are as they stand in the query, with their braces, or empty."""

    metric: str
    matchers: str

    @property
    def labels(self) -> set[str]:
        return set(re.findall(r"(\w+)\s*[=!]~?\s*\"", self.matchers))


def alert_rules(*files: Path) -> list[dict[str, Any]]:
    """Return the alerts of these files; of hosts if there is none."""
    groups = [group for file in files or (RULES,) for group in yaml.safe_load(file.read_text())["groups"]]
    return [rule for group in groups for rule in group["rules"] if "alert" in rule]


def dashboard() -> dict[str, Any]:
    return json.loads(DASHBOARD.read_text())  # type: ignore[no-any-return]


def dashboard_queries(**variables: str) -> dict[str, list[str]]:
    """Of each panel by its title, with the variables' values in them."""
    found: dict[str, list[str]] = {}
    for panel in dashboard()["panels"]:
        for target in panel.get("targets", ()):
            found.setdefault(panel["title"], []).append(put_in(target["expr"], **variables))
    return found


def put_in(query: str, **variables: str) -> str:
    """Raises KeyError for a variable that has no value here."""
    return re.sub(r"\$\{?(\w+)\}?", lambda found: variables[found[1]], query)


def selectors(query: str) -> set[Selector]:
    bare = _TIME.sub("", _GROUPING.sub("", query))
    return {Selector(*found) for found in _SELECTOR.findall(bare) if found[0] not in _OPERATORS}


def grouped_by(query: str) -> set[str]:
    """Labels in `by (...)`, `on (...)` and the like."""
    return {label.strip() for labels in _GROUPING.findall(query) for label in labels.split(",") if label.strip()}
