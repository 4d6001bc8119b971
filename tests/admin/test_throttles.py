"""Throttle keys with the most parked items have series of their own; further ones are summed."""

from __future__ import annotations

import asyncio

import pytest

from foqs.admin.series import KeyCounts, KeyLabels, ThrottleSeries, count_keys
from tests.api.test_throttles import Throttled
from tests.engine.test_throttling import host_with, park, put, take

ITEMS, FLOWS, WAITS = (f"foqs_throttle_{name}" for name in ("parked_items", "parked_flows", "longest_wait_seconds"))
TOKENS, TAKEN = "foqs_throttle_tokens_held", "foqs_throttle_slots_taken"
HELD, OVERAGE, RECLAIMED = (f"foqs_throttle_{name}_total" for name in ("shadow_held", "overage", "reclaimed"))
A, B, C, REST = ("ns", "a"), ("ns", "b"), ("ns", "c"), ("other", "other")


def test_all_fit() -> None:
    rows = ThrottleSeries(2).rows({A: KeyCounts(1, 2, 3_000, 4, 6, (5, 7, 8)), B: KeyCounts()})
    assert {name: dict(found) for name, found in rows.items()} == {
        ITEMS: {A: 2, B: 0},
        FLOWS: {A: 1, B: 0},
        WAITS: {A: 3.0, B: 0.0},
        TOKENS: {A: 4, B: 0},
        TAKEN: {A: 6, B: 0},
        HELD: {A: 5, B: 0},
        OVERAGE: {A: 7, B: 0},
        RECLAIMED: {A: 8, B: 0},
    }


def test_other_keys_are_summed_with_the_longest_wait() -> None:
    keys = {
        A: KeyCounts(1, 2, 3_000, 1, 3, (4, 0, 1)),
        B: KeyCounts(1, 9),
        C: KeyCounts(2, 3, 1_000, 2, 4, (8, 1, 0)),
        REST: KeyCounts(5, 10),
    }
    rows = ThrottleSeries(1).rows(keys)
    assert {name: dict(found)[REST] for name, found in rows.items()} == {
        ITEMS: 15,
        FLOWS: 8,
        WAITS: 3.0,
        TOKENS: 3,
        TAKEN: 7,
        HELD: 12,
        OVERAGE: 1,
        RECLAIMED: 1,
    }
    assert dict(rows[ITEMS])[B] == 9


def test_counters_only_grow_while_their_series_lasts() -> None:
    """A key that the host forgot begins again at 0."""
    series = ThrottleSeries(1)
    held: list[dict[KeyLabels, float]] = []
    for a, b in ((5, 1), (7, 4), (2, 4), (2, 5)):
        keys = {A: KeyCounts(items=1, counters=(a, 0, 0)), B: KeyCounts(counters=(b, 0, 0))}
        held.append(dict(series.rows(keys)[HELD]))
    assert held == [{A: 5, REST: 1}, {A: 7, REST: 4}, {A: 9, REST: 4}, {A: 9, REST: 5}]


@pytest.mark.memory
def test_a_host_counts_parked_items_and_tokens() -> None:
    host = Throttled(
        {
            "throttle.api": '{"per_second": 0.5, "burst": 3}',
            "throttle.seen": '{"per_second": 0.5, "burst": 1, "shadow": true}',
        }
    )
    host.put(10, "api")
    host.put(4, "api", tenant="a")
    host.put(3, "seen", topic="u")
    rests: list[int] = []

    async def rest() -> None:
        rests.append(1)

    assert sum(host.got() for _ in range(2)) == 3
    assert host.got(topic="u") == 3
    assert host.engine.state.counters.tokens_lent == 3 + 1
    host.pass_ms(300)
    found = asyncio.run(count_keys(host.engine.state.throttling, rest, host.monotonic_ms))
    api, seen = found["n", "api"], found["n", "seen"]
    assert (api.flows, api.items, api.tokens, api.counters) == (2, 11, 0, (0, 0, 0))
    assert 250 <= api.wait_ms <= 400
    assert (seen.flows, seen.items, seen.wait_ms) == (0, 0, 0)
    assert seen.counters[0] >= 2
    assert rests


@pytest.mark.memory
def test_a_host_counts_leases_with_slots() -> None:
    host = Throttled({"throttle.gpu": '{"concurrency": 2, "timeout_ms": 1000}'})
    host.put(5, "gpu")
    host.dequeue(9)
    host.pass_ms(60)
    for _ in range(3):
        host.wait(500)
    host.dequeue(9)

    async def rest() -> None:
        pass

    counts = asyncio.run(count_keys(host.engine.state.throttling, rest, host.monotonic_ms))["n", "gpu"]
    assert (counts.taken, counts.items, counts.counters) == (2, 3, (0, 2, 0))


@pytest.mark.parametrize("keys", [1, 300])
def test_a_count_yields_to_other_work(keys: int) -> None:
    """Between keys, and between the flows of one key."""
    host = host_with(**{"c:*": '{"per_second": 0.01, "burst": 1}'})
    for number in range(300):
        flow = put(host, f"c:{number % keys}", ready=1)
        park(host, flow, take(host, flow))
    rests: list[int] = []

    async def rest() -> None:
        rests.append(1)

    found = asyncio.run(count_keys(host.throttling, rest, host.cluster.now))
    assert sum(counts.flows for counts in found.values()) == 300
    assert len(rests) >= 300 // 64
