"""What a host did in the last minute, by topic: items that it stored, delivered and saw acked, and failed attempts.

The counters of topics have it all, for the metrics. `Topic.counters` is None until something is counted in the present
step (`foqs.fairness.rates`): then the topic is noted with the counts that it had before. So an item costs nothing more,
and a topic without traffic costs nothing. After the end of a step the noted topics are summed up, some of them at a
time. Until then they count for the step that ended.
"""

from __future__ import annotations

from array import array
from itertools import islice
from typing import Any, NamedTuple

from foqs.counters import TopicEvents
from foqs.fairness.keys import TopicKey

STEPS = 6
"""Whole steps of 10 s that make the last minute."""
MOST_TOPICS = 10_000
"""Topics with traffic in the last minute that have counts. The traffic of further ones is unknown."""
MOST_BYTES = 8 << 20
"""The most memory that a host has for their counts, names included. A test fills it."""
_KINDS = 4
_NOTHING = array("I", bytes(4 * _KINDS))


class Minute(NamedTuple):
    """Events of the last minute."""

    enqueued: int = 0
    delivered: int = 0
    acked: int = 0
    failed: int = 0


class _Steps:
    """The events of a topic in the `STEPS` steps up to `step`, one step after the other. `used`: the last one with
    traffic."""

    __slots__ = ("counts", "step", "used")

    def __init__(self, step: int) -> None:
        self.counts = array("I", bytes(4 * _KINDS * STEPS))
        self.step = self.used = step

    def upto(self, step: int) -> array[int]:
        """Forget steps so that `step` is the last one."""
        counts = self.counts
        for gone in range(max(self.step, step - STEPS) + 1, step + 1):
            at = gone % STEPS * _KINDS
            counts[at : at + _KINDS] = _NOTHING
        self.step = step
        return counts

    def add(self, events: TopicEvents, step: int) -> None:
        counts, at = self.upto(step), step % STEPS * _KINDS
        for kind in range(_KINDS):
            counts[at + kind] += events[kind]
        self.used = step


class TopicRates:
    def __init__(self) -> None:
        self._step = 0
        self._noted: list[tuple[Any, TopicEvents]] = []  # topics with traffic in the present step
        self._ended: list[tuple[Any, TopicEvents]] = []  # and in steps before, whose sums are due
        self._known: dict[TopicKey, _Steps] = {}  # the last traffic comes last
        self._left_out = -STEPS - 1
        """The last step with traffic of a topic that got no place."""

    def begin(self, topic: Any, before: TopicEvents) -> None:
        """Note a topic, which has `key`, `counters` and `totals`, and its events before this step."""
        self._noted.append((topic, before))

    def end_step(self, steps: int) -> None:
        """End the present step. The next one is `steps` later, or follows at once if the clock went back. `sum_up` is
        due."""
        self._step += max(1, steps)
        self._ended += self._noted
        self._noted = []

    def sum_up(self, most: int) -> bool:
        """Sum up `most` topics. Return True if more are due."""
        known, last = self._known, self._step - 1
        quiet = [key for key, steps in islice(known.items(), most) if steps.used <= last - STEPS]
        for key in quiet:
            del known[key]
        for _ in range(min(most, len(self._ended))):
            topic, before = self._ended.pop()
            topic.counters = None
            events = topic.totals.events().minus(before)
            if not any(events[:_KINDS]):
                continue
            steps = known.pop(topic.key, None)
            if steps is None and len(known) >= MOST_TOPICS:
                self._left_out = last
                continue
            steps = known[topic.key] = steps or _Steps(last)
            steps.add(events, last)
        return bool(self._ended) or len(quiet) == most

    def of(self, key: TopicKey) -> Minute | None:
        """Return the events of a topic in the last whole steps; None if they are unknown."""
        steps, last = self._known.get(key), self._step - 1
        if steps is None:
            return None if last - self._left_out < STEPS else Minute()
        counts = steps.upto(last)
        return Minute(*[sum(counts[kind::_KINDS]) for kind in range(_KINDS)])
