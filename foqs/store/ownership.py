"""The right to write a shard: its row, the lock that a living owner holds, and the epoch that fences one that lost it.

The lock only says whether the owner lives. What keeps an old owner from writing is the epoch in the `shard` row.

Each identity of a shard has one owner: a copy that is served next to its original gives all its ids a second time. On
MySQL and MariaDB a lock of the server shows a copy in another database of that server. A locked file shows any copy
that another host of this machine serves. (Nothing shows a copy on another server and another machine.)
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import os
import tempfile
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from operator import not_
from pathlib import Path
from typing import Any, NamedTuple, Protocol
from uuid import uuid4

from tenacity import Retrying, retry_if_result, stop_after_delay, wait_exponential

from foqs.ids import NUMBER_BITS, Mark, Marks, first_id, number_of, shard_of
from foqs.store import migrate, reads
from foqs.store.dialect import Dialect
from foqs.store.link import Database, Link
from foqs.store.protocol import Fenced, ShardRefused, StoreDown
from foqs.store.tables import RESTORING, SCHEMA_VERSION

TAKE_OVER_WAIT_S = 10
"""How long a killed owner's transaction may take to be rolled back."""
_FIRST_PAUSE_S, _ASK_AGAIN_S = 0.001, 0.02
_EPOCH_JUMP = 1 << 20
_NUMBER_JUMP = 1 << 30
_LEASES_AT_ONCE = 10_000
"""The most leases that a statement ends: with more it might outlast the time-out of the connection."""
_MOST_EPOCHS, _MOST_NUMBERS = 1 << 62, 1 << NUMBER_BITS
_RESTORE_ROW = "restore the row of table shard, and the items, from a backup"
PUT_BACK_MS = -1
"""`shard.restored_ms` of a dump that was put back, until an owner opens it: whatever the marks say, the owner ends the
leases that came back, and skips ids."""
_CLAIM_WAIT_S = 10.0
_READ_BYTES = 8192
_IN_NO_SIGHT = "a database that this account cannot see"
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


class Lock(Protocol):
    """Held by one living owner. Methods raise the driver's errors.

    `free_when_dead`: it is given up by the end of its owner's process only. (A server gives it up with a connection,
    whose owner may live.)
    """

    free_when_dead: bool

    def take(self, link: Link) -> bool:
        """Takes it if it is free."""

    def holder(self, link: Link) -> int:
        """Return the connection that has it, 0 when it is free or the holder is not known."""

    def seize(self, link: Link, among: Collection[int] | None = None) -> bool:
        """Ends the connection that holds the lock, if it is `among` these, and takes the lock; False if that failed
        for `TAKE_OVER_WAIT_S`. A new connection of the same owner may take the lock in between, and ends, too."""

    def release(self, link: Link | None) -> None:
        """Gives it back; `link` is None when the connection is gone."""


def lock_of(database: Database, shard: int) -> Lock:
    if database.file is not None:
        return FileLock(database.file)
    return ServerLock(database.url.database or "", shard)


def taken_within(limit_s: float, take: Callable[[], bool]) -> bool:
    """Ask for a lock until it is taken; False if that needs longer. The questions are many and short, as a wait in the
    server could outlast the time-out of the connection."""
    asking = Retrying(
        stop=stop_after_delay(limit_s),
        wait=wait_exponential(_FIRST_PAUSE_S, max=_ASK_AGAIN_S),
        retry=retry_if_result(not_),
        retry_error_callback=lambda _: False,
    )
    return asking(take)


class ServerLock:
    """GET_LOCK on MySQL and MariaDB: held by a connection and free when that is gone."""

    free_when_dead = False

    def __init__(self, schema: str, shard: int) -> None:
        # The name may have 64 characters.
        self._name = "foqs-" + hashlib.sha256(f"{schema}\0{shard}".encode()).hexdigest()[:40]

    def take(self, link: Link) -> bool:
        return bool(link.fetch(f"SELECT GET_LOCK('{self._name}', 0)")[0][0])

    def holder(self, link: Link) -> int:
        return int(link.fetch(f"SELECT IS_USED_LOCK('{self._name}')")[0][0] or 0)

    def seize(self, link: Link, among: Collection[int] | None = None) -> bool:
        ended = 0

        def take() -> bool:
            nonlocal ended
            if self.take(link):
                return True
            holder = self.holder(link)
            if holder not in (0, ended) and (among is None or holder in among):
                _kill(link, holder)
                ended = holder
            return False

        return taken_within(TAKE_OVER_WAIT_S, take)

    def release(self, link: Link | None) -> None:
        if link is not None:
            link.execute(f"DO RELEASE_LOCK('{self._name}')")


def _kill(link: Link, connection: int) -> None:
    try:
        link.execute(f"KILL {connection:d}")
    except link.errors.error as error:
        if not link.errors.is_missing_connection(error):
            raise


class FileLock:
    """flock on a file next to a SQLite database: held by an open file and free when its process is gone."""

    free_when_dead = True

    def __init__(self, database: Path) -> None:
        self._path = database.with_name(database.name + ".lock")
        self._file: int | None = None

    def take(self, link: Link | None = None) -> bool:
        if self._file is not None and self._is_current(self._file):
            return True
        self.release(None)
        while True:
            file = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                os.close(file)
                return False
            # A host that takes over may have replaced the file since it was opened.
            if self._is_current(file):
                self._file = file
                return True
            os.close(file)

    def holder(self, link: Link) -> int:
        return 0

    def seize(self, link: Link, among: Collection[int] | None = None) -> bool:
        # The old owner's lock stays on a file without a name; the epoch keeps that owner from writing.
        self._path.unlink(missing_ok=True)
        return self.take()

    def release(self, link: Link | None) -> None:
        if self._file is not None:
            os.close(self._file)
            self._file = None

    def _is_current(self, file: int) -> bool:
        try:
            return os.path.samestat(os.fstat(file), self._path.stat())
        except FileNotFoundError:
            return False


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
    the shard's own. `leases_ended`: number of ended leases of an older copy."""

    row: ShardRow
    start: Start
    identity: str
    mark: Mark | None
    leases_ended: int


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
    and ends the leases of an older copy. `marks` are those of the shard's number, None where none are kept. Raises
    ShardRefused and the driver's errors, with that transaction left open."""
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
    _index_tail(link, dialect)
    more = f"restored_ms = {dialect.clock_ms}, leases_ended = {ended:d}, " if restored else ""
    link.execute(
        f"UPDATE shard SET epoch = {start.epoch:d}, next_number = {start.next_number:d}, {more}"
        f"indexed_to = {first_id(shard) + start.next_number - 1:d}, identity = x'{identity.hex()}', "
        f"owner = x'{_cut(owner).hex()}', server = x'{server.hex()}', connection_id = {link.id:d} WHERE one = 1"
    )
    link.execute("COMMIT")
    return Taken(stored, start, identity.hex(), mark, ended)


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


def _index_tail(link: Link, dialect: Dialect) -> None:
    above = int(link.fetch(reads.INDEXED_TO)[0][0])
    if above:
        link.execute(reads.index_tail(dialect, above))


def give_up_epoch(link: Link, dialect: Dialect, epoch: int) -> None:
    """Close the shard in order for the owner of `epoch`, if it still is: every item has its row then, and the next
    owner knows. Raises the driver's errors, with a transaction left open."""
    link.execute(dialect.begin)
    if _epoch(link.fetch(reads.SHARD_SQL + dialect.for_update)) == epoch:
        _index_tail(link, dialect)
        link.execute("UPDATE shard SET owner = '', indexed_to = 0 WHERE one = 1")
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


class Identity:
    """The claim of one store. `claim` may be called again on a new connection."""

    def __init__(self, database: Database, shard: int) -> None:
        self._database = database
        self._shard = shard
        self._file: int | None = None
        self._path: Path | None = None

    def claim(self, link: Link, identity: str, server: bytes) -> None:
        """Claim the identity for the owner with the shard's lock on `link`. `server` is the server's own identity.

        Raises ShardRefused if a copy is served, and the driver's errors.
        """
        if not identity:
            return  # `take_epoch` makes one for a row that has none
        if self._database.file is None:
            self._lock_on_server(link, identity)
        if self._file is None:
            self._lock_on_machine(identity, self._places(server))

    def release(self) -> None:
        """Give the claim back. That of the server ends with the connection."""
        if self._file is not None:
            assert self._path is not None
            with suppress(OSError):
                if os.path.samestat(os.fstat(self._file), self._path.stat()):
                    self._path.unlink()
            os.close(self._file)
            self._file = None

    # ------------------------------------------------------------------------------------- on the server

    def _lock_on_server(self, link: Link, identity: str) -> None:
        own = self._database.url.database or ""

        def take() -> bool:
            if link.fetch(f"SELECT GET_LOCK('{_lock_name(identity)}', 0)")[0][0]:
                return True
            holder = link.fetch(f"SELECT IS_USED_LOCK('{_lock_name(identity)}')")[0][0]
            if holder is not None:
                schema = self._schema_of(link, identity, int(holder))
                if schema != own:
                    raise self._refused(identity, f"the database {schema}" if schema else _IN_NO_SIGHT)
                _kill(link, int(holder))  # an earlier one of ours, which lost the shard's lock
            return False

        if not taken_within(_CLAIM_WAIT_S, take):
            raise ShardRefused("an earlier connection to the shard holds the lock of its identity", held=True)

    def _schema_of(self, link: Link, identity: str, connection: int) -> str:
        """Return the database of a connection; ours for one that has ended, nothing for one of another account."""
        rows = link.fetch(f"SELECT db FROM information_schema.processlist WHERE id = {connection:d}")
        if not rows:
            still = link.fetch(f"SELECT IS_USED_LOCK('{_lock_name(identity)}')")[0][0]
            return "" if still == connection else self._database.url.database or ""
        name = rows[0][0]
        return name.decode(errors="replace") if isinstance(name, bytes) else str(name or "")

    # ------------------------------------------------------------------------------------- on this machine

    def _places(self, server: bytes) -> list[str]:
        """Return the names of our database. Two hosts may reach one database by different URLs."""
        url, file = self._database.url, self._database.file
        if file is not None:
            return [str(file.resolve())]
        return [f"{url.host or 'localhost'}:{url.port or 3306}/{url.database}", f"{server.hex()}/{url.database}"]

    def _lock_on_machine(self, identity: str, places: list[str]) -> None:
        path = Path(tempfile.gettempdir()) / f"foqs-{os.getuid()}-{identity}.lock"
        try:
            while (other := self._lock_file(path, places)) is not None:
                if other and not set(other) & set(places):
                    raise self._refused(identity, other[0])
                # The owner before us, which is hung or lost its database: the epoch keeps it from writing.
                path.unlink(missing_ok=True)
        except OSError:
            return  # without such files nothing on this machine can be found, and nothing is wrong

    def _lock_file(self, path: Path, places: list[str]) -> list[str] | None:
        """Lock the file and write our places into it, or return those of the host that has it."""
        file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        if os.fstat(file).st_uid != os.getuid():
            os.close(file)
            raise PermissionError(errno.EPERM, "the file of another user", str(path))
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            with os.fdopen(file, "rb") as opened:
                return opened.read(_READ_BYTES).decode(errors="replace").splitlines()
        os.ftruncate(file, 0)
        os.pwrite(file, "\n".join(places).encode(), 0)
        self._file, self._path = file, path
        return None

    def _refused(self, identity: str, where: str) -> ShardRefused:
        mend = (
            "stop the host that serves the other one, or give this database an identity of its own: "
            f"foqs shards renew {self._shard}"
        )
        why = f"shard {self._shard} is a copy: its identity {identity} is served in {where} already"
        return ShardRefused(why, mend=mend)


def _lock_name(identity: str) -> str:
    return f"foqs-shard-{identity}"
