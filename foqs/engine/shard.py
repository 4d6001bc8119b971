"""An owned shard: its ownership, the work that waits for its database, and its items in memory."""

from __future__ import annotations

from foqs.bounds import Budget
from foqs.buffers.shard_batch import Chunk
from foqs.config.schema import HostSection
from foqs.counters import BatchMetrics, Counters
from foqs.engine.endings import Awaited
from foqs.engine.shard_memory import ShardMemory
from foqs.engine.shard_owner import ShardOwner
from foqs.engine.shard_queue import ShardQueue, leave_scan
from foqs.fairness.keys import rules_of
from foqs.fairness.topics import Topics
from foqs.hooks.protocol import AskScript
from foqs.ids import first_id
from foqs.item import Change, Item, Phase, Place, To, Waits
from foqs.opened import Opened
from foqs.policies.layers import Policies
from foqs.policies.topic_policy import TopicPolicy
from foqs.prefetch.lane import Lane
from foqs.prefetch.residents import Residents
from foqs.shardmgr.lifecycle import BreakerSettings, BreakerState, ShardState

# Members of enums, bound once for the hot path.
_SERVING, _CLOSED = ShardState.SERVING, BreakerState.CLOSED


class Shard:
    """The three parts of a shard, and what needs more than one of them. Each part changes its own attributes.

    `filled` is the memory of a shard that is being opened."""

    def __init__(
        self, number: int, config: HostSection, breaker: BreakerSettings, topics: Topics[Lane[Item]],
        residents: Residents, budget: Budget, counters: Counters, policies: Policies, awaited: Awaited,
        ask_script: AskScript | None = None,
    ) -> None:  # fmt: skip
        """`ask_script` None: no script runs on this host."""
        self.number = number
        self.first_id = first_id(number)
        self.config = config
        self.counters = counters
        self.policies = policies
        self.ask_script = ask_script
        self.batch_metrics = BatchMetrics()
        self.owner = ShardOwner(config, breaker)
        self.queue = ShardQueue(config)
        self.memory = ShardMemory(config, topics, residents, budget, counters, self.queue, awaited)
        self.filled: ShardMemory | None = None

    def configure(self, config: HostSection) -> None:
        self.config = config
        for part in (self.owner, self.queue, self.memory):
            part.configure(config)

    # ------------------------------------------------------------------------------------- life

    def policy_of(self, lane: Lane[Item]) -> TopicPolicy:
        """Return the policy in effect for the items of a lane: that of its topic, and its rules."""
        return self.policies.with_rules(lane.topic.key, rules_of(lane.key))

    def new_memory(self) -> ShardMemory:
        """Return an empty memory. Its lanes count when the shard is opened with it."""
        memory = self.memory
        return ShardMemory(
            self.config, memory.topics, memory.residents, memory.budget, self.counters, self.queue, memory.awaited
        )

    def keep_filled(self, memory: ShardMemory) -> None:
        self.filled = memory

    def take_filled(self) -> ShardMemory | None:
        memory, self.filled = self.filled, None
        return memory

    def open(self, memory: ShardMemory, opened: Opened, max_batch_bytes: int, begun_ms: int, now_ms: int) -> None:
        """Serve the shard with this memory. The store owns it since `begun_ms` or later."""
        self._forget()
        self.memory.adopt(memory, self)
        next_lane = next(reversed(memory.lane_numbers), 0) + 1  # they are in order
        self.queue.begin(opened, next_lane, max_batch_bytes, now_ms)
        self.queue.kept.count_topics(self.memory.lane_numbers)
        self.memory.noted = dict(opened.noted)
        self.memory.holding = self.memory.holding or opened.holding
        self.memory.members = self.memory.members or opened.batches
        if opened.ordered:
            self.memory.orders.begin(opened.order_leases)
        if opened.homes:
            self.memory.orders.goes_elsewhere(opened.homes)
        self.owner.begin(opened, begun_ms, now_ms)
        if opened.tail:
            self.owner.tried_room(now_ms, fits=False, inserts=True, removals=False)
            self.memory.recover(opened.tail)
        self.counters.shards_opened += 1

    def close(self) -> None:
        """Drop everything in memory."""
        self.owner.to(ShardState.CLOSED)
        self.memory.abandon()
        confirming = self.owner.take_confirming()
        self._forget()
        for confirmed in confirming:
            confirmed()

    def _forget(self) -> None:
        self.owner.forget()
        self.queue.forget()
        self.memory.forget_items()

    # ------------------------------------------------------------------------------------- health

    def healthy(self, now_ms: int) -> bool:
        """Return True if new work may be sent here and its items be merged."""
        owner, in_flight = self.owner, self.queue.in_flight
        return (
            owner.state is _SERVING
            and owner.breaker.state is _CLOSED
            and not owner.lost
            and (in_flight is None or now_ms - in_flight.begun_ms <= owner.hang_ms)
        )

    def may_lease(self, now_ms: int) -> bool:
        """Return True if leases may be given now: ownership was confirmed in time, and leases are written in time."""
        owner, queue = self.owner, self.queue
        if owner.grace_from_ms is not None and (owner.held or owner.in_takeover_grace(now_ms)):
            return False
        if not owner.confirmed(now_ms):
            owner.want_confirmation()
            return False
        if not queue.unwritten:
            return True
        oldest = queue.oldest_unwritten_ms()
        return oldest is None or now_ms - oldest <= self.config.lease_write_delay_ms

    def silent_from_ms(self) -> int | None:
        """Return since when the database owes an answer; None if nothing is asked of it."""
        if self.owner.down_from_ms is not None:
            return self.owner.down_from_ms
        in_flight = self.queue.in_flight
        return in_flight.begun_ms if in_flight is not None else None

    # ------------------------------------------------------------------------------------- lanes

    def owned_lane(self, number: int) -> Lane[Item] | None:
        """Return the lane with that number. If another owner added it, find out if this host still owns the shard."""
        lane = self.memory.lane_numbers.get(number)
        if lane is None:
            self.owner.want_confirmation()
        return lane

    def takes_lanes(self, chunk: Chunk) -> bool:
        """Return True if there is room for the lanes of `chunk`."""
        lanes = self.memory.lanes
        return len(lanes) < self.config.lanes or self.replaces_lanes() or all(key in lanes for key in chunk.keys)

    def replaces_lanes(self) -> bool:
        """Return True if an empty lane gives way to a new lane, in a shard that may have no more lanes."""
        in_flight = self.queue.in_flight
        gone = len(in_flight.lanes_gone) if in_flight is not None else 0
        return len(self.memory.lanes) - gone < self.config.lanes or self.memory.longest_empty() is not None

    # ------------------------------------------------------------------------------------- changes

    def put(self, change: Change, now_ms: int) -> None:
        """Queue `change`; it replaces a change of the same item that waits, in its place, and shares its outcome."""
        item, old = change.item, change.item.change
        if old is not None:
            change.waits += old.waits
            leave_scan(old, now_ms)
        elif item.in_flight is None:
            if item.place is Place.READY and item.phase is not Phase.LEASED and change.to is not To.KEPT:
                self.memory.leave_ready(item)
            self.memory.learn(item)
        item.queue(change)
        self.queue.changes.append(change)

    def withdraw(self, change: Change, waits: Waits) -> bool:
        """Withdraw `waits` from a change that was not sent. Return True when the change will not happen.

        False when another request, or the scan that found the row, still waits for it, or when a later change writes
        what the consumer gave.
        """
        item = change.item
        change.waits.remove(waits)
        if item.change is not change or change.waits or change.scan is not None:
            return False
        item.withdraw()
        if item.in_flight is None:
            self.memory.settle_phase(item)
        return item.id not in self.queue.progress
