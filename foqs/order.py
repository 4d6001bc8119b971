"""The order of the items with one order key, as values.

Of the items of a topic with one order key, the next is delivered only after the item before it has ended. Which item is
the next follows from rows alone: it is the first of its key by (digest, place), unless another item of the key has a
lease. So a host writes nothing when the turn of an item comes.
"""

from __future__ import annotations

import struct
from typing import NamedTuple

from foqs.enums import NamedInt


class Standing(NamedInt):
    """What the row in `ordered` of an item says about its place."""

    IN_ORDER = 0  # it has its place: the first of its key may be delivered
    NEW = 1  # delayed: it gets its place when it is due
    RETRY = 2  # it waits for its retry, and returns to its place then (policy `order.on_failure` skip)


_ORDER = struct.Struct(">Bq")
HEAD_BYTES = _ORDER.size
"""Of `Order.pack`, before the digest."""


class Order(NamedTuple):
    """The place of an item among the items of its order key. `digest`: of the key (`foqs.ids.order_digest`). Items are
    delivered by `place`, a number that grows with each item that comes into the order: its id, for an item without a
    delay."""

    digest: bytes
    place: int
    standing: int = Standing.IN_ORDER

    def pack(self) -> bytes:
        """Return what `item.order_at` has."""
        return _ORDER.pack(self.standing, self.place) + self.digest

    @classmethod
    def unpack(cls, stored: bytes, item_id: int) -> Order:
        standing, place = _ORDER.unpack_from(stored)
        return cls(stored[_ORDER.size :], place or item_id, standing)


class OrderRow(NamedTuple):
    """The row of `ordered` of a stored item with an order key. A dead letter has none."""

    digest: bytes
    standing: int
    place: int
    id: int
    lane: int


class KeyHome(NamedTuple):
    """The shard that has the items of an order key, which is not the one with its hash slot. `stamp`: of the move that
    took the slot away from it; the shard has not had the slot since. `empty`: the shard has no item of the key, and
    gets none while it does not have the slot."""

    shard: int
    stamp: int
    empty: bool = False

    def is_in(self, shard: int) -> bool:
        """Return True if the shard of that number has to say whether it has items of the key."""
        return self.shard == shard and not self.empty


class OrderHome(NamedTuple):
    """The row of `order_home` of a key, in the shard that has its hash slot; see `KeyHome`."""

    digest: bytes
    shard: int
    stamp: int


class InOrder(NamedTuple):
    """An item that is IN_ORDER, as a host brings it into memory. `ready`, `timer`: it has such a row. With
    neither, it may be delivered when it is the first of its key. With `timer`, it has a `lease`, or waits for a retry.
    """

    digest: bytes
    place: int
    id: int
    lane: int
    priority: int
    deliver_after_ms: int
    attempt: int
    lease: int
    bytes: int
    ready: bool
    timer: bool
