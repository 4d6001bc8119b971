"""Settings of namespaces in a shard's database, where a lone host keeps them.

A change has a connection of its own, as it must not come between the batches of the shard. It locks the row that the
batches' fences change, so a host that lost the shard changes no settings either.
"""

from __future__ import annotations

from contextlib import closing

from foqs.policies.settings import Change, Settings, decode
from foqs.store.dialect import Dialect
from foqs.store.link import Database, Link
from foqs.store.protocol import CommitUnknown, Fenced, StoreBusy
from foqs.store.server import is_read_only

ALL = "SELECT ns, doc FROM setting"
_TRIES = 3
"""Time-outs for which a database that does not answer holds up the batches of the shard."""


def change_settings(database: Database, dialect: Dialect, epoch: int, ns: str, change: Change) -> Settings:
    """Return the settings of `ns` as they are stored now. Raises what `change` raises, Invalid for a document that is
    not readable, Fenced if the shard has another epoch, CommitUnknown, StoreBusy and StoreDown."""
    errors, doubtful = database.seam_errors, None
    for _ in range(_TRIES):
        committing = False
        try:
            with closing(Link(database)) as link:
                if is_read_only(link.connection):
                    if doubtful is None:
                        raise errors.read_only()
                    break
                before = _read(link, ns)
                if before == doubtful:
                    return before  # the COMMIT without an answer was carried out
                made = change(before)
                if made is before:
                    return made
                if not _replace(link, dialect, epoch, before, made):
                    continue
                committing = True
                link.execute("COMMIT")
                return made
        except errors.error as error:
            if committing and not errors.certainly_not_committed(error):
                doubtful = made
            elif doubtful is None:
                raise errors.translate(error) from error
    if doubtful is not None:
        raise CommitUnknown("the connection was lost while committing")
    raise StoreBusy("the settings keep changing")


def _read(link: Link, ns: str) -> Settings:
    rows = link.fetch(f"SELECT doc FROM setting WHERE ns = {_literal(ns.encode())}")
    return decode(ns, bytes(rows[0][0])) if rows else Settings(ns)


def _replace(link: Link, dialect: Dialect, epoch: int, before: Settings, made: Settings) -> bool:
    """Write `made` in a transaction that is left open. False: `before` is no longer stored."""
    ns = _literal(before.ns.encode())
    link.execute(dialect.begin)
    if int(link.fetch(f"SELECT epoch FROM shard WHERE one = 1{dialect.for_update}")[0][0]) != epoch:
        raise Fenced("another owner has the shard")
    stamps = [int(row[0]) for row in link.fetch(f"SELECT stamp FROM setting WHERE ns = {ns}{dialect.for_update}")]
    if stamps != ([before.version] if before.version else []):
        return False
    doc = _literal(made.encoded())
    if stamps:
        link.execute(f"UPDATE setting SET stamp = {made.version:d}, doc = {doc} WHERE ns = {ns}")
    else:
        link.execute(f"INSERT INTO setting (ns, stamp, doc) VALUES ({ns}, {made.version:d}, {doc})")
    return True


def _literal(value: bytes) -> str:
    return f"x'{value.hex()}'"
