"""Scenarios of throttles: rates hold over all hosts and kills, and hold back only the items that have their keys."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from itertools import pairwise

from foqs.client.items import ItemSpec
from foqs.ids import digest_of, hash_slot_of
from foqs_lab.policies.stage import SESSION_MS, Consumers, Delivered, Outcome, Stage, exceeded_by

_NEW_S = 4.0


def keyed(topic: str, keys: Sequence[str], items: int) -> Iterator[ItemSpec]:
    return (ItemSpec(topic, b"x" * 64, throttle_keys=list(keys)) for _ in range(items))


def _put(stage: Stage, throttles: Mapping[str, str]) -> None:
    """Set throttles of new keys, and wait until they may give tokens: their coordinators are new, too, and grant
    nothing for 1.5 s."""
    stage.settings({f"throttle.{key}": value for key, value in throttles.items()})
    time.sleep(_NEW_S)


def _throttle(per_second: float, burst: int | None = None) -> str:
    return json.dumps({"per_second": per_second} | ({} if burst is None else {"burst": burst}))


def _with(delivered: Sequence[Delivered], key: str) -> list[Delivered]:
    return [one for one in delivered if key in (one.item.throttle_keys or ())]


def free_items(stage: Stage) -> Outcome:
    """The items of A come first in the order of the same tenant."""
    look_s, backlog = stage.seconds(30), stage.size(100_000, 5_000)
    free = stage.size(60_000, 10_000)
    alone = _rate_of_free(stage, "alone", free, look_s)
    _put(stage, {"a": _throttle(10, 20)})
    stage.fill(keyed("mixed", ["a"], backlog))
    stage.fill(keyed("mixed", [], free))
    with Consumers(stage.clients, "mixed", 10, pace_s=0.01) as consumers:
        began_s = time.monotonic()
        time.sleep(look_s)
        until_s = time.monotonic()
    seen = consumers.between(began_s, until_s)
    times = _with(seen, "a")
    free_times = [one.at_s for one in seen if not one.item.throttle_keys]
    took_s = until_s - began_s
    figures = {
        "B over B alone": len(free_times) / took_s / alone,
        "first B, ms": 1_000 * (free_times[0] - began_s),
        "A a second": len(times) / took_s,
        "A beyond burst and rate": exceeded_by(times, 10, 20),
    }
    met = figures["B over B alone"] >= 0.95 and figures["first B, ms"] <= 100
    met = met and figures["A beyond burst and rate"] <= 0 and len(times) >= 9.5 * took_s
    title = f"A at 10 a second with {backlog:,} items waiting, B without a throttle"
    return Outcome(10, title, "B >= 0.95 of alone, first B in 100 ms; A <= 20 + 10 t, >= 9.5 t", met, figures)


def _rate_of_free(stage: Stage, topic: str, items: int, look_s: float) -> float:
    stage.fill(keyed(topic, [], items))
    with Consumers(stage.clients, topic, 10, pace_s=0.01) as consumers:
        began_s = time.monotonic()
        time.sleep(look_s)
        until_s = time.monotonic()
    return len(consumers.between(began_s, until_s)) / (until_s - began_s)


def two_keys(stage: Stage) -> Outcome:
    look_s = stage.seconds(30)
    _put(stage, {"two-a": _throttle(100), "two-b": _throttle(10)})
    stage.fill(keyed("two", ["two-a", "two-b"], int(20 * look_s)))
    stage.fill(keyed("two", ["two-a"], int(200 * look_s)))
    stage.fill(keyed("two", ["two-b"], int(20 * look_s)))
    with Consumers(stage.clients, "two", 10, pace_s=0.01) as consumers:
        began_s = time.monotonic()
        time.sleep(look_s)
        until_s = time.monotonic()
    seen = consumers.between(began_s, until_s)
    a, b = _with(seen, "two-a"), _with(seen, "two-b")
    took_s = until_s - began_s
    both = [one.at_s for one in b if len(one.item.throttle_keys or ()) == 2]
    figures = {
        "both keys a second": len(both) / took_s,
        "longest wait for both, s": max(after - before for before, after in pairwise([began_s, *both, until_s])),
        "only-a over its 90 a second": (len(a) - len(both)) / took_s / 90,
        "beyond a rate": max(exceeded_by(a, 100, 100), exceeded_by(b, 10, 10)),
    }
    met = figures["only-a over its 90 a second"] >= 0.95 and figures["longest wait for both, s"] <= 3
    title = "keys {a 100/s, b 10/s} together with items with a alone, and with b alone"
    bar = "both <= 10/s, and one at least in any 3 s; only-a >= 0.95 x 90/s"
    return Outcome(11, title, bar, met and figures["beyond a rate"] <= 0, figures)


def crossed_keys(stage: Stage) -> Outcome:
    look_s = stage.seconds(60, 10)
    _put(stage, {"x-a": _throttle(1), "x-b": _throttle(1)})
    for client in stage.clients:
        stage.fill(keyed("crossed", ["x-a", "x-b"], int(look_s)), client)
        stage.fill(keyed("crossed", ["x-b", "x-a"], int(look_s)), client)
    with Consumers(stage.clients, "crossed", 10) as consumers:
        began_s = time.monotonic()
        time.sleep(look_s)
        until_s = time.monotonic()
    times = _with(consumers.between(began_s, until_s), "x-a")
    share = len(times) / (until_s - began_s)
    figures = {"of the rate": share, "beyond the rate": exceeded_by(times, 1, 1)}
    title = "three hosts, items with {a, b} and {b, a}, one token a second each"
    return Outcome(12, title, ">= 0.9 of the rate", share >= 0.9 and figures["beyond the rate"] <= 0, figures)


def killed_coordinator(stage: Stage) -> Outcome:
    rate, kills = 50.0, stage.size(20, 3)
    _put(stage, {"killed": _throttle(rate, 50)})
    recovered: list[float] = []
    times: list[Delivered] = []
    settle_s = SESSION_MS / 1_000 + 3
    for _ in range(kills):
        victim = _coordinator(stage, "killed")
        others = [client for name, client in zip(stage.hosts, stage.clients, strict=True) if name != victim]
        for client in others:
            stage.fill(keyed("killed", ["killed"], int(rate * (settle_s + 8))), client)
        with ExitStack() as stack:
            consumers = stack.enter_context(Consumers(others, "killed", 10))
            time.sleep(2)
            stage.hosts[victim].kill()
            killed_s = time.monotonic()
            time.sleep(settle_s + 3)
            until_s = time.monotonic()
        seen = _with(consumers.delivered, "killed")
        times += seen
        after = [one for one in seen if killed_s + settle_s <= one.at_s < until_s]
        recovered.append(len(after) / (until_s - killed_s - settle_s) / rate)
        stage.cluster.start(victim)
        stage.cluster.settled()
    figures = {"least of the rate after": min(recovered), "beyond the rate": exceeded_by(times, rate, 50)}
    met = min(recovered) >= 0.9 and figures["beyond the rate"] <= 0
    title = f"SIGKILL of the key's coordinator, {kills} times"
    return Outcome(13, title, "rate holds; >= 0.9 of it again within session + 3 s", met, figures)


def _coordinator(stage: Stage, key: str) -> str:
    facts = stage.cluster.settled()
    slot = hash_slot_of(digest_of(stage.client.namespace, f"\1{key}"))
    return facts.assignment.hosts[facts.slots.shards[slot]]


def many_keys(stage: Stage) -> Outcome:
    keys, look_s = stage.size(2_000, 200), stage.seconds(30, 8)
    _put(stage, {"many:*": _throttle(1)})
    per_key = int(look_s * 2) + 10
    for at, client in enumerate(stage.clients):
        own = [f"many:{n}" for n in range(at, keys, len(stage.clients))]
        stage.fill((ItemSpec("many", b"x", throttle_keys=[key]) for _ in range(per_key) for key in own), client)
    with Consumers(stage.clients, "many", 100, each=2, pace_s=0.02) as consumers:
        time.sleep(5)  # bursts are spent
        began_s, used = time.monotonic(), {name: stage.processor_s(name) for name in stage.hosts}
        time.sleep(look_s)
        until_s = time.monotonic()
        busy = max((stage.processor_s(name) - used[name]) / (until_s - began_s) for name in stage.hosts)
    seen = consumers.between(began_s, until_s)
    by_key: dict[str, list[Delivered]] = {}
    for one in consumers.delivered:
        by_key.setdefault(one.item.throttle_keys[0], []).append(one)
    figures = {
        "of the rate": len(seen) / (until_s - began_s) / keys,
        "busiest host's processor": busy,
        "keys beyond their rate": sum(exceeded_by(times, 1, 1) > 0 for times in by_key.values()),
    }
    met = figures["of the rate"] >= 0.95 and not figures["keys beyond their rate"]
    title = f"{keys:,} keys by a prefix rule at one a second, three hosts"
    return Outcome(14, title, ">= 0.95 of the rate", met, figures)
