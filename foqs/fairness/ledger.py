"""By how many deliveries an item was overtaken since it became ready. Pure.

Kept only for topics whose consumers asked for it in the last minute, and for items that became ready since, so that
other topics pay a look at an empty map.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from typing import Any, Protocol

from foqs.fairness.keys import TopicKey

_ASKED_MS = 60_000
_TOPICS = 1_000
_ITEMS = 100_000
"""Items in all topics, 200 bytes each. Beyond it, those that became ready first are not known any more."""


class Known(Protocol):
    """A window: the first ready items of a lane, as far as they are in memory."""

    entries: list[Any]

    def covers(self, key: tuple[int, int, int]) -> bool: ...


class TopicLedger:
    """`delivered` counts deliveries of the topic. For an item, `ready` has that number when it became ready, with the
    ready items that came before it then added."""

    __slots__ = ("asked_ms", "delivered", "ready")

    def __init__(self) -> None:
        self.asked_ms = 0
        self.delivered = 0
        self.ready: dict[int, int] = {}


class Ledgers(dict[TopicKey, TopicLedger]):
    """By topic. A dict, because each enqueue and each reply checks whether it is empty."""

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

    def became_ready(self, key: TopicKey, windows: Sequence[Known | None], entries: Iterable[Any]) -> None:
        """Items of the topic, which are in one of its `windows`, became ready. Nothing is known of an item if ones
        that are not in memory may come before it."""
        ledger = self.get(key)
        if ledger is None:
            return
        for entry in entries:
            place = entry[:3]
            before = ledger.delivered
            for window in windows:
                if window is None or not window.covers(place):
                    break
                before += bisect_left(window.entries, place)
            else:
                self._remember(ledger, entry[2], before)

    def overtaken(self, key: TopicKey, item_ids: Sequence[int]) -> list[int | None]:
        """Return by how many deliveries each of these items, which are delivered now in this order, was overtaken:
        those that did not come before it when it became ready. None where that is not known."""
        ledger = self.get(key)
        if ledger is None:
            return [None] * len(item_ids)
        ready, delivered = ledger.ready, ledger.delivered
        return [
            max(0, delivered + at - ready[item_id]) if item_id in ready else None for at, item_id in enumerate(item_ids)
        ]

    def delivered(self, items: Iterable[tuple[TopicKey, int]]) -> None:
        """Count delivered items, given as (topic, id)."""
        for key, item_id in items:
            ledger = self.get(key)
            if ledger is not None:
                ledger.delivered += 1
                self._items -= ledger.ready.pop(item_id, None) is not None

    def forget(self, now_ms: int) -> None:
        """Forget topics whose ledgers were not asked for in the last minute."""
        for key, ledger in list(self.items()):
            if not 0 <= now_ms - ledger.asked_ms < _ASKED_MS:
                self._items -= len(self.pop(key).ready)

    def _remember(self, ledger: TopicLedger, item_id: int, before: int) -> None:
        ready = ledger.ready
        if item_id not in ready:
            if self._items >= _ITEMS:
                if not ready:
                    return
                del ready[next(iter(ready))]
                self._items -= 1
            self._items += 1
        ready[item_id] = before
