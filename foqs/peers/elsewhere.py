"""The most urgent ready items of other hosts, as those report them with the answers to TellShares.

A host asks for the topics whose consumers want ledgers; without such topics nothing is asked or kept.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Sequence
from typing import NamedTuple

from foqs.fairness.keys import TopicKey

MOST_ASKED = 100
"""Topics in one question. Topics that are left out come first in the next one."""
HEARD_MS = 10_000
"""How long an answer counts."""


class Urgent(NamedTuple):
    """An item with this priority was ready on another host `age_ms` ago."""

    priority: int
    age_ms: int


class Elsewhere:
    """`wanted`: the topics to ask for. `monotonic_ms` never goes back."""

    def __init__(self, wanted: Collection[TopicKey], monotonic_ms: Callable[[], int]) -> None:
        self._wanted = wanted
        self._monotonic_ms = monotonic_ms
        self._left: deque[TopicKey] = deque()
        self._heard: dict[TopicKey, dict[str, tuple[int, int]]] = {}  # host -> (priority, when it was heard)

    def ask(self) -> list[TopicKey]:
        """Return the topics to ask for now, and forget those that are not wanted any more."""
        if not self._left:
            self._left.extend(self._wanted)
            for key in self._heard.keys() - set(self._wanted):
                del self._heard[key]
        return [self._left.popleft() for _ in range(min(MOST_ASKED, len(self._left)))]

    def heard(self, host: str, keys: Sequence[TopicKey], priorities: Sequence[int | None]) -> None:
        """Take the answer of a host: the priorities of its most urgent items of these topics."""
        now_ms = self._monotonic_ms()
        for key, priority in zip(keys, priorities, strict=False):
            if key not in self._wanted:
                continue
            hosts = self._heard.setdefault(key, {})
            if priority is None:
                hosts.pop(host, None)
            else:
                hosts[host] = (priority, now_ms)

    def most_urgent(self, key: TopicKey) -> Urgent | None:
        """Return the most urgent item of the topic on other hosts, as far as they said so lately."""
        now_ms = self._monotonic_ms()
        told = [(priority, now_ms - at_ms) for priority, at_ms in self._heard.get(key, {}).values()]
        return min((Urgent(*one) for one in told if one[1] < HEARD_MS), default=None)
