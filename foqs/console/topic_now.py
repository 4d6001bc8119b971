"""What a topic does now, as the pages of the topic and of its push targets show it (topic_now.html)."""

from __future__ import annotations

import asyncio
from typing import Any

from foqs.client import Explanation, Reason, TopicStats
from foqs.console.reasons import Shown, links, ready_words, shown
from foqs.console.view import View

_STOPS = frozenset({
    Reason.SHARD_NOT_SERVED, Reason.CLOCK_IN_DOUBT, Reason.OWNER_IN_GRACE, Reason.BREAKER_OPEN, Reason.PAUSED,
})  # fmt: skip
"""Reasons that hold all items of a topic. A throttle, for example, lets some of them pass."""


async def topic_now(view: View, topic: str, tenants: int) -> dict[str, Any]:
    """Return the values of the template, with the stats of this many tenants: items by state, what holds them, and what
    fails. What the user has no right to is left out."""
    stats, failing, explained = await asyncio.gather(
        view.client.topic_stats(topic, tenants=tenants),
        view.allowed(view.client.failing(topic)),
        view.allowed(view.client.explain_topic(topic)),
    )
    return {
        "topic": topic, "stats": stats, "failing": failing, "unknown": None,
        "ready": ready_words(stats.ready, stats.ready_paused, stats.ready_throttled),
        **_holding(view, topic, stats, explained),
    }  # fmt: skip


def _holding(view: View, topic: str, stats: TopicStats, explained: Explanation | None) -> dict[str, Any]:
    """Return the reasons why items wait, with a heading that is true of them."""
    if explained is None:
        return {"holding": []}
    reasons = [one for one in explained.reasons if one.code != Reason.GONE or one.key]
    codes = {one.code for one in reasons}
    stops = codes & _STOPS and codes <= _STOPS | {Reason.NO_CONSUMER} and stats.ready and not stats.leased
    groups = [
        Shown(one.text, links(view, one.code, one.key, topic))
        for one in explained.tenants
        if one.code != Reason.PAUSED or Reason.PAUSED not in codes
    ]
    return {
        "holding": [*shown(view, explained._replace(reasons=tuple(reasons)), topic), *groups],
        "heading": "Why no item is delivered" if stops else "What holds items back",
    }
