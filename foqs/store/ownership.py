"""The right to write a shard: its row, and the epoch there, which fences an owner that lost the shard.

The lock (`foqs.store.locks`) only says whether the owner lives. The epoch keeps an old owner from writing.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from functools import partial
from itertools import starmap
from operator import attrgetter
from typing import Any, NamedTuple, TypeVar
from uuid import uuid4

from foqs.ids import NUMBER_BITS, Mark, Marks, first_id, number_of, shard_of
from foqs.rows import ReadyRow
from foqs.store import migrate, reads
from foqs.store.dialect import Dialect
from foqs.store.errors import Kind
from foqs.store.link import Link
from foqs.store.locks import Lock
from foqs.store.protocol import Fenced, ShardRefused, StoreDown
from foqs.store.tables import RESTORING, SCHEMA_VERSION

_EPOCH_JUMP = 1 << 20
_NUMBER_JUMP = 1 << 30
_LEASES_AT_ONCE = 10_000
"""The most leases that a statement ends: with more it might outlast the time-out of the connection."""
_MOST_EPOCHS, _MOST_NUMBERS = 1 << 62, 1 << NUMBER_BITS
_RESTORE_ROW = "restore the row of table shard, and the items, from a backup"
PUT_BACK_MS = -1
"""`shard.restored_ms` of a dump that was put back, until an owner opens it: whatever the marks say, the owner ends the
leases that came back, and skips ids."""
NO_SCHEMA = "the database has no foqs schema: create it with `foqs shards create`"


class StoredShard(NamedTuple):
    """The columns of `shard` that databases of all schema versions have. SQLite keeps an empty `owner` as text."""

    version: int
    number: int
    owner: bytes | str
    epoch: int


ROW_COLUMNS = frozenset(StoredShard._fields)
_ROW = f"SELECT {', '.join(StoredShard._fields)} FROM shard WHERE one = 1"


def read_shard_row(link: Link) -> StoredShard | None:
    """Return the row of `shard`, None if there is none.

    Raises ShardRefused when there is no such table, and the driver's errors.
    """
    try:
        rows = link.fetch(_ROW)
    except link.errors.error as error:
        if link.errors.is_missing_table(error):
            raise ShardRefused(NO_SCHEMA) from error
        raise
    if not rows:
        return None
    version, number, owner, epoch = rows[0]
    return StoredShard(int(version), int(number), owner, int(epoch))


def refuse_foreign(row: StoredShard | None, shard_number: int | None) -> None:
    """Raise ShardRefused for no row, another schema version (`mend` has the remedy), and another shard's tables."""
    if row is None:
        raise ShardRefused("the shard's row is missing: create the schema")
    refuse_unfinished(row)
    if row.version != SCHEMA_VERSION:
        why = f"the schema of the database is version {row.version}, and this foqs needs version {SCHEMA_VERSION}"
        raise ShardRefused(why, mend=migrate.remedy(row.version))
    refuse_other_shard(row.number, shard_number)


def refuse_unfinished(row: StoredShard) -> None:
    """Raise ShardRefused for a shard whose dump is being loaded, or was loaded in part."""
    if row.version == RESTORING:
        raise ShardRefused(
            "a restore of the shard is not complete",
            mend="wait for its end; if it was broken off, run `foqs shards restore` again, with this or another dump",
        )


def refuse_other_shard(number: int, shard_number: int | None) -> None:
    """Raise ShardRefused for the tables of a shard with another number."""
    if shard_number is not None and number != shard_number:
        raise ShardRefused(f"the database holds shard {number}, not shard {shard_number}")


class ShardRow(NamedTuple):
    """The row of `shard` as its owner wrote it. `closed`: the last owner closed the shard in order. `put_back`: it is
    that of a dump, which no owner has opened since `foqs shards restore` loaded it."""

    closed: bool
    epoch: int
    seq: int
    next_number: int
    due_from_ms: int
    expiry_from_ms: int
    dedup_from_ms: int
    slots_stamp: int
    slots: bytes
    ended_from_ms: int = 0
    put_back: bool = False


class Start(NamedTuple):
    """What a new owner begins with. `behind`: the database is an older copy: of what its mark speaks of, or a dump that
    was put back."""

    epoch: int
    next_number: int
    behind: bool


class Taken(NamedTuple):
    """A shard that was taken: its row as it was, what the owner begins with, and the shard's identity in hex. `mark` is
    the shard's own. `leases_ended`: number of ended leases of an older copy. `tail`: as in `Opened`."""

    row: ShardRow
    start: Start
    identity: str
    mark: Mark | None
    leases_ended: int
    tail: list[ReadyRow]


def start_of(
    stored: ShardRow,
    highest_number: int,
    *,
    epoch_above: int = 0,
    mark: Mark | None = None,
    moved: bool = False,
    floor: int = 0,
    unknown: bool = False,
) -> Start:
    """Decide what a new owner begins with.

    `highest_number` is that of an item in the tables, 0 if there is none. `moved`: another server wrote the row.
    `floor` is the highest ceiling of other shards that had the number. `unknown`: marks are kept, and this shard has
    none, so nothing says how far its ids went.

    Raises ShardRefused for numbers out of range.
    """
    # The row of a copy that was put back may lag behind its own items.
    next_number = max(stored.next_number, highest_number + 1)
    epoch = max(stored.epoch, epoch_above)
    # The last comparison is true also where nothing was enqueued since the copy. A mark may be older than a dump.
    behind = stored.put_back or (
        mark is not None and (stored.epoch < mark.epoch or next_number < mark.number or stored.seq < mark.seq)
    )
    if mark is not None:
        epoch, next_number = max(epoch, mark.epoch), max(next_number, mark.ceiling)
    if moved or behind:
        epoch += _EPOCH_JUMP
    if moved or behind or (unknown and stored.epoch):
        # The last commits may be missing here (and in the mark, which is written behind), but its ids are out.
        next_number += _NUMBER_JUMP
    next_number = max(next_number, floor)
    if epoch >= _MOST_EPOCHS:
        raise ShardRefused(f"shard.epoch is {stored.epoch}: it is damaged, or a mark is", mend=_RESTORE_ROW)
    if next_number >= _MOST_NUMBERS:
        why = (
            f"shard.next_number is {stored.next_number}, and the highest item's number {highest_number}: no id is left"
        )
        raise ShardRefused(why, mend=_RESTORE_ROW)
    return Start(epoch + 1, next_number, behind)


def identity_of(link: Link) -> bytes:
    """Return the identity in the shard's row, empty if it has none yet. Raises the driver's errors."""
    return bytes(link.fetch(reads.IDENTITY_SQL)[0][0])


def take_epoch(
    link: Link, dialect: Dialect, owner: str, server: bytes, shard: int, epoch_above: int, marks: Marks | None
) -> Taken:
    """Makes `owner` the owner, in a transaction, which also writes the rows in `ready` that the last owner left out,
    and ends the leases of an older copy. `marks` are those of the shard's number, None where none are kept.

    A full database may have no room for these rows: they stay left out.

    Raises ShardRefused and the driver's errors, with that transaction left open.
    """
    return _in_its_room(link, partial(_take_epoch, link, dialect, owner, server, shard, epoch_above, marks))


_Rest = Callable[[Link, Dialect], list[ReadyRow]]
"""Returns the missing rows of unindexed items that it did not write, by id."""
_Done = TypeVar("_Done")


def _in_its_room(link: Link, transact: Callable[[_Rest], _Done]) -> _Done:
    """Run a transaction that writes the missing rows, and where it finds no room, one that leaves them out."""
    try:
        return transact(_index_tail)
    except link.errors.error as error:
        if link.errors.kind(error) is not Kind.FULL:
            raise
        link.rollback()
        return transact(_read_tail)


def _take_epoch(
    link: Link, dialect: Dialect, owner: str, server: bytes, shard: int, epoch_above: int, marks: Marks | None,
    rest: _Rest,
) -> Taken:  # fmt: skip
    link.execute(dialect.begin)
    last_server, stored = _stored_row(link, dialect.for_update)
    moved = bool(last_server) and last_server != server
    identity = identity_of(link) or uuid4().bytes
    mark = None if marks is None else marks.get(identity.hex())
    floor = max([one.ceiling for key, one in (marks or {}).items() if key != identity.hex()], default=0)
    start = start_of(
        stored, _highest_number(link, shard), epoch_above=epoch_above, mark=mark, moved=moved, floor=floor,
        unknown=marks is not None and mark is None,
    )  # fmt: skip
    _refuse_without_fence(link)
    # Otherwise an owner since then has ended them, and could not save its mark: the leases are its own.
    restored = stored.put_back or (start.behind and mark is not None and stored.epoch <= mark.epoch)
    ended = _end_leases(link) if restored else 0
    tail = rest(link, dialect)
    more = f"restored_ms = {dialect.clock_ms}, leases_ended = {ended:d}, " if restored else ""
    more += "" if tail else f"indexed_to = {first_id(shard) + start.next_number - 1:d}, "
    link.execute(
        f"UPDATE shard SET epoch = {start.epoch:d}, next_number = {start.next_number:d}, "
        f"{more}identity = x'{identity.hex()}', "
        f"owner = x'{_cut(owner).hex()}', server = x'{server.hex()}', connection_id = {link.id:d} WHERE one = 1"
    )
    link.execute("COMMIT")
    return Taken(stored, start, identity.hex(), mark, ended, tail)


def _end_leases(link: Link) -> int:
    """Let all leases end now, by time, and return their number: they were given before the copy was made.

    The scan of ended leases then decides as it does about any lease. It begins at the first time that there is.
    """
    ended = 0
    while (last_ms := link.fetch(reads.last_lease_sql(_LEASES_AT_ONCE))[0][0]) is not None:
        ended += sum(link.run([reads.end_leases_sql(int(last_ms))]))
    return ended


def _stored_row(link: Link, for_update: str = "") -> tuple[bytes, ShardRow]:
    """Return the server that wrote the row, and the row."""
    columns = "epoch, seq, next_number, due_from_ms, expiry_from_ms, dedup_from_ms, slots_stamp, slots, done_from_ms"
    values = link.fetch(f"SELECT server, owner = '', {columns}, restored_ms FROM shard WHERE one = 1{for_update}")[0]
    last_server, *values, restored_ms = values
    return bytes(last_server), ShardRow(*values)._replace(put_back=restored_ms == PUT_BACK_MS)


def start_without_lock(link: Link, shard: int) -> tuple[ShardRow, Start]:
    """Return what `take_epoch` would return on this server, without a mark, if no dump was put back.

    Changes and locks nothing.

    Raises ShardRefused, and the driver's errors.
    """
    _, stored = _stored_row(link)
    stored = stored._replace(put_back=False)
    return stored, start_of(stored, _highest_number(link, shard))


def _index_tail(link: Link, dialect: Dialect) -> list[ReadyRow]:
    if above := _indexed_to(link):
        link.execute(reads.index_tail(dialect, above))
    return []


def _read_tail(link: Link, dialect: Dialect) -> list[ReadyRow]:
    above = _indexed_to(link)
    return sorted(starmap(ReadyRow, link.fetch(reads.tail_sql(dialect, above))), key=attrgetter("id")) if above else []


def _indexed_to(link: Link) -> int:
    return int(link.fetch(reads.INDEXED_TO)[0][0])


def give_up_epoch(link: Link, dialect: Dialect, epoch: int) -> None:
    """Close the shard in order for the owner of `epoch`, if it still is: every item for which there is room has its row
    then, and the next owner knows. Raises the driver's errors, with a transaction left open."""
    _in_its_room(link, partial(_give_up_epoch, link, dialect, epoch))


def _give_up_epoch(link: Link, dialect: Dialect, epoch: int, rest: _Rest) -> None:
    link.execute(dialect.begin)
    if _epoch(link.fetch(reads.SHARD_SQL + dialect.for_update)) == epoch:
        indexed = "" if rest(link, dialect) else ", indexed_to = 0"
        link.execute(f"UPDATE shard SET owner = ''{indexed} WHERE one = 1")
    link.execute("COMMIT")


def take_again(lock: Lock, link: Link, dialect: Dialect, epoch: int, own_connections: Collection[int]) -> int:
    """Takes the lock on a new connection and returns the `seq` that is committed.

    A connection of ours that the server has not missed yet is ended first: it may hold the lock, and rows. The read
    of `seq` locks, so it sees the end of every transaction that was begun before. One that an old connection begins
    later is stopped by its fence, which names that connection. Raises Fenced, StoreDown, ShardRefused, and the driver's
    errors with a transaction left open.
    """
    if not lock.take(link):
        holder = lock.holder(link)
        if _epoch(link.fetch(reads.SHARD_SQL)) != epoch:
            raise Fenced("another owner has the shard")
        seized = holder in own_connections and lock.seize(link, own_connections)
        # With a holder of 0 it may have become free between the two queries: our old connection was just ending.
        if not seized and (holder or not lock.take(link)):
            raise StoreDown("another connection holds the shard's lock")
    link.execute(dialect.begin)
    rows = link.fetch(reads.SHARD_SQL + dialect.for_update)
    if _epoch(rows) != epoch:
        link.rollback()
        raise Fenced("another owner has the shard")
    _refuse_without_fence(link)
    link.execute(f"UPDATE shard SET connection_id = {link.id:d} WHERE one = 1")
    link.execute("COMMIT")
    return int(rows[0][1])


def _refuse_without_fence(link: Link) -> None:
    """Raise ShardRefused where a fence that does not hold would let the transaction continue.

    That is so where the column takes NULL, and in an SQL mode that makes a zero of it.
    """
    try:
        link.execute("UPDATE shard SET seq = NULL WHERE one = 1")
    except link.errors.error as error:
        if link.errors.is_refused_null(error):
            return
        raise
    raise ShardRefused("the database stores NULL in shard.seq: run `foqs shards check`")


def _epoch(rows: Sequence[Any]) -> int:
    return int(rows[0][0]) if rows else 0


def _highest_number(link: Link, shard: int) -> int:
    highest = link.fetch(reads.MAX_ID)[0][0]
    return number_of(highest) if highest is not None and shard_of(highest) == shard else 0


def _cut(owner: str) -> bytes:
    return owner.encode()[:255]
