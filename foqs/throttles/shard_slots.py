"""The slots of one throttle key in one shard, at the shard's owner: how many leases its items may have. Pure.

`foqs.throttles.slots` is the coordinator's side. `leased` is the number of rows in the shard's database with a lease,
and of those whose lease is being committed; it is counted when the shard is opened. Invariant: `has` >= `leased`, but
under a shadow throttle.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TypeVar

from foqs.throttles.gate import Gate
from foqs.throttles.slots import COUNTING_MS, SlotAsk, SlotGrant
from foqs.throttles.throttle import Throttle

F = TypeVar("F")
T = TypeVar("T")

UNANSWERED_MS = 200
_NOTHING = -1
_PAUSE_MS = 10
"""After a slot went back unused: flows that need slots of several keys could return and ask for them without end."""
_IDLE_MS = 1_000
"""A free slot that was not used for so long goes back, also where no other shard wants it."""


class ShardSlots(Gate[T, F]):
    """`counted`: the leases of the shard are. `contended`: other shards wait for slots of the key, so a free one goes
    back at once. `running`: when the leases were given that this owner gave, by item, the oldest first."""

    __slots__ = (
        "_counting", "_heard", "_in_time", "_numbers", "_open", "_paused_ms", "_reported", "_tied", "closed",
        "contended", "counted", "epoch", "has", "leased", "overage", "reclaimed", "running", "shard", "used_ms",
    )  # fmt: skip

    def __init__(
        self, ns: str, key: str, throttle: Throttle, slot: int, shard: int, epoch: int, numbers: Iterator[int]
    ) -> None:
        """`numbers` of reports continue when another instance replaces this: the coordinator knows the last."""
        super().__init__(ns, key, throttle, slot)
        self.shard = shard
        self.epoch = epoch
        self.has = self.leased = 0
        self.counted = self.contended = self.closed = False
        self.running: dict[int, int] = {}
        self._in_time: dict[int, None] = {}  # of these, those that are no overage yet
        self.overage = self.reclaimed = 0
        self.used_ms = 0
        self._numbers = numbers
        self._counting = False  # the coordinator counts leases
        self._paused_ms = 0
        self._tied = 0  # slots that go back when leases end
        self._open: SlotAsk | None = None
        self._reported = 0  # what the coordinator takes it to have
        self._heard = False  # a report is due after the open one

    @property
    def why(self) -> str:
        return f"concurrency: {self.name}"

    @property
    def asking(self) -> bool:
        return self._open is not None

    @property
    def answers_soon(self) -> bool:
        return self._open is not None or self._counting

    def here(self, now_ms: int) -> int:
        return self.has - self.leased if self.counted else 0

    # ------------------------------------------------------------------------------------- leases

    def lease(self, item_id: int, now_ms: int) -> None:
        """An item is leased."""
        self.leased += 1
        self.running[item_id] = self.used_ms = now_ms
        self._in_time[item_id] = None
        if self.leased > self.has:  # under a shadow throttle
            self.has = self.leased
            self._tied += 1

    def ended(self, item_id: int, *, by_time: bool) -> None:
        """The end of a lease is committed."""
        self.leased -= 1
        if self._tied:
            self._tied -= 1
            self.has -= 1
        elif self.contended:  # also where flows of this shard wait: the coordinator knows which have waited longest
            self.has -= 1
        self.running.pop(item_id, None)
        self._in_time.pop(item_id, None)
        self.reclaimed += by_time

    def claim(self, flow: F, now_ms: int) -> None:
        """Keep a slot for a flow that waits for one of another key, if there is one."""
        if self.has_room(flow, now_ms) and not self.keeps(flow):
            self._awake.pop(flow, None)  # the oldest claim comes first
            self._awake[flow] = now_ms

    def look_after(self, now_ms: int) -> None:
        """Count leases that are older than the throttle's timeout, each once."""
        while self.throttle.timeout_ms and self._in_time:
            item_id = next(iter(self._in_time))
            if now_ms - self.running[item_id] < self.throttle.timeout_ms:
                break
            del self._in_time[item_id]
            self.overage += 1

    def go_on_from(self, old: ShardSlots[T, F]) -> None:
        """Know the leases that another instance knew, whose limits are out of force. They end there or here."""
        self.running, self._in_time = old.running, old._in_time

    def counts(self) -> None:
        """The leases of the shard are counted, or a new limit is in force: each has a slot, which goes back when it
        ends. Before that there may be more than the limit."""
        self.has = self._tied = self.leased
        self.counted = True

    # ------------------------------------------------------------------------------------- the coordinator

    def ask(self, need: int, now_ms: int, priority: int, waiting_ms: int, *, beat: bool = False) -> SlotAsk | None:
        """Return the report to send now, None if there is nothing to ask, report or return."""
        if self.asking or not self.counted:
            return None
        spare = max(0, self._room(now_ms))
        idle = now_ms - self.used_ms >= _IDLE_MS
        returned = spare if (self.contended or idle) and not need else 0
        wanted = max(0, need - spare)
        if not (wanted or returned or beat or self._reported != self.has):
            return None
        if returned:
            self.has -= returned
            self._paused_ms = now_ms + _PAUSE_MS
        self._reported = self.has
        self._open = SlotAsk(
            self.shard, self.epoch, next(self._numbers), self.has, self.leased, wanted, priority, waiting_ms
        )
        return self._open

    def answered(self, ask: SlotAsk, grant: SlotGrant | None, now_ms: int) -> None:
        """`grant` is None if there is no answer: slots that were granted are lost until the next report."""
        if self._open is not ask:
            return
        self._open = None
        self._counting = grant is not None and grant.granted < ask.wanted and grant.retry_after_ms <= COUNTING_MS
        self.unanswered = self.unanswered + 1 if grant is None else 0
        if grant is None or not 0 <= grant.granted <= ask.wanted:
            self.due_ms = now_ms + UNANSWERED_MS
            return
        self.has += grant.granted
        self._reported = ask.has + grant.granted
        self.contended = grant.contended
        if grant.granted:
            self.used_ms = now_ms
        if self._heard:
            self.hear(now_ms)
            return
        lacks = grant.granted < ask.wanted
        # The coordinator forgets a shard that wants nothing: a flow that is parked later asks at once.
        self.due_ms = now_ms + max(1, grant.retry_after_ms) if lacks else max(now_ms, self._paused_ms)

    def hear(self, now_ms: int) -> None:
        """The coordinator keeps a slot for this shard, or other shards wait for slots: report at once."""
        self.contended = True
        self._reported = _NOTHING
        self._heard = self.asking
        self.due_ms = now_ms

    def count(self, now_ms: int) -> int:
        """Return the leases for a coordinator that counts. Free slots are given up, and an open question is: what an
        earlier coordinator grants now is not taken."""
        self._open, self.has = None, self.leased
        self._reported = self.has
        self.due_ms = now_ms
        return self.leased

    def next_ms(self, now_ms: int) -> int | None:
        if not self.counted:
            return None
        if self._reported != self.has or (self.contended and self._room(now_ms) > 0):
            return now_ms
        return max(now_ms, self.due_ms) if self.active else None

    @property
    def unused(self) -> bool:
        """Whether it can be forgotten."""
        idle = not (self.has or self.leased or self.asking or self._reported)
        return idle and not (self.active or self.asleep or self.timer_ms or self.awake)

    def __repr__(self) -> str:
        return f"ShardSlots({self.name}@{self.shard} {self.leased} of {self.has} leased, {self.awake} awake)"
