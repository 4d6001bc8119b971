"""What a shard's database keeps of settings and deduplication slots, and its way into a cluster."""

from __future__ import annotations

import time
from collections.abc import Collection
from typing import TYPE_CHECKING

from foqs.errors import Conflict
from foqs.shardmgr.facts import ShardFact

if TYPE_CHECKING:
    from foqs.cli.cluster import Cluster
    from foqs.policies.settings import Settings
    from foqs.store.maintenance import Kept


def copies_of(kept: Kept) -> list[Settings]:
    """Return the copies that can be read. Raises Invalid for one that cannot."""
    from foqs.policies.settings import decode

    return [decode(row.ns.decode(), row.doc) for row in kept.settings if row.ns]


def remove_copies(url: str, shard: int, namespaces: Collection[str] | None = None) -> None:
    """Remove the copies of `namespaces` (None: of all) from a shard's database. Raises StoreError."""
    from foqs.store.maintenance import discard_settings, read_kept

    names = list(namespaces) if namespaces is not None else [row.ns.decode() for row in read_kept(url, shard).settings]
    discard_settings(url, shard, names)


async def adopt_kept(cluster: Cluster, fact: ShardFact) -> None:
    """Give the cluster the settings and the deduplication slots that a shard's database keeps, before it is added.

    Raises Conflict for settings that were made apart from the cluster's, Invalid for unreadable ones, StoreError.
    """
    from foqs.shardmgr.routing import claimed
    from foqs.store.maintenance import read_kept

    kept = read_kept(fact.url, fact.id)
    before = cluster.facts.settings
    copies = copies_of(kept)
    try:
        stored = await cluster.adopt(copies, f"shard {fact.id}")
    except Conflict as error:
        raise Conflict(
            f"shard {fact.id} is not added: {error.message}. Put the entries that shall hold into the settings of the "
            f"cluster (`foqs settings export` on both sides, `foqs settings import` here), and run `foqs shards add "
            f"{fact.id} ... --discard-settings`"
        ) from None
    for copy, found in zip(copies, stored, strict=True):
        if copy.ns not in before or before[copy.ns].version < found.version == copy.version:
            print(f"the cluster takes over the settings of namespace {copy.ns} (version {copy.version})", flush=True)
    stamp, bits = kept.slots
    await cluster.share_slots(lambda facts: claimed(facts, fact.id, stamp, bits, time.time_ns() // 1_000_000))
