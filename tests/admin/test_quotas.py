"""The levels and bounds of quotas in a scrape."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from foqs.admin.snapshot import _quotas
from foqs.bounds import Quota
from foqs.counters import Namespaces


def test_bounds_of_rates_and_levels_of_stored_items() -> None:
    counts = Namespaces()
    for ns in ("rated", "stored", "free"):
        counts.of(ns)
    shards = [SimpleNamespace(memory=SimpleNamespace(totals={"stored": 3, "free": 9})) for _ in range(2)]
    state = SimpleNamespace(serving=shards, counters=SimpleNamespace(namespaces=counts))
    bounds = {"rated": Quota(500.0, 500, None), "stored": Quota(None, 1, 12), "unknown": Quota(1.0, 1, None)}
    node = SimpleNamespace(
        engine=SimpleNamespace(state=state), lending=SimpleNamespace(quotas=SimpleNamespace(of=bounds.get))
    )
    found: list[tuple[Any, ...]] = []
    _quotas(lambda *row: found.append(row), SimpleNamespace(node=node), 5)  # type: ignore[arg-type]
    assert found == [("quota_used_ratio", 0.5, "stored"), ("quota_items_per_second", 500.0, "rated")]
