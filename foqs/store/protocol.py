"""What a host asks of a shard's database.

Two implementations: `foqs.store.sql` (MySQL, MariaDB, SQLite) and the memory store of the simulation. Both pass the
same contract suite. A store is used from one thread at a time and holds one connection.

States of a store: closed -> `open` -> open -> (connection lost) -> lost -> `reconnect` -> open -> `close` -> closed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, Protocol

from foqs.buffers.reads import StoreReads
from foqs.ids import Marks
from foqs.opened import Opened
from foqs.rows import (
    Batch,
)
from foqs.travel import TravellingError

if TYPE_CHECKING:
    from foqs.policies.settings import Change, Settings


class StoreError(TravellingError):
    """A seam error. The transaction that raised it was not committed, unless it is `CommitUnknown`."""


class StoreDown(StoreError):
    """No connection, or it was lost; call `reconnect`. Nothing was committed."""


class StoreEnded(StoreDown):
    """The server had ended the connection before the call: nothing was sent."""


class StoreReadOnly(StoreDown):
    """The server takes no writes, and so the connection was ended: its name may lead to another server by now."""


class StoreDenied(StoreDown):
    """The server answers, and has no such database or table, or denies the account: it need not be repaired."""


class CommitUnknown(StoreError):
    """The connection was lost while committing; only `reconnect` finds out whether it was committed."""


class StoreBusy(StoreError):
    """Rolled back for a passing reason (lock wait, deadlock); the same call may succeed later."""


class StoreFull(StoreBusy):
    """Rolled back because the database's disk, or a table's space, is full. Reads still succeed."""


class RowRejected(StoreError):
    """The database refuses what a row holds; rolled back. Bisect the batch to find the row."""


class Fenced(StoreError):
    """Another owner has a higher epoch, or the shard's row is not what this owner wrote. Never use the store again."""


class ShardRefused(StoreError):
    """The shard cannot be opened: no schema, a schema too new, another shard's tables, or (`held`) a living owner.

    `mend` says what an operator does about it, in one line; empty where the message says it.
    """

    def __init__(self, message: str, *, held: bool = False, mend: str = "") -> None:
        super().__init__(message)
        self.held = held
        self.mend = mend


def explained(error: StoreError) -> str:
    """The error's text, and what mends it."""
    mend = error.mend if isinstance(error, ShardRefused) else ""
    return f"{error}; {mend}" if mend else str(error)


class Confirmation(NamedTuple):
    db_now_ms: int


class ShardStore(StoreReads, Protocol):
    """All methods block. Errors: any may raise `StoreDown`; `Fenced` where said."""

    @property
    def max_batch_bytes(self) -> int:
        """Payload, metadata and headers that a batch may carry."""

    def open(self, owner: str, *, take_over: bool, epoch_above: int = 0, marks: Marks | None = None) -> Opened:
        """Take the shard for `owner`, with an epoch above the stored one, `epoch_above` and that of its mark.

        Ids continue from the highest ceiling of `marks`, if that is above the stored number. `marks` belong to the
        shard's number, None where none are kept. ShardRefused(held) when another connection holds the shard and
        `take_over` is False; ShardRefused for a copy of a shard that is served.
        """

    def commit(self, batch: Batch) -> None:
        """Runs `batch` as one transaction behind the fence.

        Raises StoreDown, StoreBusy, RowRejected (nothing committed), Fenced, CommitUnknown.
        """

    def reconnect(self) -> bool:
        """Reconnects, takes the lock again and says whether the transaction whose outcome was unknown is committed.

        False where none was unknown. Raises StoreDown (try later) or Fenced.
        """

    def waits_in_vain(self) -> bool:
        """Says, from any thread, if the call in progress on another thread will get no reply. May take seconds."""

    def cut(self) -> None:
        """Ends the connection, from any thread: a call in progress fails as if the connection was lost."""

    def confirm(self) -> Confirmation:
        """A read that proves that this owner's epoch is in effect; raises Fenced."""

    def change_settings(self, ns: str, change: Change) -> Settings:
        """Replaces the settings of a namespace by what `change` makes of them, and returns the stored ones. Raises
        Fenced, CommitUnknown, StoreBusy, ShardRefused, what `change` raises, and Invalid for unreadable settings."""

    def close(self, *, clean: bool = False) -> None:
        """Gives the lock and the connection back. Never raises.

        `clean`: neither this owner nor an earlier one delivers items, so the next need not wait (`Opened.replaced`).
        """
