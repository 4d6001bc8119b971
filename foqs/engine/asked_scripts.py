"""The scripts that were asked about leases that ended by time. A later scan finds the row and takes the answer."""

from __future__ import annotations

from collections import Counter
from itertools import takewhile
from typing import NamedTuple

from foqs.fairness.keys import TopicKey
from foqs.hooks.protocol import FailureResult

WAIT_MS = 250
"""Time in which a script decides about a lease that ended by time. Later rows of the same topic wait for it."""
_SLOW_MS = WAIT_MS // 2
_REST_MS = 1_000
"""After a script took too long, the script of its topic is not asked for this time."""
MOST_OPEN = 100
"""Scripts of a topic that are asked at a time. Later leases of the topic wait, leases of other topics do not.
With more, the calls before it would make a quick script slow."""
_KEPT_MS = 10_000
"""An answer that no scan took is dropped: its lease was extended, or ended in another way."""
LeaseKey = tuple[int, int, int]
"""(item id, token of its lease, its end in ms)"""


class Answer(NamedTuple):
    """`result` None: the script gave none, so the policy decides. `changes`: of the policies, when it was given."""

    result: FailureResult | None = None
    changes: int = 0


class _Asked(NamedTuple):
    at_ms: int
    topic: TopicKey
    answer: Answer | None = None


class AskedScripts:
    __slots__ = ("_asked", "_open", "_slow_ms")

    def __init__(self) -> None:
        self._asked: dict[LeaseKey, _Asked] = {}  # the longest ago first
        self._open: Counter[TopicKey] = Counter()  # asked and not answered
        self._slow_ms: dict[TopicKey, int] = {}

    def __contains__(self, key: LeaseKey) -> bool:
        return key in self._asked

    def __len__(self) -> int:
        return len(self._asked)

    def resting(self, topic: TopicKey, now_ms: int) -> bool:
        """Return True if the script of the topic is not asked now."""
        slow_ms = self._slow_ms.get(topic)
        return slow_ms is not None and 0 <= now_ms - slow_ms < _REST_MS

    def full(self, topic: TopicKey) -> bool:
        """Return True if the script of the topic is not asked about more leases now."""
        return self._open.get(topic, 0) >= MOST_OPEN

    def ask(self, key: LeaseKey, topic: TopicKey, now_ms: int) -> None:
        self._asked[key] = _Asked(now_ms, topic)
        self._open[topic] += 1

    def answered(self, key: LeaseKey, topic: TopicKey, result: FailureResult | None, now_ms: int, changes: int) -> None:
        asked = self._asked.get(key)
        if asked is None or asked.answer is not None:
            return
        self._close(topic)
        if result is None and now_ms - asked.at_ms >= _SLOW_MS:
            self._slow_ms[topic] = now_ms
        self._asked[key] = _Asked(asked.at_ms, topic, Answer(result, changes))

    def forget(self, key: LeaseKey) -> None:
        asked = self._asked.pop(key, None)
        if asked is not None and asked.answer is None:
            self._close(asked.topic)

    def _close(self, topic: TopicKey) -> None:
        self._open[topic] -= 1
        if not self._open[topic]:
            del self._open[topic]

    def take(self, key: LeaseKey) -> Answer | None:
        """Return the answer and forget it; None: it is not there yet."""
        asked = self._asked.get(key)
        if asked is None or asked.answer is None:
            return None
        del self._asked[key]
        return asked.answer

    def drop_old(self, now_ms: int) -> None:
        """Forget scripts that were asked, or were slow, some time ago."""
        self._slow_ms = {topic: at_ms for topic, at_ms in self._slow_ms.items() if 0 <= now_ms - at_ms < _REST_MS}
        for key, _ in list(takewhile(lambda one: not 0 <= now_ms - one[1].at_ms < _KEPT_MS, self._asked.items())):
            self.forget(key)
