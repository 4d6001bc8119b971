"""The items that meet conditions, of a topic or of all topics, with the reason why each waits."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from time import monotonic
from types import MappingProxyType
from typing import Any, NamedTuple

from foqs.client import ActiveTopic, Failure, Item, ItemFilter, ItemState, LastFailure, Reason
from foqs.console.item_query import FIELDS, FURTHER, STATES, ItemQuery
from foqs.console.reasons import Shown, root_cause
from foqs.console.view import Page, View
from foqs.errors import FoqsError, Forbidden, Invalid, NotFound
from foqs.ids import parse_id

PAGE_ITEMS = 50
OF_TOPIC = 5
"""The most items of each topic, where all topics are searched: the search in one topic has the rest."""
_MOST_LOOKED_AT = 10_000
_SEARCH_S = 0.8
_PAGE_TOPICS = 1_000
_AT_A_TIME = 8
_EXPLAIN_MS = 3_000
_WAITING = (ItemState.READY, ItemState.DELAYED, ItemState.LEASED, ItemState.BEHIND)
GONE = "gone since the page was listed"


class Row(NamedTuple):
    """`due_ms`: when a delayed item is ready, or a lease ends. `keys`: the item, or its failure if that has the
    keys. `why`: why it waits, with links; None for an item that has ended."""

    item: Item
    due_ms: int | None
    keys: Item | Failure
    failure: Failure | LastFailure | None
    why: Shown | None


class Found(NamedTuple):
    """`next` has the fields of the next page, none without one. `looked_at`: items that were looked at for the page;
    None where one item was asked for. `topics`: of a search in all topics, how many were searched; `partly` may have
    further items. `wrong`: what the user has to correct in the form. `gone`: why there is no item with the id."""

    items: Sequence[Item] = ()
    next: Mapping[str, str] = MappingProxyType({})
    looked_at: int | None = None
    topics: int | None = None
    partly: Sequence[str] = ()
    wrong: str = ""
    gone: str = ""


async def load(view: View) -> Mapping[str, Any]:
    query = ItemQuery({name: _asked(view, name) for name in FIELDS})
    cursor, after = view.asked("cursor"), _asked(view, "after")
    scans, rows, batch = False, list[Row](), None
    found: Found | None = Found()
    try:
        wanted = query.wanted(view.now_ms)
        batch = wanted.batch
        scans = wanted.conditions() is not None and not query.names_one
        if query.names_one:
            found = await view.allowed(_one(view, query))
        elif query.fields["topic"]:
            searched = view.client.search_items(
                query.fields["topic"], filter=wanted, page_items=PAGE_ITEMS, cursor=cursor or None
            )
            page = await view.allowed(searched)
            found = None if page is None else Found(page.items, _behind(query, {"cursor": page.cursor}), page.looked_at)
        elif query.given:
            scans = True
            found = await view.allowed(_everywhere(view, query, wanted, cursor, after))
    except Invalid as error:
        found = Found(wrong=error.message)
    if found is not None:
        rows = await _rows(view, found.items)
    return {
        "query": query, "found": found, "rows": rows, "states": STATES, "scans": scans,
        "is_first": not cursor and not after, "of_topic": OF_TOPIC, "refreshes": not scans and not cursor,
        "batch": batch, "further": any(query.fields[name] for name in FURTHER),
        "ordered": _ordered(query, rows), "elsewhere": any(row.item.ns != view.ns for row in rows),
    }  # fmt: skip


def _ordered(query: ItemQuery, rows: Sequence[Row]) -> Sequence[str]:
    """Return the topics in which the searched order key has items; of dead letters, the topics before."""
    if not query.fields["order"] or query.names_one:
        return ()
    found = [(row.item, row.item.failure) for row in rows]
    return [*dict.fromkeys(item.topic if failure is None else failure.topic for item, failure in found)]


def _asked(view: View, name: str) -> str:
    """Spaces at the ends may be a part of a name."""
    texts = view.request.query_params.getlist(name)
    return "\n".join(texts) if name == "header" else "".join(texts[:1])


async def _everywhere(view: View, query: ItemQuery, wanted: ItemFilter, cursor: str, after: str) -> Found:
    """Search topic by topic, by name, behind `after` in the page of topics with the cursor: until the page has about
    `PAGE_ITEMS`, or one of the bounds of a search is reached."""
    until_s = monotonic() + _SEARCH_S
    items, partly, topics, looked_at = list[Item](), list[str](), 0, 0
    while True:
        page = await view.client.topics_page(all_states=True, page_topics=_PAGE_TOPICS, cursor=cursor or None)
        left = [one for one in page.topics if one.topic > after]
        while left:
            if topics and (len(items) >= PAGE_ITEMS or looked_at >= _MOST_LOOKED_AT or monotonic() >= until_s):
                following = _behind(query, {"cursor": cursor, "after": after})
                return Found(items, following, looked_at, topics, partly)
            group = _group(left, _MOST_LOOKED_AT - looked_at)
            pages = await asyncio.gather(
                *(view.client.search_items(one.topic, filter=wanted, page_items=OF_TOPIC) for one in group)
            )
            for one, found in zip(group, pages, strict=True):
                items += found.items
                looked_at += found.looked_at
                if found.cursor is not None:
                    partly.append(one.topic)
            topics, after, left = topics + len(group), group[-1].topic, left[len(group) :]
        if page.cursor is None:
            return Found(items, {}, looked_at, topics, partly)
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


def _behind(query: ItemQuery, place: Mapping[str, str | None]) -> dict[str, str]:
    """Return the fields of the page that begins at the place; none without a place."""
    fields = {name: text for name, text in place.items() if text}
    return {**query.given, **fields} if fields else {}


async def _one(view: View, query: ItemQuery) -> Found:
    """Return the item that the query names, if there is one. Raises Forbidden, Invalid."""
    try:
        if query.fields["id"]:
            return Found((await view.client.get_item(parse_id(query.fields["id"])),))
        return Found((await view.client.find_item(query.fields["dedup"]),))
    except NotFound as error:
        return Found(gone=error.message)


async def _rows(view: View, items: Sequence[Item]) -> list[Row]:
    bound = asyncio.Semaphore(_AT_A_TIME)

    async def row(item: Item) -> Row:
        due_ms: dict[int, int] = {
            ItemState.DELAYED: item.deliver_after_ms, ItemState.LEASED: item.lease_expires_at_ms
        }  # fmt: skip
        why = None
        if item.state in _WAITING:
            async with bound:
                why = await _why(view, item)
        failure = item.failure or item.last_failure
        return Row(item, due_ms.get(item.state or 0), item.failure or item, failure, why)

    return await asyncio.gather(*map(row, items))


async def _why(view: View, item: Item) -> Shown | None:
    """Return the root cause that keeps an item from being delivered."""
    try:
        found = await view.client.explain(item.id, timeout_ms=_EXPLAIN_MS)
    except NotFound:
        return Shown(GONE)
    except Forbidden:
        return None
    except FoqsError as error:
        return Shown(f"not known: {error.message}")
    if any(one.code == Reason.GONE for one in found.reasons):
        return Shown(GONE)
    return root_cause(view, found, item.topic)


PAGE = Page("/items", "Items", "items.html", load, key="i")
