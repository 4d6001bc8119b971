"""GetActiveTopics of a cluster: every host is asked for the same page, and the pages are merged.

A page is the first topics behind a cursor, so the first of all pages are the page of the cluster. A host that does not
answer in time is left out: its items cannot be leased now either.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from foqs.fairness.keys import TopicKey
from foqs.idl import idl

ANSWER_MS = 2_000


class Pages:
    """The pages of several hosts, each of up to `limit` topics. One of `add` and `add_answer` is called for each."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._topics: dict[TopicKey, Any] = {}
        self._more = False

    def add(self, topics: Iterable[Any], *, more: bool) -> None:
        """`more`: the host has topics behind the last one."""
        for topic in topics:
            known = self._topics.setdefault((topic.ns, topic.topic), topic)
            if known is not topic:
                self._topics[topic.ns, topic.topic] = _joined(known, topic)
        self._more = self._more or more

    def add_answer(self, _address: str, response: Any) -> None:
        self.add(response.topics or (), more=response.cursor is not None)

    def page(self) -> tuple[list[Any], bool]:
        """Return the first topics, and whether there are more behind the last one."""
        keys = sorted(self._topics)
        return [self._topics[key] for key in keys[: self._limit]], self._more or len(keys) > self._limit


def _joined(one: Any, other: Any) -> Any:
    """Return the same topic of two hosts as one."""
    oldest_ms = min(filter(None, (one.oldest_ready_at_ms, other.oldest_ready_at_ms)), default=0)
    hosts = sorted({*(one.hosts or ()), *(other.hosts or ())})
    ready = (one.ready or 0) + (other.ready or 0)
    return idl.ActiveTopic(
        one.ns, one.topic, ready, oldest_ms, hosts, _sum(one.delayed, other.delayed), _sum(one.leased, other.leased)
    )


def _sum(one: int | None, other: int | None) -> int | None:
    return None if one is None and other is None else (one or 0) + (other or 0)
