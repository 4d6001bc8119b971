from collections import Counter
from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from foqs.ids import DIGEST_BYTES, HASH_SLOTS, digest_of, hash_slot_bounds, hash_slot_of, next_digest
from foqs.shardmgr.facts import Facts, ShardFact, ShardUse, SlotMove, Slots
from foqs.shardmgr.routing import (
    MOVES_AT_ONCE,
    arrived,
    bits_of,
    by_shard,
    claimed,
    has,
    lacking,
    missing,
    planned,
    shared_out,
    slots_in,
    slots_of,
    together,
    without,
)

SHARDS = st.sets(st.integers(1, 50), min_size=1, max_size=12)


@given(SHARDS)
def test_slots_are_shared_out_evenly_at_first(shards: set[int]) -> None:
    counts = Counter(shared_out((), shards))
    assert set(counts) == shards
    assert max(counts.values()) - min(counts.values()) <= 1


@given(SHARDS, SHARDS, st.data())
def test_no_slot_moves_while_its_shard_exists(before: set[int], after: set[int], data: st.DataObject) -> None:
    takers = data.draw(st.sets(st.sampled_from(sorted(after))))
    slots = shared_out((), before)
    again = shared_out(slots, after, takers)
    for shard, new in zip(slots, again, strict=True):
        assert new == shard if shard in after else new in takers or not takers
    assert shared_out(again, after, takers) == again


@given(st.binary(min_size=HASH_SLOTS, max_size=HASH_SLOTS).map(lambda drawn: [byte & 3 for byte in drawn]))
def test_what_shards_remember_is_what_they_were_given(slots: list[int]) -> None:
    held = {shard: bits_of(at for at, one in enumerate(slots) if one == shard) for shard in (1, 2, 3)}
    assert list(slots_of(held)) == slots
    assert {n: bits for n, bits in by_shard(tuple(slots)).items() if n} == {n: held[n] for n in set(slots) - {0}}
    given_ = missing(held)
    assert sorted(at for part in given_.values() for at in part) == [at for at, one in enumerate(slots) if not one]
    for shard, part in given_.items():
        held[shard] = bits_of(part, held[shard])
    assert 0 not in slots_of(held)
    assert missing(held) == {}


def test_a_shard_that_never_had_a_slot() -> None:
    assert slots_of({1: b"", 2: bits_of([7])}) == tuple(2 if slot == 7 else 0 for slot in range(HASH_SLOTS))
    assert missing({}) == {}


def test_keys_fall_into_all_slots() -> None:
    assert {hash_slot_of(digest_of("ns", str(n))) for n in range(20_000)} == set(range(HASH_SLOTS))


def test_a_key_is_its_namespaces() -> None:
    assert digest_of("a", "b") != digest_of("ab", "") != digest_of("", "ab")


@given(st.integers(0, HASH_SLOTS - 1))
def test_a_slot_has_the_digests_within_its_bounds(slot: int) -> None:
    low, high = hash_slot_bounds(slot)
    assert hash_slot_of(low) == hash_slot_of(high) == slot
    assert len(low) == len(high) == DIGEST_BYTES
    if slot + 1 < HASH_SLOTS:
        assert next_digest(high) == hash_slot_bounds(slot + 1)[0]


@given(st.sets(st.integers(0, HASH_SLOTS - 1)), st.integers(0, HASH_SLOTS - 1))
def test_a_slot_is_taken_out(slots: set[int], slot: int) -> None:
    bits = without(slot, bits_of(slots))
    assert {each for each in range(HASH_SLOTS) if has(bits, each)} == slots - {slot}


_SOME = st.sets(st.integers(0, HASH_SLOTS - 1)) | st.just(set(range(HASH_SLOTS)))


@given(_SOME, _SOME, _SOME)
def test_slots_as_sets(some: set[int], others: set[int], more: set[int]) -> None:
    bits, *rest = (bits_of(each) if each else b"" for each in (some, others, more))
    left = some - others - more
    assert lacking(bits, *rest) == (bits_of(left) if left else b"")
    assert together(bits, rest[0]) == bits_of(some | others)
    assert list(slots_in(bits)) == sorted(some) == [slot for slot in range(HASH_SLOTS) if has(bits, slot)]


USES = st.dictionaries(st.integers(1, 12), st.sampled_from(ShardUse), max_size=8)


def cluster(uses: dict[int, ShardUse], slots: Slots) -> Facts:
    return Facts(shards={number: ShardFact(number, "", use=use) for number, use in uses.items()}, slots=slots)


def settled(uses: dict[int, ShardUse], slots: Slots) -> tuple[Slots, int]:
    """The record when nothing needs a change any more, and the number of slots that moved."""
    count = 0
    for now_ms in range(10_000):
        wanted = planned(cluster(uses, slots), now_ms)
        assert len(wanted.moves) <= MOVES_AT_ONCE
        assert all(move.to != wanted.shards[slot] for slot, move in wanted.moves.items())
        if wanted == slots and not slots.moves:
            return slots, count
        assert wanted == slots or wanted.stamp > slots.stamp
        # Those whose source or target is disabled wait for it.
        served = {
            slot: move
            for slot, move in wanted.moves.items()
            if ShardUse.DISABLED not in (uses.get(wanted.shards[slot]), uses.get(move.to))
        }
        count += len(served)
        if not served and wanted == slots:
            return slots, count
        slots = arrived(wanted, served, now_ms)
    raise AssertionError("it goes on for ever")


@given(USES, st.lists(USES, min_size=1, max_size=4))
def test_slots_follow_the_shards(first: dict[int, ShardUse], later: list[dict[int, ShardUse]]) -> None:
    slots, _ = settled(first, Slots())
    for uses in later:
        slots, _ = settled(uses, slots)
        enabled = {number for number, use in uses.items() if use is ShardUse.ENABLED}
        if not enabled:
            continue
        disabled = {number for number, use in uses.items() if use is ShardUse.DISABLED}
        counts = Counter(slots.shards)
        assert set(counts) <= enabled | disabled, "a shard that drains is left with no slot"
        of_enabled = [counts[number] for number in enabled]
        mean = sum(of_enabled) / len(of_enabled)
        assert max(of_enabled) - min(of_enabled) <= max(1, mean / 10)


@given(st.integers(1, 12))
def test_one_more_shard_takes_its_part_and_no_other_slot_moves(count: int) -> None:
    before = dict.fromkeys(range(1, count + 1), ShardUse.ENABLED)
    slots, moved = settled(before, Slots())
    assert moved == 0, "at first there is nothing to copy"
    after, moved = settled({**before, 99: ShardUse.ENABLED}, slots)
    assert moved == sum(a != b for a, b in zip(slots.shards, after.shards, strict=True)) == after.shards.count(99)
    assert moved <= HASH_SLOTS / (count + 1) + 1
    assert settled({**before, 99: ShardUse.ENABLED}, after) == (after, 0)


def test_a_move_to_a_shard_that_is_not_to_have_it_is_called_off() -> None:
    uses = {1: ShardUse.DRAINING, 2: ShardUse.ENABLED, 3: ShardUse.DRAINING}
    slots = Slots(0, (1,) * HASH_SLOTS, {5: SlotMove(3, 7), 6: SlotMove(2, 7), 8: SlotMove(4, 7)}, 7)
    wanted = planned(cluster(uses, slots), 0)
    assert wanted.moves[6] == SlotMove(2, 7)
    assert all(move == SlotMove(2, 8) for slot, move in wanted.moves.items() if slot != 6)
    assert arrived(wanted, slots.moves, 0).shards.count(2) == 1, "what arrived by the old record counts no more"


def test_slots_of_a_shard_that_is_gone_go_where_their_rows_are() -> None:
    uses = {1: ShardUse.ENABLED, 2: ShardUse.ENABLED}
    slots = Slots(0, (3,) * HASH_SLOTS, {5: SlotMove(2, 7), 6: SlotMove(1, 7)}, 7)
    wanted = planned(cluster(uses, slots), 0)
    assert (wanted.shards[5], wanted.shards[6], wanted.moves) == (2, 1, {})
    assert 3 not in wanted.shards


# ------------------------------------------------------------------------------------------ slots from outside


@given(
    st.sets(st.integers(0, HASH_SLOTS - 1)),
    st.sets(st.integers(0, HASH_SLOTS - 1)),
    st.sets(st.integers(0, HASH_SLOTS - 1)),
)
def test_a_shard_that_joins_keeps_slots_that_no_shard_has(first: set[int], second: set[int], gone: set[int]) -> None:
    """Shard 9 was removed from the cluster."""
    shards = tuple(9 if slot in gone else 1 if slot in first else 0 for slot in range(HASH_SLOTS))
    facts = Facts(shards={1: ShardFact(1, "u")}, slots=Slots(4, shards, {}, 50))
    made = claimed(facts, 2, 70, bits_of(second), 60)
    for slot, shard in enumerate(made.shards):
        assert shard == (2 if slot in second and shards[slot] != 1 else shards[slot])
    changed = made.shards != shards
    assert (made.version, made.stamp) == (4, 70 if changed else 50)


def test_the_slots_of_a_lone_host_are_those_of_its_cluster() -> None:
    """The shards are added one after another; the hosts share out the slots that are left."""
    facts = Facts()
    given_out = {1: bits_of(range(100)), 2: bits_of(range(100, 300))}
    for shard, bits in given_out.items():
        facts = replace(facts, slots=claimed(facts, shard, 0, bits, 5))
        facts = replace(facts, shards={**facts.shards, shard: ShardFact(shard, f"u{shard}")})
    slots = planned(facts, 9).shards
    assert set(slots[:100]) == {1}
    assert set(slots[100:300]) == {2}
    assert 0 not in slots
