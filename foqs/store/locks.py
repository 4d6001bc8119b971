"""The lock that a living owner of a shard holds, and its claim on the shard's identity.

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
from collections.abc import Callable, Collection
from contextlib import suppress
from operator import not_
from pathlib import Path
from typing import Protocol

from tenacity import Retrying, retry_if_result, stop_after_delay, wait_exponential

from foqs.store.link import Database, Link
from foqs.store.protocol import ShardRefused

TAKE_OVER_WAIT_S = 10
"""How long a killed owner's transaction may take to be rolled back."""
_FIRST_PAUSE_S, _ASK_AGAIN_S = 0.001, 0.02
_CLAIM_WAIT_S = 10.0
_READ_BYTES = 8192
_IN_NO_SIGHT = "a database that this account cannot see"


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
