"""Scenarios of fair sharing: shares by weight, newcomers, changes of weight, and the two scopes."""

from __future__ import annotations

import json
import random
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import count, islice, pairwise

from foqs.client.items import Item, ItemSpec
from foqs_lab.policies.stage import Consumers, Delivered, Outcome, Stage, deliveries

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
    list(islice(order, 3 * noisy))  # no noisy tenant is new any more
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
