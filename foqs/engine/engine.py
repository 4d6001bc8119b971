"""The decisions of one host: which shard takes an enqueue, which items a dequeue gets, which consumers wait.

No I/O, no clock, no thread: `now_ms` comes in, shard batches go out through `submit`, replies through each call's own
callback. The node runs it on an event loop, the simulation on a fake clock.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from foqs.buffers.checkpoint import NEVER_MS
from foqs.buffers.reads import KeyRead
from foqs.buffers.shard_batch import BatchResult, Chunk, Outcome, ShardBatch
from foqs.config.load import Config
from foqs.engine import (
    ack,
    batch_apply,
    batch_build,
    batch_homes,
    consumers,
    enqueue,
    idle_lanes,
    item_ops,
    kept_items,
    shard_life,
    stats,
    tenants,
)
from foqs.engine.calls import FRESH, DequeueCall, EnqueueCall, ItemsCall, LookCall
from foqs.engine.endings import EndCall, Living
from foqs.engine.listing import OVERLOADED_RETRY_MS, Listing, Releasing
from foqs.engine.shard import Shard
from foqs.engine.state import State
from foqs.errors import FoqsError, NotServed, Overloaded, Unavailable
from foqs.fairness.keys import LaneKey, TopicKey
from foqs.ids import NUMBER_BITS, hash_slot_of, shard_of
from foqs.item import Cause, Change, Item, Phase, To
from foqs.item_batch import BatchInfo, BatchState, NewBatch
from foqs.opened import Opened
from foqs.policies.settings import Settings
from foqs.prefetch.lane import Lane
from foqs.rows import DedupRow, Found, NewItem
from foqs.shardmgr.lifecycle import BreakerSettings, BreakerState, ShardState

# Members of enums, bound once for the hot path: a look-up costs the same time as the comparison.
_CLOSED, _SERVING = BreakerState.CLOSED, ShardState.SERVING
_LEASED, _GONE, _ACK = Phase.LEASED, To.GONE, Cause.ACK
_HOUSEKEEPING_MS = 1_000
_WINDOW_IDLE_MS = 60_000
_IDLE_SHARE = 0.5
_IDLE_STEPS = 10_000
_ORDER_UNUSED_MS = 60_000
_CLOCK_EVERY_MS = 10_000
_CONFIRM_IDLE_MS = 5_000
"""An owner that writes nothing confirms its ownership this often: nothing else shows that it lost the shard."""


class Engine:
    """The verbs over a `State`. `opened`, `lose`, `retire` and `drained` follow a shard's life; `pump` sends batches,
    `finished` takes their results, `tick` does the work that is due."""

    def __init__(self, state: State, submit: Callable[[Shard, ShardBatch], None]) -> None:
        """`submit` sends a batch to its shard's database."""
        self.state = state
        self._submit = submit
        self._housekeeping_ms = 0
        for section in state.config.shards:
            self.add(section.id)

    def reconfigure(self, config: Config) -> None:
        """Follow a configuration that differs from the present one in live keys alone."""
        state = self.state
        state.config, breaker = config, BreakerSettings(**config.breaker.model_dump())
        for shard in state.shards.values():
            shard.configure(config.host)
            shard.owner.configure_breaker(breaker)
            shard.queue.configure_limits(config.limits)
        for shard in state.serving:  # with shorter delays, a shard may have something due now
            state.touch(shard)

    def apply_settings(self, settings: Settings) -> None:
        """Act on this version of a namespace's settings: no item of a paused topic is delivered from now on, and items
        of resumed topics are delivered in the next slices of the event loop."""
        consumers.apply_settings(self.state, settings)
        for shard in self.state.serving:
            shard.queue.kept.look_again(settings.ns)
            kept_items.check_most(shard)
            self.state.touch(shard)

    # ------------------------------------------------------------------------------------- shards

    def add(self, number: int) -> Shard:
        """Add a shard that may be opened. A CLOSED shard may be removed from `shards`."""
        state = self.state
        config, breaker = state.config, BreakerSettings(**state.config.breaker.model_dump())
        shard = state.shards[number] = Shard(
            number, config.host, breaker, state.topics, state.residents, state.budget, state.counters, state.policies,
            state.awaited, state.callbacks.ask_script,
        )  # fmt: skip
        shard.queue.configure_limits(config.limits)
        callbacks = state.callbacks
        shard.queue.connect(partial(state.touch, shard), callbacks.tell_keys, callbacks.batches, lambda: state.now_ms)
        return shard

    def fill(self, shard: Shard, opened: Opened, then: Callable[[], None]) -> None:
        """Prepare the memory of a shard that the store has opened, in several slices of the event loop if it has very
        many lanes, and call `then`. `opened` or `unfill` follows."""
        shard_life.fill_in_slices(self.state, shard, opened, then)

    def unfill(self, shard: Shard) -> None:
        """Drop the memory of a shard that is not served after all."""
        shard_life.unfill(self.state, shard)

    def opened(self, shard: Shard, opened: Opened, max_batch_bytes: int, begun_ms: int, now_ms: int) -> None:
        """Begin to serve a shard that the store owns since `begun_ms` or later. Fill its memory first if needed."""
        state = self.state
        stats.turn(state, now_ms)
        shard_life.open_shard(shard, opened, max_batch_bytes, begun_ms, now_ms)
        state.serving.append(shard)
        kept_items.check_most(shard)
        state.touch(shard)
        state.throttling.concurrency.opened(shard)
        shard_life.wake_lanes(state, shard)
        consumers.wake(state, shard, now_ms)
        state.callbacks.served()

    def lose(self, shard: Shard, now_ms: int) -> None:
        """Close a shard that another host owns now; requests that wait for it are refused."""
        state = self.state
        state.counters.shards_lost += 1
        shard_life.close(state, shard, now_ms, NotServed("the shard moved to another host"))

    def drained(self, shard: Shard, now_ms: int) -> None:
        """Close a shard after its drain, or at the end of the grace period. The caller may then close the store."""
        state = self.state
        queue = shard.queue
        in_flight = queue.in_flight
        if in_flight is not None and queue.unsettled is None:
            queue.outcome_unknown(in_flight)  # its result will not arrive
        error = Unavailable("the host is shutting down") if state.draining else NotServed()
        shard_life.close(state, shard, now_ms, error)

    def drain(self, now_ms: int) -> None:
        """Accept no new requests: waiting consumers get an empty reply; requests in progress continue."""
        state = self.state
        state.draining = True
        for waiting in [*state.waiting.values(), *state.holdings.parked.values()]:
            for call in list(waiting):
                consumers.answer_empty(state, call)
        for shard in state.serving:
            self.retire(shard)
        state.callbacks.served()

    def retire(self, shard: Shard) -> None:
        """Accept nothing new for one shard; its requests in progress continue. When it is `idle`, call `drained`."""
        if shard.owner.state is ShardState.SERVING:
            shard.owner.to(ShardState.DRAINING)
        self.state.touch(shard)

    # ------------------------------------------------------------------------------------- enqueue

    def enqueue(
        self, call: EnqueueCall, indices: Sequence[int], items: list[NewItem], keys: Sequence[LaneKey],
        sizes: Sequence[int], now_ms: int, timeout_ms: int, weights: Mapping[LaneKey, int] | None = None, *,
        ruled: bool = False, members: bool = False,
    ) -> None:  # fmt: skip
        """Store `items` (all checked); `sizes` are the bytes of each body, `weights`, `ruled` and `members` as in
        `Chunk`. Cut them into chunks that fit a transaction, and place each."""
        state = self.state
        until_ms, deadlines = now_ms + timeout_ms, state.deadlines
        deadlines.fresh.append((until_ms, call))  # `Deadlines.push`, which each request would pay for
        if len(deadlines.fresh) > FRESH:
            deadlines.sift()
        if until_ms < state.timer_ms:
            state.alarm(until_ms)
        if len(items) == 1:
            chunks = [Chunk(call, indices, items, keys, sizes[0], None, weights)]
        else:
            chunks = [
                Chunk(call, indices[start:end], items[start:end], keys[start:end], size, None, weights)
                for start, end, size in enqueue.cut(sizes, enqueue.most_bytes(state))
            ]
        call.chunks += chunks
        for chunk in chunks:
            if ruled or members:
                chunk.ruled, chunk.members = ruled, members and any(item.batch for item in chunk.items)
            enqueue.place(state, chunk, now_ms)

    def create_batch(
        self, new: NewBatch, reply: Callable[[int | FoqsError], None], now_ms: int, timeout_ms: int
    ) -> None:  # fmt: skip
        """Create a batch of items, and reply its id."""
        batch_homes.create(self.state, new, self._once(reply, now_ms, timeout_ms), now_ms)

    def close_batch(
        self, ns: str, batch: int, reply: Callable[[FoqsError | None], None], now_ms: int, timeout_ms: int
    ) -> None:  # fmt: skip
        """Let a batch end with its last member."""
        once = self._once(reply, now_ms, timeout_ms)
        batch_homes.change(self.state, ns, batch, BatchState.CLOSED, once)

    def cancel_batch(
        self, ns: str, batch: int, reply: Callable[[FoqsError | None], None], now_ms: int, timeout_ms: int
    ) -> None:  # fmt: skip
        """Refuse further members of a batch, and remove the members that no consumer has."""
        once = self._once(reply, now_ms, timeout_ms)
        batch_homes.change(self.state, ns, batch, BatchState.CANCELLED, once)

    def find_batch(
        self, ns: str, batch: int, reply: Callable[[BatchInfo | FoqsError], None], now_ms: int, timeout_ms: int
    ) -> None:  # fmt: skip
        """Reply a batch, and how its members have ended."""
        batch_homes.find(self.state, ns, batch, self._once(reply, now_ms, timeout_ms))

    def _once(self, reply: Callable[[Any], None], now_ms: int, timeout_ms: int) -> batch_homes.Once[Any]:
        once = batch_homes.Once(reply)
        self.state.now_ms = now_ms
        self.state.deadlines.push(now_ms + timeout_ms, once)
        self.state.alarm(now_ms + timeout_ms)
        return once

    def stores(self, now_ms: int) -> bool:
        """Return True if a shard can take items now."""
        return enqueue.stores(self.state, now_ms)

    # ------------------------------------------------------------------------------------- dequeue

    def dequeue(self, call: DequeueCall, now_ms: int, wait_ms: int) -> None:
        state = self.state
        state.now_ms = now_ms
        call.lacks = False
        if call.far:
            sent = call.elsewhere is not None and not state.draining and call.elsewhere(call)
            call.far = False
            if sent:
                return
        if consumers.serve_call(state, call, call.wants, now_ms):
            state.counters.window_hits += 1
            return
        held_up = call.lacks and any(key in state.held_up for key, _ in call.wants)
        if not held_up and call.elsewhere is not None and not state.draining and call.elsewhere(call):
            return
        if call.lacks:
            state.counters.window_misses += 1
            # Ready items that are not in memory yet arrive with the next page: wait for it.
            state.staying[call] = now_ms + wait_ms
            wait_ms = max(wait_ms, state.config.host.confirm_ms)
        if wait_ms <= 0 or state.draining or call.hurried:
            consumers.answer_empty(state, call)
            return
        consumers.wait(state, call, now_ms + wait_ms)

    def dequeue_together(self, calls: Sequence[DequeueCall], now_ms: int) -> None:
        """Dequeue for calls that begin at the same time and do not wait."""
        state = self.state
        if len(calls) > 1:
            state.now_ms = now_ms
            state.counters.window_hits += consumers.serve_together(state, calls, now_ms)
        for call in calls:
            if not call.done:
                self.dequeue(call, now_ms, 0)

    def hurry(self, call: DequeueCall) -> None:
        """End the wait of a call whose consumer stopped waiting."""
        consumers.hurry(self.state, call)

    def cancel(self, call: DequeueCall) -> None:
        """End the call of a consumer that disconnected. Leases that are being committed are given back when they are
        delivered."""
        call.done = True
        consumers.stop_waiting(self.state, call)

    def stop_waiting(self, call: DequeueCall) -> None:
        """Forget a call that another host answers."""
        consumers.stop_waiting(self.state, call)

    def ready(self, key: TopicKey) -> int:
        """Return the number of items of a topic that are ready here, in memory or not; 0 while it is paused."""
        return consumers.ready(self.state, key)

    # ------------------------------------------------------------------------------------- acks and the like

    def ack(
        self, call: ItemsCall, ids: Sequence[int], leases: Sequence[int], ns: str | None, now_ms: int, timeout_ms: int,
        results: Sequence[bytes | None] | None = None,
    ) -> None:  # fmt: skip
        """Ack each of `ids` with its lease, and its result if some have one. The common case, a live lease that nothing
        else touches, is decided right here; the rest by `item_ops.ack`."""
        if results is not None:
            ops = map(item_ops.ack, leases, results)
            self.settle(call, list(zip(ids, ops, strict=True)), ns, now_ms, timeout_ms)
            return
        state = self.state
        until_ms, deadlines = now_ms + timeout_ms, state.deadlines
        deadlines.fresh.append((until_ms, call))  # as in `enqueue`
        if len(deadlines.fresh) > FRESH:
            deadlines.sift()
        if until_ms < state.timer_ms:
            state.alarm(until_ms)
        shards, items, most, hidden = state.shards, call.items, state.config.host.pending_rows, call.within is not None
        for at, (item_id, lease) in enumerate(zip(ids, leases, strict=True)):
            shard = shards.get(item_id >> NUMBER_BITS)
            item = shard.memory.known.get(item_id) if shard is not None else None
            if (
                shard is None
                or item is None
                or item.phase is not _LEASED
                or item.lease != lease
                or item.change is not None
                or item.in_flight is not None
                or hidden
                or (ns is not None and item.lane.topic.key[0] != ns)
                or shard.owner.state is not _SERVING
                or len(shard.queue.changes) >= most
            ):
                ack.operate(state, call, at, item_id, item_ops.ack(lease), ns, now_ms)
                continue
            item.change = change = Change(item, _GONE, _ACK, (call, at))  # `Item.queue`, of which all is checked above
            items[at] = item
            shard.queue.changes.append(change)
            if not state.dirty:  # `touch`
                state.wake()
            state.dirty[shard] = None

    def settle(
        self, call: ItemsCall, items: list[tuple[int, item_ops.Op]], ns: str | None, now_ms: int, timeout_ms: int
    ) -> None:
        """Carry out `items`: (id, op) each, in order."""
        state = self.state
        state.deadlines.push(now_ms + timeout_ms, call)
        state.alarm(now_ms + timeout_ms)
        for at, (item_id, op) in enumerate(items):
            ack.operate(state, call, at, item_id, op, ns, now_ms)

    def look(self, item_id: int, call: LookCall, now_ms: int, timeout_ms: int) -> None:
        """Read one item as the database has it; an unwritten lease is known in memory only."""
        state = self.state
        shard = state.shards.get(shard_of(item_id))
        if shard is None:
            call.found(None, None, state.absent())
        elif not state.settles(shard):
            call.found(None, None, NotServed())
        elif shard.queue.full:
            call.found(None, None, Overloaded("too much waits for the item's shard", OVERLOADED_RETRY_MS))
        else:
            state.deadlines.push(now_ms + timeout_ms, call)
            state.alarm(now_ms + timeout_ms)
            shard.queue.looks.add(item_id, call.found)
            state.touch(shard)

    def lane_of(self, found: Found) -> Lane[Item] | None:
        """Return the lane of an item that was looked up, None if its shard is no longer served."""
        shard = self.state.shards.get(shard_of(found.body.id))
        return None if shard is None else shard.memory.lane_numbers.get(found.body.lane)

    def find_key(
        self, slots: Sequence[int], digest: bytes, done: Callable[[DedupRow | None, FoqsError | None], None],
        now_ms: int, timeout_ms: int,
    ) -> None:  # fmt: skip
        """Find the row of a deduplication key. `slots`: the shard of each hash slot."""
        state = self.state
        shard = state.shards.get(slots[hash_slot_of(digest)]) if slots else None
        if shard is None or not state.settles(shard) or not shard.queue.keys.takes(digest):
            done(None, NotServed())
            return
        waiting = LookCall(lambda _item, _found, error: done(None, error))

        def read(row: DedupRow | None, error: FoqsError | None) -> None:
            if not waiting.done:
                waiting.done = True
                done(row, error)

        state.deadlines.push(now_ms + timeout_ms, waiting)
        state.alarm(now_ms + timeout_ms)
        shard.queue.dead_reads.append(KeyRead(digest, read))
        state.touch(shard)

    def mark(self, shard: Shard, row: DedupRow) -> None:
        """Write a row that says up to when a schedule has fired, with one of the shard's next transactions."""
        shard.queue.keys.marks[row.digest] = row
        self.state.touch(shard)

    def await_end(self, call: EndCall, now_ms: int, wait_ms: int) -> None:
        """Reply the end of an item, once it has ended and this is committed, or its state after `wait_ms`."""
        state = self.state
        if not wait_ms:
            self._look_at_end(call, now_ms)
        elif state.awaited.count >= state.config.limits.result_waiters:
            why = "too many callers wait for results on this host (limits.result_waiters)"
            call.end(Overloaded(why, OVERLOADED_RETRY_MS))
        else:
            state.awaited.add(call)
            state.deadlines.push(now_ms + wait_ms, call)
            state.alarm(now_ms + wait_ms)
            self._look_at_end(call, now_ms)

    def stop_awaiting(self, call: EndCall) -> None:
        """Forget the call of a consumer that disconnected."""
        call.done = True
        self.state.awaited.discard(call)

    def look_at_end(self, call: EndCall) -> None:
        """Reply the present state of an item whose end was awaited for long enough. An end that is committed before the
        look-up counts."""
        self._look_at_end(call, self.state.now_ms)

    def _look_at_end(self, call: EndCall, now_ms: int) -> None:
        def looked(item: Item | None, found: Found | None, error: FoqsError | None) -> None:
            shard = self.state.shards.get(shard_of(call.item_id))
            if error is None and shard is not None:
                outcome = kept_items.end_of(shard.memory, item, found)
                if call.waits and isinstance(outcome, Living):
                    return
            else:
                outcome = error or NotServed()
            self.state.awaited.discard(call)
            call.end(outcome)

        self.look(call.item_id, LookCall(looked), now_ms, self.state.config.limits.timeout_default_ms)

    def list(self, listing: Listing, now_ms: int, timeout_ms: int) -> None:
        state = self.state
        state.deadlines.push(now_ms + timeout_ms, listing)
        state.alarm(now_ms + timeout_ms)
        listing.go_on()

    def release(self, releasing: Releasing, now_ms: int, timeout_ms: int) -> None:
        """End leases of a topic."""
        state = self.state
        state.now_ms = now_ms
        state.deadlines.push(now_ms + timeout_ms, releasing)
        state.alarm(now_ms + timeout_ms)
        releasing.go_on()

    # ------------------------------------------------------------------------------------- time and batches

    def finished(self, shard: Shard, batch: ShardBatch, result: BatchResult, now_ms: int) -> None:
        """Take the result of a batch."""
        state = self.state
        state.now_ms = now_ms
        if shard.queue.in_flight is not batch:
            return  # the shard was closed while the batch was in flight
        if result.fenced:
            if result.outcome is Outcome.UNKNOWN and batch.transaction is not None:
                shard.queue.outcome_unknown(batch)
            self.lose(shard, now_ms)
            return
        owner, memory, queue = shard.owner, shard.memory, shard.queue
        was_sick = owner.lost or owner.breaker.state is not _CLOSED or now_ms - batch.begun_ms > owner.hang_ms
        batch_apply.apply(shard, batch, result, now_ms)
        if batch.changes and state.holdings.named:
            given = [change.item.given for change in batch.changes]
            consumers.freed(state, {one.worker: None for one in given if one is not None})
        if batch.transaction is not None and batch.transaction.slots is not None:
            state.callbacks.slots_written()
        if was_sick and shard.healthy(now_ms):
            consumers.wake_all(state, shard)
        sick = owner.lost or owner.breaker.state is not _CLOSED or (owner.disk_full and owner.full(now_ms))
        if not result.ended and (queue.returned or (queue.chunks and sick)):
            shard_life.place_again(state, shard, now_ms)
        reported = state.callbacks.became_ready is not None
        if state.waiting or memory.unleased or memory.stalled or (memory.woken and reported):
            consumers.wake(state, shard, now_ms)
        else:
            memory.woken.clear()  # no consumer waits: the next finds the items
        if queue.chunks or queue.changes or owner.state is not _SERVING:
            state.touch(shard)  # if the database may not be asked now, `pump` sets the alarm
        elif (at_ms := batch_build.next_ms(shard, now_ms)) <= now_ms:
            state.touch(shard)
        elif at_ms < state.timer_ms:
            state.alarm(at_ms)

    def clock_set(self, by_ms: int) -> None:
        """Follow the host's clock, which was set by `by_ms`."""
        self._housekeeping_ms = 0
        shard_life.clock_set(self.state, by_ms)

    def pump(self, now_ms: int) -> None:
        """Send a batch to every shard that has work and no batch in flight."""
        state = self.state
        state.now_ms = now_ms
        if state.due:
            consumers.serve(state, (), now_ms)
        if state.slices.long_work:
            state.slices.go_on()
        dirty, state.dirty = state.dirty, {}
        for shard in dirty:
            if shard.memory.woken:
                consumers.wake(state, shard, now_ms)
            batch = batch_build.build(shard, now_ms)
            if batch is not None:
                self._submit(shard, batch)
            elif shard.queue.in_flight is None:  # the result of a batch in flight comes first
                at_ms = batch_build.next_ms(shard, now_ms)
                if at_ms < state.timer_ms:
                    state.alarm(at_ms)
            if shard.queue.returned:
                shard_life.place_again(state, shard, now_ms)
        if state.slices.next_slice:
            for do in state.slices.take_next():
                do()

    def tick(self, now_ms: int) -> None:
        """Do all work that is due. `next_ms` then returns when the next work is due."""
        state = self.state
        state.now_ms = now_ms
        if now_ms >= state.topics.rates.ends_ms:
            stats.turn(state, now_ms)
        for call in state.deadlines.pop_due(now_ms):
            if not call.done:  # an earlier call's end may have ended it
                call.timed_out(state.shards)
        for shard in state.serving:
            shard_life.check_takeover_grace(state, shard, now_ms)
            if shard.memory.woken:  # a consumer whose wait ends gets the items that are ready by now
                consumers.wake(state, shard, now_ms)
        for waiting in state.patience.pop_due(now_ms):
            if not waiting.away:
                consumers.answer_empty(state, waiting)
        consumers.end_merge_waits(state, now_ms)
        for shard in state.serving:
            shard_life.check_silence(state, shard, now_ms)
            if batch_build.next_ms(shard, now_ms) <= now_ms:
                state.touch(shard)
        if now_ms >= self._housekeeping_ms:
            self._housekeeping_ms = now_ms + _HOUSEKEEPING_MS
            self._keep_house(now_ms)
            consumers.freed(state, state.holdings.sweep())

    def _keep_house(self, now_ms: int) -> None:
        """Do the work of each second: confirm idle shards, remove empty lanes, count batches, drop unused windows if
        memory is short, and try skipped tenants again."""
        state = self.state
        for shard in state.serving:
            shard.batch_metrics.sift()
            if not 0 <= now_ms - shard.owner.confirmed_ms < _CONFIRM_IDLE_MS:
                shard.owner.want_confirmation()
                state.touch(shard)
            if not 0 <= now_ms - shard.owner.clock_read_ms < _CLOCK_EVERY_MS:
                shard.owner.want_clock()
                state.touch(shard)
            if idle_lanes.is_due(shard, now_ms):
                state.touch(shard)
        state.skipping = {key: None for key in state.skipping if key in state.waiting}
        state.topics.forget_order(_ORDER_UNUSED_MS, now_ms)
        state.explained.forget(now_ms)
        state.holdings.forget(now_ms)
        state.topics.ledgers.forget(now_ms)
        state.residents.drop_idle(_IDLE_SHARE, _WINDOW_IDLE_MS, _IDLE_STEPS)
        tenants.retry_waited(state)

    def next_ms(self, now_ms: int) -> int:
        """Return when `tick` has work."""
        return min(self.due_ms(now_ms), self._housekeeping_ms, self.state.topics.rates.ends_ms)

    def due_ms(self, now_ms: int, *, looks: bool = True) -> int:
        """Return when `tick` has work other than that of each second. `looks`: and as in `batch_build.next_ms`."""
        state = self.state
        at_ms = min(state.deadlines.next_ms(), state.patience.next_ms())
        for shard in state.serving:
            at_ms = min(at_ms, batch_build.next_ms(shard, now_ms, looks=looks))
            owner = shard.owner
            if owner.grace_from_ms is not None and not owner.held:
                quiet_ms = shard.config.confirm_ms + 1
                at_ms = min(at_ms, owner.grace_from_ms + quiet_ms if owner.in_takeover_grace(now_ms) else now_ms)
        return min(at_ms, next(iter(state.held_up.values()), NEVER_MS))
