"""What a shard's database keeps of a lone host or a cluster: copies of settings, and slots of deduplication keys.

A command and a starting host read it without being the shard's owner.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from contextlib import closing, contextmanager
from typing import NamedTuple

from foqs.rows import Holding, SettingRow
from foqs.store import settings
from foqs.store.dialect import MYSQL, SQLITE
from foqs.store.link import Database, Link
from foqs.store.server import is_read_only
from foqs.store.shard_row import read_shard_row, refuse_foreign


class Kept(NamedTuple):
    settings: list[SettingRow]
    slots: Holding


def read_kept(url: str, shard: int, *, connect_timeout_s: float = 3.0, io_timeout_s: float = 10.0) -> Kept:
    """Raises StoreError: the database does not answer, has no schema, or is not this shard's."""
    database = Database(url, connect_timeout_s=connect_timeout_s, io_timeout_s=io_timeout_s, look_only=True)
    with _link(database, shard) as link:
        stored = link.fetch(settings.ALL)
        stamp, bits = link.fetch("SELECT slots_stamp, slots FROM shard WHERE one = 1")[0]
        return Kept([SettingRow(bytes(ns), bytes(doc)) for ns, doc in stored], Holding(int(stamp), bytes(bits)))


def discard_settings(url: str, shard: int, namespaces: Collection[str]) -> None:
    """Remove the copies of the settings of `namespaces`, and the row that says that the shard has all copies.

    Raises StoreError, as `read_kept`."""
    database = Database(url)
    with _link(database, shard) as link:
        if is_read_only(link.connection):
            raise database.seam_errors.read_only()
        names = ", ".join(f"x'{ns.encode().hex()}'" for ns in ("", *namespaces))
        link.execute((SQLITE if database.is_file else MYSQL).begin)
        link.execute(f"DELETE FROM setting WHERE ns IN ({names})")
        link.execute("COMMIT")


@contextmanager
def _link(database: Database, shard: int) -> Iterator[Link]:
    """Yield a connection to the shard's database."""
    with database.seam():
        database.refuse_missing()
        with closing(Link(database)) as link:
            refuse_foreign(read_shard_row(link.connection, database.seam_errors), shard)
            yield link
