"""The decisions of one host: which shard takes an enqueue, which items a dequeue gets, which consumers wait.

No I/O, no clock, no thread: `now_ms` comes in, shard batches go out through `submit`, replies through each call's own
callback. The node runs it on an event loop, the simulation on a fake clock.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from functools import partial

from foqs.bounds import Budget
from foqs.buffers.checkpoint import NEVER_MS
from foqs.buffers.shard_batch import BatchResult, Outcome, ShardBatch
from foqs.config.load import Config
from foqs.engine import ack, batch_apply, batch_build, consumers, enqueue, item_ops, shard_life
from foqs.engine.calls import DequeueCall, EnqueueCall, ItemsCall, LookCall
from foqs.engine.listing import OVERLOADED_RETRY_MS, Listing, Releasing
from foqs.engine.shard import Shard
from foqs.engine.state import UNCONNECTED, Callbacks, State
from foqs.errors import NotServed, Overloaded, Unavailable
from foqs.fairness.keys import LaneKey, TopicKey
from foqs.ids import shard_of
from foqs.policies.settings import Settings
from foqs.rows import NewItem, Opened
from foqs.shardmgr.lifecycle import BreakerSettings, BreakerState, ShardState

_CLOSED = BreakerState.CLOSED
_HOUSEKEEPING_MS = 1_000
_WINDOW_IDLE_MS = 60_000
_IDLE_SHARE = 0.5
_IDLE_STEPS = 10_000
_ORDER_UNUSED_MS = 60_000
_CLOCK_EVERY_MS = 10_000
_CONFIRM_IDLE_MS = 5_000
"""An owner that writes nothing confirms its ownership this often: nothing else shows that it lost the shard."""


class Engine(State):
    """The verbs over the state. `opened`, `lose`, `retire` and `drained` follow a shard's life; `pump` sends batches,
    `finished` takes their results, `tick` does the work that is due."""

    def __init__(
        self,
        config: Config,
        budget: Budget,
        rng: random.Random,
        submit: Callable[[Shard, ShardBatch], None],
        callbacks: Callbacks = UNCONNECTED,
        *,
        shards_elsewhere: bool = False,
    ) -> None:
        super().__init__(config, budget, rng, submit, callbacks, shards_elsewhere=shards_elsewhere)
        for section in config.shards:
            self.add(section.id)

    def reconfigure(self, config: Config) -> None:
        """Follow a configuration that differs from the present one in live keys alone."""
        self.config, breaker = config, BreakerSettings(**config.breaker.model_dump())
        for shard in self.shards.values():
            shard.configure(config.host)
            shard.owner.configure_breaker(breaker)
            shard.queue.configure_dedup(config.limits.dedup_window_ms)
        for shard in self.serving:  # with shorter delays, a shard may have something due now
            self.touch(shard)

    def apply_settings(self, settings: Settings) -> None:
        """Act on this version of a namespace's settings: no item of a paused topic is delivered from now on, and items
        of resumed topics are delivered in the next slices of the event loop."""
        consumers.apply_settings(self, settings)

    # ------------------------------------------------------------------------------------- shards

    def add(self, number: int) -> Shard:
        """Add a shard that may be opened. A CLOSED shard may be removed from `shards`."""
        config, breaker = self.config, BreakerSettings(**self.config.breaker.model_dump())
        shard = self.shards[number] = Shard(
            number, config.host, breaker, self.topics, self.residents, self.budget, self.counters, self.policies,
            self.ask_script,
        )  # fmt: skip
        shard.queue.configure_dedup(config.limits.dedup_window_ms)
        shard.queue.connect(partial(self.touch, shard))
        return shard

    def fill(self, shard: Shard, opened: Opened, then: Callable[[], None]) -> None:
        """Prepare the memory of a shard that the store has opened, in several slices of the event loop if it has very
        many lanes, and call `then`. `opened` or `unfill` follows."""
        shard_life.fill_in_slices(self, shard, opened, then)

    def unfill(self, shard: Shard) -> None:
        """Drop the memory of a shard that is not served after all."""
        shard_life.unfill(self, shard)

    def opened(self, shard: Shard, opened: Opened, max_batch_bytes: int, begun_ms: int, now_ms: int) -> None:
        """Begin to serve a shard that the store owns since `begun_ms` or later. Fill its memory first if needed."""
        shard_life.open_shard(shard, opened, max_batch_bytes, begun_ms, now_ms)
        self.serving.append(shard)
        self.touch(shard)
        self.throttling.concurrency.opened(shard)
        shard_life.wake_lanes(self, shard)
        consumers.wake(self, shard, now_ms)
        self.served()

    def lose(self, shard: Shard, now_ms: int) -> None:
        """Close a shard that another host owns now; requests that wait for it are refused."""
        self.counters.shards_lost += 1
        shard_life.close(self, shard, now_ms, NotServed("the shard moved to another host"))

    def drained(self, shard: Shard, now_ms: int) -> None:
        """Close a shard after its drain, or at the end of the grace period. The caller may then close the store."""
        queue = shard.queue
        in_flight = queue.in_flight
        if in_flight is not None and queue.unsettled is None:
            queue.outcome_unknown(in_flight)  # its result will not arrive
        error = Unavailable("the host is shutting down") if self.draining else NotServed()
        shard_life.close(self, shard, now_ms, error)

    def drain(self, now_ms: int) -> None:
        """Accept no new requests: waiting consumers get an empty reply; requests in progress continue."""
        self.draining = True
        for waiting in [*self.waiting.values(), *self.holdings.parked.values()]:
            for call in list(waiting):
                consumers.answer_empty(self, call)
        for shard in self.serving:
            self.retire(shard)
        self.served()

    def retire(self, shard: Shard) -> None:
        """Accept nothing new for one shard; its requests in progress continue. When it is `idle`, call `drained`."""
        if shard.owner.state is ShardState.SERVING:
            shard.owner.to(ShardState.DRAINING)
        self.touch(shard)

    # ------------------------------------------------------------------------------------- enqueue

    def enqueue(
        self, call: EnqueueCall, indices: Sequence[int], items: list[NewItem], keys: Sequence[LaneKey],
        sizes: Sequence[int], now_ms: int, timeout_ms: int, weights: Mapping[LaneKey, int] | None = None,
    ) -> None:  # fmt: skip
        """Store `items` (all checked); `sizes` are the bytes of each body, `weights` as in `Chunk`."""
        until_ms = now_ms + timeout_ms
        self.deadlines.push(until_ms, call)
        if until_ms < self.timer_ms:
            self.alarm(until_ms)
        enqueue.place_all(self, call, indices, items, keys, sizes, weights, now_ms)

    def stores(self, now_ms: int) -> bool:
        """Return True if a shard can take items now."""
        return enqueue.stores(self, now_ms)

    # ------------------------------------------------------------------------------------- dequeue

    def dequeue(self, call: DequeueCall, now_ms: int, wait_ms: int) -> None:
        self.now_ms = now_ms
        call.lacks = False
        if call.far:
            sent = call.elsewhere is not None and not self.draining and call.elsewhere(call)
            call.far = False
            if sent:
                return
        if consumers.serve_call(self, call, call.wants, now_ms):
            self.counters.window_hits += 1
            return
        held_up = call.lacks and any(key in self.held_up for key, _ in call.wants)
        if not held_up and call.elsewhere is not None and not self.draining and call.elsewhere(call):
            return
        if call.lacks:
            self.counters.window_misses += 1
            # Ready items that are not in memory yet arrive with the next page: wait for it.
            self.staying[call] = now_ms + wait_ms
            wait_ms = max(wait_ms, self.config.host.confirm_ms)
        if wait_ms <= 0 or self.draining or call.hurried:
            consumers.answer_empty(self, call)
            return
        consumers.wait(self, call, now_ms + wait_ms)

    def hurry(self, call: DequeueCall) -> None:
        """End the wait of a call whose consumer stopped waiting."""
        consumers.hurry(self, call)

    def cancel(self, call: DequeueCall) -> None:
        """End the call of a consumer that disconnected. Leases that are being committed are given back when they are
        delivered."""
        call.done = True
        consumers.stop_waiting(self, call)

    def stop_waiting(self, call: DequeueCall) -> None:
        """Forget a call that another host answers."""
        consumers.stop_waiting(self, call)

    def ready(self, key: TopicKey) -> int:
        """Return the number of items of a topic that are ready here, in memory or not; 0 while it is paused."""
        return consumers.ready(self, key)

    # ------------------------------------------------------------------------------------- acks and the like

    def ack(
        self, call: ItemsCall, ids: Sequence[int], leases: Sequence[int], ns: str | None, now_ms: int, timeout_ms: int
    ) -> None:
        """Ack each of `ids` with its lease."""
        until_ms = now_ms + timeout_ms
        self.deadlines.push(until_ms, call)
        if until_ms < self.timer_ms:
            self.alarm(until_ms)
        ack.ack_all(self, call, ids, leases, ns, now_ms)

    def settle(
        self, call: ItemsCall, items: list[tuple[int, item_ops.Op]], ns: str | None, now_ms: int, timeout_ms: int
    ) -> None:
        """Carry out `items`: (id, op) each, in order."""
        self.deadlines.push(now_ms + timeout_ms, call)
        self.alarm(now_ms + timeout_ms)
        for at, (item_id, op) in enumerate(items):
            ack.operate(self, call, at, item_id, op, ns, now_ms)

    def look(self, item_id: int, call: LookCall, now_ms: int, timeout_ms: int) -> None:
        """Read one item as the database has it; an unwritten lease is known in memory only."""
        shard = self.shards.get(shard_of(item_id))
        if shard is None:
            call.found(None, None, self.absent())
        elif not self.settles(shard):
            call.found(None, None, NotServed())
        elif shard.queue.full:
            call.found(None, None, Overloaded("too much waits for the item's shard", OVERLOADED_RETRY_MS))
        else:
            self.deadlines.push(now_ms + timeout_ms, call)
            self.alarm(now_ms + timeout_ms)
            shard.queue.looks.add(item_id, call.found)
            self.touch(shard)

    def list(self, listing: Listing, now_ms: int, timeout_ms: int) -> None:
        self.deadlines.push(now_ms + timeout_ms, listing)
        self.alarm(now_ms + timeout_ms)
        listing.go_on()

    def release(self, releasing: Releasing, now_ms: int, timeout_ms: int) -> None:
        """End leases of a topic."""
        self.now_ms = now_ms
        self.deadlines.push(now_ms + timeout_ms, releasing)
        self.alarm(now_ms + timeout_ms)
        releasing.go_on()

    # ------------------------------------------------------------------------------------- time and batches

    def finished(self, shard: Shard, batch: ShardBatch, result: BatchResult, now_ms: int) -> None:
        """Take the result of a batch."""
        self.now_ms = now_ms
        if shard.queue.in_flight is not batch:
            return  # the shard was closed while the batch was in flight
        if result.fenced:
            if result.outcome is Outcome.UNKNOWN and batch.transaction is not None:
                shard.queue.outcome_unknown(batch)
            self.lose(shard, now_ms)
            return
        owner = shard.owner
        was_sick = owner.lost or owner.breaker.state is not _CLOSED or now_ms - batch.begun_ms > owner.hang_ms
        batch_apply.apply(shard, batch, result, now_ms)
        if self.holdings.named and batch.changes:
            given = [change.item.given for change in batch.changes]
            consumers.freed(self, {one.worker: None for one in given if one is not None})
        if batch.transaction is not None and batch.transaction.slots is not None:
            self.slots_written()
        if was_sick and shard.healthy(now_ms):
            consumers.wake_all(self, shard)
        if not result.ended and (shard.queue.returned or shard.queue.chunks):
            shard_life.place_again(self, shard, now_ms)
        self.touch(shard)
        consumers.wake(self, shard, now_ms)

    def pump(self, now_ms: int) -> None:
        """Send a batch to every shard that has work and no batch in flight."""
        self.now_ms = now_ms
        if self.due:
            consumers.serve(self, (), now_ms)
        if self.long_work:
            self.go_on()
        dirty, self.dirty = self.dirty, {}
        for shard in dirty:
            if shard.memory.woken:
                consumers.wake(self, shard, now_ms)
            batch = batch_build.build(shard, now_ms)
            if batch is not None:
                self.submit(shard, batch)
            if shard.queue.returned:
                shard_life.place_again(self, shard, now_ms)
        if self.next_slice:
            next_slice, self.next_slice = self.next_slice, []
            for do in next_slice:
                do()

    def tick(self, now_ms: int) -> None:
        """Do all work that is due. `next_ms` then returns when the next work is due."""
        self.now_ms = now_ms
        for call in self.deadlines.pop_due(now_ms):
            if not call.done:  # an earlier call's end may have ended it
                call.timed_out(self.shards)
        for shard in self.serving:
            shard_life.check_takeover_grace(self, shard, now_ms)
            if shard.memory.woken:  # a consumer whose wait ends gets the items that are ready by now
                consumers.wake(self, shard, now_ms)
        for waiting in self.patience.pop_due(now_ms):
            if not waiting.away:
                consumers.answer_empty(self, waiting)
        consumers.end_merge_waits(self, now_ms)
        for shard in self.serving:
            shard_life.check_silence(self, shard, now_ms)
            if batch_build.next_ms(shard, now_ms) <= now_ms:
                self.touch(shard)
        if now_ms >= self.housekeeping_ms:
            self.housekeeping_ms = now_ms + _HOUSEKEEPING_MS
            self._keep_house(now_ms)
            consumers.freed(self, self.holdings.sweep())

    def _keep_house(self, now_ms: int) -> None:
        """Do the work of each second: confirm idle shards, remove empty lanes, and drop unused windows if memory is
        short."""
        for shard in self.serving:
            if not 0 <= now_ms - shard.owner.confirmed_ms < _CONFIRM_IDLE_MS:
                shard.owner.want_confirmation()
                self.touch(shard)
            if not 0 <= now_ms - shard.owner.clock_read_ms < _CLOCK_EVERY_MS:
                shard.owner.want_clock()
                self.touch(shard)
            if batch_build.idle_is_over(shard, now_ms):
                self.touch(shard)
        self.skipping = {key: None for key in self.skipping if key in self.waiting}
        self.topics.forget_order(_ORDER_UNUSED_MS, now_ms)
        self.explained.forget(now_ms)
        self.holdings.forget(now_ms)
        self.topics.ledgers.forget(now_ms)
        self.residents.drop_idle(_IDLE_SHARE, _WINDOW_IDLE_MS, _IDLE_STEPS)

    def next_ms(self, now_ms: int) -> int:
        at_ms = min(self.deadlines.next_ms(), self.patience.next_ms(), self.housekeeping_ms)
        for shard in self.serving:
            at_ms = min(at_ms, batch_build.next_ms(shard, now_ms))
            owner = shard.owner
            if owner.grace_from_ms is not None and not owner.held:
                quiet_ms = shard.config.confirm_ms + 1
                at_ms = min(at_ms, owner.grace_from_ms + quiet_ms if owner.in_takeover_grace(now_ms) else now_ms)
        return min(at_ms, next(iter(self.held_up.values()), NEVER_MS))
