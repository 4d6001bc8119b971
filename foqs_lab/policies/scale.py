"""Scenarios of very many tenants: keys that come and go, the opening of a shard, and the cost of a tenant."""

from __future__ import annotations

import time
from statistics import median

from foqs.client.items import ItemSpec
from foqs_lab.policies.stage import LEASE_MS, SESSION_MS, Outcome, Stage, deliveries

_FULL_MS = 1_000
_QUIET_S = 60.0
_RUN = 100


def passing_keys(stage: Stage) -> Outcome:
    keys, at_a_time = stage.size(1_000_000, 20_000), stage.size(100_000, 5_000)
    name = next(iter(stage.hosts))
    _pass(stage, range(at_a_time))
    _until_no_lane(stage)
    start_bytes = stage.rss_bytes(name)
    for low in range(0, keys, at_a_time):
        _pass(stage, range(low, min(low + at_a_time, keys)))
    left = _until_no_lane(stage)
    growth = stage.rss_bytes(name) / start_bytes - 1
    title = f"{keys:,} fairness keys enqueued and drained, {at_a_time:,} at a time, then idle"
    figures = {"lanes left": left, "growth of the memory": growth, "start MB": start_bytes / 1e6}
    return Outcome(7, title, "0 lane rows; memory within 10 % of the start", not left and growth <= 0.1, figures)


def _pass(stage: Stage, keys: range) -> None:
    stage.fill(ItemSpec("passing", b"x", fairness_key=f"k{n}") for n in keys)
    got = sum(1 for _ in deliveries(stage.client, "passing", 1_000))
    if got != len(keys):
        raise RuntimeError(f"{got} of {len(keys)} items were delivered")


def _lanes(stage: Stage) -> int:
    query = "SELECT COUNT(*) FROM lane WHERE fairness <> ''"
    return sum(int(one.server.query(query, database=one.database)[0][0]) for one in stage.cluster.shards)


def _until_no_lane(stage: Stage) -> int:
    until_s = time.monotonic() + _QUIET_S
    while (left := _lanes(stage)) and time.monotonic() < until_s:
        time.sleep(0.5)
    return left


def many_active_keys(stage: Stage) -> Outcome:
    """On one shard; its host is stopped and started again."""
    keys = stage.size(100_000, 5_000)
    few_ms, few_bytes, few_s = _opened(stage, "few", 10, keys)
    list(deliveries(stage.client, "few", 1_000))
    many_ms, many_bytes, many_s = _opened(stage, "many", keys, keys)
    figures = {
        "open, s": many_s - few_s,
        "more memory, MB": (many_bytes - few_bytes) / 1e6,
        "dequeue p99 over that with 10 keys": many_ms / few_ms,
    }
    met = figures["open, s"] <= 3 and figures["more memory, MB"] <= 60 and many_ms <= 2 * few_ms
    title = f"{keys:,} active keys on a shard: open, memory, dequeue p99"
    return Outcome(8, title, "<= 3 s; <= 60 MB; <= 2 x that with 10 keys", met, figures)


def _opened(stage: Stage, topic: str, keys: int, items: int) -> tuple[float, int, float]:
    """Return (p99 of a dequeue of ten items in ms, memory after the start, time of the start in s)."""
    stage.fill(ItemSpec(topic, b"x" * 64, fairness_key=f"k{n % keys}") for n in range(items))
    name, host = next(iter(stage.hosts.items()))
    host.stop()
    began = time.monotonic()
    host.start()
    stage.cluster.settled()
    took_s = time.monotonic() - began
    rss_bytes = stage.rss_bytes(name)
    took_ms = []
    for _ in range(min(_FULL_MS, items // 20)):
        asked = time.monotonic()
        stage.client.dequeue(topic, 10, wait_ms=2_000, lease_ms=LEASE_MS)
        took_ms.append(1_000 * (time.monotonic() - asked))
    took_ms.sort()
    return took_ms[int(0.99 * (len(took_ms) - 1))], rss_bytes, took_s


def take_over(stage: Stage) -> Outcome:
    """The owner of two shards is killed. All tenants of the topic have items there."""
    keys = stage.size(10_000, 500)
    victim, *others = stage.hosts
    stage.fill(ItemSpec("left", b"x" * 64, fairness_key=f"k{n}") for n in range(2 * keys))
    stage.hosts[victim].kill()
    killed_s = time.monotonic()
    stage.cluster.settled(*others)
    served_s = time.monotonic() - killed_s
    while not stage.clients[1].dequeue("left", 10, wait_ms=500, lease_ms=LEASE_MS):
        if time.monotonic() - killed_s > _QUIET_S:
            raise RuntimeError("no item was delivered after the take-over")
    first_s = time.monotonic() - killed_s
    beyond_s = served_s - SESSION_MS / 1_000
    figures = {"served, s beyond the session": beyond_s, "first item, s beyond it": first_s - SESSION_MS / 1_000}
    title = f"take-over of two shards with some {keys:,} active keys each"
    return Outcome(8, title, "session time-out + 1 s", beyond_s <= 1, figures)


def cost_of_tenants(stage: Stage) -> Outcome:
    """Processor time of the host for full cycles of plain items, of 3 and of 10,000 tenants, interleaved. Items of a
    tenant come up to 100 at a time, and every tenant has some."""
    items, rounds = stage.size(40_000, 2_000), stage.size(11, 3)
    kinds = {"plain": 0, "3 tenants": 3, "10,000 tenants": stage.size(10_000, 500)}
    cost: dict[str, list[float]] = {kind: [] for kind in kinds}
    name = next(iter(stage.hosts))
    for number in range(rounds):
        for kind, tenants in kinds.items():
            topic, run = f"cost-{tenants}-{number}", min(_RUN, items // max(1, tenants))
            used = stage.processor_s(name)
            stage.fill(
                ItemSpec(topic, b"x" * 256, fairness_key=f"t{at // run % tenants}" if tenants else None)
                for at in range(items)
            )
            if sum(1 for _ in deliveries(stage.client, topic, 100)) != items:
                raise RuntimeError("items were not delivered")
            cost[kind].append(stage.processor_s(name) - used)
    ratios = {
        f"plain over {kind}": median(plain / own for plain, own in zip(cost["plain"], cost[kind], strict=True))
        for kind in kinds
        if kinds[kind]
    }
    met = ratios["plain over 3 tenants"] >= 0.9 and ratios["plain over 10,000 tenants"] >= 0.75
    title = "processor time of the host for a cycle: plain over tenants"
    return Outcome(9, title, ">= 0.90 with 3, >= 0.75 with 10,000", met, ratios)
