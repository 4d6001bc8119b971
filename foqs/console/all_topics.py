"""A search for items in all topics of a namespace, one page at a time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import NamedTuple

from foqs.client import ActiveTopic, AsyncClient, Item, ItemFilter

OF_TOPIC = 5
"""The most items of each topic: the search in one topic has the rest."""
_MOST_ITEMS = 50
_MOST_LOOKED_AT = 10_000
_SEARCH_S = 1.0
_PAGE_TOPICS = 1_000
_AT_A_TIME = 8


class Place(NamedTuple):
    """Where a page begins: in the page of topics with this cursor, behind the topic `after`."""

    cursor: str = ""
    after: str = ""


class Found(NamedTuple):
    """`partly`: topics with further items that may match. `next` is None behind the last topic."""

    items: list[Item]
    partly: list[str]
    topics: int
    looked_at: int
    next: Place | None


async def search(client: AsyncClient, wanted: ItemFilter, place: Place, now_s: Callable[[], float]) -> Found:
    """Search topic by topic, in the order of their names, until the page has about 50 items, 10,000 items were looked
    at, or a second has passed. `now_s` is monotonic. Raises what the calls raise."""
    until_s, (cursor, after) = now_s() + _SEARCH_S, place
    items, partly, topics, looked_at = list[Item](), list[str](), 0, 0
    while True:
        page = await client.topics_page(all_states=True, page_topics=_PAGE_TOPICS, cursor=cursor or None)
        left = [one for one in page.topics if one.topic > after]
        while left:
            if topics and (len(items) >= _MOST_ITEMS or looked_at >= _MOST_LOOKED_AT or now_s() >= until_s):
                return Found(items, partly, topics, looked_at, Place(cursor, after))
            group = _group(left, _MOST_LOOKED_AT - looked_at)
            pages = await asyncio.gather(
                *(client.search_items(one.topic, filter=wanted, page_items=OF_TOPIC) for one in group)
            )
            for one, found in zip(group, pages, strict=True):
                items += found.items
                looked_at += found.looked_at
                if found.cursor is not None:
                    partly.append(one.topic)
            topics, after, left = topics + len(group), group[-1].topic, left[len(group) :]
        if page.cursor is None:
            return Found(items, partly, topics, looked_at, None)
        cursor = page.cursor


def _group(topics: Sequence[ActiveTopic], most_items: int) -> Sequence[ActiveTopic]:
    """Return the topics that are searched at the same time: together they have at most `most_items`, or it is one."""
    size = items = 0
    for one in topics[:_AT_A_TIME]:
        items += one.ready + (one.delayed or 0) + (one.leased or 0)
        if size and items > most_items:
            break
        size += 1
    return topics[:size]
