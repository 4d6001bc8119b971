"""The requests of a host or an operator to ZooKeeper.

Two implementations: `foqs.zk.client` (kazoo) and the fake of the simulation; both pass the same contract suite. All
methods are called on the event loop, return at once, and call back on the event loop.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Protocol

from foqs.counters import Histogram
from foqs.errors import FoqsError, OutcomeUnknown, Unavailable
from foqs.ids import Mark, Marks
from foqs.policies.settings import SettingsStore
from foqs.shardmgr.facts import Facts, HostFact, Identity, OwnerFact, Session, ShardFact, Slots
from foqs.shardmgr.operate import Action, Assign, MarkHost, PutShard, RemoveShard
from foqs.travel import TravellingError


class ZkError(TravellingError):
    """A change was not made, unless the error is `ZkUnknown`."""


class ZkConflict(ZkError):
    """Another client changed the record first (compare-and-set), or it exists already, or it is missing: read the facts
    again."""


class ZkUnknown(ZkError):
    """The connection was lost during the change: the facts will show the outcome."""


class ZkRefused(ZkError):
    """Authentication or an ACL forbids the change, or the record is too large. A retry will not help."""


class ZkUnavailable(ZkError):
    """There is no connection, so nothing was sent: retry after the next CONNECTED."""


Done = Callable[[ZkError | None], None]


def refusal_of(error: ZkError) -> FoqsError:
    """Return the error of a client's request that made a change which failed."""
    if isinstance(error, ZkUnknown):
        return OutcomeUnknown("the connection to ZooKeeper was lost: the change may have been made")
    return Unavailable(f"ZooKeeper: {error}; nothing was changed")


class FactStore(SettingsStore, Protocol):
    @property
    def round_trips(self) -> Histogram:
        """Return the seconds between requests and their answers."""

    def start(self, changed: Callable[[Facts], None], session: Callable[[Session], None]) -> None:
        """Connect, and retry until `close`. `changed` gets all facts at each change, and once after each CONNECTED
        (they are fresh from then on); while SUSPENDED the last ones remain valid. An unreadable record is logged, and
        its previous content stays in effect."""

    def join(self, host: HostFact) -> None:
        """Register the host and its candidacy for controller, now and again after every EXPIRED. A second call with
        another fact of the same host replaces the record. An entry of an earlier session of the same host is replaced.
        While a session at another address has the id, the store retries every second."""

    def own(self, owner: OwnerFact, done: Done) -> None:
        """Announce the owner of a shard. Replaces an entry with a lower epoch; ZkConflict if there is a higher one."""

    def disown(self, shard: int, epoch: int, done: Done) -> None:
        """Withdraw the announcement of `own`, if it still has that epoch."""

    def assign(self, hosts: Mapping[int, str], version: int, done: Done) -> None:
        """Write the assignment if it still has `version` (-1: if there is none); ZkConflict otherwise."""

    def share_slots(self, slots: Slots, done: Done) -> None:
        """Replace the record of slots that has its `version`, as `assign` replaces the assignment."""

    def identify(self, identity: Identity, done: Done) -> None:
        """Replace the cluster's identity that has its `version`, as `assign` replaces the assignment."""

    def put_shard(self, fact: ShardFact, *, new: bool, done: Done) -> None:
        """Add a shard (`new`), or replace its record. ZkConflict if it exists (or does not). The record is an
        operator's: it has no `as_of_ms`."""

    def put_back_shard(self, fact: ShardFact, version: int, done: Done) -> None:
        """Replace a shard's record that has `version` (-1: add it), with its `as_of_ms`; ZkConflict otherwise."""

    def remove_shard(self, shard: int, done: Done) -> None: ...

    def recall(self, shard: int, done: Callable[[Marks, ZkError | None], None]) -> None:
        """Read the marks of a shard's number. They are no part of the facts: only the host that opens the shard reads
        them."""

    def remember(self, shard: int, identity: str, mark: Mark, done: Done) -> None:
        """Write the mark of the shard with this identity; a mark of a later owner stays."""

    def drain_host(self, host: str, *, drained: bool, done: Done) -> None:
        """Mark a host as drained, or remove the mark."""

    def close(self, done: Callable[[], None]) -> None:
        """End the session: its ephemeral records are gone at once. `done` is called when that is certain, or after one
        second."""


def carry_out(action: Action, store: FactStore, done: Done) -> None:
    """Make the change of an operator's command."""
    match action:
        case PutShard(fact, before):
            store.put_shard(fact, new=before is None, done=done)
        case RemoveShard(before):
            store.remove_shard(before.id, done)
        case Assign(hosts, version):
            store.assign(hosts, version, done)
        case MarkHost(host, drained):
            store.drain_host(host, drained=drained, done=done)
