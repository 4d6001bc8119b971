"""One order key of a topic: its items in their order, what the next one waits for, and its dead letters."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

from foqs.checks import printable
from foqs.client import Explanation, Item, ItemFilter, ItemPage, ItemState, Reason
from foqs.console.reasons import shown
from foqs.console.view import Page, View
from foqs.errors import NotFound
from foqs.ids import shard_of
from foqs.page.words import duration

MOST_ITEMS = 50
MOST_DEAD = 10
REFRESHED = 1_000
"""The most items that hosts look at for a page that refreshes itself."""
_STATES = (ItemState.LEASED, ItemState.READY, ItemState.DELAYED, ItemState.BEHIND)


class Row(NamedTuple):
    """`place`: among the items that are in the order, from 1; None for one that comes into it when it is due."""

    place: int | None
    item: Item
    words: str


async def load(view: View) -> Mapping[str, Any]:
    topic, key = (view.request.query_params.get(name) or "" for name in ("topic", "key"))
    if not (topic and key):
        raise NotFound("the address names no order key of a topic: the page of an item with one has a link to it")
    stats, *pages = await asyncio.gather(
        view.client.topic_stats(topic, tenants=1),
        *(_items(view, topic, ItemFilter(state, order_key=key)) for state in _STATES),
    )
    entry = stats.policy.get("dead")
    dead_topic = "" if entry is None else entry["topic"]
    skips = (stats.policy.get("order") or {}).get("on_failure") == "skip"
    values = {"topic": topic, "key": key, "stats": stats, "skips": skips, "dead_topic": dead_topic, "allowed": False}
    leased, ready, delayed, behind = pages
    if leased is None or ready is None or delayed is None or behind is None:
        return values
    ahead = [*leased.items, *ready.items, *_by_time(delayed.items, skips=skips)]
    (turn, explained), dead = await asyncio.gather(
        _next(view, ahead, behind.items), _dead(view, dead_topic, key) if dead_topic else _none()
    )
    in_order = {one.id: one for page in (leased, ready, behind) for one in page.items}
    if turn is not None and (turn.state != ItemState.DELAYED or (turn.attempt and not skips)):
        in_order = {turn.id: turn, **in_order}
    later = [one for one in delayed.items if one.id not in in_order]
    said = partial(_words, by=_holder(turn, explained), now_ms=view.now_ms)
    rows = [Row(place, one, said(one)) for place, one in enumerate(in_order.values(), 1)]
    rows += [Row(None, one, said(one)) for one in _by_time(later, skips=True)]
    found = [one for one in dead.items if one.failure is not None and one.failure.topic == topic]
    looked_at = sum(page.looked_at for page in (leased, ready, delayed, behind, dead))
    partly = any(page.cursor for page in (leased, ready, delayed))
    if not (rows or found or partly or dead.cursor):
        raise NotFound(
            f"topic {printable(topic)} of namespace {printable(view.ns)} has no item with the order key "
            f"{printable(key)}, and no dead letter: they have ended, or there never was one"
        )
    return values | {
        "allowed": True, "rows": rows, "turn": turn, "explained": explained,
        "reasons": [] if explained is None else shown(view, explained, topic),
        "shard": next((shard_of(row.item.id) for row in rows), None),
        "partly": partly, "more_behind": behind.cursor is not None,
        "dead": found, "more_dead": dead.cursor is not None,
        "looked_at": looked_at, "refreshes": looked_at <= REFRESHED,
    }  # fmt: skip


async def _items(view: View, topic: str, wanted: ItemFilter) -> ItemPage | None:
    """Return the first items, None if the user has no right to them."""
    return await view.allowed(view.client.search_items(topic, filter=wanted, page_items=MOST_ITEMS))


async def _dead(view: View, topic: str, key: str) -> ItemPage:
    wanted = ItemFilter(ItemState.READY, order_key=key)
    return await view.client.search_items(topic, filter=wanted, page_items=MOST_DEAD)


async def _none() -> ItemPage:
    return ItemPage((), None, 0)


def _by_time(items: Sequence[Item], *, skips: bool) -> list[Item]:
    """Return delayed items by their times. An item that waits for its retry is first, unless the policy skips it."""
    return sorted(items, key=lambda one: (skips or not one.attempt, one.deliver_after_ms, one.id))


async def _next(view: View, ahead: Sequence[Item], behind: Sequence[Item]) -> tuple[Item | None, Explanation | None]:
    """Return the item that is delivered next, or that a consumer has, and why it is not delivered now: the item for
    which the first one `behind` waits, whatever the size of the topic, else the first item of those `ahead`."""
    turn = ahead[0] if ahead else None
    try:
        if behind:
            why = (await view.client.explain(behind[0].id)).reasons
            named = next((one.item_ids[0] for one in why if one.code == Reason.BEHIND_IN_ORDER and one.item_ids), None)
            known = {one.id: one for one in ahead}
            if named is not None:
                turn = known.get(named) or await view.client.get_item(named)
        return turn, None if turn is None else await view.client.explain(turn.id)
    except NotFound:  # it has ended since
        return None, None


def _holder(turn: Item | None, explained: Explanation | None) -> dict[int, str]:
    """Return the worker that has the item."""
    reasons = () if explained is None else explained.reasons
    by = next((one.by for one in reasons if one.code == Reason.LEASED and one.by), None)
    return {} if turn is None or by is None else {turn.id: by}


def _words(item: Item, by: Mapping[int, str], now_ms: int) -> str:
    """Return what an item waits for. `by`: workers of leased items."""
    match item.state:
        case ItemState.LEASED:
            left_ms, who = item.lease_expires_at_ms - now_ms, by.get(item.id, "a consumer")
            return f"{who} has it, its lease {f'ends in {duration(left_ms)}' if left_ms > 0 else 'has ended'}"
        case ItemState.DELAYED:
            what = "waits for its retry" if item.last_failure is not None else "is delayed"
            return f"{what}, due in {duration(max(0, item.deliver_after_ms - now_ms))}"
        case ItemState.BEHIND:
            return "waits for the items before it"
    return "is the next one"


PAGE = Page("/order-key", "Order key", "order_key.html", load, home="/items")
