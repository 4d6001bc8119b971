"""The topics of a namespace, and one topic."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from hashlib import sha256
from itertools import islice
from secrets import token_hex
from typing import Any, NamedTuple

from foqs.checks import printable
from foqs.client import ActiveTopic, Duplicate, Reason, TenantStats, TopicStats
from foqs.console.action import Action, Done, Form
from foqs.console.fields import whole
from foqs.console.item_query import STATES
from foqs.console.reasons import Link, links
from foqs.console.topic_now import topic_now
from foqs.console.view import Page, View

PAGE_TOPICS = 200
MOST_SORTED = 10_000
"""Topics that are looked at for an order, or for a part of a name."""
_A_REQUEST = 1_000
"""A host encodes this number of topics in some milliseconds."""
_TENANTS = 50
_NEAR_OF = 500
"""Topics, and entries of the settings, whose names are compared with a name that may be a mistake."""
_NEAR = 3
_SAMPLE = 10
ORDERS = {
    "name": "by name",
    "ready": "most ready items first",
    "oldest": "oldest ready item first",
    "leased": "most leased items first",
    "delayed": "most delayed items first",
    "failed": "most failed attempts first",
    "delivered": "most deliveries first",
}


async def load(view: View) -> Mapping[str, Any]:
    order, part = view.asked("order") or "name", view.asked("part")
    if order == "name" and not part:
        page = await view.client.topics_page(
            all_states=True, rates=True, page_topics=PAGE_TOPICS, cursor=view.asked("cursor") or None
        )
        topics, cursor, looked_at = list(page.topics), page.cursor, None
    else:
        topics, more = await _all(view)
        looked_at = f"{len(topics):,}" if more else None
        topics = [one for one in topics if part.lower() in one.topic.lower()]
        topics.sort(key=_KEYS.get(order, _KEYS["name"]))
        topics, cursor = topics[:PAGE_TOPICS], None
    found = await view.allowed(view.client.consumers())
    consumers = (
        None if found is None or found.more else Counter([name for one in found.consumers for name in one.topics])
    )
    return {
        "topics": topics, "cursor": cursor, "order": order, "orders": ORDERS, "part": part, "looked_at": looked_at,
        "is_first": not view.asked("cursor"), "consumers": consumers,
    }  # fmt: skip


_KEYS: dict[str, Any] = {
    "name": lambda one: one.topic,
    "ready": lambda one: -one.ready,
    "oldest": lambda one: one.oldest_ready_at_ms or 1 << 62,
    "leased": lambda one: -(one.leased or 0),
    "delayed": lambda one: -(one.delayed or 0),
    "failed": lambda one: -(one.failed_minute or 0),
    "delivered": lambda one: -(one.delivered_minute or 0),
}


async def _all(view: View) -> tuple[list[ActiveTopic], bool]:
    """Return the first topics of the namespace, and if there are more."""
    topics: list[ActiveTopic] = []
    cursor = None
    while len(topics) < MOST_SORTED:
        page = await view.client.topics_page(all_states=True, rates=True, page_topics=_A_REQUEST, cursor=cursor)
        topics += page.topics
        cursor = page.cursor
        if cursor is None:
            break
    return topics, cursor is not None


async def load_one(view: View) -> Mapping[str, Any]:
    topic = view.named("topic")
    now, sample = await asyncio.gather(topic_now(view, topic, _TENANTS), view.allowed(_sample(view, topic)))
    stats: TopicStats = now["stats"]
    own = f"topic.{topic}"
    policy = [
        (field, json.dumps(value, ensure_ascii=False), stats.policy_layers.get(field), stats.overruled.get(field))
        for field, value in sorted(stats.policy.items())
    ]
    return {
        **now, "sample": sample, "policy": policy,
        "own_policy": own if own in stats.policy_layers.values() else "", "states": STATES, "once": token_hex(8),
        "tenants": [_tenant(view, stats, one) for one in stats.tenants],
        "more_held": stats.more_tenants and (stats.more_tenants.ready if stats.paused else stats.more_tenants.parked),
        "unknown": await _unknown(view, topic, stats),
    }  # fmt: skip


def _tenant(view: View, stats: TopicStats, one: TenantStats) -> tuple[TenantStats, int, str, tuple[Link, ...]]:
    """Return a tenant, its ready items that are held back, and what they wait for, in words and with a link."""
    if stats.paused or one.paused:
        return one, one.ready, "the end of the topic's pause" if stats.paused else "the end of its pause", ()
    found = links(view, Reason.THROTTLED, one.waits_for, "") if one.waits_for else ()
    return one, one.parked, "", found


class Unknown(NamedTuple):
    """A topic of which the service has nothing. `near`: topics with similar names. `unasked`: no consumer asked for it
    lately, as far as the user may know."""

    near: Sequence[str]
    unasked: bool


async def _unknown(view: View, topic: str, stats: TopicStats) -> Unknown | None:
    """Return None for a topic that has items, settings of its own, or traffic, and if a host did not answer."""
    items = stats.ready or stats.delayed or stats.leased or stats.behind or stats.completed or stats.failed
    named = (
        stats.overruled or f"topic.{topic}" in stats.policy_layers.values()
    )  # it takes dead letters, or has an entry
    if items or named or stats.workers or stats.attempts_failed_hour or stats.missing:
        return None
    consumers, page, settings = await asyncio.gather(
        view.allowed(view.client.consumers(topic)),
        view.client.topics_page(all_states=True, page_topics=_NEAR_OF),
        view.allowed(view.client.settings("topic.")),
    )
    if consumers is not None and consumers.consumers:
        return None
    listed = [one.topic for one in page.topics]
    entries = () if settings is None else settings.entries
    configured = [key.removeprefix("topic.") for key in islice(entries, _NEAR_OF) if not key.endswith("*")]
    near = get_close_matches(topic, dict.fromkeys([*listed, *configured]), n=_NEAR)
    return Unknown(near, consumers is not None)


async def _sample(view: View, topic: str) -> list[Any]:
    return [item async for item in _first(view.client.list_items(topic, page_items=_SAMPLE), _SAMPLE)]


async def _first(found: Any, most: int) -> Any:
    count = 0
    async for one in found:
        yield one
        count += 1
        if count == most:
            return


async def _pause(view: View, form: Form) -> Done:
    return await _switch(view, form, "paused", "paused: no item of it is delivered", "delivered again")


async def _close(view: View, form: Form) -> Done:
    return await _switch(view, form, "closed", "closed: it takes no items", "open again: it takes items")


async def _switch(view: View, form: Form, field: str, on: str, off: str) -> Done:
    topic, wanted = form.get("topic", ""), form.get("to") == "on"
    change = await view.client.set_policy(topic, {field: wanted})  # type: ignore[misc]
    assert change is not None, "it has a field"
    missing = f" Hosts that did not confirm it: {', '.join(change.missing)}." if change.missing else ""
    return Done(f"Topic {printable(topic)} is {on if wanted else off}.{missing}", well=not change.missing)


async def _enqueue(view: View, form: Form) -> Done:
    topic, tenant = form.get("topic", ""), form.get("fairness_key", "")
    digest = sha256(json.dumps(sorted(form.items())).encode()).hexdigest()
    item_id = await view.client.enqueue(
        topic,
        form.get("payload", "").replace("\r\n", "\n").encode(),
        priority=whole("Priority", form.get("priority", "")),
        delay_ms=1_000 * whole("Delay", form.get("delay_s", "")),
        fairness_key=tenant or None,
        dedup_key=f"console/{digest[:24]}" if form.get("once") else None,
    )
    links = [(f"item {item_id}", view.url(f"/items/{item_id}"))]
    if isinstance(item_id, Duplicate):
        return Done(f"The form was sent twice: an item was stored in topic {printable(topic)} once:", links=links)
    return Done(f"An item is stored in topic {printable(topic)}:", links=links)


PAGE = Page("/topics", "Topics", "topics.html", load, key="t")
ONE = Page("/topics/{topic:path}", "Topic", "topic.html", load_one, home="/topics")
ACTIONS = (Action("/topics/pause", _pause), Action("/topics/close", _close), Action("/topics/enqueue", _enqueue))
