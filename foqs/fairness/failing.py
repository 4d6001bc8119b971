"""What fails now: the failed attempts of a host by topic, cause and fingerprint, in at most `MOST_BYTES`.

Reasons may differ each time, and consumers choose them. So a topic has `MOST_GROUPS` groups, and one more for the rest
of its failures. A new group takes the place of the group with the lowest rank, and its rank is one more (Metwally,
Agrawal, El Abbadi: Efficient Computation of Frequent and Top-k Elements in Data Streams, 2005). So a group with
more than a part in `MOST_GROUPS` of the failures has its place, whatever the reasons of further failures are. The rank
decides about places alone: a group counts its own failures, since it has its place. The sums of a topic are exact.

A topic takes no place from the groups of another topic. With `MOST_TOPICS` topics, a new one takes the place of a topic
of the namespace with the most of them, or has none.
"""

from __future__ import annotations

from array import array
from collections import Counter
from typing import Any

from foqs.checks import shown_fingerprint
from foqs.fairness.keys import TopicKey
from foqs.figures import MOST_FAILING_WORKERS, FailingGroup, FailingTopic, by_rate
from foqs.rows import LastFailure

MOST_TOPICS = 200
MOST_GROUPS = 10
MOST_BYTES = 8 << 20
"""The most memory that a host has for this. A test fills it."""
QUIET_MS = 3_600_000
"""A group without a failure for this long ends."""
_REASON_BYTES = 200
_TICK_MS = 10_000
_TICKS, _MINUTES = 7, 61  # 6 and 60 whole ones, and the present one
_A_MINUTE = 6
_HALVED = 60  # ticks after which ranks are halved: they are about what fails now

GroupKey = tuple[int, int]
"""(cause, fingerprint)."""
REST: GroupKey = (0, 0)


class Window:
    """Numbers of the last minute, 10 minutes and hour: of the whole buckets (of 10 s, 1 min and 1 min) and the present
    one. A clock that was set back makes nothing older or newer."""

    __slots__ = ("_counts", "_tick")

    def __init__(self, now_ms: int) -> None:
        self._counts = array("I", bytes(4 * (_TICKS + _MINUTES)))
        self._tick = now_ms // _TICK_MS

    def add(self, count: int, now_ms: int) -> None:
        tick = self._at(now_ms)
        self._counts[tick % _TICKS] += count
        self._counts[_TICKS + tick // _A_MINUTE % _MINUTES] += count

    def add_all(self, other: Window, now_ms: int) -> None:
        """Add the numbers of another window, each to its bucket."""
        self._at(now_ms)
        other._at(now_ms)
        self._counts = array("I", map(sum, zip(self._counts, other._counts, strict=True)))

    def sums(self, now_ms: int) -> tuple[int, int, int]:
        """Return the numbers of the last minute, 10 minutes and hour."""
        minute = self._at(now_ms) // _A_MINUTE
        counts = self._counts
        ten = sum([counts[_TICKS + (minute - back) % _MINUTES] for back in range(11)])
        return sum(counts[:_TICKS]), ten, sum(counts[_TICKS:])

    def _at(self, now_ms: int) -> int:
        """Let the present bucket be that of `now_ms`, and return its number."""
        tick, before = now_ms // _TICK_MS, self._tick
        if tick == before or tick == before - 1:
            return before
        counts, minute, minute_before = self._counts, tick // _A_MINUTE, before // _A_MINUTE
        if tick < before:
            self._counts = _turned(counts[:_TICKS], tick - before) + _turned(counts[_TICKS:], minute - minute_before)
        else:
            for at in range(max(before, tick - _TICKS) + 1, tick + 1):
                counts[at % _TICKS] = 0
            for at in range(max(minute_before, minute - _MINUTES) + 1, minute + 1):
                counts[_TICKS + at % _MINUTES] = 0
        self._tick = tick
        return tick


def _turned(counts: array[int], by: int) -> array[int]:
    size = len(counts)
    return array("I", [counts[(at - by) % size] for at in range(size)])


class _Group:
    """The failures of a topic with one cause and fingerprint since `first_ms`; the sample is the last of them."""

    __slots__ = (
        "attempts", "ended", "failures", "first_ms", "item_id", "last_ms", "rank", "reason", "window", "worker",
        "workers",
    )  # fmt: skip

    def __init__(self, rank: int, now_ms: int) -> None:
        self.rank = rank
        self.window = Window(now_ms)
        self.failures = self.ended = self.attempts = self.item_id = 0
        self.first_ms = self.last_ms = now_ms
        self.worker = self.reason = b""
        self.workers: tuple[bytes, ...] = ()  # one more than are shown: there are more

    def add(self, item_id: int, failure: LastFailure, now_ms: int, *, ended: bool) -> None:
        self.rank += 1
        self.window.add(1, now_ms)
        self.failures += 1
        self.ended += ended
        self.attempts = max(self.attempts, failure.attempt)
        self.last_ms, self.item_id, self.worker = now_ms, item_id, failure.worker
        if failure.reason[:_REASON_BYTES] != self.reason:
            self.reason = failure.reason[:_REASON_BYTES]
        self._add_worker(failure.worker)

    def add_all(self, other: _Group, now_ms: int) -> None:
        """Add the failures of another group, whose place is taken."""
        self.window.add_all(other.window, now_ms)
        self.failures += other.failures
        self.ended += other.ended
        self.attempts = max(self.attempts, other.attempts)
        self.first_ms = min(self.first_ms, other.first_ms)
        if other.last_ms >= self.last_ms:
            self.last_ms, self.item_id, self.worker, self.reason = (
                other.last_ms, other.item_id, other.worker, other.reason,
            )  # fmt: skip
        for worker in other.workers:
            self._add_worker(worker)

    def _add_worker(self, worker: bytes) -> None:
        if worker and worker not in self.workers and len(self.workers) <= MOST_FAILING_WORKERS:
            self.workers += (worker,)

    def figure(self, key: GroupKey, now_ms: int) -> FailingGroup:
        minute, ten, hour = self.window.sums(now_ms)
        workers = [_text(worker) for worker in self.workers]
        cause, fingerprint = key
        return FailingGroup(
            cause, shown_fingerprint(fingerprint), minute, ten, hour, self.failures, self.ended, self.first_ms,
            self.last_ms, self.attempts, _text(self.reason), self.item_id, _text(self.worker),
            tuple(workers[:MOST_FAILING_WORKERS]), len(workers) > MOST_FAILING_WORKERS,
        )  # fmt: skip


def _text(stored: bytes) -> str:
    return stored.decode(errors="ignore")  # a reason may be cut inside of a character


class Failed:
    """The failed attempts of one topic."""

    __slots__ = ("acked", "groups", "halved", "key", "last_ms", "topic")

    def __init__(self, key: TopicKey, now_ms: int) -> None:
        self.key = key
        self.topic: Any = None  # whose `failing` this is
        self.groups: dict[GroupKey, _Group] = {}
        self.acked = Window(now_ms)
        self.last_ms = now_ms
        self.halved = now_ms // _TICK_MS

    def add(self, item_id: int, failure: LastFailure, now_ms: int, *, ended: bool) -> None:
        self.last_ms = now_ms
        tick = now_ms // _TICK_MS
        if not 0 <= tick - self.halved < _HALVED:
            self.halved = tick
            for group in self.groups.values():
                group.rank //= 2
        key = failure.cause, failure.fingerprint
        group = self.groups.get(key) or self._new(key, now_ms)
        group.add(item_id, failure, now_ms, ended=ended)

    def _new(self, key: GroupKey, now_ms: int) -> _Group:
        groups, rank = self.groups, 0
        if len(groups) - (REST in groups) >= MOST_GROUPS:
            self._forget_quiet(now_ms)
        if len(groups) - (REST in groups) >= MOST_GROUPS:
            lowest = min(groups.keys() - {REST}, key=lambda one: (groups[one].rank, groups[one].last_ms, one))
            taken = groups.pop(lowest)
            rank = taken.rank
            if REST not in groups:
                groups[REST] = _Group(0, taken.last_ms)
            groups[REST].add_all(taken, now_ms)
        group = groups[key] = _Group(rank, now_ms)
        return group

    def _forget_quiet(self, now_ms: int) -> None:
        for key in [key for key, group in self.groups.items() if not group.window.sums(now_ms)[2]]:
            del self.groups[key]

    def figure(self, now_ms: int) -> FailingTopic | None:
        """Return the groups with failures in the last hour; None if there are none."""
        self._forget_quiet(now_ms)
        if not self.groups:
            return None
        groups = sorted([group.figure(key, now_ms) for key, group in self.groups.items()], key=by_rate)
        acked = self.acked.sums(now_ms)
        return FailingTopic(self.key[1], *acked[1:], tuple(groups))


class Failing(dict[TopicKey, Failed]):
    """The topics of a host with failed attempts in the last hour, as far as they have places."""

    def __init__(self) -> None:
        super().__init__()
        self._unplaced: Window | None = None

    def add(self, topic: Any, item_id: int, failure: LastFailure, now_ms: int, *, ended: bool) -> None:
        """Count a failed attempt of an item of `topic`, which has `key` and `failing`. `ended`: the item is a dead
        letter now, or is gone."""
        found = self.get(topic.key) or self._new(topic.key, now_ms)
        if found is None:
            self._unplaced = self._unplaced or Window(now_ms)
            self._unplaced.add(1, now_ms)
            return
        if found.topic is not topic:
            found.topic, topic.failing = topic, found
        found.add(item_id, failure, now_ms, ended=ended)

    def unplaced(self, now_ms: int) -> int:
        """Return the failures of the last hour in topics without a place."""
        return 0 if self._unplaced is None else self._unplaced.sums(now_ms)[2]

    def of(self, ns: str, now_ms: int, topic: str | None = None) -> list[FailingTopic]:
        """Return the failing topics of a namespace, or only the `topic`."""
        self.forget(now_ms)
        found = [one.figure(now_ms) for key, one in self.items() if key[0] == ns and topic in (None, key[1])]
        return [one for one in found if one is not None]

    def sums(self, key: TopicKey, now_ms: int) -> tuple[int, int, int]:
        """Return the failures of a topic in the last minute, 10 minutes and hour."""
        found = self.get(key)
        sums = [] if found is None else [group.window.sums(now_ms) for group in found.groups.values()]
        return sum(one[0] for one in sums), sum(one[1] for one in sums), sum(one[2] for one in sums)

    def forget(self, now_ms: int) -> None:
        """Give back the places of topics without a failure in the last hour."""
        for key in [key for key, one in self.items() if not -QUIET_MS < now_ms - one.last_ms < QUIET_MS]:
            self._take(key)

    def _new(self, key: TopicKey, now_ms: int) -> Failed | None:
        if len(self) >= MOST_TOPICS:
            self.forget(now_ms)
        if len(self) >= MOST_TOPICS:
            counts = Counter(ns for ns, _ in self)
            most = max(counts, key=lambda ns: (counts[ns], ns))
            if counts[most] <= counts[key[0]] + 1:
                return None
            self._take(min((one for one in self if one[0] == most), key=lambda one: (self[one].last_ms, one)))
        found = self[key] = Failed(key, now_ms)
        return found

    def _take(self, key: TopicKey) -> None:
        found = self.pop(key)
        if found.topic.failing is found:
            found.topic.failing = None
