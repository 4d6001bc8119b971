"""An owned shard: the work that waits for its database, and if its items may be leased.

`batch_build` makes a shard batch of the work, `batch_apply` applies its result.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable
from itertools import takewhile
from typing import Any, NamedTuple

from foqs.bounds import Budget
from foqs.buffers.checkpoint import Checkpoint
from foqs.buffers.pending_dedup import DedupKeys
from foqs.buffers.reads import DeadRead, ListRead
from foqs.buffers.shard_batch import Chunk, ShardBatch
from foqs.config.schema import HostSection
from foqs.counters import BatchMetrics, Counters
from foqs.engine.shard_memory import ShardMemory
from foqs.errors import FoqsError
from foqs.fairness.keys import TopicKey
from foqs.fairness.topics import Topics
from foqs.hooks.protocol import AskScript, FailureResult
from foqs.ids import first_id
from foqs.item import Change, Item, Phase, Place, To, Waits
from foqs.policies.layers import Policies
from foqs.prefetch.lane import Lane
from foqs.prefetch.residents import Residents
from foqs.rows import Found
from foqs.shardmgr.lifecycle import Breaker, BreakerSettings, BreakerState, ShardState, moved

Look = Callable[[Item | None, Found | None, FoqsError | None], None]
"""Called with the item that an id names, and its rows; None twice where there is none, or the error of the look-up."""


class Looks(dict[int, list[Look]]):
    """The look-ups by id: several callers may ask for one item. `count` is the number of look-ups.

    A dict, because each batch checks whether it is empty.
    """

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def add(self, item_id: int, look: Look) -> None:
        self.setdefault(item_id, []).append(look)
        self.count += 1

    def take(self, item_id: int) -> list[Look]:
        waiting = self.pop(item_id)
        self.count -= len(waiting)
        return waiting


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


# Members of enums, bound once for the hot path.
_SERVING, _CLOSED = ShardState.SERVING, BreakerState.CLOSED
RETRY_MS = 20
"""Pause after a passing failure that the breaker does not count as enough to open."""


class Shard(ShardMemory):
    """The work that waits for the shard's next batch, and whether its items may be leased."""

    def __init__(
        self, number: int, config: HostSection, breaker: BreakerSettings, topics: Topics[Lane[Item]],
        residents: Residents, budget: Budget, counters: Counters, policies: Policies,
        ask_script: AskScript | None = None,
    ) -> None:  # fmt: skip
        """`ask_script` None: no script runs on this host."""
        super().__init__(config, topics, residents, budget, counters)
        self.policies = policies
        self.ask_script = ask_script
        self.number = number
        self.first_id = first_id(number)
        self.breaker = Breaker(breaker)
        self.batch_metrics = BatchMetrics()
        self.state = ShardState.ASSIGNED
        self.epoch = 0
        self.max_batch_bytes = 0
        self.hang_ms = breaker.hang_ms
        self.dedup_window_ms = 0
        self.takes_new = True  # items; False: it is served until it is empty
        self.filled: ShardMemory | None = None  # of a shard that is being opened
        self.forget_all()

    def forget_all(self) -> None:
        self.forget_items()
        self.next_lane = 1
        self.next_number = 1
        self.chunks: deque[Chunk] = deque()
        self.chunk_rows = 0
        self.limited: dict[str, Any] = {}  # by namespace: see `foqs.engine.concurrency`
        self.unwritten: deque[tuple[int, Item, int]] = deque()
        self.timers = Checkpoint(0)
        self.ttls = Checkpoint(0)
        self.keys = DedupKeys()
        self.looks = Looks()
        self.asked = AskedScripts()
        self.lists: list[ListRead] = []
        self.dead_reads: deque[DeadRead] = deque()
        self.stalled: dict[TopicKey, None] = {}  # topics that were asked for while this shard could lease nothing
        self.rows_changed = 0
        self.confirm_wanted = False
        self.confirmed_ms = 0
        self.opened_ms = 0
        self.clock_wanted = False  # a reading of the database's clock, also with a transaction
        self.clock_read_ms = 0
        self.clock_ahead_ms = 0  # of the database, before the host's, when it was read
        self.late_ms = 0  # items end this much later than by the host's clock, as the database's clock is behind
        self.server = b""  # as in `Opened`
        self.held = False  # nothing is delivered, scanned or removed, as it is not known what time it is
        self.confirming: list[Callable[[], None]] = []  # called after the next batch, or when the shard is closed
        # When the shard was taken from an owner that may still run; NEVER_MS: it is `held`, and was not.
        self.grace_from_ms: int | None = None
        self.in_flight: ShardBatch | None = None
        self.unsettled: ShardBatch | None = None
        self.lost = False
        self.disk_full = False  # until the next transaction is committed
        self.read_only = False  # lost, because its database takes no writes
        self.down_from_ms: int | None = None  # since when a lost database has not answered
        self.answered_ms = 0  # when requests that wait for it were answered last
        self.pause_from_ms: int | None = None  # after a passing failure
        self.returned: list[Chunk] = []

    # ------------------------------------------------------------------------------------- life

    def to(self, state: ShardState) -> None:
        self.state = moved(self.state, state)

    def healthy(self, now_ms: int) -> bool:
        """Return True if new work may be sent here and its items be merged."""
        return (
            self.state is _SERVING
            and self.breaker.state is _CLOSED
            and not self.lost
            and (self.in_flight is None or now_ms - self.in_flight.begun_ms <= self.hang_ms)
        )

    def confirmed(self, now_ms: int) -> bool:
        """True if ownership was confirmed within `confirm_ms`. (Confirmed in the future: the clock was set back.)"""
        return 0 <= now_ms - self.confirmed_ms <= self.config.confirm_ms

    def in_takeover_grace(self, now_ms: int) -> bool:
        """Return True if the replaced owner may still lease ready items, because its last confirmation may be valid."""
        from_ms = self.grace_from_ms
        return from_ms is not None and 0 <= now_ms - from_ms <= self.config.confirm_ms

    def may_lease(self, now_ms: int) -> bool:
        """Return True if leases may be given now: ownership was confirmed in time, and leases are written in time."""
        if self.grace_from_ms is not None and (self.held or self.in_takeover_grace(now_ms)):
            return False
        if not self.confirmed(now_ms):
            self.confirm_wanted = True
            return False
        if not self.unwritten:
            return True
        oldest = self.oldest_unwritten_ms()
        return oldest is None or now_ms - oldest <= self.config.lease_write_delay_ms

    def retry_at_ms(self, now_ms: int) -> int:
        """Return when the database may be asked again after a passing failure; 0: at once."""
        from_ms = self.pause_from_ms
        if from_ms is None or not 0 <= now_ms - from_ms < RETRY_MS:
            return 0
        return from_ms + RETRY_MS

    def silent_from_ms(self) -> int | None:
        """Return since when the database owes an answer; None if nothing is asked of it."""
        if self.down_from_ms is not None:
            return self.down_from_ms
        return self.in_flight.begun_ms if self.in_flight is not None else None

    def oldest_unwritten_ms(self) -> int | None:
        unwritten = self.unwritten
        while unwritten:
            given_ms, item, lease = unwritten[0]
            if item.lease == lease and item.phase is Phase.LEASED and item.place is Place.READY:
                return given_ms
            unwritten.popleft()
        return None

    @property
    def load(self) -> int:
        """Rows waiting or in flight; enqueues prefer the shard with fewer."""
        in_flight = self.in_flight
        return self.chunk_rows + len(self.changes) + (in_flight.rows if in_flight is not None else 0)

    @property
    def full(self) -> bool:
        return self.chunk_rows + len(self.changes) + self.looks.count >= self.config.pending_rows

    @property
    def idle(self) -> bool:
        """Return True if nothing waits to be written. A drain waits for this."""
        busy = self.in_flight or self.unsettled or self.chunks or self.changes or self.keys.pending
        return not busy and self.oldest_unwritten_ms() is None

    # ------------------------------------------------------------------------------------- waiting work

    def drop_reads(self, done: Callable[..., None]) -> None:
        """Drop the reads that would call `done`. Without a connection, they and all later ones would wait."""
        self.lists = [read for read in self.lists if read.done != done]
        self.dead_reads = deque([read for read in self.dead_reads if read.done != done])

    def owned_lane(self, number: int) -> Lane[Item] | None:
        """Return the lane with that number. If another owner added it, find out if this host still owns the shard."""
        lane = self.lane_numbers.get(number)
        if lane is None:
            self.confirm_wanted = True
        return lane

    def takes_lanes(self, chunk: Chunk) -> bool:
        """Return True if there is room for the lanes of `chunk`."""
        few = len(self.lanes) < self.config.lanes
        return few or self.replaces_lanes() or all(key in self.lanes for key in chunk.keys)

    def replaces_lanes(self) -> bool:
        """Return True if an empty lane gives way to a new lane, in a shard that may have no more lanes."""
        gone = len(self.in_flight.lanes_gone) if self.in_flight is not None else 0
        return len(self.lanes) - gone < self.config.lanes or self.longest_empty() is not None

    def put(self, change: Change, now_ms: int) -> None:
        """Queue `change`; a change that waits for the same item is replaced and shares its outcome."""
        item, old = change.item, change.item.change
        if old is not None:
            change.waits += old.waits
            self.leave_scan(old, now_ms)
        elif item.in_flight is None:
            if item.place is Place.READY and item.phase is not Phase.LEASED and change.to is not To.KEPT:
                self.leave_ready(item)
            self.learn(item)
        item.queue(change)
        self.changes.append(change)

    def leave_scan(self, change: Change, now_ms: int) -> None:
        """Report to the scan that found the row that `change` will not move it, so the row is scanned again."""
        if change.scan is not None:
            change.scan.left(change.scan_ms)
            self.scan_done(change, now_ms)

    def scan_done(self, change: Change, now_ms: int) -> None:
        scan, change.scan = change.scan, None
        if scan is not None:
            scan.outstanding -= 1
            if not scan.outstanding:
                scan.finish(now_ms)

    def withdraw(self, change: Change, waits: Waits) -> bool:
        """Withdraw `waits` from a change that was not sent. Return True when the change will not happen.

        False when another request, or the scan that found the row, still waits for it.
        """
        item = change.item
        change.waits.remove(waits)
        if item.change is not change or change.waits or change.scan is not None:
            return False
        item.withdraw()
        if item.in_flight is None:
            self.settle_phase(item)
        return True
