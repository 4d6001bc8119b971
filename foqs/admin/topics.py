"""Decides which topics have series of their own: those with the most ready items. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from heapq import nlargest

from foqs.counters import OTHER
from foqs.fairness.keys import TopicKey

_REST = (OTHER, OTHER)


class TopicCounts:
    """Counts of one topic or several. `oldest_ms` is the time of the oldest ready item; None if no item is ready."""

    __slots__ = ("leased", "oldest_ms", "ready", "total")

    def __init__(self) -> None:
        self.ready = 0
        self.leased = 0
        self.total = 0
        self.oldest_ms: int | None = None

    def add(self, ready: int, leased: int, total: int, oldest_ms: int | None) -> None:
        self.ready += ready
        self.leased += leased
        self.total += total
        if oldest_ms is not None and (self.oldest_ms is None or oldest_ms < self.oldest_ms):
            self.oldest_ms = oldest_ms


def topic_rows(
    topics: Mapping[TopicKey, TopicCounts], most: int, now_ms: int
) -> dict[str, list[tuple[tuple[str, ...], float]]]:
    """Return the rows of the topics: one set for each of the `most` with most ready items, and one for the rest."""
    chosen = nlargest(most, (key for key in topics if key != _REST), key=lambda key: (topics[key].ready, key))
    shown = {key: topics[key] for key in chosen}
    if len(shown) < len(topics):
        rest = shown[_REST] = TopicCounts()
        for key, counts in topics.items():
            if key == _REST or key not in shown:
                rest.add(counts.ready, counts.leased, counts.total, counts.oldest_ms)
    items: list[tuple[tuple[str, ...], float]] = []
    ages: list[tuple[tuple[str, ...], float]] = []
    for key, counts in shown.items():
        items.append(((*key, "ready"), counts.ready))
        items.append(((*key, "leased"), counts.leased))
        items.append(((*key, "delayed"), max(0, counts.total - counts.ready - counts.leased)))
        age_ms = 0 if counts.oldest_ms is None else max(0, now_ms - counts.oldest_ms)
        ages.append((key, age_ms / 1000))
    together: list[tuple[tuple[str, ...], float]] = [((), len(topics))]
    return {"foqs_topic_items": items, "foqs_topic_oldest_ready_age_seconds": ages, "foqs_topics": together}
