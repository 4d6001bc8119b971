"""What a host did in each step of the last hour, by namespace: items that it stored, delivered and saw acked, and
attempts that failed.

A request adds to the counts of the present step, a number a batch. At the end of a step the counts go to rings, all to
the same cell. The steps of all hosts begin at multiples of `STEP_MS` of their clocks, so they may be added.

A ring takes 6 KB, so a host has at most `MOST_RINGS` of them. The namespace that has been idle for the longest time
gives its ring to one with traffic. `MOST_BYTES` bounds it all.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence

from foqs.bounds import RATE_STEPS
from foqs.fairness.topic_rates import TopicRates
from foqs.figures import NamespaceRates

STEP_MS = 10_000
MOST_RINGS = 1_000
MOST_NAMESPACES = 10_000
"""Namespaces with counts of their own. Further ones share `Rates.rest`, which has no ring."""
MOST_BYTES = 12 << 20
"""The most memory that a host has for this, names included. A test fills it."""
_KINDS = 4
_ZERO = _KINDS * RATE_STEPS
"""The cell of a ring that stays 0."""
_NO_STEP = -(1 << 60)


class Traffic:
    """The counts of a namespace in the present step. `topics` of it are on the host. `ring` has the counts of earlier
    steps, one kind after the other; None without traffic in the last hour. `used`: the last step of `Rates` with
    traffic. `topic_rates` has the traffic of its topics, and of all further ones."""

    __slots__ = ("acked", "delivered", "enqueued", "failed", "ring", "topic_rates", "topics", "used")

    def __init__(self, topic_rates: TopicRates) -> None:
        self.topic_rates = topic_rates
        self.enqueued = self.delivered = self.acked = self.failed = 0
        self.topics = self.used = 0
        self.ring: array[int] | None = None


class Rates:
    """`begun_ms`: when the counts began, 0 before the first `turn`. `ends_ms`: the end of the present step, when
    `turn` is due. `by_topic`: the last minute of each topic."""

    def __init__(self) -> None:
        self.begun_ms = 0
        self.ends_ms = 0
        self.by_topic = TopicRates()
        self.rest = Traffic(self.by_topic)
        self._known: dict[str, Traffic] = {}
        self._step = 0
        self._turns = 0
        self._steps = [_NO_STEP] * RATE_STEPS
        """The step of each cell of a ring. The numbers rise from turn to turn."""
        self._set_by_ms = 0
        self._left_out = -RATE_STEPS
        """The last turn in which the counts of a namespace got no place, or were dropped."""

    def of(self, ns: str) -> Traffic:
        """Return the counts of a namespace that gets one more topic."""
        found = self._known.get(ns)
        if found is None:
            if len(self._known) < MOST_NAMESPACES:
                found = self._known[ns] = Traffic(self.by_topic)
            else:
                found = self.rest
        found.topics += 1
        return found

    def clock_set(self, by_ms: int) -> None:
        """Follow the host's clock, which was set by `by_ms`. The counts keep their ages."""
        self._set_by_ms += by_ms
        self.ends_ms = 0

    def turn(self, now_ms: int) -> None:
        """End the present step if `now_ms` is not in it."""
        by_ms, self._set_by_ms = self._set_by_ms, 0
        if not self.begun_ms:
            self.begun_ms, self._step = now_ms, now_ms // STEP_MS
        else:
            self._end((now_ms - by_ms) // STEP_MS)
            self.begun_ms += by_ms
            self._move(now_ms // STEP_MS - self._step)
        self.ends_ms = (self._step + 1) * STEP_MS

    @property
    def more(self) -> bool:
        """Return True if the last hour of some namespaces is left out."""
        return self._turns - self._left_out < RATE_STEPS

    def named(self) -> list[str]:
        """Return the namespaces with traffic in the last hour."""
        return [ns for ns, one in self._known.items() if one.ring is not None]

    def cells(self, first: int, steps: int) -> list[int]:
        """Return the places of `steps` steps from the `first` on in a ring, one kind after the other. They hold until
        the next `turn`."""
        at_of = {step: at for at, step in enumerate(self._steps)}
        found = [at_of.get(step) for step in range(first, first + steps)]
        return [_ZERO if at is None else kind * RATE_STEPS + at for kind in range(_KINDS) for at in found]

    def total(self, ns: str, cells: Sequence[int]) -> int:
        """Return the sum over all kinds."""
        one = self._known.get(ns)
        return 0 if one is None or one.ring is None else sum(map(one.ring.__getitem__, cells))

    def figures(self, ns: str, cells: Sequence[int]) -> NamespaceRates:
        """Return the counts by step. A kind without any has no steps."""
        one = self._known.get(ns)
        if one is None or one.ring is None:
            return NamespaceRates(ns)
        counts, steps = tuple(map(one.ring.__getitem__, cells)), len(cells) // _KINDS
        kinds = [counts[start : start + steps] for start in range(0, len(counts), steps)]
        enqueued, delivered, acked, failed = [kind if any(kind) else () for kind in kinds]
        return NamespaceRates(ns, enqueued, delivered, acked, failed)

    # ------------------------------------------------------------------------------------- inside

    def _end(self, step: int) -> None:
        """Begin `step`. Steps in between, without a turn, have no cell: nothing was counted in them."""
        if step == self._step:
            return
        self.by_topic.end_step(step - self._step)
        if step < self._step:
            self._move(step - self._step - 1)  # a clock that went back without a word: the present step ends there
        self._turns += 1
        at = self._turns % RATE_STEPS
        self._steps[at], self._step = self._step, step
        rings: list[Traffic] = []
        new: list[Traffic] = []
        for ns, one in list(self._known.items()):
            if one.enqueued or one.delivered or one.acked or one.failed:
                one.used = self._turns
                (new if one.ring is None else rings).append(one)
            elif one.ring is not None:
                if self._turns - one.used < RATE_STEPS:
                    rings.append(one)
                else:
                    one.ring = None
            if one.ring is None and one.used != self._turns and not one.topics:
                del self._known[ns]
        self._give_rings(rings, new)
        for one in rings:
            if one.ring is not None:
                one.ring[at] = one.enqueued
                one.ring[RATE_STEPS + at] = one.delivered
                one.ring[2 * RATE_STEPS + at] = one.acked
                one.ring[3 * RATE_STEPS + at] = one.failed
                one.enqueued = one.delivered = one.acked = one.failed = 0
        rest = self.rest
        if rest.enqueued or rest.delivered or rest.acked or rest.failed:
            self._left_out = self._turns
            self.rest.enqueued = rest.delivered = rest.acked = rest.failed = 0

    def _give_rings(self, rings: list[Traffic], new: list[Traffic]) -> None:
        """Give rings to `new` ones, and add these to `rings`."""
        lacking = len(rings) + len(new) - MOST_RINGS
        if lacking > 0:
            self._left_out = self._turns
            idle = sorted([one for one in rings if one.used != self._turns], key=lambda one: one.used)
            for one in idle[:lacking]:
                one.ring = None
        room = len(new) if lacking <= 0 else MOST_RINGS - sum([one.ring is not None for one in rings])
        for one in new[:room]:
            one.ring = array("I", bytes(4 * (_ZERO + 1)))
        for one in new[room:]:
            one.enqueued = one.delivered = one.acked = one.failed = 0
        rings += new[:room]

    def _move(self, by: int) -> None:
        if by:
            self._steps = [step + by for step in self._steps]
            self._step += by
