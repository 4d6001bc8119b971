"""The throttle keys of one host."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from foqs.bounds import THROTTLE
from foqs.engine.stats import Coordinated, throttles_of
from foqs.figures import ThrottleStats
from tests.engine.test_throttling import host_with, park, put, take
from tests.peers.throttled_hosts import NS, Host


def coordinated(tokens: dict[str, float]) -> Coordinated:
    ledgers: dict[str, Any] = {name: SimpleNamespace(here=lambda _, left=left: left) for name, left in tokens.items()}
    keys = {(ns, THROTTLE + name): ledger for name, ledger in ledgers.items() for ns in (NS, "other")}
    return Coordinated(list(keys), keys.get, lambda _: None, "a:1")


def listed(
    host: Host, tokens: dict[str, float], prefix: str = "", after: str = "", limit: int = 9
) -> dict[str, ThrottleStats]:
    found: list[dict[str, ThrottleStats]] = []
    throttles_of(host.engine.state, coordinated(tokens), NS, prefix, after, limit, found.append)
    return found[0]


def test_keys_used_or_coordinated_here_are_listed_in_order() -> None:
    host = host_with(**{"c:*": '{"per_second": 0.01, "burst": 1}'})
    for number, ready in ((2, 5), (1, 3), (1, 4)):
        flow = put(host, f"c:{number}", ready=ready)
        park(host, flow, take(host, flow))
    host.cluster.now += 70
    found = listed(host, {"c:0": 1.5, "x": 0.0}, "c:")
    assert found == {
        "c:0": ThrottleStats("c:0", tokens=1.5, coordinator="a:1"),
        "c:1": ThrottleStats("c:1", parked_flows=2, parked_items=7, longest_wait_ms=70),
        "c:2": ThrottleStats("c:2", parked_flows=1, parked_items=5, longest_wait_ms=70),
    }
    assert list(found) == ["c:0", "c:1", "c:2"]
    assert list(listed(host, {}, after="c:1")) == ["c:2"]
    assert list(listed(host, {"c:0": 1.0}, limit=2)) == ["c:0", "c:1"]


def test_many_keys_are_looked_at_in_several_turns() -> None:
    host = host_with()
    tokens = {f"c:{number:05}": 1.0 for number in range(9_999, -1, -1)}
    found: list[dict[str, ThrottleStats]] = []
    throttles_of(host.engine.state, coordinated(tokens), NS, "", "c:00001", 3, found.append)
    turns = 0
    while not found:
        assert len(host.engine.state.slices.long_work) == 1
        host.engine.state.slices.go_on()
        turns += 1
    assert turns >= 4
    assert list(found[0]) == ["c:00002", "c:00003", "c:00004"]


def test_a_key_forgotten_in_between_has_no_figures() -> None:
    host = host_with()
    found: list[dict[str, ThrottleStats]] = []
    forgotten = Coordinated([(NS, "\1a")], lambda _: None, lambda _: None, "a:1")
    throttles_of(host.engine.state, forgotten, NS, "", "", 3, found.append)
    assert found == [{"a": ThrottleStats("a")}]
