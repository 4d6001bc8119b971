"""Items with deduplication keys that wait for a shard's next transaction, or are in flight.

Only the owner of the key's shard stores it, in one batch after the other. So the owner knows each key that is pending,
and another request with the same key waits for the same outcome.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from foqs.buffers.checkpoint import Checkpoint
from foqs.errors import FoqsError, Invalid
from foqs.fairness.keys import LaneKey, lane_key, topic_key, until_of
from foqs.ids import FOREVER_MS, Dedup, Until, content_of, hash_slot_of
from foqs.order import KeyHome, OrderHome
from foqs.rows import DedupRow, HeldKey, Holding, NewItem
from foqs.second_answer import Duplicate
from foqs.shardmgr.routing import has

_OF_REDRIVES = lane_key(("", ""), until=Until.DONE)
OTHER_CONTENT = "the dedup_key was enqueued with another topic or payload before"


class TakesOutcomes(Protocol):
    """An enqueue request: gets the outcome of its items, by their index in the request."""

    def settled(self, indices: Sequence[int], outcomes: Sequence[int | FoqsError]) -> None: ...


@dataclass(slots=True, eq=False, repr=False)
class Keyed:
    """An item with a key; of an order key, `dedup` has the digest alone. `at` is its index in the request; `weight` is
    its lane's new weight, or 0.
    `home`: what another shard said of the items of the order key (`foqs.engine.order_homes`).
    `replaces`: the item that has the key gets the body of this one. `waits`: requests with the same key that arrived
    while the item was pending, with their item."""

    at: int
    dedup: Dedup
    item: NewItem
    lane: LaneKey
    size_bytes: int
    weight: int = 0
    replaces: bool = False
    waits: list[tuple[TakesOutcomes, Keyed]] | None = None
    home: KeyHome | None = None

    def outcome(self, item_id: int, content: int, *, held: bool) -> int | FoqsError:
        """Return the outcome of an enqueue whose key an item has, by the content of its key. `held`: that item frees
        the key itself, so payloads are not compared; nor are they when one may replace the other."""
        if self.replaces and not held:
            return Duplicate(item_id)  # the replacement compares the topics
        own = self.dedup.content
        if held != bool(until_of(self.lane)):
            own = content_of(topic_key(self.lane)[1], b"" if held else self.item.payload)
        return Duplicate(item_id) if content == own else Invalid(OTHER_CONTENT)


class GivenPage(NamedTuple):
    """Keys of a slot that moves, by digest: rows of `dedup`, and the shards of order keys that have items (0: the shard
    that gives the slot away). Further ones begin with the digest `rest`, None: there are none."""

    rows: list[DedupRow]
    homes: list[OrderHome]
    rest: bytes | None = None


class Give(NamedTuple):
    """A slot that moves to another shard, by the record of that `stamp`.

    `done` gets its keys from the digest `low` on, `limit` of each kind at most, when this shard no longer has the
    slot."""

    slot: int
    stamp: int
    low: bytes
    limit: int
    done: Callable[[GivenPage | FoqsError], None]


class Copy(NamedTuple):
    """Keys from the shard that had the slot before. `first`: no keys of the slot were copied before them. `done` is
    called when they are stored."""

    slot: int
    rows: list[DedupRow]
    first: bool
    done: Callable[[FoqsError | None], None]
    homes: Sequence[OrderHome] = ()


class Freed(NamedTuple):
    """Keys that their items do not hold. `done` is called when the keys are free."""

    keys: list[HeldKey]
    done: Callable[[FoqsError | None], None]


class ShardGone(NamedTuple):
    """A shard that is no longer in the cluster has no items of order keys. `done` is called when the rows of
    `order_home` that name it are gone."""

    number: int
    done: Callable[[FoqsError | None], None]


class KeyTake(NamedTuple):
    """A key that a redrive takes. `item` has the id of the dead letter, and is the only item of `request`."""

    row: DedupRow
    item: NewItem
    request: KeyedRequest


class DedupKeys:
    """The deduplication keys of one shard. `pending` are those not stored yet, by digest.

    `scan` finds rows that have expired; `gone` is the range of rows that the next transaction deletes. `held` are the
    shard's slots, `in_flight` the slots that the sent transaction writes, and `wanted` the slots of the next one.
    `redrives` are keys that redrives take. `marks`: rows of schedules, the newest of each.
    """

    def __init__(self, scan_from_ms: int = 0, held: Holding | None = None) -> None:
        self.scan = Checkpoint(scan_from_ms)
        self.gone: tuple[int, int] | None = None
        self.held = held or Holding()
        self.wanted: Holding | None = None
        self.in_flight: Holding | None = None
        self.gives: list[Give] = []
        self.copies: list[Copy | Freed | ShardGone] = []
        self.redrives: list[KeyTake] = []
        self.marks: dict[bytes, DedupRow] = {}
        self.pending: dict[bytes, Keyed] = {}

    @property
    def last(self) -> Holding:
        """The slots that the next change of slots starts from."""
        return self.wanted or self.in_flight or self.held

    def takes(self, digest: bytes) -> bool:
        """Return True if the shard has the key's slot, and is not about to give it away."""
        return self.takes_slot(hash_slot_of(digest))

    def takes_slot(self, slot: int) -> bool:
        return has(self.held.bits, slot) and not (self.gives and any(give.slot == slot for give in self.gives))

    def under_way(self, slot: int) -> bool:
        """Return True if a key of the slot may still be stored."""
        return any(hash_slot_of(digest) == slot for digest in self.pending)

    def add(self, items: Sequence[Keyed], call: TakesOutcomes) -> list[Keyed]:
        """Return the items that are new here. For each other one, `call` waits for the pending item with its key."""
        pending, new = self.pending, []
        for keyed in items:
            first = pending.setdefault(keyed.dedup.digest, keyed)
            if first is keyed:
                new.append(keyed)
            elif first.waits is None:
                first.waits = [(call, keyed)]
            else:
                first.waits.append((call, keyed))
        return new

    def take(self, row: DedupRow, call: TakesOutcomes, at: int) -> bool:
        """Take a key for a redrive with the next transaction, if it is free then: `call` gets the id of the item that
        has it. Return False if the key is being stored."""
        if row.digest in self.pending:
            return False
        item = NewItem(b"", None, None, 0, 0, 0, 0, 0, 0, 0)
        item.id = row.id
        keyed = Keyed(at, Dedup(row.digest, row.content), item, _OF_REDRIVES, 0)
        self.pending[row.digest] = keyed
        self.redrives.append(KeyTake(row, item, KeyedRequest(self, call, [keyed])))
        return True

    def __repr__(self) -> str:
        return f"DedupKeys({len(self.pending)} pending)"


class _Answered:
    """A request that was answered before its items had an outcome."""

    def settled(self, indices: Sequence[int], outcomes: Sequence[int | FoqsError]) -> None:
        """The caller has its answer."""


_ANSWERED = _Answered()


class KeyedRequest:
    """The request of a chunk with keys. Other requests may wait for the same items.

    `sent`: a transaction with the items was built. `done`: all items were withdrawn or refused before that. Items that
    stay after their request timed out do no harm: a repetition gets the same ids.
    """

    __slots__ = ("_call", "_entries", "_keys", "done", "sent")

    def __init__(self, keys: DedupKeys, call: TakesOutcomes, entries: Sequence[Keyed]) -> None:
        self._keys = keys
        self._call = call
        self._entries = entries
        self.sent = self.done = False

    def withdraw(self) -> Sequence[int]:
        """Drop the items unless a transaction may have them, or another request waits for one of them.

        Return the indices of the request's items that were dropped, and of the items that repeat a key.
        """
        left = self._left()
        waits = [wait for at in left for wait in self._entries[at].waits or ()]
        if self.done or self.sent or any(call is not self._call for call, _ in waits):
            return ()
        self.done = True
        return [keyed.at for keyed in self._end(left)] + [other.at for _, other in waits]

    def _left(self) -> list[int]:
        """Return the places of the items that have no outcome."""
        pending = self._keys.pending
        return [at for at, keyed in enumerate(self._entries) if pending.get(keyed.dedup.digest) is keyed]

    def stored(self, indices: Sequence[int], items: Sequence[NewItem]) -> None:
        entries = self._end(indices)
        self._call.settled([keyed.at for keyed in entries], [item.id for item in items])
        for keyed in entries:
            if keyed.waits:
                held = bool(until_of(keyed.lane))
                _settle(keyed.waits, keyed.item.id, keyed.dedup.content, held=held)

    def found(self, indices: Sequence[int], rows: Sequence[DedupRow]) -> None:
        """Settle items whose keys were stored before: each row has the stored item."""
        found = list(zip(self._end(indices), rows, strict=True))
        outcomes = [keyed.outcome(row.id, row.content, held=row.expires_at_ms >= FOREVER_MS) for keyed, row in found]
        self._call.settled([keyed.at for keyed, _ in found], outcomes)
        for keyed, row in found:
            if keyed.waits:
                _settle(keyed.waits, row.id, row.content, held=row.expires_at_ms >= FOREVER_MS)

    def refused(self, indices: Sequence[int], error: FoqsError) -> None:
        if self.done:
            return
        entries = self._end(indices)
        self.done = not (self.sent or self._left())
        self._call.settled([keyed.at for keyed in entries], [error] * len(entries))
        for keyed in entries:
            for call, other in keyed.waits or ():
                call.settled((other.at,), (error,))

    def doubt(self, indices: Sequence[int], error: FoqsError) -> None:
        """Answer all requests that wait for the items, which stay pending until their outcome is known."""
        for keyed in [self._entries[i] for i in indices]:
            waits, keyed.waits = keyed.waits or [], None
            self._call.settled([keyed.at], [error])
            for call, other in waits:
                call.settled((other.at,), (error,))
        self._call = _ANSWERED

    def _end(self, indices: Sequence[int]) -> list[Keyed]:
        """Remove the items from `pending` and return them."""
        entries, pending = [self._entries[i] for i in indices], self._keys.pending
        for keyed in entries:
            del pending[keyed.dedup.digest]
        return entries


def _settle(waits: Sequence[tuple[TakesOutcomes, Keyed]], item_id: int, content: int, *, held: bool) -> None:
    """Settle the requests that waited for an item, by the content of its key."""
    for call, keyed in waits:
        call.settled((keyed.at,), (keyed.outcome(item_id, content, held=held),))
