"""The order keys of one shard in memory: which item of each key is next.

An item in its order has its row in `ordered`, and needs no other one: the first item of a key by place has the turn,
unless another item of the key has it already. So a turn that passes on writes nothing, and a new owner finds the same
order in the rows (`OrdersRead`). Until it has read a key, it delivers no item of this key.

The item whose turn it is may be in its window, leased, wait for its retry, or be `away`: ready, and out of memory. It
loses its turn only to an item with an earlier place that comes back, as a redriven one, and only before it was
delivered. The lanes count their ready items (`Lane.ready`), which have their turn, and those `behind` in their orders.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby, islice
from operator import attrgetter
from typing import Any, Protocol

from foqs.bounds import Budget
from foqs.buffers.reads import Read, StoreReads
from foqs.engine.dead_orders import DeadOrders, DeadOrdersRead
from foqs.errors import FoqsError
from foqs.ids import DIGEST_BYTES, hash_slot_of
from foqs.item import Item, Phase, Place
from foqs.order import InOrder, KeyHome, Order, OrderHome
from foqs.prefetch.lane import Lane
from foqs.rows import NewItem, NewOrdered

_KEPT = 4
"""Items behind the first one of a key that are kept in memory."""
_MOST_KEPT = 8
_READ_ROWS = 1_000
_READ_KEYS = 100
KEY_BYTES = 512
"""Memory of a key, with its place in the dictionary."""
ITEM_BYTES = 448
HOME_BYTES = 288
_LAST = (1 << 63) - 1
_ALL_READ = b"\xff" * (DIGEST_BYTES + 1)


class _Waits(Protocol):
    """The memory of the shard, as far as turns need it."""

    known: dict[int, Item]
    lane_numbers: dict[int, Lane[Item]]

    def enter_ready(self, item: Item) -> None: ...

    def enter_turn(self, item: Item) -> None: ...

    def leave_ready(self, item: Item) -> None: ...

    def forget(self, item: Item) -> None: ...


class KeyAsk(Protocol):
    """A question which of its `digests` have rows."""

    @property
    def digests(self) -> list[bytes]: ...

    def read(self, found: Collection[bytes], now_ms: int) -> None:
        """Take the digests that have rows."""

    def refuse(self, error: FoqsError) -> None: ...


class OrderKey:
    """`turn`: the id of the item that is next, or that a consumer has, and its `place`; 0 while the next are read.
    `behind`: the next items, by place. While there are `more`, only the items up to the place `known_to` are known."""

    __slots__ = ("behind", "known_to", "more", "place", "turn")

    def __init__(self) -> None:
        self.turn = self.place = self.known_to = 0
        self.behind: Sequence[Item] = ()
        self.more = False


def _place_of(item: Item) -> int:
    assert item.order is not None, "an item of an ordered lane has its order"
    return item.order.place


class Orders:
    """`read_to`: the keys up to this digest are known. `wanted`: keys whose next items are read with the next batch.
    `due`: the next batch reads keys. It is an attribute, as each batch asks.
    `elsewhere`: keys whose items are in another shard, though their hash slots are here (`foqs.engine.order_homes`)."""

    def __init__(self, memory: _Waits, budget: Budget) -> None:
        self._memory = memory
        self._budget = budget
        self._held_bytes = 0
        self.keys: dict[bytes, OrderKey] = {}
        self.elsewhere: dict[bytes, KeyHome] = {}
        self.dead = DeadOrders(budget)
        self.asks: list[KeyAsk] = []
        self.away: dict[int, Item] = {}
        self.read_to = _ALL_READ
        self.wanted: dict[bytes, None] = {}
        self.due = False

    def begin(self, leases: Iterable[tuple[Order, int, int]]) -> None:
        """Read all keys, from the first one on. The items with `leases` (order, id, lane) have their turns."""
        self.read_to, self.due = b"", True
        for order, item_id, lane in leases:
            key = self._add(order.digest)
            key.turn, key.place, key.more = item_id, order.place, True
            self._memory.lane_numbers[lane].behind -= 1

    def drop(self) -> None:
        """Give back all memory."""
        self._budget.give(self._held_bytes)
        self._held_bytes = 0
        self.dead.drop()

    def before(self, order: Order) -> tuple[int, int | None]:
        """Return the item whose turn it is in place of one with this order, 0 for one that is not known yet, and how
        many items of the key come first; None: more than are in memory."""
        key = self.keys.get(order.digest)
        if key is None or order.digest > self.read_to:
            return 0, None
        at = bisect_left(key.behind, order.place, key=_place_of)
        return key.turn, None if key.more and order.place > key.known_to else at + (key.turn != 0)

    # ------------------------------------------------------------------------------------- what happens to items

    def stored(self, new: NewOrdered, lane: Lane[Item]) -> None:
        """A new item without a delay is committed."""
        lane.behind += 1
        digest = new.digest
        if digest > self.read_to:
            return  # the read of its key finds it
        key = self.keys.get(digest)
        if key is not None and new.id > self._kept_to(key):
            self._forget_behind(key)
            return
        item = Item(new.id, lane, new.priority, new.deliver_after_ms, 0, 0, 0, new)
        item.unindexed, item.order = True, Order(digest, new.id)
        if key is None:
            self._give_turn(self._add(digest), item)
        else:
            item.body = None
            if new.id > key.place:
                self._line_up(key, item)
            else:  # of a transaction in parts: the outcome of this one was known later
                self._memory.enter_ready(item)

    def enters(self, item: Item) -> bool:
        """Return True if it is the turn of an item that may be leased (again)."""
        order = item.order
        assert order is not None, "an item of an ordered lane has its order"
        key = self.keys.get(order.digest)
        if order.digest > self.read_to:
            if key is not None and key.turn == item.id:
                self._remove(order.digest, key)
                item.lane.behind += 1
            return False
        if key is None:
            key = self._add(order.digest)
        if key.turn == item.id:
            if not key.behind or _place_of(key.behind[0]) > order.place:
                return True
            self._lose_turn(key, item)
            self._next(order.digest, key)
            return False
        self._take_out(key, order.place)
        first = not key.behind or order.place < _place_of(key.behind[0])
        if not first or (key.more and order.place > key.known_to) or not self._yields(key, order.place):
            self._line_up(key, item)
            return False
        key.turn, key.place = item.id, order.place
        item.lane.behind -= 1
        return True

    def left(self, item: Item) -> None:
        """The item has left its order: it has ended, is a dead letter, or is delayed."""
        order = item.order
        assert order is not None, "an item of an ordered lane has its order"
        key = self.keys.get(order.digest)
        if key is None or key.turn != item.id:
            item.lane.behind -= 1
            if key is not None:
                self._take_out(key, order.place)
        elif order.digest > self.read_to:
            self._remove(order.digest, key)
        else:
            key.turn = 0
            self._next(order.digest, key)

    def leaves_memory(self, item: Item) -> None:
        """The item, whose turn it is, has its row in `ready`, and no window has it."""
        self.away[item.id] = item
        self._hold(ITEM_BYTES)

    def comes(self, item_id: int) -> Item | None:
        """Return the item that was away, None if it was not."""
        item = self.away.pop(item_id, None)
        if item is not None:
            self._hold(-ITEM_BYTES)
        return item

    # ------------------------------------------------------------------------------------- keys in other shards

    def goes_elsewhere(self, homes: Iterable[OrderHome]) -> None:
        """The items of these keys are in other shards."""
        before = len(self.elsewhere)
        self.elsewhere.update((home.digest, KeyHome(home.shard, home.stamp)) for home in homes)
        self._hold(HOME_BYTES * (len(self.elsewhere) - before))

    def are_here(self, stored: Iterable[NewItem], homes: Mapping[bytes, KeyHome]) -> None:
        """These items are committed. Some of their keys had `homes`."""
        for digest in {new.digest for new in stored if isinstance(new, NewOrdered)} & homes.keys():
            if self.elsewhere.get(digest) == homes[digest]:
                del self.elsewhere[digest]
                self._hold(-HOME_BYTES)

    def forget_homes(self, slots: Collection[int] = (), shards: Collection[int] = ()) -> None:
        """The slots come again, and the shards are no longer in the cluster."""
        gone = [
            digest
            for digest, home in self.elsewhere.items()
            if home.shard in shards or (slots and hash_slot_of(digest) in slots)
        ]
        for digest in gone:
            del self.elsewhere[digest]
        self._hold(-HOME_BYTES * len(gone))

    # ------------------------------------------------------------------------------------- turns

    def _next(self, digest: bytes, key: OrderKey) -> None:
        """Give the turn, which is free, to the first item behind."""
        if key.behind:
            item = key.behind[0]
            self._take_out(key, _place_of(item))
            self._give_turn(key, item)
        elif not key.more:
            self._remove(digest, key)
        if key.more and len(key.behind) <= 1:
            self.want((digest,))

    def _give_turn(self, key: OrderKey, item: Item) -> None:
        key.turn, key.place = item.id, _place_of(item)
        item.lane.behind -= 1
        if item.place is Place.READY and item.id not in self._memory.known:  # else its change enters it
            self._memory.enter_turn(item)

    def _yields(self, key: OrderKey, place: int) -> bool:
        """Return True if an item at `place` may have the turn: it is free, or has an item behind that place which was
        not delivered yet."""
        if not key.turn:
            return True
        if place > key.place:
            return False
        item = self._memory.known.get(key.turn) or self.away.get(key.turn)
        if item is None or item.attempt or item.busy or item.phase is Phase.LEASED:
            return False
        self._memory.leave_ready(item)
        self._memory.forget(item)
        self._lose_turn(key, item)
        return True

    def _lose_turn(self, key: OrderKey, item: Item) -> None:
        key.turn = 0
        item.lane.behind += 1
        item.body = None
        self._line_up(key, item)

    # ------------------------------------------------------------------------------------- keys

    def _line_up(self, key: OrderKey, item: Item) -> None:
        place = _place_of(item)
        if key.more and place > key.known_to:
            return  # a read finds it
        if not isinstance(key.behind, list):
            key.behind = []
        insort(key.behind, item, key=_place_of)
        self._hold(ITEM_BYTES)
        if len(key.behind) > _MOST_KEPT:
            self._hold(-ITEM_BYTES * (len(key.behind) - _KEPT))
            del key.behind[_KEPT:]
            key.more, key.known_to = True, _place_of(key.behind[-1])

    def _kept_to(self, key: OrderKey) -> int:
        """Return the place behind which new items are left to a read."""
        if key.more:
            return key.known_to
        return _place_of(key.behind[-1]) if len(key.behind) >= _KEPT else _LAST

    def _forget_behind(self, key: OrderKey) -> None:
        """Leave an item behind the known ones to a read."""
        if not key.more:
            key.more, key.known_to = True, _place_of(key.behind[-1])

    def _take_out(self, key: OrderKey, place: int) -> None:
        if isinstance(key.behind, list):
            at = bisect_left(key.behind, place, key=_place_of)
            if at < len(key.behind) and _place_of(key.behind[at]) == place:
                del key.behind[at]
                self._hold(-ITEM_BYTES)

    def _add(self, digest: bytes) -> OrderKey:
        key = self.keys[digest] = OrderKey()
        self._hold(KEY_BYTES)
        return key

    def _remove(self, digest: bytes, key: OrderKey) -> None:
        del self.keys[digest]
        self.wanted.pop(digest, None)
        self._hold(-KEY_BYTES - ITEM_BYTES * len(key.behind))

    def _hold(self, more_bytes: int) -> None:
        self._held_bytes += more_bytes
        self._budget.take(more_bytes)

    # ------------------------------------------------------------------------------------- reads

    def want(self, digests: Iterable[bytes]) -> None:
        """Read the next items of these keys, as far as they are known."""
        self.wanted.update(dict.fromkeys(digest for digest in digests if digest in self.keys))
        self.due = bool(self.wanted) or self.due

    def ask(self, asks: Sequence[KeyAsk]) -> None:
        """Read which keys of these questions have rows."""
        self.asks = [*asks, *self.asks]
        self.due = True

    def when_dead_known(self, then: Callable[[FoqsError | None], None], *, some: bool) -> None:
        """Call `DeadOrders.when_known`."""
        self.dead.when_known(then, some=some)
        self._note_due()

    def _note_due(self) -> None:
        reads = bool(self.wanted) or self.read_to != _ALL_READ
        self.due = reads or self.dead.due or bool(self.asks)

    def next_reads(self) -> list[Read]:
        reads: list[Read] = []
        if self.wanted:
            part = list(islice(self.wanted, _READ_KEYS))
            for digest in part:
                del self.wanted[digest]
            reads.append(NextRead({digest: self.keys[digest].known_to for digest in part}))
        if self.read_to != _ALL_READ:
            reads.append(OrdersRead(self.read_to))
        if self.dead.due:
            reads.append(DeadOrdersRead(self.dead.read_to))
        if self.asks:
            asks, self.asks = self.asks, []
            reads.append(KeysRead(asks))
        self._note_due()
        return reads

    def keys_read(self, rows: Sequence[InOrder], *, last: bool) -> None:
        """Take over keys from `rows`, the first ones behind `read_to`; `last`: there are no further ones."""
        for digest, found in groupby(rows, key=attrgetter("digest")):
            in_order = list(islice(found, _READ_ROWS))
            cut = not last and in_order[-1] is rows[-1]
            self.read_to = digest
            self._key_read(digest, in_order, more=cut)
        if last:
            self.read_to = _ALL_READ
            self._note_due()

    def _key_read(self, digest: bytes, rows: Sequence[InOrder], *, more: bool) -> None:
        key = self.keys.get(digest) or self._add(digest)
        key.more = False
        leased = key.turn
        behind = [row for row in rows if row.id != leased]
        for row in behind[:_KEPT]:
            self._line_up(key, self._item_of(row))
        if more or len(behind) > _KEPT:
            key.more, key.known_to = True, behind[:_KEPT][-1].place if behind else key.place
        if not leased:
            self._next(digest, key)

    def next_read(self, known_to: Mapping[bytes, int], rows: Sequence[InOrder]) -> None:
        """Take over the next items of some keys, which were known up to these places when they were asked for."""
        found: defaultdict[bytes, list[InOrder]] = defaultdict(list)
        for row in rows:
            found[row.digest].append(row)
        for digest, place in known_to.items():
            key = self.keys.get(digest)
            if key is None or not key.more:
                continue
            if key.known_to != place:  # items came back since, and some behind them were forgotten
                self.want((digest,))
                continue
            rest = found[digest]
            key.more = len(rest) >= _KEPT
            if key.more:
                key.known_to = rest[-1].place
            for row in rest:
                if row.id != key.turn:
                    self._line_up(key, self._item_of(row))  # which may leave some of them to the next read
            if not key.turn:
                self._next(digest, key)

    def _item_of(self, row: InOrder) -> Item:
        lane = self._memory.lane_numbers[row.lane]
        place = Place.TIMER if row.timer else Place.READY
        item = Item(
            row.id, lane, row.priority, row.deliver_after_ms, row.attempt, row.lease, row.bytes, None, place
        )  # fmt: skip
        item.unindexed = not (row.ready or row.timer)
        item.order = Order(row.digest, row.place)
        return item


def _of_another_owner(shard: Any, rows: Sequence[InOrder]) -> bool:
    """Return True if a lane of `rows` is unknown here: another owner added it. Then ownership is asked for."""
    return any(shard.owned_lane(row.lane) is None for row in rows)


@dataclass(slots=True, eq=False)
class OrdersRead(Read):
    """The next keys of a shard that was opened."""

    behind: bytes
    found: Sequence[InOrder] = field(default_factory=list)

    def run(self, store: StoreReads) -> int:
        self.found = store.orders_behind(self.behind, _READ_ROWS)
        return 0

    def apply(self, shard: Any, saved: bool, now_ms: int) -> None:
        if not _of_another_owner(shard, self.found):
            shard.memory.orders.keys_read(self.found, last=len(self.found) < _READ_ROWS)


@dataclass(slots=True, eq=False)
class NextRead(Read):
    """The next items of keys, by the place up to which they are known."""

    known_to: dict[bytes, int]
    found: Sequence[InOrder] = field(default_factory=list)

    def run(self, store: StoreReads) -> int:
        self.found = store.orders_of(list(self.known_to.items()), _KEPT)
        return 0

    def apply(self, shard: Any, saved: bool, now_ms: int) -> None:
        if _of_another_owner(shard, self.found):
            self.missed(shard, now_ms)
        else:
            shard.memory.orders.next_read(self.known_to, self.found)

    def missed(self, shard: Any, now_ms: int) -> None:
        shard.memory.orders.want(self.known_to)


@dataclass(slots=True, eq=False)
class KeysRead(Read):
    """The keys that have rows. The owner is confirmed after them: a later owner has changed none of them before."""

    asks: list[KeyAsk]
    found: Collection[bytes] = ()

    def run(self, store: StoreReads) -> int:
        self.found = store.orders_in(list(dict.fromkeys(digest for ask in self.asks for digest in ask.digests)))
        store.confirm()
        return 0

    def apply(self, shard: Any, saved: bool, now_ms: int) -> None:
        for ask in self.asks:
            ask.read(self.found, now_ms)

    def missed(self, shard: Any, now_ms: int) -> None:
        shard.memory.orders.ask(self.asks)

    def refuse(self, error: FoqsError) -> None:
        for ask in self.asks:
            ask.refuse(error)
