"""Which shard has the slots of deduplication keys (see `foqs.dedup`), and which is to have them."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace

from foqs.dedup import SLOTS
from foqs.shardmgr.facts import Facts, ShardUse, SlotMove, Slots

MOVES_AT_ONCE = 32
"""Slots under way in a cluster: while one is, its keys wait."""
_UNEVEN = 0.1
"""Slots move to even things out when a shard has more than another by this part of the mean, and by more than one."""


def bits_of(slots: Iterable[int], also: bytes = b"") -> bytes:
    """A bit each, with those that are set in `also`."""
    made = bytearray(also.ljust(SLOTS // 8, b"\0"))
    for slot in slots:
        made[slot >> 3] |= 1 << (slot & 7)
    return bytes(made)


def without(slot: int, bits: bytes) -> bytes:
    made = bytearray(bits.ljust(SLOTS // 8, b"\0"))
    made[slot >> 3] &= ~(1 << (slot & 7))
    return bytes(made)


def has(bits: bytes, slot: int) -> bool:
    return slot >> 3 < len(bits) and bool(bits[slot >> 3] >> (slot & 7) & 1)


def slots_of(shards: Mapping[int, bytes]) -> tuple[int, ...]:
    """The shard of each slot, 0 where none has it. Of two that have the same, the one with the lower number counts."""
    found = [0] * SLOTS
    for shard, bits in sorted(shards.items(), reverse=True):
        if bits:
            for slot in range(SLOTS):
                if has(bits, slot):
                    found[slot] = shard
    return tuple(found)


def missing(shards: Mapping[int, bytes]) -> dict[int, list[int]]:
    """The slots that no shard has, by the shard that is to have them."""
    before = slots_of(shards)
    after = shared_out(before, shards.keys())
    given: dict[int, list[int]] = {}
    for slot, shard in enumerate(after):
        if not before[slot] and shard:
            given.setdefault(shard, []).append(slot)
    return given


def shared_out(
    slots: Sequence[int], shards: Collection[int], may_take: Collection[int] | None = None
) -> tuple[int, ...]:
    """`slots` with each that none of `shards` has given to the one of `may_take` that has fewest; no other one moves,
    for its keys would be forgotten. All of `shards` may take slots, unless it is said which."""
    takers = sorted(shards if may_take is None else set(shards).intersection(may_take))
    made = [shard if shard in shards else 0 for shard in slots] or [0] * SLOTS
    if not takers:
        return tuple(made)
    counts = {shard: made.count(shard) for shard in takers}
    for slot, shard in enumerate(made):
        if not shard:
            least = min(takers, key=counts.__getitem__)
            made[slot] = least
            counts[least] += 1
    return tuple(made)


def planned(facts: Facts, now_ms: int) -> Slots:
    """The record as it should be; the one there is when nothing is to be changed. A slot that no shard has is given to
    one that takes items. One of a shard that is draining moves, and so do some of the fullest to the emptiest; its rows
    move along. A move to a shard that takes no items any more is called off."""
    slots, there = facts.slots, facts.shards
    taking = {shard for shard, fact in there.items() if fact.use is ShardUse.ENABLED}
    moves = {slot: move for slot, move in slots.moves.items() if move.to in taking}
    shards = [
        moves.pop(slot).to if shard not in there and slot in moves else shard for slot, shard in enumerate(slots.shards)
    ]
    shared = shared_out(shards, there.keys(), taking)
    stamp = max(slots.stamp + 1, now_ms)
    emptying = {shard for shard, fact in there.items() if fact.use is ShardUse.DRAINING}
    for slot, to in _to_move(shared, moves, taking, emptying):
        moves[slot] = SlotMove(to, stamp)
    if (shared == slots.shards and moves == slots.moves) or not any(shared):
        return slots
    return replace(slots, shards=shared, moves=moves, stamp=stamp)


def _to_move(
    shards: Sequence[int], moves: Mapping[int, SlotMove], taking: Collection[int], emptying: Collection[int]
) -> Iterable[tuple[int, int]]:
    """Slots that are to begin to move, and where to."""
    staying: dict[int, list[int]] = {shard: [] for shard in (*taking, *emptying)}
    for slot, shard in enumerate(shards):
        if slot not in moves and shard in staying:
            staying[shard].append(slot)
    counts = {shard: len(staying[shard]) for shard in sorted(taking)}
    for move in moves.values():
        counts[move.to] += 1
    if not counts:
        return
    uneven = max(1.0, sum(counts.values()) / len(counts) * _UNEVEN)
    for _ in range(len(moves), MOVES_AT_ONCE):
        to = min(counts, key=counts.__getitem__)
        source = next((shard for shard in sorted(emptying) if staying[shard]), None)
        if source is None:
            source = max(counts, key=counts.__getitem__)
            if counts[source] - counts[to] <= uneven or not staying[source]:
                return
            counts[source] -= 1
        counts[to] += 1
        yield staying[source].pop(), to


def arrived(slots: Slots, moved: Mapping[int, SlotMove], now_ms: int) -> Slots:
    """The record when the rows of `moved` are where they were to go; what is not to move so any more stays."""
    done = {slot: move for slot, move in moved.items() if slots.moves.get(slot) == move}
    if not done:
        return slots
    shards = tuple(done[slot].to if slot in done else shard for slot, shard in enumerate(slots.shards))
    moves = {slot: move for slot, move in slots.moves.items() if slot not in done}
    return replace(slots, shards=shards, moves=moves, stamp=max(slots.stamp + 1, now_ms))
