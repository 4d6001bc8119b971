"""The dashboard's JSON. tests/cluster/test_alerts.py has a Prometheus that scrapes a cluster answer its queries."""

from __future__ import annotations

import re
from itertools import combinations, pairwise
from pathlib import Path
from typing import Any

import pytest
import yaml

from foqs.admin.families import FAMILIES
from tests.deploy.exported import unknown
from tests.deploy.prometheus import promtool
from tests.deploy.promql import dashboard, dashboard_queries, put_in, selectors

VARIABLES = {"job": "foqs", "host": ".*", "namespace": ".*", "topic": ".*", "__rate_interval": "1m"}
DATASOURCE = {"type": "prometheus", "uid": "${datasource}"}
WITHOUT_PANEL = {
    "foqs_quota_items_per_second",
    "foqs_attempts_failed_total",
    "foqs_items_changed_total",
    "foqs_certificate_expires_at_seconds",
    "foqs_topics",
    "foqs_shard_restored_at_seconds",
    "foqs_shard_kept_items",
    "foqs_shard_progress_items",
    "foqs_result_waiters",
    "foqs_schedule_times_total",
    "foqs_item_batches_total",
    "foqs_page_rows_total",
    "foqs_transaction_rows_total",
    "foqs_shard_trip_seconds",
    "foqs_shard_pending_chunks",
    "foqs_shards_assigned",
    "foqs_shards_unreachable",
    "foqs_shards_unserved",
    "foqs_assignment_version",
    "foqs_clock_jumps_total",
    "foqs_zookeeper_held",
    "foqs_zookeeper_losses_total",
}
"""What other panels, or the table of firing alerts, say as well or better."""


def panels() -> list[dict[str, Any]]:
    return [panel for panel in dashboard()["panels"] if panel["type"] != "row"]


def test_each_panel_is_whole() -> None:
    ids = [panel["id"] for panel in dashboard()["panels"]]
    assert len(set(ids)) == len(ids)
    titles = [panel["title"] for panel in panels()]
    assert len(set(titles)) == len(titles)
    for panel in panels():
        title = panel["title"]
        assert panel["type"] in ("stat", "timeseries", "table"), title
        assert panel["description"].endswith("."), title
        assert panel["fieldConfig"]["defaults"]["unit"], title
        assert panel["datasource"] == DATASOURCE, title
        assert [target["refId"] for target in panel["targets"]] == list("ABCDEFGH")[: len(panel["targets"])], title
        assert all(target["datasource"] == DATASOURCE for target in panel["targets"]), title
        assert all(target["range"] != target["instant"] for target in panel["targets"]), title


def test_rows_are_in_order_and_no_panel_covers_another() -> None:
    places = {panel["title"]: panel["gridPos"] for panel in dashboard()["panels"]}
    for (one, a), (other, b) in combinations(places.items(), 2):
        beside = a["x"] + a["w"] <= b["x"] or b["x"] + b["w"] <= a["x"]
        apart = a["y"] + a["h"] <= b["y"] or b["y"] + b["h"] <= a["y"]
        assert beside or apart, f"{one} and {other}"
    assert all(place["x"] + place["w"] <= 24 for place in places.values())
    assert all(a["y"] <= b["y"] for a, b in pairwise(places.values()))


def test_variables_are_those_that_queries_use() -> None:
    used = set(re.findall(r"\$\{?(\w+)\}?", " ".join(query for queries in _raw().values() for query in queries)))
    variables = {variable["name"] for variable in dashboard()["templating"]["list"]}
    assert variables - {"datasource"} == used - {"__rate_interval"} == VARIABLES.keys() - {"__rate_interval"}
    for variable in dashboard()["templating"]["list"]:
        if variable["type"] == "query":
            assert variable["datasource"] == DATASOURCE
            metric, label = re.fullmatch(r"label_values\((.+), (\w+)\)", variable["query"]["query"]).groups()  # type: ignore[union-attr]
            assert not unknown(f"count by ({label}) ({put_in(metric, **VARIABLES)})")


def test_legends_name_labels_that_the_answer_has() -> None:
    for panel in panels():
        for target in panel["targets"]:
            known = set(re.findall(r"\w+", " ".join(re.findall(r"\bby \(([^)]*)\)", target["expr"])))) or {"instance"}
            assert set(re.findall(r"\{\{(\w+)\}\}", target["legendFormat"])) <= known, panel["title"]


def test_queries_ask_for_what_hosts_export() -> None:
    asked = {title: [unknown(query) for query in queries] for title, queries in dashboard_queries(**VARIABLES).items()}
    assert {title: wrong for title, wrong in asked.items() if any(wrong)} == {}
    for annotation in dashboard()["annotations"]["list"]:
        assert not unknown(put_in(annotation["expr"], **VARIABLES))


def test_metrics_without_a_panel_are_listed() -> None:
    shown = {
        re.sub("_(bucket|sum|count)$", "", one.metric)
        for queries in dashboard_queries(**VARIABLES).values()
        for query in queries
        for one in selectors(query)
    }
    assert FAMILIES.keys() - shown == WITHOUT_PANEL


@pytest.mark.server
def test_queries_parse(tmp_path: Path) -> None:
    queries = [query for queries in dashboard_queries(**VARIABLES).values() for query in queries]
    rules = [{"record": f"query:{number}", "expr": query} for number, query in enumerate(queries)]
    (tmp_path / "rules.yaml").write_text(yaml.safe_dump({"groups": [{"name": "dashboard", "rules": rules}]}))
    assert f"{len(queries)} rules found" in promtool("check", "rules", tmp_path / "rules.yaml")


def _raw() -> dict[str, list[str]]:
    return {panel["title"]: [target["expr"] for target in panel["targets"]] for panel in panels()}
