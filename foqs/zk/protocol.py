"""What a host or an operator asks of ZooKeeper.

Two implementations: `foqs.zk.client` (kazoo) and the fake of the simulation; both pass the same contract suite.
Everything is called on the event loop, returns at once, and calls back on the event loop.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from enum import Enum
from typing import Protocol

from foqs.marks import Mark
from foqs.shardmgr.facts import Facts, HostFact, OwnerFact, ShardFact, Slots


class Session(Enum):
    """CONNECTED; SUSPENDED: no server answers, what is ephemeral still stands; EXPIRED: what was ephemeral is gone."""

    CONNECTED = "connected"
    SUSPENDED = "suspended"
    EXPIRED = "expired"


class ZkError(Exception):
    """A change that was not made, unless it is `ZkUnknown`."""


class ZkConflict(ZkError):
    """Somebody else changed it first (compare-and-set), it is there already, or it is not there: look again."""


class ZkUnknown(ZkError):
    """The connection was lost while the change was made: the facts will tell."""


class ZkRefused(ZkError):
    """Authentication or an ACL forbids it, or the record is too large. It will not work later either."""


class ZkUnavailable(ZkError):
    """There is no connection, so nothing was sent: it may work after the next CONNECTED."""


Done = Callable[[ZkError | None], None]


class FactStore(Protocol):
    def start(self, changed: Callable[[Facts], None], session: Callable[[Session], None]) -> None:
        """Connects, and goes on trying. `changed` is told of all facts whenever any is new, and once after each
        CONNECTED (they are fresh from then on); while SUSPENDED the last ones stand. A record that cannot be read is
        reported in the log; what it said before stands."""

    def join(self, host: HostFact) -> None:
        """Registers the host and its candidacy for controller, now and again after every EXPIRED. Called once more with
        another fact of the same host, it replaces the record. An entry that an earlier session of the same host left
        behind is replaced. While a session at another address has the id, the store tries again every second."""

    def own(self, owner: OwnerFact, done: Done) -> None:
        """Announces who serves a shard. Replaces an entry with a lower epoch; ZkConflict when there is a higher one."""

    def disown(self, shard: int, epoch: int, done: Done) -> None:
        """Takes back what `own` announced, if it still has that epoch."""

    def assign(self, hosts: Mapping[int, str], version: int, done: Done) -> None:
        """Writes the assignment if it still has `version` (-1: if there is none); ZkConflict otherwise."""

    def share_slots(self, slots: Slots, done: Done) -> None:
        """Writes the record of slots in place of the one of its `version`, as `assign` does the assignment."""

    def put_shard(self, fact: ShardFact, *, new: bool, done: Done) -> None:
        """Adds a shard (`new`), or replaces its record. ZkConflict when it is there (or is not)."""

    def remove_shard(self, shard: int, done: Done) -> None: ...

    def recall(self, shard: int, done: Callable[[Mark | None, ZkError | None], None]) -> None:
        """Reads the mark of a shard (None: there is none). It is no fact: only the host that opens the shard asks."""

    def remember(self, shard: int, mark: Mark, done: Done) -> None:
        """Writes the mark of a shard; one of a later owner stands."""

    def drain_host(self, host: str, *, drained: bool, done: Done) -> None:
        """Marks a host to be emptied, or takes the mark back."""

    def close(self, done: Callable[[], None]) -> None:
        """Ends the session: what is ephemeral is gone at once. `done` is called when that is certain, or cannot be had
        in a second."""
