"""Publishes to other hosts which topics have items ready here, so that those hosts forward their consumers' dequeues.

A topic is published when an item of it is ready that no consumer here takes. It is not published again until another
host asked for it and received nothing: until then every host that knows of it may ask. So a queue whose consumers keep
up publishes nothing, and a full queue publishes each topic once.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import NamedTuple

from foqs.engine.shard import Shard
from foqs.fairness.keys import TopicKey

MOST_TOPICS = 100_000
"""Beyond this, the topics published longest ago are dropped, and published again when a new item of them is ready."""
MOST_NEWS = 1_000
"""Topics in one answer; the answer to the next question continues."""
AGAIN_MS = 1_000
"""Delay before a topic is published again whose items could not be leased (its shard's database is down)."""


class News(NamedTuple):
    """`topics`: with the approximate number of ready items. `whole`: they replace all topics of earlier answers."""

    version: int
    whole: bool
    topics: list[tuple[TopicKey, int]]


class WatchCall:
    """A WatchTopics that waits for news after `version`."""

    __slots__ = ("done", "reply", "version")

    def __init__(self, version: int, reply: Callable[[WatchCall], None]) -> None:
        self.version = version
        self.reply = reply
        self.done = False

    def timed_out(self, shards: Mapping[int, Shard]) -> None:
        self.answer()

    def answer(self) -> None:
        if not self.done:
            self.done = True
            self.reply(self)


class ReadyPublisher:
    """`ready(key)`: items of a topic that are ready here. `soon` calls back at the next turn of the event loop,
    `later` after so many milliseconds. Versions of one run of the process are above those of all earlier runs."""

    def __init__(
        self,
        ready: Callable[[TopicKey], int],
        now_ms: int,
        soon: Callable[[Callable[[], None]], object],
        later: Callable[[int, Callable[[], None]], object],
    ) -> None:
        self._ready = ready
        self._soon = soon
        self._later = later
        self._first = self._version = now_ms << 20
        self._logged: dict[TopicKey, int] = {}
        self._log: list[tuple[int, TopicKey]] = []  # by version; an entry whose topic has a later entry does not count
        self._waiting: dict[WatchCall, None] = {}
        self._due = False

    def became_ready(self, key: TopicKey) -> None:
        """Publish the topic if items of it are ready. The caller may be late: they may be leased already."""
        if key in self._logged or not self._ready(key):
            return
        self._version += 1
        self._logged[key] = self._version
        self._log.append((self._version, key))
        if len(self._log) > 2 * MOST_TOPICS:
            self._shorten()
        if self._waiting and not self._due:
            self._due = True
            self._soon(self._tell)

    def again(self, key: TopicKey) -> None:
        """Publish the topic, even if it is published: another host was refused its items for one consumer."""
        self._logged.pop(key, None)
        self.became_ready(key)

    def found_nothing(self, keys: Iterable[TopicKey]) -> int:
        """Record that another host asked for the topics and received nothing. Return the version of the news at this
        moment: a later publication has a higher one, and may reach that host before this answer."""
        for key in keys:
            if self._logged.pop(key, None) is not None and self._ready(key):
                self._later(AGAIN_MS, partial(self.became_ready, key))
        return self._version

    def after(self, version: int | None) -> News:
        """Return the topics published after `version`, which an earlier answer had; None: return all."""
        whole = version is None or not self._first <= version <= self._version
        since = self._first if whole or version is None else version
        topics: list[tuple[TopicKey, int]] = []
        for logged, key in self._log[bisect_right(self._log, since, key=lambda entry: entry[0]) :]:
            if len(topics) == MOST_NEWS:
                break
            since = logged
            if self._logged.get(key) != logged:
                continue
            ready = self._ready(key)
            if ready:
                topics.append((key, ready))
            else:
                del self._logged[key]
        else:
            since = self._version
        return News(since, whole, topics)

    def wait(self, call: WatchCall) -> bool:
        """Answer `call` as soon as there is news for it. Return False if there is news already."""
        if call.version != self._version:
            return False
        self._waiting[call] = None
        return True

    def forget(self, call: WatchCall) -> None:
        call.done = True
        self._waiting.pop(call, None)

    def stop(self) -> None:
        """Answer every WatchTopics that waits."""
        self._tell()

    def _tell(self) -> None:
        self._due = False
        waiting, self._waiting = self._waiting, {}
        for call in waiting:
            call.answer()

    def _shorten(self) -> None:
        log = [entry for entry in self._log if self._logged.get(entry[1]) == entry[0]]
        self._log = log[-MOST_TOPICS:]
        for _, key in log[:-MOST_TOPICS]:
            del self._logged[key]
