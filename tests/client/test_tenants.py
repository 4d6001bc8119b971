"""Tenants, weights and throttle keys of a real server, before and after it was killed."""

import sqlite3
from pathlib import Path
from typing import Any

from foqs.client import Client, FailureFilter, Item, ItemSpec, Nack
from tests.client.real_server import PATIENT_MS, Server

SPECS = [
    ItemSpec("t", b"plain"),
    ItemSpec("t", b"tenant", fairness_key="acme", weight=3),
    ItemSpec("t", b"both", fairness_key="acme", throttle_keys=("db", "api:acme")),
    ItemSpec("t", b"throttled", throttle_keys=["db"], headers={"a": "b"}),
]
KEYS = {b"plain": ("", ()), b"tenant": ("acme", ()), b"both": ("acme", ("api:acme", "db")), b"throttled": ("", ("db",))}


def keys(items: Any) -> dict[bytes, tuple[str, tuple[str, ...]]]:
    return {item.payload: (item.fairness_key, item.throttle_keys) for item in items}


def leased(client: Client, count: int) -> list[Item]:
    """So many items, one by one: a reply with one item has a reader of its own."""
    items: list[Item] = []
    while len(items) < count:
        items += client.dequeue("t", 1, lease_ms=600_000, wait_ms=PATIENT_MS)
    return items


def weights(data_dir: Path) -> dict[bytes, set[int]]:
    """Stored weights of tenants, over the shards that have them."""
    found: dict[bytes, set[int]] = {}
    for path in data_dir.rglob("*.db"):
        with sqlite3.connect(path) as database:
            for fairness, weight in database.execute("SELECT fairness, weight FROM lane"):
                found.setdefault(bytes(fairness), set()).add(weight)
    return found


def test_keys_and_dead_letters_outlive_the_host(client: Client, server: Server) -> None:
    assert all(isinstance(outcome, int) for outcome in client.enqueue_many(SPECS))
    assert keys(client.list_items("t")) == KEYS
    server.kill()
    server.start()
    assert keys(client.list_items("t")) == KEYS
    items = leased(client, 4)
    assert keys(items) == KEYS
    assert keys([client.get_item(item.id) for item in items]) == KEYS
    assert client.nack_many([Nack.of(item, reject=True, reason="no") for item in items]) == [None] * 4
    server.kill()
    server.start()
    dead = list(client.list_items("t.dlq"))
    assert set(keys(dead).values()) == {("", ())}
    failures = {item.payload: item.failure for item in dead}
    assert {
        payload: (failure.fairness_key, failure.throttle_keys)
        for payload, failure in failures.items()
        if failure is not None
    } == KEYS
    assert sum(group.count for group in client.list_failures("t.dlq", fairness_key="acme").groups) == 2
    assert client.redrive("t.dlq", filter=FailureFilter(fairness_key="acme")).at_least == 2
    assert client.redrive("t.dlq").at_least == 2
    again = leased(client, 4)
    assert keys(again) == KEYS
    assert client.ack_many(again) == [None] * 4
