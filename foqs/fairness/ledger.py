"""By how many deliveries an item was overtaken since it became ready. Pure.

Kept only for topics whose consumers asked for it in the last minute, and for items that became ready since, so that
other topics pay a look at an empty map.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple, Protocol

from foqs.fairness.keys import TopicKey

_ASKED_MS = 60_000
_TOPICS = 1_000
_ITEMS = 100_000
"""Items in all topics, 300 bytes each. Beyond it, those of the topic that became ready first are not known any more."""


class Known(Protocol):
    """A window: the first ready items of a lane, as far as they are in memory."""

    entries: list[Any]

    def covers(self, key: tuple[int, int, int]) -> bool: ...


class _Own:
    """A tenant of a topic, or a topic whose tenants take no turns: `delivered` counts its deliveries while `known`
    items of it are noted."""

    __slots__ = ("delivered", "known", "name")

    def __init__(self, name: str) -> None:
        self.name = name
        self.delivered = self.known = 0


class Overtaken(NamedTuple):
    """Deliveries of the topic since an item became ready: of its tenant, without those items that came before it then,
    and of other tenants. (Items that came before it and ended otherwise, or wait for a throttle, count as delivered.)
    """

    own: int
    others: int


class TopicLedger:
    """`delivered` counts deliveries of the topic. For an item, `ready` has its tenant; the deliveries of that when it
    became ready, with the ready items that came before it then added; and those of other tenants."""

    __slots__ = ("asked_ms", "delivered", "owns", "ready")

    def __init__(self) -> None:
        self.asked_ms = 0
        self.delivered = 0
        self.owns: dict[str, _Own] = {}
        self.ready: dict[int, tuple[_Own, int, int]] = {}

    def forget(self, item_id: int) -> bool:
        """Return whether the item was noted."""
        note = self.ready.pop(item_id, None)
        if note is None:
            return False
        own = note[0]
        own.known -= 1
        if not own.known:
            del self.owns[own.name]
        return True


class Ledgers(dict[TopicKey, TopicLedger]):
    """By topic. A dict, because each enqueue and each reply checks whether it is empty. A tenant is "" where tenants
    take no turns."""

    def __init__(self) -> None:
        super().__init__()
        self._items = 0

    def ask(self, keys: Iterable[TopicKey], now_ms: int) -> None:
        """A consumer of these topics asks for ledgers. Beyond 1,000 topics, further ones have none."""
        for key in keys:
            ledger = self.get(key)
            if ledger is None:
                if len(self) >= _TOPICS:
                    return
                ledger = self[key] = TopicLedger()
            ledger.asked_ms = now_ms

    def became_ready(self, key: TopicKey, tenant: str, windows: Sequence[Known | None], entries: Iterable[Any]) -> None:
        """Items of a tenant, which are in one of its `windows`, became ready. Nothing is known of an item if ones that
        are not in memory may come before it."""
        ledger = self.get(key)
        if ledger is None:
            return
        for entry in entries:
            place, before = entry[:3], 0
            for window in windows:
                if window is None or not window.covers(place):
                    break
                before += bisect_left(window.entries, place)
            else:
                self._note(ledger, tenant, entry[2], before)

    def overtaken(self, key: TopicKey, items: Sequence[tuple[str, int]]) -> list[Overtaken | None]:
        """Return what overtook each of these items (tenant, id), which are delivered now in this order. None where that
        is not known."""
        ledger = self.get(key)
        if ledger is None:
            return [None] * len(items)
        found: list[Overtaken | None] = []
        given: dict[str, int] = {}
        for at, (tenant, item_id) in enumerate(items):
            before_it = given.get(tenant, 0)
            given[tenant] = before_it + 1
            note = ledger.ready.get(item_id)
            if note is None:
                found.append(None)
                continue
            own, before, others = note
            others_now = ledger.delivered - own.delivered + at - before_it
            found.append(Overtaken(max(0, own.delivered + before_it - before), others_now - others))
        return found

    def delivered(self, items: Iterable[tuple[TopicKey, str, int]]) -> None:
        """Count delivered items, given as (topic, tenant, id)."""
        for key, tenant, item_id in items:
            ledger = self.get(key)
            if ledger is not None:
                ledger.delivered += 1
                own = ledger.owns.get(tenant)
                if own is not None:
                    own.delivered += 1
                    self._items -= ledger.forget(item_id)

    def forget(self, now_ms: int) -> None:
        """Forget topics whose ledgers were not asked for in the last minute."""
        for key, ledger in list(self.items()):
            if not 0 <= now_ms - ledger.asked_ms < _ASKED_MS:
                self._items -= len(self.pop(key).ready)

    def _note(self, ledger: TopicLedger, tenant: str, item_id: int, before: int) -> None:
        own = ledger.owns.get(tenant)
        if own is None:
            own = ledger.owns[tenant] = _Own(tenant)
        own.known += 1  # first, so that the count of its deliveries goes on
        self._items += 1 - ledger.forget(item_id)
        ledger.ready[item_id] = (own, own.delivered + before, ledger.delivered - own.delivered)
        if self._items > _ITEMS:
            self._items -= ledger.forget(next(iter(ledger.ready)))
