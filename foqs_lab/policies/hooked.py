"""Scenarios of hooks: scripts that misbehave hold up no other topic, and a script that behaves costs little."""

from __future__ import annotations

import json
import math
import re
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from statistics import median
from typing import NamedTuple
from urllib.request import urlopen

from foqs.client import Client
from foqs.client.items import ItemSpec
from foqs.errors import Unavailable
from foqs_lab.policies.stage import LEASE_MS, Outcome, Stage

ZOO = {
    "loop": "function on_enqueue(item) while true do end end",
    "caught loop": "function on_enqueue(item) while true do pcall(function() while true do end end) end end",
    "pattern": "local text = string.rep('a', 30) .. 'b'\n"
    "function on_enqueue(item) return string.find(text, '.-.-.-.-.-.-c') end",
    "long text": "function on_enqueue(item) return {refuse = string.rep('x', 1 << 30)} end",
    "large table": "function on_enqueue(item) local t = {} for at = 1, 1e9 do t[at] = at end end",
    "recursion": "local function deeper(n) return 1 + deeper(n + 1) end\nfunction on_enqueue(item) deeper(1) end",
    "error": "function on_enqueue(item) error({}) end",
    "large result": "function on_enqueue(item) return {fairness_key = string.rep('x', 500000)} end",
    "no table": "function on_enqueue(item) return 1 end",
}
"""Scripts by what they do wrong."""
GOOD = "function on_enqueue(item) return {fairness_key = 'good'} end"
TWO_LINES = """function on_enqueue(item)
  local customer = item.headers.customer or ""
  return {fairness_key = customer, weight = foqs.get("plans/" .. customer) == "gold" and 4 or 1}
end"""
_OPEN_S, _MARGIN_S = 10.0, 1.0
_PACE_S, _BAD_PACE_S = 0.01, 0.25
_LAG = re.compile(r'^foqs_event_loop_lag_seconds_bucket\{.*le="([^"]+)"\} (\S+)$', re.MULTILINE)
_BATCH, _CUSTOMERS, _PRODUCERS = 100, 20, 4


def misbehaving(stage: Stage) -> Outcome:
    look_s, client = stage.seconds(30, 4), stage.client
    entries = {f"script.{name}": source for name, source in ZOO.items()}
    hooks = {name: {"on_enqueue": name, "when_broken": "default"} for name in ZOO}
    stage.settings(entries | {f"topic.{name}": json.dumps({"hooks": hook}) for name, hook in hooks.items()})
    alone_ms = _latency_ms(client, look_s, lambda: None)
    before = _lag(stage)
    failures: dict[str, int] = {}

    def note() -> None:
        for name in ZOO.keys() - failures.keys():
            (hook,) = client.topic_stats(name).hooks
            if hook.breaker_open:
                failures[name] = hook.failures

    with _producers(stage, list(ZOO)):
        beside_ms = _latency_ms(client, look_s, note)
    lag_ms = 1_000 * quantile(_lag(stage), before, 0.99)
    figures = {
        "loop lag p99, ms": lag_ms,
        "plain p99, ms": beside_ms,
        "over alone": beside_ms / alone_ms,
        "failures until the breakers opened": max(failures.values(), default=0),
        "closed breakers": len(ZOO) - len(failures),
        "back after, s": _back_after_s(stage, "loop"),
    }
    met = lag_ms < 20 and figures["over alone"] <= 1.5 and figures["back after, s"] <= _OPEN_S + _MARGIN_S
    met = met and set(failures.values()) == {3} and not figures["closed breakers"]
    title = f"{len(ZOO)} misbehaving scripts next to a plain topic"
    bar = "lag p99 < 20 ms, plain p99 <= 1.5 x, breaker after 3 failures, back after 10 s"
    return Outcome(19, title, bar, met, figures)


def _latency_ms(client: Client, look_s: float, between: Callable[[], None]) -> float:
    """Return the 99th percentile of enqueue, dequeue and ack of one item of a plain topic."""
    times: list[float] = []
    until_s = time.monotonic() + look_s
    next_look_s = time.monotonic() + 1
    while time.monotonic() < until_s:
        began_s = time.monotonic()
        client.enqueue("plain", b"x" * 64)
        for item in client.dequeue("plain", lease_ms=LEASE_MS, wait_ms=1_000):
            client.ack(item)
        times.append(time.monotonic() - began_s)
        if time.monotonic() >= next_look_s:
            between()
            next_look_s += 1
        time.sleep(max(0.0, began_s + _PACE_S - time.monotonic()))
    return 1_000 * sorted(times)[math.ceil(0.99 * len(times)) - 1]


@contextmanager
def _producers(stage: Stage, topics: Sequence[str]) -> Iterator[None]:
    """Enqueue an item into each topic every `_BAD_PACE_S` seconds, until the context ends."""
    stop = threading.Event()

    def run() -> None:
        while not stop.wait(_BAD_PACE_S):
            stage.client.enqueue_many([ItemSpec(topic, b"x") for topic in topics])

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


def _back_after_s(stage: Stage, topic: str) -> float:
    """Return the time from the last opening of a topic's breaker until its script, which was corrected, sets fields
    again."""
    client = stage.client
    while True:
        (hook,) = client.topic_stats(topic).hooks
        if hook.retry_after_ms > _OPEN_S * 900:
            break
        client.enqueue(topic, b"x")
        time.sleep(_PACE_S)
    opened_s = time.monotonic() - _OPEN_S + hook.retry_after_ms / 1_000
    stage.settings({f"script.{topic}": GOOD})
    while (hook := client.topic_stats(topic).hooks[0]).breaker_open:
        client.enqueue(topic, b"x")
        time.sleep(_PACE_S)
    return time.monotonic() - opened_s


def _lag(stage: Stage) -> list[tuple[float, float]]:
    """Return (bound, number of measurements up to it) of the host's event loop."""
    host = next(iter(stage.hosts.values()))
    with urlopen(f"http://127.0.0.1:{host.admin_port}/metrics", timeout=30) as answer:
        text = answer.read().decode()
    return [(math.inf if bound == "+Inf" else float(bound), float(count)) for bound, count in _LAG.findall(text)]


def quantile(after: Sequence[tuple[float, float]], before: Sequence[tuple[float, float]], share: float) -> float:
    """Return a quantile of the measurements between two readings of a histogram, interpolated inside its bucket."""
    counts = [(bound, count - old) for (bound, count), (_, old) in zip(after, before, strict=True)]
    wanted, low, below = share * counts[-1][1], 0.0, 0.0
    for bound, count in counts:
        if count >= wanted:
            if math.isinf(bound) or count == below:
                return low
            return low + (bound - low) * (wanted - below) / (count - below)
        low, below = bound, count
    return low


def cost_of_a_hook(stage: Stage) -> Outcome:
    """Tenants cost something of their own: `unhooked` items have the same fields from their producers."""
    rounds, look_s = stage.size(5, 1), stage.seconds(10, 3)
    hook = json.dumps({"hooks": {"on_enqueue": "route"}})
    stage.settings({"script.route": TWO_LINES, "topic.hooked": hook, "plans/c1": "gold"})
    kinds = {"plain": _items("plain"), "unhooked": _items("unhooked", tenants=True), "hooked": _items("hooked")}
    for specs in kinds.values():
        _rate(stage, specs, 1.0)  # the processes start
    found: dict[str, list[Rate]] = {kind: [] for kind in kinds}
    for _ in range(rounds):
        for kind, specs in kinds.items():
            found[kind].append(_rate(stage, specs, look_s))
    (counts,) = stage.client.topic_stats("hooked").hooks
    plain, unhooked, hooked = (found[kind] for kind in kinds)
    figures = {
        "with over without": _over(hooked, plain),
        "with over the same fields without": _over(hooked, unhooked),
        "items a second without": median(one.a_second for one in plain),
        "items a second with": median(one.a_second for one in hooked),
        "host's us an item without": median(one.host_us for one in plain),
        "host's us an item with": median(one.host_us for one in hooked),
        "failed calls": counts.failures,
    }
    met = figures["with over without"] >= 0.5 and not counts.failures
    title = f"enqueue rate with a two-line hook, batches of {_BATCH}"
    return Outcome(20, title, ">= 0.5 of the rate without", met, figures)


def _items(topic: str, *, tenants: bool = False) -> list[ItemSpec]:
    """Return a batch; with `tenants`, the items have the fields that the hook would set."""
    specs = [ItemSpec(topic, b"x" * 64, headers={"customer": f"c{n % _CUSTOMERS}"}) for n in range(_BATCH)]
    for n, spec in enumerate(specs if tenants else ()):
        spec.fairness_key, spec.weight = f"c{n % _CUSTOMERS}", 4 if n % _CUSTOMERS == 1 else 1
    return specs


def _over(some: Sequence[Rate], than: Sequence[Rate]) -> float:
    return median(one.a_second / other.a_second for one, other in zip(some, than, strict=True))


class Rate(NamedTuple):
    """Items that were stored a second, and the host's processor time for each."""

    a_second: float
    host_us: float


def _rate(stage: Stage, specs: list[ItemSpec], look_s: float) -> Rate:
    """Return the rate at which `_PRODUCERS` threads store items, which are removed afterwards."""
    (name,) = stage.hosts
    client, stored = stage.client, [0] * _PRODUCERS
    until_s = time.monotonic() + look_s

    def run(at: int) -> None:
        while time.monotonic() < until_s:
            for outcome in client.enqueue_many(specs):
                if not isinstance(outcome, int):
                    raise outcome
            stored[at] += _BATCH

    threads = [threading.Thread(target=run, args=(at,)) for at in range(_PRODUCERS)]
    began_s, used_s = time.monotonic(), stage.processor_s(name)
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    took_s, used_s = time.monotonic() - began_s, stage.processor_s(name) - used_s
    while items := client.dequeue(specs[0].topic, 1_000, lease_ms=LEASE_MS):
        client.ack_many(items)
    if not sum(stored):
        raise Unavailable("no item was stored")
    return Rate(sum(stored) / took_s, 1e6 * used_s / sum(stored))
