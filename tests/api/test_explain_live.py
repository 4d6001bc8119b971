"""`foqs explain` on a real host: the limits of an item, the tenants of a topic that wait, and extended leases."""

from __future__ import annotations

import json
import re
from typing import Any

from foqs.client import Client, ItemSpec, LimitKind, Reason
from tests.support.live import Run, client, host, in_terminal, run
from tests.support.waiting import wait_until

__all__ = ["client", "host", "run"]  # fixtures


def document(run: Run, *args: Any) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(run("explain", *args, "--json").stdout)
    return found


def words(shown: str) -> str:
    """What a terminal shows, without its lines."""
    return " ".join(shown.split())


def test_an_item_lists_its_limits_in_each_state(client: Client, run: Run) -> None:
    run("throttle", "set", "gpu", "--concurrency", 1)
    run("throttle", "set", "mail", "--rate", 5, "--shadow")
    specs = [ItemSpec("t", b"x", priority=at, throttle_keys=["api", "gpu", "mail"]) for at in range(4)]
    ids = client.enqueue_many(specs)
    (item,) = client.dequeue("t", 4, wait_ms=60_000, worker="w:1")
    assert item.id == ids[0]
    run("throttle", "set", "api", "--rate", "0.001")
    delayed = client.enqueue("t", b"x", delay_ms=3_600_000, throttle_keys=["api"])
    (limit,) = document(run, delayed)["limits"]
    assert (limit["kind"], limit["key"], limit["before"]) == ("rate", "api", 0)

    def parked() -> bool:
        client.dequeue("t", 4)
        return Reason.THROTTLED in [reason.code for reason in client.explain(ids[3]).reasons]

    wait_until(parked, "the items wait for a token", 60)
    rate, shadow, leases = client.explain(ids[3]).limits
    assert (rate.kind, rate.key, rate.bound, rate.burst, rate.before) == (LimitKind.RATE, "api", 0.001, 1, 2)
    assert rate.estimate_ms is not None
    assert 2_000_000 < rate.estimate_ms <= 3_000_100
    assert (shadow.shadow, shadow.estimate_ms, shadow.hour is not None and shadow.hour.seen) == (True, 0, 1)
    assert (leases.kind, leases.used, leases.item_id, leases.by) == (LimitKind.CONCURRENCY, 1, item.id, "w:1")
    found = document(run, ids[3])
    assert [one["kind"] for one in found["limits"]] == ["rate", "rate", "concurrency"]
    assert found["limits"][1]["hour"]["seen"] == 1
    status, shown = in_terminal(client, "explain", str(ids[3]))
    reasons, _, listed = shown.partition("\nlimits:\n")
    assert (status, "throttled" in reasons) == (0, True)
    assert listed.splitlines()[0].split() == ["limit", "of", "wait", "now"]
    assert re.search(r"rate +api +≈[345]\dm +0\.001 deliveries", listed)
    assert re.search(r"rate +mail +none +5 deliveries", listed)
    leased = client.explain(item.id)
    assert [reason.code for reason in leased.reasons] == [Reason.LEASED]
    assert [one.key for one in leased.limits] == ["api", "mail", "gpu"]
    run("topic", "pause", "t")
    assert [one.key for one in client.explain(delayed).limits] == ["api"]


def test_a_topic_counts_the_tenants_that_wait(client: Client, run: Run) -> None:
    run("throttle", "set", "c:*", "--rate", "0.001")
    specs = [
        ItemSpec("t", b"x", fairness_key=tenant, throttle_keys=[f"c:{tenant}"]) for tenant in "abc" for _ in range(2)
    ]
    client.enqueue_many([*specs, ItemSpec("t", b"x", fairness_key="x"), ItemSpec("t", b"x", fairness_key="y")])
    for tenant in "xy":
        run("topic", "pause", "t", "--tenant", tenant)

    def waiting() -> dict[Any, int]:
        client.dequeue("t", 10)
        return {one.code: one.count for one in client.explain_topic("t").tenants}

    wait_until(lambda: waiting() == {Reason.THROTTLED: 3, Reason.PAUSED: 2}, "all tenants wait", 60)
    paused = client.explain_topic("t").reasons[0]
    assert (paused.code, paused.count) == (Reason.PAUSED, 2)
    assert paused.since_ms is not None
    assert re.search(r"paused by the settings entry t?.*, the last one by foqs at \S+ [\d.]+ m?s ago", paused.text)
    client.enqueue("t", b"free", fairness_key="free")
    found = client.explain_topic("t")
    assert Reason.THROTTLED not in [reason.code for reason in found.reasons], "an item is deliverable"
    assert (found.tenants_ready, [one.count for one in found.tenants]) == (6, [3, 2])
    assert document(run, "t")["tenants"][0]["tenants"] == ["a", "b", "c"]
    shown = words(in_terminal(client, "explain", "t")[1])
    assert "tenants: 3 of 6 tenants with ready items wait for a token of throttle 'c:*': 'a', 'b', 'c'." in shown
    assert "2 of 6 tenants with ready items are paused by the settings entry topic.t, the last one by " in shown


def test_an_extended_lease_says_since_when_it_is_held(client: Client, run: Run) -> None:
    item_id = client.enqueue("t", b"x")
    (item,) = client.dequeue("t", wait_ms=60_000, worker="w")
    (given,) = client.explain(item_id).reasons
    for _ in range(2):
        client.extend(item, lease_ms=60_000)
    (reason,) = client.explain(item_id).reasons
    assert (reason.since_ms, reason.count, reason.by) == (given.since_ms, 2, "w")
    assert re.match(r"Worker w has held it for [\d.]+ m?s \(extended 2 times, last [\d.]+ m?s ago\), and", reason.text)
