"""Which slots of deduplication keys the shards of this host have, and since when: a host coordinates the quotas of the
namespaces whose slots it has."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from foqs.dedup import SLOTS
from foqs.engine.engine import Engine
from foqs.shardmgr.lifecycle import ShardState
from foqs.shardmgr.slots import has


class SlotOwner(NamedTuple):
    """The shard that has a slot, and the epoch of the shard's owner."""

    shard: int
    epoch: int


class SlotOwners:
    """One host's. `now_ms` is the host's clock; `monotonic_ms` never goes back."""

    def __init__(self, engine: Engine, now_ms: Callable[[], int], monotonic_ms: Callable[[], int]) -> None:
        self._engine = engine
        self._now_ms = now_ms
        self._monotonic_ms = monotonic_ms
        self._here: dict[int, tuple[SlotOwner, int]] = {}  # by slot, and since when it is here
        self._seen: dict[SlotOwner, bytes] = {}  # the slots of each shard

    def of(self, slot: int) -> tuple[SlotOwner, int]:
        """Return the owner of a slot that is here, and since when (in monotonic ms)."""
        return self._here[slot]

    def observe(self) -> None:
        """Record which slots are here. Must be called at least once in `TTL_MS`: then no other host granted tokens for
        a slot that left this host and returned in between.

        The shard from which a slot arrives may have a new owner, whose predecessor was confirmed lately and does not
        know yet. So such a slot counts only `confirm_ms` later."""
        seen = {
            SlotOwner(shard.number, shard.epoch): shard.keys.held.bits
            for shard in self._engine.serving
            if shard.state is ShardState.SERVING and not shard.in_takeover_grace(self._now_ms())
        }
        if seen == self._seen:
            return
        now_ms = self._monotonic_ms()
        before, self._here = self._here, {}
        for owner, bits in seen.items():
            since_ms = now_ms + (self._engine.config.host.confirm_ms if owner in self._seen else 0)
            for slot in range(SLOTS):
                if has(bits, slot):
                    known = before.get(slot)
                    self._here[slot] = known if known is not None and known[0] == owner else (owner, since_ms)
        self._seen = seen
