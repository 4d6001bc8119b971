"""Topics that give each worker only so many items at a time (`per_worker` of a policy): how many a worker holds.

A worker may say how many items of a topic its process holds. For one that does not, this host counts the leases that it
gave to consumers with the worker's name.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import islice

from foqs.engine.item_ops import stands
from foqs.engine.pending import Limit
from foqs.engine.shard import Shard
from foqs.fairness.keys import TopicKey
from foqs.ids import shard_of
from foqs.item import Item

_SWEPT = 100
"""Workers that are looked at each second for whether they hold anything."""


class Holdings:
    """Of one host. `shards`: those that it has."""

    def __init__(self, shards: Mapping[int, Shard]) -> None:
        self._shards = shards
        self._held: dict[tuple[TopicKey, str], dict[int, int]] = {}  # the lease of each item

    def room(self, key: TopicKey, limit: Limit, worker: str) -> int:
        """Return how many more items of the topic the worker may get. One without a name holds nothing."""
        held = limit.holding or 0
        if limit.holding is None and worker:
            held = self._count(key, worker, limit.most)
        return max(0, limit.most - held)

    def add(self, key: TopicKey, worker: str, item: Item) -> None:
        """The worker is given an item of the topic."""
        if worker:
            self._held.setdefault((key, worker), {})[item.id] = item.lease

    def sweep(self) -> None:
        """Forget some workers that hold nothing."""
        for key, worker in list(islice(self._held, _SWEPT)):
            items = self._held.pop((key, worker))
            self._held[key, worker] = items  # at the end
            self._count(key, worker, _SWEPT)

    def _count(self, key: TopicKey, worker: str, most: int) -> int:
        """Count up to `most` items, and forget those that the worker holds no more."""
        items = self._held.get((key, worker))
        if items is None:
            return 0
        held = 0
        for item_id, lease in list(items.items()):
            if held == most:
                break
            shard = self._shards.get(shard_of(item_id))
            item = None if shard is None else shard.known.get(item_id)
            if item is None or not stands(item, lease):  # an item that left memory, as that was short, counts no more
                del items[item_id]
            else:
                held += 1
        if not items:
            del self._held[key, worker]
        return held
