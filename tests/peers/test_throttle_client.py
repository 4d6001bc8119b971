"""Throttles over several hosts: promises 11 and 12, and rates that are reached."""

from __future__ import annotations

import random
from collections.abc import Sequence
from itertools import pairwise

import pytest

from foqs.bounds import THROTTLE
from foqs.ids import digest_of, hash_slot_of
from foqs.limits.gate import AT_ONCE
from tests.peers.throttled_hosts import NS, TRIP_MS, Cluster, worst

API = {"throttle.api": '{"per_second": 10, "burst": 20}'}


@pytest.mark.parametrize("hosts", [1, 3])
def test_the_rate_is_reached_and_kept(hosts: int) -> None:
    cluster = Cluster(hosts, API)
    for host in cluster.hosts:
        host.put("sync", "api")
    cluster.run(20_000)
    times = cluster.deliveries("api")
    assert 0.95 * 10 * 20 <= len(times) <= 20 + 10 * 20
    assert worst(times, 10) <= 20


@pytest.mark.parametrize("hosts", [1, 3])
@pytest.mark.parametrize(("per_second", "burst"), [(1, 1), (0.5, 1), (100, 1), (1_000, 1_000)])
def test_rates_high_and_low_are_reached(hosts: int, per_second: float, burst: int) -> None:
    cluster = Cluster(hosts, {"throttle.api": f'{{"per_second": {per_second}, "burst": {burst}}}'})
    for host in cluster.hosts:
        host.put("sync", "api")
    cluster.run(20_000)
    times = cluster.deliveries("api")
    assert len(times) >= 0.9 * per_second * 20
    assert worst(times, per_second) <= burst


def test_each_host_has_its_part_of_a_low_rate() -> None:
    """Also hosts that ask over the network, beside the coordinator itself."""
    cluster = Cluster(3, {"throttle.api": '{"per_second": 1, "burst": 1}'})
    flows = [host.put("sync", "api") for host in cluster.hosts]
    cluster.run(120_000)
    assert all(len(flow.delivered) >= 12 for flow in flows)


def test_two_keys_at_a_low_rate_on_three_hosts() -> None:
    cluster = Cluster(3, {f"throttle.{key}": '{"per_second": 1, "burst": 1}' for key in "ab"})
    for host in cluster.hosts:
        host.put("one", "a", "b")
        host.put("two", "b", "a")
    cluster.run(5_000)
    before = len(cluster.deliveries("a"))
    cluster.run(60_000)
    assert len(cluster.deliveries("a")) - before >= 0.9 * 60


LINES = [("a",), ("b",), ("a", "b")]
CROWD = [("a",), ("b",), ("c",), ("a", "b"), ("b", "c"), ("a", "b", "c")]


@pytest.mark.parametrize("hosts", [1, 3])
@pytest.mark.parametrize(
    ("sets", "rates"),
    [
        (LINES, {"a": (4, 4), "b": (4, 4)}),
        (LINES, {"a": (4, 1), "b": (4, 1)}),
        (LINES, {"a": (100, 1), "b": (1, 1)}),
        (LINES, {"a": (1, 1), "b": (100, 1)}),
        (CROWD, {"a": (4, 1), "b": (4, 1), "c": (4, 1)}),
        (CROWD, {"a": (20, 3), "b": (1, 1), "c": (5, 1)}),
    ],
)
def test_no_set_of_keys_starves(hosts: int, sets: Sequence[tuple[str, ...]], rates: dict[str, tuple[int, int]]) -> None:
    """A flow with several keys never has all of them at one time by chance: each token is taken as it comes."""
    assert longest_wait(hosts, sets, rates, seed=1) <= WAIT_INTERVALS[hosts]


@pytest.mark.parametrize("seed", range(8))
def test_no_set_of_keys_starves_whatever_the_rates(seed: int) -> None:
    rng = random.Random(seed)
    rates = {key: (rng.choice([2, 4, 20]), rng.choice([1, 1, 3, 20])) for key in "abcd"}
    sets = [(key,) for key in "abcd"] + [tuple(rng.sample("abcd", rng.randint(2, 4))) for _ in range(3)]
    hosts = rng.choice([1, 3])
    assert longest_wait(hosts, sets, rates, seed) <= WAIT_INTERVALS[hosts]


WAIT_INTERVALS = {1: 12, 3: 60}
"""By the number of hosts, in intervals of the slowest key of the set. Up to six sets wait on each host."""


def longest_wait(hosts: int, sets: Sequence[tuple[str, ...]], rates: dict[str, tuple[int, int]], seed: int) -> float:
    """Return the longest time in which some set of keys with a backlog got no item on any host."""
    entries = {f"throttle.{key}": f'{{"per_second": {rate}, "burst": {burst}}}' for key, (rate, burst) in rates.items()}
    cluster = Cluster(hosts, entries, seed)
    for host in cluster.hosts:
        for keys in sets:
            host.put("-".join(keys), *keys)
    cluster.run(3_000)  # coordinators grant nothing at first
    begun_ms, worst_wait = cluster.now, 0.0
    cluster.run(40_000)
    for key, (rate, burst) in rates.items():
        assert worst(cluster.deliveries(key), rate) <= burst
    for keys in sets:
        flows = [flow for host in cluster.hosts for flow in host.flows if flow.throttles == tuple(sorted(keys))]
        times = sorted(at for flow in flows for at in flow.delivered if at >= begun_ms)
        longest_ms = max(after - before for before, after in pairwise([begun_ms, *times, cluster.now]))
        worst_wait = max(worst_wait, longest_ms * min(rates[key][0] for key in keys) / 1_000)
    return worst_wait


def test_a_key_whose_coordinator_is_away_holds_up_no_other_key() -> None:
    """No token is kept for one that cannot come."""
    cluster = Cluster(3, dict.fromkeys(("throttle.a", "throttle.b"), '{"per_second": 4, "burst": 1}'))
    shards = {key: cluster.shard_of(hash_slot_of(digest_of(NS, THROTTLE + key))) for key in "ab"}
    assert shards["a"] != shards["b"]
    away = cluster.owners[shards["b"]][0]
    flows = [(host.put("one", "a"), host.put("both", "a", "b")) for host in cluster.hosts if host is not away]
    cluster.run(5_000)
    assert all(both.delivered for _, both in flows)
    cluster.dead.add(away)
    cluster.run(1_500)
    begun_ms = cluster.now
    cluster.run(20_000)
    assert len([at for at in cluster.deliveries("a") if at > begun_ms]) >= 0.9 * 4 * 20


def test_a_fast_key_reaches_hosts_that_ask_over_the_network() -> None:
    """The coordinator's own host asks without delay, and could take each token as it is made."""
    cluster = Cluster(3, {"throttle.api": '{"per_second": 100, "burst": 1}'})
    flows = [host.put("sync", "api") for host in cluster.hosts]
    cluster.run(20_000)
    assert all(len(flow.delivered) >= 50 for flow in flows)


def test_topics_with_the_same_keys_share_tokens() -> None:
    """On one host, the flow that woke for a token of the one key does not keep it from the flow that has the other."""
    cluster = Cluster(1, {f"throttle.{key}": '{"per_second": 20, "burst": 1}' for key in "ab"})
    flows = [cluster.hosts[0].put(topic, "a", "b") for topic in ("one", "two")]
    cluster.run(10_000)
    assert min(len(flow.delivered) for flow in flows) >= 0.6 * 10 * 10


def test_waiting_for_a_later_key_uses_up_no_tokens() -> None:
    settings = {f"throttle.{key}": f'{{"per_second": {rate}}}' for key, rate in (("a", 100), ("b", 10))}
    cluster = Cluster(3, settings)
    for host in cluster.hosts:
        host.put("both", "a", "b")
        host.put("one", "a")
    cluster.run(5_000)
    before = len(cluster.deliveries("a")), len(cluster.deliveries("b"))
    cluster.run(20_000)
    a, b = (len(cluster.deliveries(key)) - was for key, was in zip("ab", before, strict=True))
    assert 0.9 * 10 * 20 <= b <= 10 + 10 * 20
    assert a - b >= 0.95 * 90 * 20


def test_an_item_a_second_at_a_token_a_second() -> None:
    """The coordinator hears of a spent token before it could have made the next one."""
    cluster = Cluster(2, {"throttle.api": '{"per_second": 1, "burst": 1}'})
    flow = cluster.hosts[0].put("sync", "api", ready=0)
    for _ in range(20):
        flow.ready += 1
        if flow.parked is None:
            flow.wake()
        cluster.hosts[0].deliver()
        cluster.run(1_050)
    assert len(flow.delivered) >= 18


def test_many_keys_share_the_messages() -> None:
    cluster = Cluster(3, {"throttle.tenant:*": '{"per_second": 1}'})
    for number in range(300):
        for host in cluster.hosts:
            host.put("sync", f"tenant:{number}")
    cluster.run(10_000)
    times = [cluster.deliveries(f"tenant:{number}") for number in range(300)]
    assert sum(map(len, times)) >= 0.95 * 300 * 10
    assert max(worst(each, 1) for each in times) <= 1
    assert max(host.calls for host in cluster.hosts) < 10 * 2 * 250


@pytest.mark.parametrize("hosts", [1, 2])
def test_more_keys_than_a_call_takes_all_get_tokens(hosts: int) -> None:
    """Also those whose coordinator is another host by the time of their question."""
    keys = 2 * AT_ONCE + 10
    cluster = Cluster(hosts, {"throttle.tenant:*": '{"per_second": 1000}'})
    asked: list[int] = []
    for host in cluster.hosts:
        lend = host.coordinator.lend
        host.coordinator.lend = lambda *args, lend=lend: asked.append(len(args[1])) or lend(*args)  # type: ignore[method-assign, misc]
    flows = [cluster.hosts[-1].put("sync", f"tenant:{number}", ready=1) for number in range(keys)]
    if hosts > 1:
        cluster.run(TRIP_MS + 1)
        for shard in (1, 2, 3):
            cluster.move(shard, cluster.hosts[-1])
    cluster.run(5_000)
    assert sum(flow.ready for flow in flows) == 0
    assert AT_ONCE / 2 < max(asked) <= AT_ONCE


def test_a_host_that_leaves_gives_its_tokens_back() -> None:
    """Else their place in the bucket stays free until they have ended."""
    cluster = Cluster(2, {"throttle.api": '{"per_second": 1000, "burst": 1000}'})
    flows = [host.put("sync", "api") for host in cluster.hosts]
    cluster.run(3_000)
    home = cluster.owners[cluster.shard_of(next(iter(cluster.hosts[0].throttling.keys.values())).hash_slot)][0]
    (flow,) = [flow for flow in flows if flow.host is not home]
    leaving = flow.host
    (key,) = leaving.throttling.keys.values()
    flow.lanes.clear()  # its shard moved
    leaving.waiting.clear()
    while not key.allowance.balance:
        cluster.run(10)
    tokens = home.coordinator.ledger("tokens", key.bounded)
    held = key.allowance.balance
    assert tokens._bucket._holders[leaving.lending.throttles._holder].tokens >= held
    leaving.engine.state.draining = True
    leaving.lending.throttles.leave()
    assert key.allowance.balance == 0
    cluster.run(2 * TRIP_MS)
    assert tokens._bucket._holders[leaving.lending.throttles._holder].tokens == 0
    calls = cluster.calls[leaving.name]
    leaving.lending.throttles.leave()  # there is nothing to give back
    assert cluster.calls[leaving.name] == calls
    assert worst(cluster.deliveries("api"), 1_000) <= 1_000


def test_items_with_tokens_do_not_wait() -> None:
    """Promise 12: 1,000 parked flows in front of it do not delay an item."""
    cluster = Cluster(1, {"throttle.dry": '{"per_second": 0.001, "burst": 1}', **API})
    host = cluster.hosts[0]
    for _ in range(1_000):
        host.put("sync", "dry")
    cluster.run(1_000)
    asked = []
    take = host.throttling.take
    host.throttling.take = lambda flow, item: asked.append(flow) or take(flow, item)  # type: ignore[method-assign]
    free, limited = host.put("sync", ready=100), host.put("sync", "api", ready=5)
    cluster.run(5)
    assert (free.ready, limited.ready) == (0, 0)
    assert set(asked) == {free, limited}  # parked flows cost a dequeue nothing


def test_a_throttle_that_is_removed_or_loosened_holds_no_flow() -> None:
    slow = {"throttle.a": '{"per_second": 0.001}', "throttle.b": '{"per_second": 0.001}'}
    cluster = Cluster(2, slow)
    flows = [host.put("sync", key, ready=50) for host in cluster.hosts for key in "ab"]
    cluster.run(1_000)
    assert sum(flow.ready for flow in flows) == 200
    cluster.settle({"throttle.a": '{"per_second": 1000}'})
    cluster.run(1_000)
    assert [flow.ready for flow in flows] == [0] * 4


def test_a_shadow_counts_and_holds_nothing() -> None:
    cluster = Cluster(1, {"throttle.api": '{"per_second": 10, "burst": 20, "shadow": true}'})
    flow = cluster.hosts[0].put("sync", "api", ready=100)
    cluster.run(1_000)
    assert flow.ready == 0
    (key,) = cluster.hosts[0].throttling.keys.values()
    assert 60 <= key.shadow_held <= 100


def test_a_dead_coordinator_is_replaced() -> None:
    cluster = Cluster(3, API)
    for host in cluster.hosts:
        host.put("sync", "api")
    cluster.run(5_000)
    (key,) = cluster.hosts[0].throttling.keys.values()
    coordinator = cluster.owners[cluster.shard_of(key.hash_slot)][0]
    cluster.kill(coordinator)
    killed_ms = cluster.now
    cluster.run(20_000)
    times = cluster.deliveries("api")
    assert worst(times, 10) <= 20
    assert len([at for at in times if at > killed_ms + 3_000]) >= 0.9 * 10 * 17


@pytest.mark.parametrize("seed", range(40))
def test_no_key_exceeds_its_rate_whatever_fails_or_moves(seed: int) -> None:
    """Promise 11: messages are lost or late, shards move, hosts die, settings come late, items are given back."""
    rng = random.Random(seed)
    rates = {key: (rng.choice([0.5, 3, 50]), rng.choice([1, 5, 40])) for key in "abc"}
    entries = {f"throttle.{key}": f'{{"per_second": {rate}, "burst": {burst}}}' for key, (rate, burst) in rates.items()}
    cluster = Cluster(rng.randrange(1, 5), entries, seed, loss=rng.choice([0, 0.1, 0.3]))
    for host in cluster.hosts:
        for number in range(rng.randrange(1, 6)):
            host.put(f"t{number}", *rng.sample("abc", rng.randrange(1, 4)))
    calm = True
    for _ in range(60):
        cluster.run(rng.choice([3, 50, 400, 700, 1_600]))
        alive = [host for host in cluster.hosts if host not in cluster.dead]
        match rng.randrange(8):
            case 0:
                cluster.move(rng.randrange(1, 4), rng.choice(alive))
            case 1 if len(alive) > 1 and rng.random() < 0.3:
                cluster.kill(rng.choice(alive))
            case 2 | 3:  # an item of a flow, more often a late one, did not reach its consumer
                flow = rng.choice(rng.choice(alive).flows)
                if flow.delivered:
                    flow.host.give_back(flow, max(0, len(flow.delivered) - rng.choice([1, 1, 2, 30])))
            case 4:  # lower limits for a while
                cluster.settle(
                    dict.fromkeys(entries, '{"per_second": 0.5, "burst": 1}') if calm else entries, late_ms=200
                )
                calm = not calm
            case 5:
                host = rng.choice(alive)
                for topic in list(host.waiting):
                    if rng.random() < 0.5:
                        del host.waiting[topic]
            case 6:
                for flow in rng.choice(alive).flows:
                    flow.host.waiting.setdefault(flow.topic, flow.host.waiting.get(flow.topic) or [])
    for key, (rate, burst) in rates.items():
        assert worst(cluster.deliveries(key), rate) <= burst, key
