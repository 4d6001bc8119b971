"""A host's decisions: which shard takes an enqueue, what a dequeue gets, who waits for what.

No I/O, no clock, no thread: `now_ms` comes in, rounds go out through `submit`, replies through the calls' own
callbacks. The node runs it on an event loop, the simulation on a fake clock.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

from foqs.budget import Budget
from foqs.buffers.round import Outcome, Round, RoundResult
from foqs.config import Config
from foqs.counters import Counters, Namespaces
from foqs.errors import FoqsError, NotServed, OutcomeUnknown, Overloaded, Unavailable
from foqs.host import consumers, dispense, keyed, life, ops, outcomes, placing, rounds, settle
from foqs.host.listing import OVERLOADED_RETRY_MS, Listing
from foqs.host.requests import Committing, DequeueCall, EnqueueCall, ItemsCall, LookCall, Timed
from foqs.host.shard import Shard
from foqs.ids import shard_of
from foqs.item import Item, Place
from foqs.leases.deadlines import NEVER_MS, Deadlines
from foqs.prefetch.lane import LaneKey
from foqs.prefetch.residents import Residents
from foqs.rows import NewItem, Opened
from foqs.shardmgr.breaker import BreakerSettings
from foqs.shardmgr.lifecycle import ShardState

_HOUSEKEEPING_MS = 1_000
_LOST_COMMITTING = "the shard was lost while it committed"


class Host:
    def __init__(
        self, config: Config, budget: Budget, rng: random.Random, submit: Callable[[Shard, Round], None]
    ) -> None:
        self.config = config
        self.budget = budget
        self.rng = rng
        self.submit = submit
        self.counters = Counters(Namespaces(config.admin.namespaces))
        self.shards: dict[int, Shard] = {}
        self.serving: list[Shard] = []
        self.dirty: dict[Shard, None] = {}
        self.wake: Callable[[], None] = lambda: None  # there is something to pump
        self.alarm: Callable[[int], None] = lambda at_ms: None  # `tick` is needed no later than this
        # First come, first served. (Lists: most are short, and a deque takes 760 bytes.)
        self.waiting: dict[LaneKey, list[DequeueCall]] = {}
        self.due: dict[LaneKey, None] = {}  # topics whose consumers are served in the next turn of the event loop
        self.held_up: dict[LaneKey, int] = {}  # lanes whose merge waits for a shard -> when to go on without it
        self.skipping: dict[LaneKey, None] = {}  # lanes that go on without it
        self.staying: dict[DequeueCall, int] = {}  # longer than they asked to, for a shard -> when they wanted to go
        self.residents = Residents(budget, self.waiting, lambda: self.now_ms)
        self.deadlines: Deadlines[Timed] = Deadlines()
        self.patience: Deadlines[DequeueCall] = Deadlines()
        self.committing: Deadlines[Committing] = Deadlines()
        self.draining = False
        self.slots: Sequence[int] = ()  # the shard of each slot of deduplication keys
        self.alone = True  # no other host has shards: an item that is not here is nowhere
        self.served: Callable[[], None] = lambda: None  # what is served here has changed
        self.became_ready: Callable[[LaneKey], None] | None = None  # something of it, for others than who wait here
        self.left_waiting: Callable[[LaneKey], None] = lambda key: None  # somebody, for whom there is nothing here
        self.housekeeping_ms = 0
        for section in config.shards:
            self.add(section.id)

    # ------------------------------------------------------------------------------------- shards

    def add(self, number: int) -> Shard:
        """A shard that may be opened. One that is CLOSED may be taken out of `shards` again."""
        config, breaker = self.config, BreakerSettings(**self.config.breaker.model_dump())
        shard = self.shards[number] = Shard(
            number, config.host, breaker, self.residents, self.budget, self.counters, self.rng
        )
        shard.dedup_window_ms = config.limits.dedup_window_ms
        return shard

    def opened(self, shard: Shard, opened: Opened, max_batch_bytes: int, begun_ms: int, now_ms: int) -> None:
        """The store took ownership, at `begun_ms` or later."""
        life.open_shard(shard, opened, max_batch_bytes, begun_ms, now_ms)
        self.serving.append(shard)
        self.touch(shard)
        consumers.wake(self, shard, now_ms)
        self.served()

    def lose(self, shard: Shard, now_ms: int) -> None:
        """The shard is another owner's now: whoever waits for it is told."""
        self.counters.shards_lost += 1
        self._close(shard, now_ms, NotServed("the shard moved to another host"))

    def _close(self, shard: Shard, now_ms: int, error: FoqsError) -> None:
        self.serving = [other for other in self.serving if other is not shard]
        self.dirty.pop(shard, None)
        left = life.close_shard(shard)
        unknown = left.unsettled
        for chunk in left.chunks:
            if unknown is not None and chunk in unknown.chunks:
                chunk.request.refused(chunk.indices, OutcomeUnknown(_LOST_COMMITTING))
            elif chunk.dedup is not None:  # for the next owner of the shard, and for nobody else
                chunk.request.refused(chunk.indices, error)
            else:
                chunk.flying = False
                placing.place(self, chunk, now_ms)
        for change in left.changes:
            unsure = unknown is not None and change in unknown.changes
            for request, at in change.waits:
                request.settled(at, OutcomeUnknown(_LOST_COMMITTING) if unsure else error)
        for give in left.gives:
            give.done(error)
        for copy in left.copies:
            copy.done(error)
        for look in left.looks:
            look(None, None, error)
        for listing in left.lists:
            listing.done([], {}, error)
        self.served()

    def drained(self, shard: Shard, now_ms: int) -> None:
        """After a drain: nothing waits any more, or the grace is over; the store may be closed."""
        if shard.flight is not None and shard.unsettled is None:
            shard.unsettled, shard.flight = shard.flight, None  # nobody will tell what becomes of it
        error = Unavailable("the host is shutting down") if self.draining else NotServed()
        self._close(shard, now_ms, error)

    def drain(self, now_ms: int) -> None:
        """Stop taking: consumers that wait are answered with nothing; what is in hand goes on."""
        self.draining = True
        for waiting in list(self.waiting.values()):
            for call in list(waiting):
                self._answer_empty(call)
        for shard in self.serving:
            self.retire(shard)
        self.served()

    def retire(self, shard: Shard) -> None:
        """Stop taking for one shard: what is in hand goes on. When it is `idle`, it may be `drained`."""
        if shard.state is ShardState.SERVING:
            shard.to(ShardState.DRAINING)
        self.touch(shard)

    def settles(self, shard: Shard) -> bool:
        """Whether changes of its items are taken here. A shard that is handed over takes none, or it would never be
        idle under load; while a host stops that has nobody to hand it to, it does."""
        if shard.state is ShardState.DRAINING:
            return self.alone or self.draining
        return shard.state is ShardState.SERVING

    # ------------------------------------------------------------------------------------- enqueue

    def enqueue(
        self, call: EnqueueCall, indices: Sequence[int], items: list[NewItem], keys: Sequence[LaneKey],
        sizes: Sequence[int], now_ms: int, timeout_ms: int,
    ) -> None:  # fmt: skip
        """Stores `items` (all checked); `sizes` are the bytes of each body."""
        self.deadlines.push(now_ms + timeout_ms, call)
        self.alarm(now_ms + timeout_ms)
        placing.place_all(self, call, indices, items, keys, sizes, now_ms)

    def stores(self, now_ms: int) -> bool:
        """Whether a shard can take items now."""
        return any(shard.takes_new and shard.healthy(now_ms) for shard in self.serving)

    # ------------------------------------------------------------------------------------- dequeue

    def dequeue(self, call: DequeueCall, now_ms: int, wait_ms: int) -> None:
        self.now_ms = now_ms
        call.deliver, call.give_back = self._committed, self._give_back
        call.lacks = False
        if self.serve(call, call.wants, now_ms):
            self.counters.window_hits += 1
            return
        held_up = call.lacks and any(key in self.held_up for key, _ in call.wants)
        if not held_up and call.elsewhere is not None and not self.draining and call.elsewhere(call):
            return
        if call.lacks:
            self.counters.window_misses += 1
            # Items that are ready but not in memory yet are worth the wait for a page.
            self.staying[call] = now_ms + wait_ms
            wait_ms = max(wait_ms, self.config.host.confirm_ms)
        if wait_ms <= 0 or self.draining:
            self._answer_empty(call)
            return
        self.patience.push(now_ms + wait_ms, call)
        self.alarm(now_ms + wait_ms)
        self.wake()  # to be there when that time is over
        for key, _ in call.wants:
            waiting = self.waiting.get(key)
            if waiting is None:
                self.waiting[key] = [call]
            else:
                waiting.append(call)

    def serve(self, call: DequeueCall, wants: Sequence[tuple[LaneKey, int]], now_ms: int) -> bool:
        """Leases what is ready of `wants`, topics that `call` names; False when there is nothing."""
        if self.draining:
            return False
        dispense.fill(self, call, wants, now_ms)
        if not call.found:
            return False
        call.done = True
        self.alarm(now_ms + self.config.host.lease_write_delay_ms // 2)
        for index, (shard, item, _) in enumerate(call.found):
            if item.at_most_once:
                call.open.add(index)
                ops.lease_first(shard, item, (call, index), now_ms)
                self.touch(shard)
        if call.open:
            self.committing.push(now_ms + self.config.host.confirm_ms, Committing(call))
            self.alarm(now_ms + self.config.host.confirm_ms)
            for _, item, _ in call.found:
                item.awaited = True
        else:
            self._deliver(call, call.found)
        return True

    def _committed(self, call: DequeueCall) -> None:
        """Meanwhile some leases may have been lost, or be over."""
        found = []
        for at, (shard, item, lease) in enumerate(call.found):
            if item.lease == lease:
                item.awaited = False
            if at in call.lost:
                continue
            if not ops.stands(item, lease):
                if item.at_most_once:
                    call.doubtful.append(item.id)
                continue
            if item.place is Place.TIMER or shard.confirmed(self.now_ms):
                found.append((shard, item, lease))
            else:
                self._give_back(shard, item, lease)
        self._deliver(call, found)

    def _deliver(self, call: DequeueCall, found: list[tuple[Shard, Item, int]]) -> None:
        if call.reply([item for _, item, _ in found], call.doubtful):
            if found:
                found[0][1].lane.namespace.delivered += len(found)  # a request names one namespace
            for shard, item, _ in found:
                if item.attempt > 1:
                    self.counters.redelivered += 1
                shard.drop_body(item)
            return
        for shard, item, lease in found:
            self._give_back(shard, item, lease)

    def _give_back(self, shard: Shard, item: Item, lease: int) -> None:
        """What did not reach its consumer."""
        ops.take_back(shard, item, lease, self.now_ms)
        self.touch(shard)

    def _answer_empty(self, call: DequeueCall) -> None:
        if not call.done:
            call.done = True
            call.reply([], [])
        self.stop_waiting(call)

    def cancel(self, call: DequeueCall) -> None:
        """The consumer is gone. Leases under way are given back when they are delivered."""
        call.done = True
        self.stop_waiting(call)

    def stop_waiting(self, call: DequeueCall) -> None:
        """It is served, or fetched elsewhere, or over."""
        self.staying.pop(call, None)
        for key, _ in call.wants:
            waiting = self.waiting.get(key)
            if waiting is not None and call in waiting:
                waiting.remove(call)
                if not waiting:
                    del self.waiting[key]

    def ready(self, key: LaneKey) -> int:
        """Items of a topic that are ready here, in memory or not."""
        return sum(lane.ready for shard in self.serving if (lane := shard.lanes.get(key)) is not None)

    # ------------------------------------------------------------------------------------- acks and the like

    def ack(self, call: ItemsCall, acks: Sequence[settle.Acked], ns: str | None, now_ms: int, timeout_ms: int) -> None:
        """Acks each of `acks`."""
        self.deadlines.push(now_ms + timeout_ms, call)
        self.alarm(now_ms + timeout_ms)
        settle.ack_all(self, call, acks, ns, now_ms)

    def settle(
        self, call: ItemsCall, items: list[tuple[int, ops.Op]], ns: str | None, now_ms: int, timeout_ms: int
    ) -> None:
        """Carries out `items`: (id, op) each, in order."""
        self.deadlines.push(now_ms + timeout_ms, call)
        self.alarm(now_ms + timeout_ms)
        for at, (item_id, op) in enumerate(items):
            settle.operate(self, call, at, item_id, op, ns, now_ms)

    def look(self, item_id: int, call: LookCall, now_ms: int, timeout_ms: int) -> None:
        """Reads one item as the database has it; an unwritten lease is known in memory only."""
        shard = self.shards.get(shard_of(item_id))
        if shard is None and self.alone:
            call.found(None, None, None)
        elif shard is None or not self.settles(shard):
            call.found(None, None, NotServed())
        elif shard.full:
            call.found(None, None, Overloaded("too much waits for the item's shard", OVERLOADED_RETRY_MS))
        else:
            self.deadlines.push(now_ms + timeout_ms, call)
            self.alarm(now_ms + timeout_ms)
            shard.looks.add(item_id, call.found)
            self.touch(shard)

    def list(self, listing: Listing, now_ms: int, timeout_ms: int) -> None:
        self.deadlines.push(now_ms + timeout_ms, listing)
        self.alarm(now_ms + timeout_ms)
        listing.go_on()

    # ------------------------------------------------------------------------------------- time and rounds

    now_ms = 0
    """Of the call being carried out; set on every way in that can run callbacks."""

    def finished(self, shard: Shard, round_: Round, result: RoundResult, now_ms: int) -> None:
        """A round came back from the worker."""
        self.now_ms = now_ms
        if shard.flight is not round_:
            return  # the shard was closed meanwhile
        if result.fenced:
            if result.outcome is Outcome.UNKNOWN and round_.batch is not None:
                shard.unsettled, shard.flight = round_, None  # nobody can tell: nothing of it is placed again
            self.lose(shard, now_ms)
            return
        was_healthy = shard.healthy(now_ms)
        outcomes.apply(shard, round_, result, now_ms)
        if self.alone and round_.batch is not None and round_.batch.slots is not None:
            keyed.share_out(self)
        if not was_healthy and shard.healthy(now_ms):
            shard.woken.update(dict.fromkeys(self.waiting))  # its items can be merged again
        life.place_again(self, shard, now_ms)
        self.touch(shard)
        consumers.wake(self, shard, now_ms)

    def touch(self, shard: Shard) -> None:
        if not self.dirty:
            self.wake()
        self.dirty[shard] = None

    def pump(self, now_ms: int) -> None:
        """Sends a round to every shard that has something to do and none under way."""
        self.now_ms = now_ms
        if self.due:
            consumers.serve(self, (), now_ms)
        dirty, self.dirty = self.dirty, {}
        for shard in dirty:
            if shard.woken:
                consumers.wake(self, shard, now_ms)
            round_ = rounds.build(shard, now_ms)
            if round_ is not None:
                self.submit(shard, round_)

    def tick(self, now_ms: int) -> None:
        """Does all that is due. `next_ms` then says when there is more."""
        self.now_ms = now_ms
        for call in self.deadlines.pop_due(now_ms):
            if not call.done:  # the end of one before it may have been its end, too
                call.timed_out(self.shards)
        for shard in self.serving:
            life.check_quiet(self, shard, now_ms)
            if shard.woken:  # a consumer whose time is over gets what is there by now
                consumers.wake(self, shard, now_ms)
        for dequeue in self.patience.pop_due(now_ms):
            if not dequeue.away:
                self._answer_empty(dequeue)
        for committing in self.committing.pop_due(now_ms):
            committing.call.hurry()
        consumers.end_merge_waits(self, now_ms)
        for shard in self.serving:
            life.check_hang(self, shard, now_ms)
            if rounds.next_ms(shard, now_ms) <= now_ms:
                self.touch(shard)
        if now_ms >= self.housekeeping_ms:
            self.housekeeping_ms = now_ms + _HOUSEKEEPING_MS
            dispense.keep_house(self, now_ms)

    def next_ms(self, now_ms: int) -> int:
        at_ms = min(self.deadlines.next_ms(), self.patience.next_ms(), self.committing.next_ms(), self.housekeeping_ms)
        for shard in self.serving:
            at_ms = min(at_ms, rounds.next_ms(shard, now_ms))
            if shard.quiet_from_ms is not None:
                quiet_ms = shard.config.confirm_ms + 1
                at_ms = min(at_ms, shard.quiet_from_ms + quiet_ms if shard.quiet(now_ms) else now_ms)
        return min(at_ms, next(iter(self.held_up.values()), NEVER_MS))
