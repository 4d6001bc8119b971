"""One owner for each identity of a shard: a copy that is served next to its original gives all its ids a second time.

On MySQL and MariaDB a lock of the server shows a copy in another database of that server. A locked file shows any copy
that another host of this machine serves. (Nothing shows a copy on another server and another machine.)
"""

from __future__ import annotations

import errno
import fcntl
import os
import tempfile
import time
from contextlib import suppress
from pathlib import Path

from foqs.store.link import Database, Link
from foqs.store.protocol import ShardRefused

_WAIT_S = 10.0
_ASK_AGAIN_S = 0.02
_READ_BYTES = 8192
_IN_NO_SIGHT = "a database that this account cannot see"


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
            return  # schema version 1 has none
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
        deadline = time.monotonic() + _WAIT_S
        own = self._database.url.database or ""
        while not link.fetch(f"SELECT GET_LOCK('{_name(identity)}', 0)")[0][0]:
            holder = link.fetch(f"SELECT IS_USED_LOCK('{_name(identity)}')")[0][0]
            if holder is not None:
                schema = self._schema_of(link, identity, int(holder))
                if schema != own or time.monotonic() > deadline:
                    raise self._refused(identity, f"the database {schema}" if schema else _IN_NO_SIGHT)
                self._end(link, int(holder))
            time.sleep(_ASK_AGAIN_S)

    def _end(self, link: Link, connection: int) -> None:
        """End an earlier connection to our own database, which lost the shard's lock."""
        errors = self._database.seam_errors
        try:
            link.execute(f"KILL {connection:d}")
        except errors.error as error:
            if not errors.is_missing_connection(error):
                raise

    def _schema_of(self, link: Link, identity: str, connection: int) -> str:
        """Return the database of a connection; ours for one that has ended, nothing for one of another account."""
        rows = link.fetch(f"SELECT db FROM information_schema.processlist WHERE id = {connection:d}")
        if not rows:
            still = link.fetch(f"SELECT IS_USED_LOCK('{_name(identity)}')")[0][0]
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


def _name(identity: str) -> str:
    return f"foqs-shard-{identity}"
