"""Enqueues with deduplication keys: each is stored by the shard that has the slot of its key, and by no other.

The first attempt inserts keys and items in one transaction, as if all keys were new. If the database has one of the
keys, it refuses the transaction. The shard's thread then looks up the keys, and stores the items whose keys are new.

Slots move between shards in the steps of `foqs.peers.hash_slots`. The shard that gives a slot away first writes,
behind the fence, that it no longer has the slot; only then are its rows read. So the copy has every stored key, even if
a replaced owner still runs.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from foqs.buffers.pending_dedup import Freed, Give, Keyed, KeyedRequest, ShardGone
from foqs.buffers.reads import Read, ScanRead, StoreReads
from foqs.buffers.shard_batch import Chunk, ShardBatch
from foqs.engine import enqueue, order_homes, ordered
from foqs.engine.calls import EnqueueCall
from foqs.engine.enqueue import RETRY_MS, cut
from foqs.engine.shard import Shard
from foqs.engine.shard_queue import ShardQueue
from foqs.engine.state import State
from foqs.errors import FoqsError, NotServed, Overloaded, Unavailable
from foqs.fairness.keys import rules_of, until_of
from foqs.ids import FOREVER_MS, hash_slot_bounds, hash_slot_of
from foqs.order import KeyHome, OrderHome
from foqs.rows import Batch, DedupRow, Holding, NewOrdered
from foqs.shardmgr.lifecycle import ShardState
from foqs.shardmgr.routing import has, without

_BUDGET_SHARE = 0.3  # beyond the input's


def by_shard(slots: Sequence[int], items: Iterable[Keyed]) -> dict[int, list[Keyed]]:
    """Group `items` by the number of the shard that has the key's slot, or by their homes; 0: no shard has it."""
    if not slots:
        return {0: [*items]}
    found: dict[int, list[Keyed]] = defaultdict(list)
    for one in items:
        home = one.home
        number = slots[hash_slot_of(one.dedup.digest)] if home is None or home.empty else home.shard
        found[number].append(one)
    return found


def place_taken(
    state: State, call: EnqueueCall, number: int, items: Sequence[Keyed], now_ms: int,
    moved: order_homes.Moved | None = None,
) -> list[Keyed]:  # fmt: skip
    """Place the items whose slots the shard has, and return the rest: slots move, so it may have lost them, or not have
    them yet. Items whose order keys have another home go to `moved`, now or after a read; None: they are refused."""
    shard = state.shards.get(number)
    here: list[Keyed] = []
    away: list[Keyed] = []
    at_home: list[Keyed] = []
    elsewhere: list[tuple[Keyed, KeyHome]] = []
    for one in items:
        if shard is None:
            here.append(one)
        elif shard.queue.keys.takes(one.dedup.digest):
            home = order_homes.answer(shard, one) if shard.memory.orders.elsewhere else None
            if home is None:
                here.append(one)
            else:
                elsewhere.append((one, home))
        elif one.home is not None and one.home.is_in(number) and shard.owner.state is ShardState.SERVING:
            at_home.append(one)
        else:
            away.append(one)
    if here:
        place(state, call, number, here, now_ms)
    if not (elsewhere or at_home):
        return away

    def refused(some: Sequence[Keyed], error: FoqsError) -> None:
        call.refused([one.at for one in some], error)

    order_homes.by_home(elsewhere, moved or refused)
    if at_home and shard is not None:
        ask = order_homes.Ask(
            shard, at_home, lambda some, at_ms: place(state, call, number, some, at_ms), moved or refused
        )  # fmt: skip
        ask.begin(call, now_ms)
    return away


def place(state: State, call: EnqueueCall, number: int, items: Sequence[Keyed], now_ms: int) -> None:
    """Give `items` to the shard that has their slots, or refuse them."""
    shard = state.shards.get(number)
    if shard is None or shard.owner.state is not ShardState.SERVING:
        elsewhere = number and state.shards_elsewhere
        error = NotServed() if elsewhere else Unavailable("the keys' shard is not open", RETRY_MS)
        call.refused([one.at for one in items], error)
    elif not shard.healthy(now_ms) or (shard.owner.disk_full and shard.owner.full(now_ms)):
        call.refused([one.at for one in items], enqueue.unusable(shard, now_ms))
    else:
        room = shard.config.pending_rows - shard.queue.chunk_rows - len(shard.queue.changes)
        if len(items) > room or not state.budget.fits(0, state.config.host.input_share + _BUDGET_SHARE):
            call.refused([one.at for one in items], Overloaded("the shard's buffers are full", RETRY_MS))
            return
        asked = items
        full = len(shard.memory.lanes) >= shard.config.lanes and not shard.replaces_lanes()
        if full:
            lanes = shard.memory.lanes
            refused = [one.at for one in items if one.lane not in lanes]
            if refused:
                call.refused(refused, enqueue.too_many_lanes(shard))
            items = [one for one in items if one.lane in lanes]
        ruled = [one for one in items if rules_of(one.lane) is not None]
        if ruled and not shard.memory.takes_rules([one.lane for one in ruled]):
            call.refused([one.at for one in ruled], enqueue.too_many_rules())
            items = [one for one in items if rules_of(one.lane) is None]
        if len(items) < len(asked):
            items = ordered.without_gaps(call, asked, items)
        in_order = [one for one in items if isinstance(one.item, NewOrdered)]
        if in_order:
            items = [one for one in items if not isinstance(one.item, NewOrdered)]
            ordered.store(shard, call, in_order)
        if items:
            _store(shard.queue, call, shard.queue.keys.add(items, call))
        state.touch(shard)


def _store(queue: ShardQueue, call: EnqueueCall, new: list[Keyed]) -> None:
    for start, end, size in cut([one.size_bytes for one in new], queue.max_batch_bytes // 2):
        part = new[start:end]
        request = KeyedRequest(queue.keys, call, part)
        call.unsent.append(request)
        chunk = enqueue.chunk_of(request, range(len(part)), part, size)
        chunk.dedup = [one.dedup for one in part]
        queue.add(chunk)


# ------------------------------------------------------------------------------------------ batches


def fill_transaction(shard: Shard, batch: ShardBatch, transaction: Batch) -> bool:
    """Add the changes of keys and slots. Return True if there are any."""
    queue = shard.queue
    take_expired(queue, transaction)
    _add_moved_slots(shard, batch, transaction)
    transaction.slots, queue.keys.wanted = queue.keys.wanted, None
    queue.keys.in_flight = transaction.slots
    return transaction.dedup_gone is not None or transaction.slots is not None or bool(batch.copies or transaction.keys)


def take_expired(queue: ShardQueue, transaction: Batch) -> bool:
    """Add the removal of expired keys, if they are known. Return True."""
    transaction.fill()
    transaction.dedup_gone, queue.keys.gone = queue.keys.gone, None
    return True


def rows_of(queue: ShardQueue, chunk: Chunk, now_ms: int) -> list[DedupRow]:
    """Return the rows of a chunk's keys, for the transaction being built. Its items have their ids."""
    assert isinstance(chunk.request, KeyedRequest)
    chunk.request.sent = True
    rows: list[DedupRow] = []
    for (digest, content), item, lane in zip(chunk.dedup or (), chunk.items, chunk.keys, strict=True):
        until_ms = FOREVER_MS if until_of(lane) else max(now_ms, item.deliver_after_ms) + queue.dedup_window_ms
        rows.append(DedupRow(digest, content, item.id, until_ms))
    queue.keys.scan.inserted(now_ms + queue.dedup_window_ms)
    return rows


def transaction_applied(shard: Shard, transaction: Batch, now_ms: int, *, committed: bool) -> None:
    queue = shard.queue
    if transaction.slots is not None:
        queue.keys.in_flight = None
        if committed:
            queue.keys.held = transaction.slots
        elif queue.keys.wanted is None:
            queue.keys.wanted = transaction.slots
    if transaction.dedup_gone is not None and queue.keys.scan.outstanding:
        if committed:
            queue.keys.scan.outstanding = 0
            queue.keys.scan.finish(now_ms)
        else:
            queue.keys.gone = transaction.dedup_gone
    if transaction.keys is not None:
        if not committed:
            for row in transaction.keys.marks:
                queue.keys.marks.setdefault(row.digest, row)
        queue.held.written(transaction.keys.noted, now_ms, committed=committed)
        if committed:
            orders, keys = shard.memory.orders, transaction.keys
            if keys.cleared or keys.shards_gone:
                orders.forget_homes(keys.cleared, keys.shards_gone)
            if keys.homes:
                orders.goes_elsewhere(keys.homes)


def settle_known(batch: ShardBatch, known: Mapping[int, DedupRow]) -> None:
    """Settle the items of the batch whose keys were stored before, and take them out of it. `known`: the stored rows,
    by the id that each item would have got."""
    for at, chunk in enumerate(batch.chunks):
        there = [i for i, item in enumerate(chunk.items) if item.id in known]
        if there and isinstance(chunk.request, KeyedRequest):
            chunk.request.found([chunk.indices[i] for i in there], [known[chunk.items[i].id] for i in there])
            batch.chunks[at] = chunk.part([i for i, item in enumerate(chunk.items) if item.id not in known])
    batch.rows -= len(known)


@dataclass(slots=True, eq=False)
class ExpiredKeysRead(ScanRead):
    """The range of expired keys that the next transaction deletes."""

    def run(self, store: StoreReads) -> int:
        self.found = store.dedup_expired(self.wanted.from_ms, self.wanted.to_ms, self.limit)
        return 0

    def apply(self, shard: Shard, saved: bool, now_ms: int) -> None:
        scan, found = self.scan, self.found
        # The host's clock may be ahead of the database's: no key is removed before it expires there.
        until_ms = min(now_ms, found.db_now_ms + shard.config.clock_jump_ms)
        if found.first_ms and found.first_ms > until_ms:
            scan.left(found.first_ms)
        bound_ms = min(found.bound_ms, until_ms)
        scan.read(bound_ms, found.complete and bound_ms == found.bound_ms, found.next_ms)
        if found.first_ms and found.first_ms <= bound_ms:
            scan.outstanding = 1
            shard.queue.keys.gone = (self.wanted.from_ms, bound_ms)
        else:
            scan.finish(now_ms)


# ------------------------------------------------------------------------------------------ slots that move


def due(queue: ShardQueue) -> bool:
    """Return True if the next transaction has keys or slots to change: a slot may wait for its pending keys."""
    keys, held = queue.keys, queue.held
    changes = (
        keys.gone is not None or keys.wanted is not None or keys.copies or keys.redrives or held.claims or held.freed
        or keys.marks
    )  # fmt: skip
    return bool(changes) or _next_give(queue) is not None


def _add_moved_slots(shard: Shard, batch: ShardBatch, transaction: Batch) -> None:
    queue = shard.queue
    keys = queue.keys
    batch.copies, keys.copies = keys.copies, []
    for work in batch.copies:
        if isinstance(work, Freed):
            queue.key_rows(transaction).freed += work.keys
        elif isinstance(work, ShardGone):
            queue.key_rows(transaction).shards_gone.append(work.number)
        elif not has(keys.last.bits, work.slot):  # else the slot has arrived, and its keys have changed since
            arrived = queue.key_rows(transaction)
            arrived.cleared += [work.slot] * work.first
            arrived.copied += work.rows
            arrived.homes += work.homes
            if work.rows:
                keys.scan.inserted(min(row.expires_at_ms for row in work.rows))
    if keys.marks:
        marks, keys.marks = keys.marks.values(), {}
        rows = [row for row in marks if has(keys.last.bits, hash_slot_of(row.digest))]
        queue.key_rows(transaction).marks += rows
        if rows:  # that of a removed schedule expires
            keys.scan.inserted(min(row.expires_at_ms for row in rows))
    give = _next_give(queue)
    if give is None:
        return
    last = keys.last
    if give.stamp < last.stamp:
        keys.gives.remove(give)
        give.done(Unavailable("the shard was given slots by a later record", RETRY_MS))
        return
    batch.reads = [*batch.reads, GiveRead(give)]
    keys.wanted = Holding(give.stamp, without(give.slot, last.bits))


def _next_give(queue: ShardQueue) -> Give | None:
    """Return the first give whose slot has no pending key: no more keys of it are accepted."""
    return next((one for one in queue.keys.gives if not queue.keys.under_way(one.slot)), None)


@dataclass(slots=True, eq=False)
class GiveRead(Read):
    """Keys of a slot, read after the transaction that gives the slot away. A request that fails is repeated."""

    give: Give
    rows: list[DedupRow] = field(default_factory=list)
    own: list[bytes] = field(default_factory=list)
    homes: list[OrderHome] = field(default_factory=list)

    def run(self, store: StoreReads) -> int:
        low, limit = self.give.low, self.give.limit
        _, high = hash_slot_bounds(self.give.slot)
        self.rows = store.dedup_between(low, high, limit)
        self.own = store.orders_between(low, high, limit)
        self.homes = store.order_homes(low, high, limit)
        store.confirm()  # else a later owner may have stored items of other order keys when these were read
        return 0

    def apply(self, shard: Shard, saved: bool, now_ms: int) -> None:
        if saved:
            shard.queue.keys.gives.remove(self.give)
            low, limit = self.give.low, self.give.limit
            self.give.done(order_homes.listed(shard, low, limit, self.rows, self.own, self.homes))
        else:
            self.missed(shard, now_ms)

    def missed(self, shard: Shard, now_ms: int) -> None:
        shard.queue.keys.gives.remove(self.give)
        self.give.done(_not_moved())


def settle_copies(batch: ShardBatch, saved: bool) -> None:
    """Settle the requests whose rows the transaction had. A failed request is repeated."""
    copies, batch.copies = batch.copies, ()
    for copy in copies:
        copy.done(None if saved else _not_moved())


def _not_moved() -> Unavailable:
    return Unavailable("the keys' shard cannot be used now", RETRY_MS)
