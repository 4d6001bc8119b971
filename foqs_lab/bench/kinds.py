"""What measured items have: nothing more, or a feature of items, or several together."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from enum import StrEnum
from typing import Any

from foqs.idl import idl
from foqs.policies.settings import Settings

_SCRIPT = """function on_enqueue(item)
  return {fairness_key = item.headers.kind, priority = 1}
end"""
SETTINGS = Settings(
    "bench",
    1,
    {
        "throttle.fast": '{"per_second": 100000000, "burst": 100000000}',
        "script.route": _SCRIPT,
        "topic.hooked*": '{"hooks": {"on_enqueue": "route"}}',
    },
)


def keeping(for_ms: int) -> dict[str, str]:
    """Return the entry of the settings with which topics keep items of `Kind.KEPT`."""
    return {"topic.kept*": f'{{"keep": {{"completed_ms": {for_ms}, "most": 10000000}}}}'}


EVENTS = {"topic.told*": '{"on_end_topic": "ends"}'}
"""The entry of the settings for items of `Kind.EVENTS`."""


class Kind(StrEnum):
    """What the items have."""

    PLAIN = "plain"
    TENANTS = "tenants"
    MANY_TENANTS = "many-tenants"
    THROTTLE = "throttle"
    HEADERS = "headers"
    DEDUP = "dedup"
    HOOK = "hook"
    KEPT = "kept"
    EVENTS = "events"  # an end event for each
    ONE_RULE = "one-rule"
    RULES = "rules"
    ORDERED = "ordered"
    AT_MOST_ONCE = "at-most-once"
    BATCH = "batch"  # all of a request in one of 100 batches
    BATCHES = "batches"  # each of a request in another one
    TOGETHER = "together"


_OPTIONS: Mapping[Kind, Callable[[int], dict[str, Any]]] = {
    Kind.PLAIN: lambda _: {},
    Kind.TENANTS: lambda at: {"fairness_key": f"tenant-{at % 3}"},
    Kind.MANY_TENANTS: lambda at: {"fairness_key": f"tenant-{at % 10_000}"},
    Kind.THROTTLE: lambda _: {"throttle_keys": ["fast"]},
    Kind.HEADERS: lambda _: {"headers": {"trace": "0123456789abcdef", "kind": "mail"}},
    Kind.DEDUP: lambda at: {"dedup_key": f"{at:032x}"},
    Kind.HOOK: lambda _: {"headers": {"trace": "0123456789abcdef", "kind": "mail"}},
    Kind.KEPT: lambda _: {},
    Kind.EVENTS: lambda _: {},
    Kind.BATCH: lambda _: {},  # `Load.batches` has the ids
    Kind.BATCHES: lambda _: {},
    Kind.ONE_RULE: lambda _: {"rules": idl.ItemRules(max_attempts=1)},
    Kind.ORDERED: lambda at: {"order_key": f"order-{at % 100_000}"},
    Kind.AT_MOST_ONCE: lambda _: {"delivery": idl.Delivery.AT_MOST_ONCE},
    Kind.RULES: lambda at: {"rules": idl.ItemRules(max_attempts=1 + at % 20)},
}
_TOPICS = {Kind.HOOK: "hooked", Kind.KEPT: "kept", Kind.EVENTS: "told"}


def options_of(kind: Kind, at: int) -> dict[str, Any]:
    """Return the options of an item. The key of a throttle that never waits is `fast`."""
    together = (Kind.TENANTS, Kind.THROTTLE, Kind.HEADERS, Kind.DEDUP)
    parts = together if kind is Kind.TOGETHER else (kind,)
    return {name: value for part in parts for name, value in _OPTIONS[part](at).items()}


def topic_of(kind: Kind, number: int = 0) -> str:
    """Return a topic for items of that kind."""
    return f"{_TOPICS.get(kind, 'topic')}-{number}"
