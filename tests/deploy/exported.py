"""Queries against what hosts, workers and push processes export, without one."""

from __future__ import annotations

import re

from foqs.admin.exposition import render
from foqs.admin.families import FAMILIES
from foqs.cli import push_metrics, worker_metrics
from tests.deploy.promql import TARGET_LABELS, grouped_by, selectors

BY_PROMETHEUS = {"up": {"job", "instance"}, "ALERTS": {"alertname", "alertstate"}}
"""Metrics that it makes itself, and their labels."""


def _exported() -> dict[str, set[str]]:
    """Labels of each series by its metric's name."""
    found: dict[str, set[str]] = dict(BY_PROMETHEUS)
    families = {**FAMILIES, **worker_metrics.FAMILIES, **push_metrics.FAMILIES}
    for name, kind in re.findall(r"^# TYPE (\S+) (\w+)", render({}, "", families)[0].decode(), re.MULTILINE):
        labels = set(families[name].labels) if name in families else set()
        if kind == "histogram":
            found |= {f"{name}_bucket": labels | {"le"}, f"{name}_sum": labels, f"{name}_count": labels}
        else:
            found[name] = labels
    return found


EXPORTED = _exported()


def unknown(query: str) -> list[str]:
    """Metrics, and labels of them, that the query names and no process of foqs exports."""
    asked = selectors(query)
    wrong = [one.metric for one in asked if one.metric not in EXPORTED]
    known = [one for one in asked if one.metric in EXPORTED]
    for one in known:
        wrong += [f"{one.metric}.{label}" for label in one.labels - EXPORTED[one.metric] - TARGET_LABELS]
    anywhere = TARGET_LABELS.union(*(EXPORTED[one.metric] for one in known))
    return wrong + [f"by {label}" for label in grouped_by(query) - anywhere]
