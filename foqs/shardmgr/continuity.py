"""Decide whether ZooKeeper's records follow from the known ones of a host, and which ones it writes back if not.

ZooKeeper loses its data when it starts with empty directories, and goes back when it starts with an older copy. The
transactions of its records show it: each write of a record has a later transaction, until data is lost.

- A record that exists in both is compared by its last write. A shard's record that was written back has the time of the
  write that was lost (`ShardFact.as_of_ms`), so the host with the latest knowledge prevails. An operator's write after
  the loss has a later time, and stays.
- Slots are compared by their stamp, settings by their history (`foqs.policies.settings`).
- A shard that is missing is added only while the event is open: later an operator may have removed it.
- A shard that the host saw removed, and that an older copy brings back, is disabled: an operator decides.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from enum import Enum

from foqs.shardmgr.facts import Facts, ShardFact, ShardUse, Slots, Written


class Finding(Enum):
    SAME = "same"
    """The records follow from the known ones."""
    LOST = "lost"
    """ZooKeeper lost the records."""
    RESTORED = "restored"
    """ZooKeeper has an older copy of the records."""
    MERGE = "merge"
    """Another host found an event that this host does not know."""
    FOREIGN = "foreign"
    """The records belong to another cluster."""


def judge(known: Facts, found: Facts) -> Finding:
    """Compare the facts of a new connection with the last ones of the connection before."""
    ours, theirs = known.identity, found.identity
    if ours.id and theirs.id and ours.id != theirs.id:
        return Finding.FOREIGN
    if theirs.open or (theirs.event and theirs.event not in ours.events):
        return Finding.MERGE
    # A copy from before the last event may have later transactions than were made since then.
    gone, older = bool(ours.id and not theirs.id), theirs.event != ours.event
    if not gone and not older and not _went_back(known, found):
        return Finding.SAME
    return Finding.RESTORED if found.shards else Finding.LOST


def _went_back(known: Facts, found: Facts) -> bool:
    before, now = known.writes, found.writes
    if any(_diverged(one, now.shards[shard]) for shard, one in before.shards.items() if shard in now.shards):
        return True
    pairs = ((before.assignment, now.assignment), (before.slots, now.slots), (before.identity, now.identity))
    return any(one is not None and (other is None or _diverged(one, other)) for one, other in pairs)


def _diverged(before: Written, now: Written) -> bool:
    """Return True if `now` cannot come after `before`."""
    if now == before:
        return False
    if now.created != before.created:
        return now.created <= before.changed
    return now.version <= before.version or now.changed <= before.changed


@dataclass(frozen=True, slots=True)
class WriteBack:
    """What a host knows and ZooKeeper does not. `assignment`: the hosts and the version that they replace. `shards`:
    records, each with the version that it replaces. `disabled`: shards among them that were removed before."""

    slots: Slots | None = None
    assignment: tuple[Mapping[int, str], int] | None = None
    shards: tuple[tuple[ShardFact, int], ...] = ()
    drained: frozenset[str] = frozenset()
    disabled: frozenset[int] = frozenset()

    def __bool__(self) -> bool:
        return bool(self.slots or self.assignment or self.shards or self.drained)


def write_back(known: Facts, removed: Mapping[int, int], found: Facts) -> WriteBack:
    """Return the part of `known` that `found` lacks. `removed`: the shards that an operator removed, with the time in
    ms of the last write of each."""
    slots, assignment = None, None
    if known.slots.stamp > found.slots.stamp:
        slots = replace(known.slots, version=found.slots.version)
    before, now = known.writes.assignment, found.writes.assignment
    older = before is not None and (now is None or now.at_ms < before.at_ms)
    if older and found.assignment.hosts != known.assignment.hosts:
        assignment = known.assignment.hosts, found.assignment.version
    revived = tuple(_revived(removed, found))
    return WriteBack(
        slots,
        assignment,
        (*_outdated(known, found), *revived),
        known.drained - found.drained if found.identity.open else frozenset(),
        frozenset(fact.id for fact, _ in revived),
    )


def _outdated(known: Facts, found: Facts) -> Iterator[tuple[ShardFact, int]]:
    for shard, fact in known.shards.items():
        as_of_ms, there = as_of(known, shard), found.shards.get(shard)
        if there is None:
            if found.identity.open:
                yield replace(fact, as_of_ms=as_of_ms), -1
        elif there != fact and as_of(found, shard) < as_of_ms:
            yield replace(fact, as_of_ms=as_of_ms), found.writes.shards[shard].version


def _revived(removed: Mapping[int, int], found: Facts) -> Iterator[tuple[ShardFact, int]]:
    for shard, as_of_ms in removed.items():
        there = found.shards.get(shard)
        if there is not None and there.use is not ShardUse.DISABLED and as_of(found, shard) <= as_of_ms:
            yield (
                replace(there, use=ShardUse.DISABLED, as_of_ms=as_of_ms + 1),  # the removal came after that write
                found.writes.shards[shard].version,
            )


def as_of(facts: Facts, shard: int) -> int:
    """Return the time in ms of the write that a shard's record is from."""
    written = facts.writes.shards.get(shard)
    return facts.shards[shard].as_of_ms or (written.at_ms if written is not None else 0)
