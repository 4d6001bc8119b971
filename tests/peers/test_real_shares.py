"""Real hosts balance the tenants of their topics."""

from __future__ import annotations

from tests.peers.nodes import Cluster
from tests.support.waiting import wait_until


def test_reports_pass_between_real_hosts(cluster: Cluster) -> None:
    """The weight of y falls on a while b delivers items of y."""
    a, b = cluster.add("a", 1), cluster.add("b", 2)
    cluster.tell()
    on_a, on_b = cluster.wire(a), cluster.wire(b)
    on_a.put("t", b"", fairness_key="x")
    on_a.put("t", b"", fairness_key="y")
    on_b.put("t", *[b""] * 10, fairness_key="y")
    tenants = cluster.on_loop(lambda: a.engine.state.topics["test", "t"].turns.tenants)

    def falls() -> bool:
        items = on_b.dequeue("t", 10)
        if items:
            assert {item.fairness_key for item in items} == {"y"}
            assert on_b.ack(*items) == [0] * len(items)  # a released item would not count as delivered
            on_b.put("t", *[b""] * len(items), fairness_key="y")
        return bool(tenants["y"].factor < 0.9 * tenants["x"].factor)

    wait_until(falls, "a smaller factor")
