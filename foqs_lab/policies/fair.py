"""Scenarios of fair sharing: shares by weight, newcomers, changes of weight, the two scopes, and very many tenants."""

from __future__ import annotations

import json
import random
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import count, islice, pairwise
from statistics import median

from foqs.client.items import Item, ItemSpec
from foqs_lab.policies.stage import LEASE_MS, SESSION_MS, Consumers, Delivered, Outcome, Stage, deliveries

_WEIGHTS = {"one": 1, "two": 2, "four": 4}
_DUE = {tenant: weight / sum(_WEIGHTS.values()) for tenant, weight in _WEIGHTS.items()}
_WINDOW = 1_000
_SETTLE_S, _LOOK_S = 10.0, 10.0


def of_tenant(topic: str, tenant: str, items: int, weight: int | None = None) -> Iterator[ItemSpec]:
    return (ItemSpec(topic, b"x" * 64, fairness_key=tenant, weight=weight) for _ in range(items))


def _weighed(topic: str, items: int) -> Iterator[ItemSpec]:
    """Items of the three tenants, a tenth of each after the other."""
    for _ in range(10):
        for tenant, weight in _WEIGHTS.items():
            yield from of_tenant(topic, tenant, items // 10, weight=weight)


def farthest(tenants: Sequence[str]) -> float:
    """Return how far the share of a tenant in `tenants` is from its due, at most."""
    shares = Counter(tenants)
    return max(abs(shares[tenant] / len(tenants) - due) for tenant, due in _DUE.items())


def shares_on_one_host(stage: Stage) -> Outcome:
    items = stage.size(50_000, 5_000)
    stage.fill(_weighed("shares", items))
    both = int(items / _DUE["four"])  # until the tenant of weight 4 has no item left
    order = [item.fairness_key for item in islice(deliveries(stage.client, "shares", 100), both // _WINDOW * _WINDOW)]
    parts = [order[at : at + _WINDOW] for at in range(0, len(order), _WINDOW)]
    off = max(farthest(part) for part in parts)
    title = "weights 1:2:4 on one host: shares in every 1,000 deliveries"
    return Outcome(1, title, "within 1 %", off <= 0.01, {"farthest from the due share": off, "windows": len(parts)})


def shares_on_three_hosts(stage: Stage) -> Outcome:
    items = stage.size(120_000, 60_000)
    for client in stage.clients:
        for tenant in ("two", "four"):
            stage.fill(of_tenant("spread", tenant, items // 3, weight=_WEIGHTS[tenant]), client)
    stage.fill(of_tenant("spread", "one", items // 3, weight=1), stage.clients[0])
    with Consumers(stage.clients, "spread", 20, pace_s=0.02) as consumers:
        time.sleep(_SETTLE_S + _LOOK_S)
        until_s = time.monotonic()
    looked = [one.item.fairness_key for one in consumers.between(until_s - _LOOK_S, until_s)]
    off = farthest(looked)
    figures = {"farthest from the due share": off, "deliveries": len(looked)}
    title = "weights 1:2:4 on three hosts, the lightest tenant stored on one: shares after 10 s"
    return Outcome(2, title, "within 5 %", off <= 0.05, figures)


def late_item(stage: Stage) -> Outcome:
    stage.fill(of_tenant("late", "crowd", stage.size(1_000_000, 10_000)))
    waits = []
    for at in range(stage.size(200, 20)):
        stage.client.dequeue("late", 10, wait_ms=2_000)
        stage.client.enqueue("late", b"x", fairness_key=f"one-{at}")
        waits.append(_place_of(f"one-{at}", (_one(stage) for _ in range(1_000))))
    title = "a backlog of one tenant, and one item of another: deliveries before it"
    return Outcome(3, title, "at most 1", max(waits) <= 1, {"most": max(waits), "items": len(waits)})


def _one(stage: Stage) -> Item:
    return stage.client.dequeue("late", 1, wait_ms=2_000)[0]


def _place_of(tenant: str, items: Iterator[Item]) -> int:
    return next(at for at, item in zip(count(), items, strict=False) if item.fairness_key == tenant)


def late_item_on_three_hosts(stage: Stage) -> Outcome:
    batch = 10
    for client in stage.clients:
        stage.fill(of_tenant("late", "crowd", stage.size(60_000, 10_000)), client)
    overtaking = []
    with Consumers(stage.clients, "late", batch, pace_s=0.02) as consumers:
        for at in range(stage.size(200, 20)):
            tenant = f"one-{at}"
            stage.clients[at % len(stage.clients)].enqueue("late", b"x", fairness_key=tenant)
            stored_s = time.monotonic()
            got = _wait_for(consumers, tenant)
            overtaking.append(sum(stored_s <= one.at_s < got.at_s for one in list(consumers.delivered)))
    overtaking.sort()
    p99, bar = overtaking[int(0.99 * (len(overtaking) - 1))], 2 * batch * len(stage.clients)
    title = "the same on three hosts: deliveries of all hosts before it"
    return Outcome(3, title, f"p99 at most {bar}", p99 <= bar, {"p99": p99, "most": overtaking[-1]})


def _wait_for(consumers: Consumers, tenant: str) -> Delivered:
    looked, until_s = 0, time.monotonic() + 30
    while time.monotonic() < until_s:
        new = consumers.delivered[looked:]
        for one in new:
            if one.item.fairness_key == tenant:
                return one
        looked += len(new)
        time.sleep(0.001)
    raise TimeoutError(f"the item of {tenant} was not delivered")


def newcomers(stage: Stage) -> Outcome:
    rng = random.Random(1)
    noisy = stage.size(1_000, 100)
    weights = {f"noisy-{n}": rng.choice((1, 10, 100)) for n in range(noisy)}
    stage.fill(
        ItemSpec("new", b"x", fairness_key=tenant, weight=weight)
        for _ in range(100)
        for tenant, weight in weights.items()
    )
    order = deliveries(stage.client, "new", 1)
    list(islice(order, 3 * noisy))  # no noisy tenant is new after that
    stage.fill([ItemSpec("new", b"x", fairness_key="new-0")])
    first = _place_of("new-0", order) + 1
    stage.fill([ItemSpec("new", b"x", fairness_key=f"ten-{n}") for n in range(10)])
    ten = max(at for at, item in enumerate(islice(order, 40), 1) if item.fairness_key.startswith("ten-"))
    flood = stage.size(1_000, 100)
    stage.fill([ItemSpec("new", b"x", fairness_key=f"flood-{n}") for n in range(flood)])
    during = [item.fairness_key.startswith("noisy-") for item in islice(order, flood)]
    figures = {"one new": first, "ten new": ten, "share of the noisy in a flood": sum(during) / len(during)}
    met = first <= 2 and ten <= 20 and figures["share of the noisy in a flood"] >= 0.5
    title = f"{noisy:,} noisy tenants with weights up to 100: deliveries until new tenants are served"
    return Outcome(4, title, "at most 2; at most 20; noisy ones keep half", met, figures)


def change_of_weight(stage: Stage) -> Outcome:
    for tenant in ("a", "b"):
        stage.fill(of_tenant("change", tenant, stage.size(20_000, 4_000)))
    order = deliveries(stage.client, "change", 10)
    list(islice(order, 1_000))
    stage.settings({"weight.a": "10"})
    list(islice(order, 10))  # a batch that was leased before
    share = sum(item.fairness_key == "a" for item in islice(order, 99)) / 99
    title = "weight 1 -> 10 while running: the share in the next 100 deliveries"
    return Outcome(5, title, "10/11 within 2 %", abs(share - 10 / 11) <= 0.02, {"share": share, "due": 10 / 11})


def scopes(stage: Stage) -> Outcome:
    items, rng = stage.size(10_000, 1_000), random.Random(2)
    stage.settings({"topic.scope-topic": json.dumps({"fair": {"scope": "topic"}})})
    inversions = {}
    for scope in ("tenant", "topic"):
        topic = f"scope-{scope}"
        stage.fill(
            ItemSpec(topic, b"x", priority=rng.randrange(20), fairness_key=f"t{rng.randrange(7)}") for _ in range(items)
        )
        order = list(deliveries(stage.client, topic, 20))
        groups: dict[str, list[int]] = {}
        for item in order:
            groups.setdefault(item.fairness_key if scope == "tenant" else "", []).append(item.priority)
        inversions[scope] = sum(later < earlier for one in groups.values() for earlier, later in pairwise(one))
        if len(order) != items:
            raise RuntimeError(f"{len(order)} of {items} items were delivered")
    title = f"order by priority in {items:,} deliveries: inside a tenant, and with scope topic over all"
    figures = {f"inversions, scope {scope}": number for scope, number in inversions.items()}
    return Outcome(6, title, "0", not any(inversions.values()), figures)


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
