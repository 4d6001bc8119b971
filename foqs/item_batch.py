"""Batches of items, as values: what a batch calls back, what its home knows of it, and how its members have ended.

The home of a batch is the shard whose number is in the id of the batch. Each shard with members counts them in the
transactions that store and end them, and reports its counts to the home. A report has a number that grows, and the
epoch of the shard's owner: so a report that comes twice or late changes nothing. The home ends the batch, and stores
its callbacks, in one transaction.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from foqs.enums import NamedInt

NO_BATCH = "the namespace has no such batch, or it ended more than limits.batch_keep_ms ago"
MOST_FAILED_IDS = 100
"""Ids of failed members in the headers of `on_end`, and in a report."""
ID_BYTES = 8


class BatchState(NamedInt):
    """States of a batch, as the contract has them. CANCELLED may have members that are leased, until it has ended."""

    OPEN = 1  # it does not end before CloseBatch
    CLOSED = 2  # it ends with its last member
    SUCCEEDED = 3  # ended: all members were acked
    ENDED = 4  # ended: some members were not acked
    EXPIRED = 5  # ended by its `ttl_ms`; members may live
    CANCELLED = 6


class HowEnded(NamedInt):
    """How a member has ended, in the order of the fields of `Counts`."""

    COMPLETED = 1  # acked, or a batch that has SUCCEEDED
    FAILED = 2  # a dead letter, or removed after its last attempt; or a batch that has ENDED
    EXPIRED = 3  # its TTL ended; or a batch that has EXPIRED
    DELETED = 4
    CANCELLED = 5
    DROPPED = 6  # by the script of its topic
    LEASE_ENDED = 7  # of an at-most-once item


class Counts(NamedTuple):
    """Members of a batch: how many were stored, and how many of these have ended, by HowEnded."""

    members: int = 0
    completed: int = 0
    failed: int = 0
    expired: int = 0
    deleted: int = 0
    cancelled: int = 0
    dropped: int = 0
    lease_ended: int = 0

    @property
    def ended(self) -> int:
        return sum(self[1:])

    def plus(self, other: Counts) -> Counts:
        return Counts(*(mine + its for mine, its in zip(self, other, strict=True)))


class ShardCounts(NamedTuple):
    """The row of `batch_count`: the members of a batch on this shard. `changes` grows with each change. `failed_ids`:
    the first MOST_FAILED_IDS members that have failed, in the order of their ids."""

    batch: int
    counts: Counts
    changes: int
    failed_ids: tuple[int, ...] = ()


class BatchPart(NamedTuple):
    """The row of `batch_part`, at the home: the last report of a shard, the `serial` one of its owner with this
    `epoch`. `counts.members` has the members, too, that the shard may store."""

    batch: int
    shard: int
    epoch: int
    serial: int
    counts: Counts
    failed_ids: tuple[int, ...] = ()

    def is_newer(self, than: BatchPart | None) -> bool:
        return than is None or (self.epoch, self.serial) > (than.epoch, than.serial)


class BatchRow(NamedTuple):
    """The row of `item_batch`, at the home. `ended_at_ms` 0: it has not ended. `parent`: the batch of which it is a
    member, 0 without. `on_success`, `on_end`: as `Callback.pack` has them. `success_id`, `end_id`: the items that were
    stored for them, 0 without."""

    id: int
    ns: bytes
    state: int
    created_at_ms: int
    expires_at_ms: int
    ended_at_ms: int = 0
    parent: int = 0
    on_success: bytes | None = None
    on_end: bytes | None = None
    success_id: int = 0
    end_id: int = 0


class Callback(NamedTuple):
    """An item that a batch stores at its end, checked, with the defaults of its topic's policy. `throttles`, `rules`:
    as a lane stores them; `weight` 0: none. `delay_ms` and `ttl_ms` (0: none) count from the end of the batch."""

    topic: str
    payload: bytes
    metadata: bytes | None
    headers: dict[str, str]
    priority: int
    delay_ms: int
    lease_ms: int
    ttl_ms: int
    delivery: int
    fairness: str
    throttles: tuple[str, ...]
    rules: str
    weight: int

    def pack(self) -> bytes:
        """Return what the row has: a line of JSON without the payload and metadata, then these."""
        head = self._replace(payload=b"", metadata=None)._asdict()
        del head["payload"]
        head["metadata"] = -1 if self.metadata is None else len(self.metadata)
        text = json.dumps(head, ensure_ascii=False, separators=(",", ":"))
        return text.encode() + b"\n" + (self.metadata or b"") + self.payload

    @classmethod
    def unpack(cls, stored: bytes) -> Callback:
        line, _, rest = stored.partition(b"\n")
        head: dict[str, Any] = json.loads(line)
        size = head.pop("metadata")
        head["throttles"] = tuple(head["throttles"])
        metadata = None if size < 0 else rest[:size]
        return cls(payload=rest[max(0, size) :], metadata=metadata, **head)


class BatchEnd(NamedTuple):
    """The end of a batch, before it is written. `on_success`, `on_end`: it has such a callback now."""

    batch: int
    state: int
    on_success: bool
    on_end: bool


class Ends(NamedTuple):
    """The home's end of a batch. The callbacks are items of the same transaction, with these ids; 0: none."""

    batch: int
    state: int
    ended_at_ms: int
    success_id: int
    end_id: int


@dataclass(slots=True)
class MemberRows:
    """What a transaction changes about batches. Of a shard with members:

    `new`: (id, batch) of items that the transaction stores, and of batches that it creates as members. `ended`: ids, by
    HowEnded apart from FAILED. `failed` ids keep their rows, and may be `redriven`. Ids without a row of `member` count
    nowhere. `sent`: (batch, changes) of counts that the home knows; they stay unsent if they have changed since.
    `left`: ids whose rows of `member` are removed without a count. `forgotten`: batches whose counts are removed.

    Of a home: `created`; `states`: (batch, state) of batches that have not ended; `parts`; `ends`; `removed` batches.
    """

    new: list[tuple[int, int]] = field(default_factory=list)
    ended: dict[int, list[int]] = field(default_factory=dict)
    failed: list[int] = field(default_factory=list)
    redriven: list[int] = field(default_factory=list)
    sent: list[tuple[int, int]] = field(default_factory=list)
    left: list[int] = field(default_factory=list)
    forgotten: list[int] = field(default_factory=list)
    created: list[BatchRow] = field(default_factory=list)
    states: list[tuple[int, int]] = field(default_factory=list)
    parts: list[BatchPart] = field(default_factory=list)
    ends: list[Ends] = field(default_factory=list)
    removed: list[int] = field(default_factory=list)

    def only(self, ids: set[int]) -> MemberRows:
        """Return the part that touches items of `ids`, and all that belongs to no item of the shard. The end of a batch
        goes with its first callback."""
        ends = [end for end in self.ends if not (first := end.success_id or end.end_id) or first in ids]
        counted = ids | {end.batch for end in ends}  # in their parents
        return replace(
            self,
            new=[row for row in self.new if row[0] in ids],
            ended={how: [item_id for item_id in gone if item_id in counted] for how, gone in self.ended.items()},
            failed=[item_id for item_id in self.failed if item_id in counted],
            redriven=[item_id for item_id in self.redriven if item_id in ids],
            created=[row for row in self.created if row.id in ids],
            ends=ends,
        )


def pack_ids(ids: tuple[int, ...]) -> bytes:
    return b"".join(one.to_bytes(ID_BYTES) for one in ids)


def unpack_ids(stored: bytes) -> tuple[int, ...]:
    return tuple(int.from_bytes(stored[at : at + ID_BYTES]) for at in range(0, len(stored), ID_BYTES))


@dataclass(frozen=True, slots=True)
class NewBatch:
    """A batch that a caller creates. `parent` 0: it is a member of none."""

    ns: str
    on_success: Callback | None
    on_end: Callback | None
    expires_at_ms: int
    parent: int = 0


class BatchInfo(NamedTuple):
    """A batch, and its counts as its home knows them."""

    row: BatchRow
    counts: Counts
    failed_ids: tuple[int, ...]
