"""Which shard takes an item with an order key, after the hash slot of its key has moved.

A slot moves at once, and the items of its order keys stay where they are. So the shard that gives a slot away lists the
keys that have items (`listed`), and the shard that gets the slot keeps the list in `order_home`. No key has items in
two shards at a time:

1. A shard stores an item of a key only if it has the slot of the key and no row of `order_home` for it, or if it has
   items of the key already (`has`), or by 4.
2. Of a key that has a row, the shard with the slot refuses an item with the `home` in the row. The host that got the
   request sends it to that shard, with this `home`.
3. That shard either has items of the key, and stores the item; or it refuses it with the same `home` as `empty`. This
   is final: by 1, a shard without the slot that has no item of a key gets none. An accepted item counts from the moment
   of its acceptance until its transaction has ended, so none can follow. The shard's rows are read, and after them
   the database confirms the owner: an owner that was replaced cannot speak of rows that its successor has changed.
4. The request goes to the shard with the slot again, with the `empty` home. If this is still the home in the row, the
   transaction that stores the item removes the row.

A `home` names the move that took the slot from its shard (`stamp`). If the slot returns there, the shard may store all
keys again, and it may give the slot away again with other rows: these have another stamp, so an answer
about the earlier move changes nothing, however late it arrives. So 3 is final while the row exists, also if the row
moves on with its slot.

The list is made after a transaction that gives the slot away, and confirmed by a read behind it, as in 3: of a key that
is not in it the shard gets no item. It has the keys of accepted items, of queued redrives and of dead letters, too. A
key that is in the list for nothing costs a redirect.

A row names a shard until the next item of its key, or until the shard is removed from the cluster.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import TYPE_CHECKING

from foqs.buffers.pending_dedup import GivenPage, Keyed
from foqs.errors import FoqsError, KeyElsewhere
from foqs.ids import hash_slot_bounds, hash_slot_of, next_digest
from foqs.order import KeyHome, OrderHome
from foqs.rows import DedupRow, NewOrdered

if TYPE_CHECKING:
    from foqs.engine.calls import EnqueueCall
    from foqs.engine.shard import Shard
    from foqs.engine.shard_queue import ShardQueue

Moved = Callable[[Sequence[Keyed], FoqsError], None]
"""Gets items that another shard takes, with KeyElsewhere, or that the shard could not be asked about."""
Place = Callable[[Sequence[Keyed], int], None]
"""(items, now_ms): stores the items in the shard."""


def pending(queue: ShardQueue) -> set[bytes]:
    """Return the keys that get items by transactions that have not ended: new items, and redrives."""
    chunks, changes = [*queue.chunks, *queue.returned], [*queue.changes]
    for batch in (queue.in_flight, queue.unsettled):
        if batch is not None:
            chunks += batch.chunks
            changes += batch.changes
    found = {item.digest for chunk in chunks if chunk.ordered for item in chunk.items if isinstance(item, NewOrdered)}
    found.update(change.order.digest for change in changes if change.order is not None)
    return found


def has(shard: Shard, digest: bytes, under_way: Collection[bytes]) -> bool:
    """Return True if memory knows of an item of the key. `under_way`: as `pending` returns it."""
    orders = shard.memory.orders
    return digest in orders.keys or digest in under_way or orders.dead.has(digest)


def takes(shard: Shard, digest: bytes, *, alone: bool) -> bool:
    """Return True if a redrive may bring an item of the key to the shard. `alone`: no other host has shards."""
    orders = shard.memory.orders
    if digest in orders.keys:
        return True
    return digest not in orders.elsewhere and (alone or shard.queue.keys.takes(digest))


def answer(shard: Shard, one: Keyed) -> KeyHome | None:
    """Return where an item of a slot that the shard has goes; None: it stays."""
    there = shard.memory.orders.elsewhere.get(one.dedup.digest)
    if there is None or one.home == there._replace(empty=True):
        return None
    return there


def freed(shard: Shard, items: Iterable[Keyed]) -> dict[bytes, KeyHome] | None:
    """Return the rows that `items` replace, by their keys."""
    elsewhere = shard.memory.orders.elsewhere
    if not elsewhere:
        return None
    digests = dict.fromkeys(one.dedup.digest for one in items)
    return {digest: elsewhere[digest] for digest in digests if digest in elsewhere} or None


def by_home(items: Iterable[tuple[Keyed, KeyHome]], moved: Moved) -> None:
    """Give each item to `moved`, with the home that it is refused with."""
    found: dict[KeyHome, list[Keyed]] = {}
    for one, home in items:
        found.setdefault(home, []).append(one)
    for home, refused in found.items():
        moved(refused, KeyElsewhere(home))


class Ask:
    """Items of an enqueue for a shard that is the home of their keys, and does not have the slots of these keys. If
    memory knows no items of a key, all dead letters are read, and then the rows of the key."""

    __slots__ = ("_items", "_moved", "_place", "_shard", "done")

    def __init__(self, shard: Shard, items: Sequence[Keyed], place: Place, moved: Moved) -> None:
        self._shard = shard
        self._items = list(items)
        self._place = place
        self._moved = moved
        self.done = False

    def begin(self, call: EnqueueCall, now_ms: int) -> None:
        self._take(frozenset(), now_ms)
        if not self._items:
            return
        call.unsent.append(self)
        memory = self._shard.memory
        memory.orders.when_dead_known(self._dead_known, some=bool(memory.dead_lanes))
        self._shard.queue.touch()

    def _dead_known(self, error: FoqsError | None) -> None:
        if error is not None:
            self.refuse(error)
        elif not self.done:
            self._shard.memory.orders.ask([self])
            self._shard.queue.touch()

    @property
    def digests(self) -> list[bytes]:
        return list(dict.fromkeys(one.dedup.digest for one in self._items))

    def read(self, found: Collection[bytes], now_ms: int) -> None:
        """Take the keys that have rows, confirmed by the shard's database."""
        if self.done:
            return
        self._take(found, now_ms)
        items, self._items, self.done = self._items, [], True
        number = self._shard.number
        by_home(((one, KeyHome(number, one.home.stamp if one.home else 0, True)) for one in items), self._moved)

    def _take(self, found: Collection[bytes], now_ms: int) -> None:
        """Store the items whose keys have items."""
        under_way = pending(self._shard.queue)
        own = {digest for digest in self.digests if digest in found or has(self._shard, digest, under_way)}
        if own:
            taken = [one for one in self._items if one.dedup.digest in own]
            self._items = [one for one in self._items if one.dedup.digest not in own]
            self._place(taken, now_ms)

    def refuse(self, error: FoqsError) -> None:
        if not self.done:
            items, self._items, self.done = self._items, [], True
            self._moved(items, error)

    def withdraw(self) -> Sequence[int]:
        """Drop the items: the enqueue has timed out."""
        items, self._items, self.done = self._items, [], True
        return [one.at for one in items]


def listed(
    shard: Shard, low: bytes, limit: int, rows: list[DedupRow], own: Sequence[bytes], homes: Sequence[OrderHome]
) -> GivenPage:
    """Return the keys of a slot from the digest `low` on, as another shard gets them. The database has the first
    `limit` of each kind: deduplication keys, order keys with items here, and with items elsewhere."""
    slot = hash_slot_of(low)
    _, high = hash_slot_bounds(slot)
    known = {digest for digest in pending(shard.queue) if hash_slot_of(digest) == slot}
    known.update(shard.memory.orders.dead.keys.get(slot, ()))
    mine = sorted(digest for digest in known if digest >= low)[:limit]
    lists = [[row.digest for row in rows], own, [home.digest for home in homes], mine]
    last = min([digests[-1] for digests in lists if len(digests) >= limit], default=high)
    here = sorted({*own[: bisect_right(own, last)], *mine[: bisect_right(mine, last)]})
    others = set(here)
    found = [OrderHome(digest, 0, 0) for digest in here]
    found += [home for home in homes if home.digest <= last and home.digest not in others]
    rest = next_digest(last) if last < high else None
    return GivenPage([row for row in rows if row.digest <= last], found, rest)
