"""The slots of one throttle key, which limit the leases that live at the same time: at its coordinator (`LeaseSlots`),
and in one shard at the shard's owner (`ShardSlots`). Pure.

Slots are lent to shards. The owner of a shard leases items while it has a free slot, and its leases are rows of the
shard's database. So the slots of a shard survive its owner: the next one counts the rows, and reports that number under
a higher epoch. A shard's report replaces reports with a lower (epoch, number), so late and repeated messages do no
harm.

A new coordinator knows nothing. It lends once each shard was counted by an owner that its database confirmed after the
question (`counted`), or has had no owner for the throttle's `timeout_ms`. A shard that was removed from the cluster has
no slots, and is not waited for.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Set
from typing import NamedTuple

from foqs.limits.gate import UNANSWERED_MS, F, Gate, T
from foqs.limits.shadow_hour import HourCounts
from foqs.policies.entries import Throttle

LEASE_SLOTS = "slots"
"""The name of this unit."""
AGAIN_MS = 500
"""A shard that got less than it wants, and hears nothing, asks again after this time."""
COUNTING_MS = 20
"""A shard asks again after this time while its key is counted."""
SILENT_MS = 1_200
"""A shard that holds slots reports twice a second. After this time without a report it is counted again."""
_OFFER_MS = 250
"""A freed slot is kept for this time for the shard to which it was offered."""
_FORGET_MS = 10_000
"""A ledger without slots and without waiting shards is kept for this time after the last report."""
_NOTHING = -1
"""No number of slots: the next report is sent whatever the shard has."""
_PAUSE_MS = 10
"""The pause after a slot went back unused: flows that need slots of several keys could return them and ask without
end."""
_IDLE_MS = 1_000
"""A free slot that was not used for this time goes back, also where no other shard wants it."""


class SlotAsk(NamedTuple):
    """A report of a shard's owner, and its question for `wanted` more slots. `has`: slots of the shard, of which
    `leased` have a lease. `priority`: the lowest of the items that wait; `waiting_ms`: for this time they do. `begun`:
    leases since the last report; an owner of an earlier version does not say it (None)."""

    shard: int
    epoch: int
    number: int
    has: int
    leased: int
    wanted: int = 0
    priority: int = 0
    waiting_ms: int = 0
    begun: int | None = None


class SlotGrant(NamedTuple):
    """`contended`: other shards wait for slots, so one that is freed goes back. Ask again after `retry_after_ms` if
    less was lent than wanted."""

    granted: int
    contended: bool
    retry_after_ms: int


class _Loan:
    """The slots of one shard, by its last report, (`epoch`, `number`). `warned`: its owner knows that shards wait."""

    __slots__ = ("epoch", "has", "heard_ms", "leased", "number", "warned")

    def __init__(self, epoch: int, number: int, has: int, leased: int, heard_ms: int) -> None:
        self.epoch = epoch
        self.number = number
        self.has = has
        self.leased = leased
        self.heard_ms = heard_ms
        self.warned = False


class _Waiter:
    """A shard that wants more slots than it got. `offered_ms`: the time when a slot was offered to it, or None."""

    __slots__ = ("heard_ms", "offered_ms", "priority", "since_ms", "wanted")

    def __init__(self, wanted: int, priority: int, since_ms: int, heard_ms: int) -> None:
        self.wanted = wanted
        self.priority = priority
        self.since_ms = since_ms
        self.heard_ms = heard_ms
        self.offered_ms: int | None = None


class LeaseSlots:
    """The ledger of one key's lease slots. `reclaimed` counts shards that were given up (promise 13); `shadow_held`
    leases over the limit of a throttle in `shadow`, which lends nothing and counts; `hour` counts these and all other
    leases, and is None where the throttle is not in shadow. `basis`: by what leases count.
    `counting_until_ms`: earliest time of the next count."""

    __slots__ = (
        "_loans", "_shards", "_since", "_waiters", "basis", "begun_ms", "counting_until_ms", "hour", "limit",
        "reclaimed", "shadow", "shadow_held", "timeout_ms", "unknown", "used_ms",
    )  # fmt: skip

    def __init__(
        self, limit: int, timeout_ms: int, shards: Iterable[int], now_ms: int, basis: object = None, *,
        shadow: bool = False,
    ) -> None:  # fmt: skip
        """`shards`: all shards of the cluster, which may have leases."""
        self.limit = limit
        self.timeout_ms = timeout_ms
        self.shadow = shadow
        self.shadow_held = 0
        self.hour: HourCounts | None = None
        self._shards: Set[int] = frozenset(shards)
        self.unknown = set(self._shards)
        self._since: dict[int, int] = {}  # when a shard was added, after this began
        self.begun_ms = self.used_ms = now_ms
        self.reclaimed = 0
        self.basis = basis
        self.counting_until_ms = 0
        self._loans: dict[int, _Loan] = {}
        self._waiters: dict[int, _Waiter] = {}

    # ------------------------------------------------------------------------------------- reports

    def lend(self, ask: SlotAsk, now_ms: int) -> SlotGrant | None:
        """Take a shard's report, and lend it slots. None: a later report of the shard is known."""
        if not self._take(ask.shard, ask.epoch, ask.number, ask.has, ask.leased, now_ms, ask.begun):
            return None
        self.used_ms = now_ms
        self._forget(now_ms)
        if not ask.wanted:
            self._waiters.pop(ask.shard, None)
            return SlotGrant(0, self._warn(ask.shard), 0)
        if self.unknown:
            return SlotGrant(0, False, COUNTING_MS)
        granted = self._lent_to(ask, now_ms)
        return SlotGrant(granted, self._warn(ask.shard), 0 if granted == ask.wanted else AGAIN_MS)

    def counted(self, shard: int, epoch: int, number: int, leased: int, now_ms: int) -> None:
        """An owner that its database confirmed says how many leases its shard has. It has no other slot."""
        if shard not in self._shards:
            return
        taken = self._take(shard, epoch, number, leased, leased, now_ms)
        if taken or self._loans[shard].epoch == epoch:  # else a later owner reported, and is counted next
            self.unknown.discard(shard)

    def follow(self, shards: Set[int], now_ms: int) -> None:
        """Follow the shards of the cluster. New shards are counted before more is lent. Removed shards hold no slots,
        and count as new when they return."""
        before = self._shards
        if shards is before or shards == before:
            return
        self._shards = shards
        for shard in before - shards:
            self.unknown.discard(shard)
            self._waiters.pop(shard, None)
            self._since.pop(shard, None)
            loan = self._loans.pop(shard, None)
            self.reclaimed += loan is not None and loan.leased > 0
        for shard in shards - before:
            self.unknown.add(shard)
            self._since[shard] = now_ms

    def give_up(self, unowned: Iterable[int], now_ms: int, wait_ms: int | None = None) -> None:
        """Shards without an owner hold no slots, once they have been waited for: for `wait_ms`, or for the throttle's
        `timeout_ms`, where 0 is no bound."""
        wait_ms = wait_ms or self.timeout_ms
        for shard in unowned if wait_ms else ():
            loan = self._loans.get(shard)
            since_ms = self._since.get(shard, self.begun_ms) if loan is None else loan.heard_ms
            if (shard in self.unknown or (loan is not None and loan.has)) and now_ms - since_ms >= wait_ms:
                self.unknown.discard(shard)
                self._loans.pop(shard, None)
                self.reclaimed += 1

    def _take(
        self, shard: int, epoch: int, number: int, has: int, leased: int, now_ms: int, begun: int | None = 0
    ) -> bool:
        loan = self._loans.get(shard)
        if loan is not None and (loan.epoch, loan.number) >= (epoch, number):
            return False
        warned = loan is not None and loan.epoch == epoch and loan.warned
        had, more, before = loan is not None, has - (loan.has if loan is not None else 0), self.free
        loan = self._loans[shard] = _Loan(epoch, number, has, leased, now_ms)
        loan.warned = warned
        if self.shadow and (had or begun):  # else these leases began before the count
            self._count_shadow(max(0, more) if begun is None else begun, before, now_ms)
        return True

    def _count_shadow(self, begun: int, before: int, now_ms: int) -> None:
        """Count leases that began while slots were free, and leases that began over the limit. `before`: the free slots
        at the last report."""
        held = max(0, begun - max(0, before)) if self.free < 0 else 0
        self.shadow_held += held
        if begun and self.hour is not None:
            self.hour.add(now_ms, begun - held, held)

    def _lent_to(self, ask: SlotAsk, now_ms: int) -> int:
        waiter = self._waiters.pop(ask.shard, None)
        own = _Waiter(ask.wanted, ask.priority, now_ms - ask.waiting_ms, now_ms)
        kept = sum([_kept(one, now_ms) for one in self._waiters.values()])
        if waiter is None or not _kept(waiter, now_ms):  # then those before it come first
            before = [one for one in self._waiters.values() if not _kept(one, now_ms) and _order(one) < _order(own)]
            kept += sum([one.wanted for one in before])
        granted = max(0, min(ask.wanted, self.free - kept))
        self._loans[ask.shard].has += granted
        if granted < ask.wanted:
            own.wanted -= granted
            self._waiters[ask.shard] = own
        return granted

    # ------------------------------------------------------------------------------------- news

    def news(self, now_ms: int) -> list[int]:
        """Return the shards whose owners report at once: a freed slot is kept for them, by priority and then by waiting
        time, or they have slots that other shards wait for."""
        if not self._waiters or self.unknown:
            return []
        self._forget(now_ms)
        found: dict[int, None] = {}
        free = self.free - sum([_kept(one, now_ms) for one in self._waiters.values()])
        for shard, waiter in sorted(self._waiters.items(), key=lambda one: _order(one[1])):
            if free <= 0:
                break
            if not _kept(waiter, now_ms):
                waiter.offered_ms = now_ms
                free -= 1
                found[shard] = None
        for shard, loan in self._loans.items():
            if loan.has and not loan.warned and self._contended(shard):
                loan.warned = True
                found[shard] = None
        return list(found)

    def to_count(self, now_ms: int) -> set[int]:
        """Return the shards to count: all at the start, and later each shard that has slots and does not report."""
        loans = self._loans.items()
        return self.unknown | {shard for shard, loan in loans if loan.has and now_ms - loan.heard_ms >= SILENT_MS}

    def _warn(self, shard: int) -> bool:
        loan = self._loans[shard]
        loan.warned = self._contended(shard)
        return loan.warned

    def _contended(self, shard: int) -> bool:
        return len(self._waiters) > (shard in self._waiters)

    def _forget(self, now_ms: int) -> None:
        for shard, waiter in list(self._waiters.items()):
            if now_ms - waiter.heard_ms > 2 * AGAIN_MS + _OFFER_MS:
                del self._waiters[shard]

    # ------------------------------------------------------------------------------------- numbers

    @property
    def lent(self) -> int:
        return sum([loan.has for loan in self._loans.values()])

    @property
    def taken(self) -> int:
        """Slots with a lease, by the last reports."""
        return sum([loan.leased for loan in self._loans.values()])

    @property
    def free(self) -> int:
        """Slots that no shard has; below 0 after the limit was lowered."""
        return self.limit - self.lent

    def unused(self, now_ms: int) -> bool:
        """Return True if it can be forgotten: a new one counts again."""
        return not (self.lent or self._waiters) and now_ms - self.used_ms > _FORGET_MS

    def __repr__(self) -> str:
        return f"LeaseSlots({self.lent} of {self.limit} lent, {len(self._waiters)} wait, {len(self.unknown)} unknown)"


def _order(waiter: _Waiter) -> tuple[int, int]:
    return waiter.priority, waiter.since_ms


def _kept(waiter: _Waiter, now_ms: int) -> int:
    """Return how many slots are kept for a shard to which one was offered."""
    return int(waiter.offered_ms is not None and now_ms - waiter.offered_ms < _OFFER_MS)


class ShardSlots(Gate[T, F]):
    """A gate whose units are the slots of one shard. `leased`: the number of rows in the shard's database with a lease,
    and of rows whose lease is being committed; it is `counted` when the shard is opened. Invariant: `has` >= `leased`,
    but under a shadow throttle. `contended`: other shards wait for slots of the key, so a free slot goes back at once.
    `running`: the times of the leases that this owner gave, by item, the oldest first."""

    __slots__ = (
        "_begun", "_counting", "_heard", "_in_time", "_numbers", "_open", "_paused_ms", "_reported", "_tied",
        "contended", "counted", "epoch", "has", "leased", "overage", "reclaimed", "running", "shard", "used_ms",
    )  # fmt: skip
    unit = LEASE_SLOTS

    def __init__(
        self, ns: str, key: str, throttle: Throttle, hash_slot: int, shard: int, epoch: int, numbers: Iterator[int]
    ) -> None:
        """`numbers` of reports continue when another instance replaces this: the coordinator knows the last."""
        super().__init__(ns, key, throttle, hash_slot)
        self.shard = shard
        self.epoch = epoch
        self.has = self.leased = 0
        self.counted = self.contended = False
        self.running: dict[int, int] = {}
        self._in_time: dict[int, None] = {}  # of these, the leases that are no overage yet
        self.overage = self.reclaimed = 0
        self.used_ms = 0
        self._numbers = numbers
        self._counting = False  # the coordinator counts leases
        self._paused_ms = 0
        self._tied = 0  # slots that go back when leases end
        self._begun = 0  # leases since the last report
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

    @property
    def holds(self) -> bool:
        return self.has > 0

    def here(self, now_ms: int) -> int:
        return self.has - self.leased if self.counted else 0

    def need(self, wanted: Callable[[T], int]) -> int:
        need = self.wanted_of(wanted, self.throttle.concurrency or 1)
        return min(need, sum([len(parking) for parking in self.active.values()])) if self.contended else need

    # ------------------------------------------------------------------------------------- leases

    def lease(self, item_id: int, now_ms: int) -> None:
        """An item is leased."""
        self.leased += 1
        self._begun += 1
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
        """Give a flow that waits for a slot of another key a claim on a free one, which ends after `AWAKE_MS`."""
        if self.has_room(flow, now_ms) and not self.keeps(flow):
            self._awake.pop(flow, None)  # the oldest claim comes first
            self._awake[flow] = now_ms

    def tend(self, now_ms: int) -> bool:
        """Count leases that are older than the throttle's timeout, each once."""
        while self.throttle.timeout_ms and self._in_time:
            item_id = next(iter(self._in_time))
            if now_ms - self.running[item_id] < self.throttle.timeout_ms:
                break
            del self._in_time[item_id]
            self.overage += 1
        return self.has > 0

    def go_on_from(self, old: ShardSlots[T, F]) -> None:
        """Take over the leases of another instance, whose limits are out of force. They end there or here."""
        self.running, self._in_time = old.running, old._in_time

    def tie_all(self) -> None:
        """The leases of the shard are counted, or a new limit is in force: each has a slot, which goes back when it
        ends. Before that there may be more than the limit."""
        self.has = self._tied = self.leased
        self.counted = True

    # ------------------------------------------------------------------------------------- the coordinator

    def ask(self, need: int, now_ms: int, priority: int, waiting_ms: int, *, beat: bool = False) -> SlotAsk | None:
        """Return the report to send now, None if there is nothing to ask, report or return."""
        if self.asking or not self.counted:
            return None
        spare = max(0, self.room(now_ms))
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
            self.shard, self.epoch, next(self._numbers), self.has, self.leased, wanted, priority, waiting_ms,
            self._begun,
        )  # fmt: skip
        self._begun = 0
        return self._open

    def answered(self, ask: SlotAsk, grant: SlotGrant | None, now_ms: int, jitter: float = 0.0) -> bool:
        """Slots of an answer that was lost are lost until the next report."""
        if self._open is not ask:
            return False
        self._open = None
        self._counting = grant is not None and grant.granted < ask.wanted and grant.retry_after_ms <= COUNTING_MS
        self.unanswered = self.unanswered + 1 if grant is None else 0
        if grant is None or not 0 <= grant.granted <= ask.wanted:
            self.due_ms = now_ms + UNANSWERED_MS
            return True
        self.has += grant.granted
        self._reported = ask.has + grant.granted
        self.contended = grant.contended
        if grant.granted:
            self.used_ms = now_ms
        if self._heard:
            self.hear(now_ms)
            return True
        lacks = grant.granted < ask.wanted
        # The coordinator forgets a shard that wants nothing: a flow that is parked later asks at once.
        self.due_ms = now_ms + max(1, grant.retry_after_ms) if lacks else max(now_ms, self._paused_ms)
        return True

    def hear(self, now_ms: int) -> None:
        """The coordinator keeps a slot for this shard, or other shards wait for slots: report at once."""
        self.contended = True
        self._reported = _NOTHING
        self._heard = self.asking
        self.due_ms = now_ms

    def give_up_free(self, now_ms: int) -> int:
        """Give up free slots, and the open question: what an earlier coordinator lends now is not taken. Return the
        number of leases, for a coordinator that counts."""
        self._open, self.has = None, self.leased
        self._reported = self.has
        self.due_ms = now_ms
        return self.leased

    def next_ms(self, now_ms: int) -> int | None:
        if not self.counted:
            return None
        if self._reported != self.has or (self.contended and self.room(now_ms) > 0):
            return now_ms
        return max(now_ms, self.due_ms) if self.active else None

    @property
    def unused(self) -> bool:
        """Return True if it can be forgotten."""
        idle = not (self.has or self.leased or self.asking or self._reported)
        return idle and not (self.active or self.asleep or self.timer_ms or self.awake)

    def __repr__(self) -> str:
        return f"ShardSlots({self.name}@{self.shard} {self.leased} of {self.has} leased, {self.awake} awake)"
