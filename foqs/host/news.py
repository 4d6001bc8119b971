"""What other hosts are told of topics that have something ready here, so that their consumers come for it.

A topic is told when something of it is ready that no consumer here takes, and then not again until another host came
for it and found nothing: until then all who were told may come. So a queue whose consumers keep up tells nothing, and
one that is full tells each topic once.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import NamedTuple

from foqs.host.shard import Shard
from foqs.prefetch.lane import LaneKey

MOST_TOPICS = 100_000
"""Beyond, the topics told longest ago are forgotten: they are told again when something new of them is ready."""
MOST_NEWS = 1_000
"""Topics in one answer; the next question gets the next."""
AGAIN_MS = 1_000
"""A topic whose items could not be handed out (its shard's database is down) is told again after this."""


class News(NamedTuple):
    """`whole`: what was told before is to be forgotten. `topics` have so many items ready, approximately."""

    version: int
    whole: bool
    topics: list[tuple[LaneKey, int]]


class WatchCall:
    """A question that waits for news after `version`."""

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


class Newsroom:
    """`ready(key)`: items of a topic that are ready here. `soon` calls back when the work in hand is done, `later`
    after so many milliseconds. Versions of one run of the process are above those of all runs before."""

    def __init__(
        self,
        ready: Callable[[LaneKey], int],
        now_ms: int,
        soon: Callable[[Callable[[], None]], object],
        later: Callable[[int, Callable[[], None]], object],
    ) -> None:
        self._ready = ready
        self._soon = soon
        self._later = later
        self._first = self._version = now_ms << 20
        self._told: dict[LaneKey, int] = {}
        self._log: list[tuple[int, LaneKey]] = []  # by version; one whose topic was told again since does not count
        self._waiting: dict[WatchCall, None] = {}
        self._due = False

    def became_ready(self, key: LaneKey) -> None:
        """Something of the topic is ready, or was and is taken already."""
        if key in self._told or not self._ready(key):
            return
        self._version += 1
        self._told[key] = self._version
        self._log.append((self._version, key))
        if len(self._log) > 2 * MOST_TOPICS:
            self._shorten()
        if self._waiting and not self._due:
            self._due = True
            self._soon(self._tell)

    def found_nothing(self, keys: Iterable[LaneKey]) -> int:
        """Another host came for the topics, and got nothing. Returns the version as of which that is so: what is told
        of them later has another, and may arrive there earlier."""
        for key in keys:
            if self._told.pop(key, None) is not None and self._ready(key):
                self._later(AGAIN_MS, partial(self.became_ready, key))
        return self._version

    def after(self, version: int | None) -> News:
        """What was told after `version`, an earlier answer's; None: all there is."""
        whole = version is None or not self._first <= version <= self._version
        since = self._first if whole or version is None else version
        topics: list[tuple[LaneKey, int]] = []
        for told, key in self._log[bisect_right(self._log, since, key=lambda entry: entry[0]) :]:
            if len(topics) == MOST_NEWS:
                break
            since = told
            if self._told.get(key) != told:
                continue
            ready = self._ready(key)
            if ready:
                topics.append((key, ready))
            else:
                del self._told[key]
        else:
            since = self._version
        return News(since, whole, topics)

    def wait(self, call: WatchCall) -> bool:
        """Has `call` answered when there is news for it; False when there is some already."""
        if call.version != self._version:
            return False
        self._waiting[call] = None
        return True

    def forget(self, call: WatchCall) -> None:
        call.done = True
        self._waiting.pop(call, None)

    def stop(self) -> None:
        """Answers all that wait."""
        self._tell()

    def _tell(self) -> None:
        self._due = False
        waiting, self._waiting = self._waiting, {}
        for call in waiting:
            call.answer()

    def _shorten(self) -> None:
        log = [entry for entry in self._log if self._told.get(entry[1]) == entry[0]]
        self._log = log[-MOST_TOPICS:]
        for _, key in log[:-MOST_TOPICS]:
            del self._told[key]
