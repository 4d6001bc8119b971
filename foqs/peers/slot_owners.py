"""Which slots of deduplication keys the shards of this host have, and since when: a host coordinates the quotas of the
namespaces whose slots it has."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

from foqs.engine.engine import Engine
from foqs.engine.shard import Shard
from foqs.limits.bucket import TTL_MS
from foqs.shardmgr.lifecycle import ShardState
from foqs.shardmgr.routing import slots_in

_MOST_CONFIRMING = 1_000


class SlotOwner(NamedTuple):
    """The shard that has a slot, and the epoch of the shard's owner."""

    shard: int
    epoch: int


Found = Callable[[SlotOwner | None, int], None]
"""(owner, the monotonic ms until which another owner's tokens may be spent), or (None, 0): the slot is not here."""


def ask_owners(
    find: Callable[[int, Found], None], slots: Sequence[int], lend: Callable[[int, SlotOwner, int], None],
    done: Callable[[], None],
) -> None:  # fmt: skip
    """Call `lend(at, owner, until)` for each place in `slots` whose slot `find` finds here, and `done` at the end."""
    by_slot: dict[int, list[int]] = {}
    for at, slot in enumerate(slots):
        by_slot.setdefault(slot, []).append(at)
    left = len(by_slot)

    def found(places: list[int], owner: SlotOwner | None, until_ms: int) -> None:
        nonlocal left
        left -= 1
        if owner is not None:
            for at in places:
                lend(at, owner, until_ms)
        if not left:
            done()

    if not by_slot:
        done()
    for slot, places in by_slot.items():
        find(slot, partial(found, places))


class SlotOwners:
    """One host's. `now_ms` is the host's clock; `monotonic_ms` never goes back. `slot_missing` is called when a slot is
    not here and the record may say that it should be."""

    def __init__(
        self,
        engine: Engine,
        now_ms: Callable[[], int],
        monotonic_ms: Callable[[], int],
        slot_missing: Callable[[], None],
    ) -> None:
        self._engine = engine
        self._now_ms = now_ms
        self._monotonic_ms = monotonic_ms
        self._slot_missing = slot_missing
        self._here: dict[int, tuple[SlotOwner, int]] = {}  # by slot, and since when (monotonic ms) it is here
        self._seen: dict[SlotOwner, bytes] = {}  # the slots of each shard

    def find(self, slot: int, found: Found) -> None:
        """Call `found` at once if the shard's database confirmed within `confirm_ms` that this host owns the shard, or
        else after the shard's next batch."""
        shard = self._shard_of(slot)
        if shard is None:
            self._slot_missing()
            found(None, 0)
        elif shard.confirmed(self._now_ms()) or len(shard.confirming) >= _MOST_CONFIRMING:
            self._confirmed(slot, found)
        else:
            self._after_batch(shard, partial(self._confirmed, slot, found))

    def _confirmed(self, slot: int, found: Found) -> None:
        shard, now_ms = self._shard_of(slot), self._now_ms()
        if shard is None or shard.in_takeover_grace(now_ms) or not shard.confirmed(now_ms):
            found(None, 0)
            return
        self.observe()
        owner, since_ms = self._here[slot]
        found(owner, since_ms + TTL_MS)

    def check(self, shard: Shard, then: Callable[[bool], None]) -> None:
        """Call `then` with whether the shard's database says that this host owns it. The database is asked after this
        call: after an earlier answer another owner may have stored more."""
        if len(shard.confirming) >= _MOST_CONFIRMING:
            then(False)
            return
        asked_ms, before = self._now_ms(), shard.in_flight

        def confirmed() -> None:
            nonlocal before
            if before is not None and shard.state is not ShardState.CLOSED:
                before = None
                self._after_batch(shard, confirmed)
            else:
                then(shard.confirmed_ms >= asked_ms)

        self._after_batch(shard, confirmed)

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
            for slot in slots_in(bits):
                known = before.get(slot)
                self._here[slot] = known if known is not None and known[0] == owner else (owner, since_ms)
        self._seen = seen

    def _after_batch(self, shard: Shard, then: Callable[[], None]) -> None:
        """Call `then` after the shard's next batch, which asks for the owner, or when the shard is closed."""
        shard.confirm_wanted = True
        shard.confirming.append(then)
        self._engine.touch(shard)

    def _shard_of(self, slot: int) -> Shard | None:
        for shard in self._engine.serving:
            if shard.state is ShardState.SERVING and shard.keys.takes_slot(slot):
                return shard
        return None
