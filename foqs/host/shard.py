"""One owned shard as the event loop sees it: what is known, what waits, and what may be handed out.

Decides and does no I/O. `rounds` turns what waits into one trip to the database and applies what came back.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable
from itertools import islice

from foqs.budget import Budget
from foqs.buffers.changes import Change, To, Waits
from foqs.buffers.inserts import Chunk
from foqs.buffers.keys import Keys
from foqs.buffers.round import ListRead, Round
from foqs.counters import Counters
from foqs.host.looks import Looks
from foqs.host.trips import Trips
from foqs.item import KNOWN_BYTES, Item, Phase, Place
from foqs.leases.checkpoint import Checkpoint
from foqs.prefetch.lane import Lane, LaneKey
from foqs.prefetch.residents import Residents
from foqs.prefetch.window import Window
from foqs.rows import Body, NewItem
from foqs.sections import HostSection
from foqs.shardmgr.breaker import Breaker, BreakerSettings
from foqs.shardmgr.lifecycle import ShardState, moved

FIRST_PAGE_ROWS = 128
# A member of an enum, bound once for the hot path.
_WINDOW = Phase.WINDOW

RETRY_MS = 20
"""Pause after a passing failure that the breaker does not count as enough to open."""


class Shard:
    """Invariant: an id is in `known` while its item is in a window, leased (unless its written lease was dropped from
    memory), or has a change waiting or under way; a page row with a known id is skipped."""

    def __init__(
        self, number: int, config: HostSection, breaker: BreakerSettings, residents: Residents,
        budget: Budget, counters: Counters, rng: random.Random,
    ) -> None:  # fmt: skip
        self.number = number
        self.config = config
        self.breaker = Breaker(breaker)
        self.residents = residents
        self.budget = budget
        self.counters = counters
        self.rng = rng
        self.trips = Trips()
        self.state = ShardState.ASSIGNED
        self.epoch = 0
        self.max_batch_bytes = 0
        self.hang_ms = breaker.hang_ms
        self.dedup_window_ms = 0
        self.takes_new = True  # items; False: it is served until it is empty
        self.forget_all()

    def forget_all(self) -> None:
        self.known: dict[int, Item] = {}
        self.written: dict[int, Item] = {}
        self.lanes: dict[LaneKey, Lane] = {}
        self.lane_numbers: dict[int, Lane] = {}
        self.next_lane = 1
        self.next_number = 1
        self.idle_lanes: dict[LaneKey, Lane] = {}
        self.chunks: deque[Chunk] = deque()
        self.chunk_rows = 0
        self.changes: deque[Change] = deque()
        self.unwritten: deque[tuple[int, Item, int]] = deque()
        self.timers = Checkpoint(0)
        self.ttls = Checkpoint(0)
        self.keys = Keys()
        self.looks = Looks()
        self.lists: list[ListRead] = []
        self.pages_wanted: dict[Lane, None] = {}
        self.bodies_wanted: dict[int, Item] = {}
        self.stalled: dict[LaneKey, None] = {}  # topics that were asked for while this shard handed out nothing
        self.rows_changed = 0
        self.confirm_wanted = False
        self.confirmed_ms = 0
        self.clock_wanted = False  # a reading of the database's clock, also beside a transaction
        self.clock_read_ms = 0
        self.clock_ahead_ms = 0  # of the database, before the host's, when it was read
        self.late_ms = 0  # how much later than by the host's clock items end, as the database's clock is behind
        self.confirming: list[Callable[[], None]] = []  # to be called after the next trip, or the end
        self.quiet_from_ms: int | None = None  # when it was taken from an owner that may live
        self.flight: Round | None = None
        self.unsettled: Round | None = None
        self.lost = False
        self.disk_full = False  # from a transaction that failed for it to the next that is committed
        self.pause_from_ms: int | None = None  # after a passing failure
        self.returned: list[Chunk] = []
        self.woken: dict[LaneKey, None] = {}

    # ------------------------------------------------------------------------------------- life

    def to(self, state: ShardState) -> None:
        self.state = moved(self.state, state)

    def healthy(self, now_ms: int) -> bool:
        """Whether new work may be sent here and its items be merged."""
        return (
            self.state is ShardState.SERVING
            and self.breaker.closed
            and not self.lost
            and (self.flight is None or now_ms - self.flight.begun_ms <= self.hang_ms)
        )

    def confirmed(self, now_ms: int) -> bool:
        """Whether nobody else can have been the owner for long. (A time to come: the clock was set back since.)"""
        return 0 <= now_ms - self.confirmed_ms <= self.config.confirm_ms

    def quiet(self, now_ms: int) -> bool:
        """Whether a replaced owner may still hand out what is ready, as it was not confirmed for `confirm_ms` yet."""
        return self.quiet_from_ms is not None and 0 <= now_ms - self.quiet_from_ms <= self.config.confirm_ms

    def hands_out(self, now_ms: int) -> bool:
        """Whether leases may be given now: the epoch was confirmed lately and leases are written in time."""
        if self.quiet(now_ms):
            return False
        if not self.confirmed(now_ms):
            self.confirm_wanted = True
            return False
        oldest = self.oldest_unwritten_ms()
        return oldest is None or now_ms - oldest <= self.config.lease_write_delay_ms

    def retry_at_ms(self, now_ms: int) -> int:
        """When its database may be asked again after a passing failure; 0 when at once."""
        from_ms = self.pause_from_ms
        if from_ms is None or not 0 <= now_ms - from_ms < RETRY_MS:
            return 0
        return from_ms + RETRY_MS

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
        """Rows waiting or under way: what the choice between shards goes by."""
        flying = self.flight
        return self.chunk_rows + len(self.changes) + (flying.rows if flying is not None else 0)

    @property
    def full(self) -> bool:
        return self.chunk_rows + len(self.changes) + self.looks.count >= self.config.pending_rows

    @property
    def idle(self) -> bool:
        """Nothing is waiting to be written (what a drain waits for)."""
        busy = self.flight or self.unsettled or self.chunks or self.changes or self.keys.pending
        return not busy and self.oldest_unwritten_ms() is None

    # ------------------------------------------------------------------------------------- lanes

    def lane(self, key: LaneKey) -> Lane:
        lane = self.lanes.get(key)
        if lane is None:
            lane = self.lanes[key] = Lane(key, None, self.counters.namespaces.of(key[0]))
        return lane

    def forget_lane(self, lane: Lane) -> None:
        """It has no row and no item."""
        self.residents.discard(lane)
        if lane.number is not None:
            self.lane_numbers.pop(lane.number, None)
        if self.lanes.get(lane.key) is lane:
            del self.lanes[lane.key]

    def takes(self, chunk: Chunk) -> bool:
        """Whether there is room for `chunk`: for its rows, and for its lanes."""
        if self.chunk_rows + len(self.changes) >= self.config.pending_rows:
            return False
        return self.takes_lanes(chunk)

    def takes_lanes(self, chunk: Chunk) -> bool:
        return len(self.lanes) < self.config.lanes or all(key in self.lanes for key in chunk.keys)

    def idle_lane(self, lane: Lane, now_ms: int) -> None:
        lane.empty_since_ms = now_ms
        self.idle_lanes.pop(lane.key, None)  # the longest idle comes first
        self.idle_lanes[lane.key] = lane

    def count_gone(self, lane: Lane, now_ms: int) -> None:
        lane.total -= 1
        if not lane.total:
            self.idle_lane(lane, now_ms)

    # ------------------------------------------------------------------------------------- windows

    def stored(self, news: list[NewItem], lane: Lane) -> None:
        """Committed inserts of one request: into the window if they belong there, else a page or scan finds them."""
        lane.total += len(news)
        ready = [new for new in news if not new.due_ms]
        if not ready:
            return
        # What one request enqueues for now carries one time.
        lane.add_ready(ready[0].deliver_after_ms, len(ready))
        window = self._window(lane, len(ready))
        if window is None:
            return
        known, held, added = self.known, 0, []
        for new in ready:
            if window.more and not window.covers((new.priority, new.deliver_after_ms, new.id)):
                continue
            size = len(new.payload)
            if new.metadata is not None or new.headers is not None:
                size += len(new.metadata or b"") + len(new.headers or b"")
            item = Item(new.id, lane, new.priority, new.deliver_after_ms, 0, 0, size, new)
            item.phase = _WINDOW
            item.held = size + KNOWN_BYTES
            held += item.held
            known[new.id] = item
            added.append((new.priority, new.deliver_after_ms, new.id, item))
        self.budget.take(held)
        window.add_all(added)
        self.bound_window(window)

    def enter_ready(self, item: Item) -> None:
        """The item may be handed out (again)."""
        lane = item.lane
        lane.add_ready(item.deliver_after_ms)
        window = self._window(lane, 1)
        self.forget(item)
        if window is not None and window.covers(item.key):
            self.learn(item)
            item.phase = _WINDOW
            window.add(item)
            self.bound_window(window)

    def leave_ready(self, item: Item) -> None:
        """The item may not be handed out any more."""
        item.lane.remove_ready(item.deliver_after_ms)
        if item.phase is Phase.WINDOW:
            assert item.lane.window is not None
            item.lane.window.remove(item)
            item.phase = Phase.IDLE

    def _window(self, lane: Lane, new: int) -> Window | None:
        """The lane's window; a lane whose only ready items are the `new` ones has a complete one."""
        self.woken[lane.key] = None
        if lane.window is None and lane.ready == new:
            self._new_window(lane, complete=True)
        return lane.window

    def _new_window(self, lane: Lane, *, complete: bool) -> Window:
        window = lane.window = Window(complete=complete, page_rows=FIRST_PAGE_ROWS)
        self.residents.add(lane, self)
        return window

    def bound_window(self, window: Window) -> None:
        if len(window.entries) > self.config.window_rows:
            self.cut_window(window, self.config.window_rows)
        if not self.residents.full:
            return
        self.residents.relieve()  # perhaps of this window, too
        rows = len(window.entries)
        while rows > 1 and self.residents.full:
            # The window gives back from its far end, but keeps its first item: its consumer has to go on.
            rows -= max(1, rows // 8)
            self.cut_window(window, rows)

    def cut_window(self, window: Window, keep: int) -> None:
        for gone in window.cut(keep):
            gone.phase = Phase.IDLE
            self.forget(gone)

    def open_window(self, lane: Lane) -> Window:
        window = lane.window
        return window if window is not None else self._new_window(lane, complete=lane.ready == 0)

    def drop_window(self, lane: Lane) -> None:
        """Forgets the window's items; a page finds them again."""
        self.residents.discard(lane)
        if lane.window is not None:
            self.cut_window(lane.window, 0)
            lane.window.generation += 1
            lane.window = None

    # ------------------------------------------------------------------------------------- known items

    def learn(self, item: Item) -> None:
        self.known[item.id] = item
        held = KNOWN_BYTES + (item.bytes if item.body is not None else 0)
        self.budget.take(held - item.held)
        item.held = held

    def forget(self, item: Item) -> None:
        """Forgets an item that is in no window, not leased and has no change."""
        if self.known.pop(item.id, None) is not None:
            self.give(item)
        self.written.pop(item.id, None)

    def give(self, item: Item) -> None:
        self.budget.give(item.held)
        item.held = 0

    def drop_body(self, item: Item) -> None:
        """What was handed out is not needed again unless it comes back."""
        item.body = None
        if item.held > KNOWN_BYTES:
            self.budget.give(item.held - KNOWN_BYTES)
            item.held = KNOWN_BYTES

    def got_body(self, item: Item, body: Body) -> None:
        item.set_body(body)
        self.learn(item)

    # ------------------------------------------------------------------------------------- leases and changes

    def lease(self, item: Item, lease_ms: int, now_ms: int) -> None:
        """Hands out an item that was just taken from its window."""
        item.lane.remove_ready(item.deliver_after_ms)
        item.lane.leased += 1
        item.phase = Phase.LEASED
        item.attempt += 1
        item.lease = self.rng.getrandbits(62) + 1
        item.lease_ms = lease_ms
        item.lease_expires_at_ms = now_ms + lease_ms
        self.unwritten.append((now_ms, item, item.lease))

    def unlease(self, item: Item) -> None:
        """Takes back a lease that was never written and whose item was not begun."""
        item.attempt -= 1
        item.lease = 0
        item.lane.leased -= 1
        item.phase = Phase.IDLE
        self.enter_ready(item)

    def put(self, change: Change, now_ms: int) -> None:
        """Queues `change`; one that was waiting for the same item is superseded and shares its outcome."""
        item, old = change.item, change.item.change
        if old is not None:
            change.waits += old.waits
            self.leave_scan(old, now_ms)
        elif item.flying is None:
            if item.place is Place.READY and item.phase is not Phase.LEASED and change.to is not To.KEPT:
                self.leave_ready(item)
            self.learn(item)
        item.change = change
        self.changes.append(change)

    def leave_scan(self, change: Change, now_ms: int) -> None:
        """The scan that found the row must come back to it: `change` will not move it."""
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
        """`waits` gave up before the transaction with `change` was built. True when it is undone: it will not happen.

        False when somebody else still wants it (another request, or the scan that found it), so it may.
        """
        item = change.item
        change.waits.remove(waits)
        if item.change is not change or change.waits or change.scan is not None:
            return False
        item.change = None
        if item.flying is None:
            self.settle_phase(item)
        return True

    def remember_written(self, item: Item) -> None:
        """Keeps a written lease in memory. Beyond the bound, or if memory is short, the oldest are read back later."""
        written = self.written
        written.pop(item.id, None)
        written[item.id] = item
        excess = max(len(written) - self.config.leases, 2 * self.residents.full)
        if excess > 0:
            for old in list(islice(written.values(), excess)):
                if not (old.busy or old.awaited):
                    self.forget(old)

    def settle_phase(self, item: Item) -> None:
        """After its last change ended without moving it: back to where its row says it belongs."""
        if item.phase is Phase.LEASED:
            if item.place is Place.TIMER:
                self.remember_written(item)
        elif item.place is Place.READY:
            self.enter_ready(item)
        else:
            self.forget(item)
