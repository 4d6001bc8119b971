"""The throttle keys of one host."""

from __future__ import annotations

from foqs.engine.throttle_stats import KeyStats, of_namespace
from tests.engine.test_throttling import host_with, park, put, take
from tests.peers.throttled_hosts import NS


def test_keys_used_or_coordinated_here_are_listed_in_order() -> None:
    host = host_with(**{"c:*": '{"per_second": 0.01, "burst": 1}'})
    for number, ready in ((2, 5), (1, 3), (1, 4)):
        flow = put(host, f"c:{number}", ready=ready)
        park(host, flow, take(host, flow))
    begun_ms = host.cluster.now
    found = of_namespace(host.throttling, {"c:0": 1.5, "x": 0.0}, NS, "c:", "", 9, begun_ms + 70)
    assert found == {"c:0": KeyStats(tokens=1.5), "c:1": KeyStats(2, 7, 70), "c:2": KeyStats(1, 5, 70)}
    assert list(found) == ["c:0", "c:1", "c:2"]
    assert list(of_namespace(host.throttling, {}, NS, "", "c:1", 9, begun_ms)) == ["c:2"]
    assert list(of_namespace(host.throttling, {"c:0": 1.0}, NS, "", "", 2, begun_ms)) == ["c:0", "c:1"]
