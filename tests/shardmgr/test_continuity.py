"""Whether records follow from the known ones, and which ones a host writes back."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from foqs.ids import HASH_SLOTS
from foqs.shardmgr.continuity import Finding, WriteBack, judge, write_back
from foqs.shardmgr.facts import Assignment, Facts, Identity, ShardFact, ShardUse, Slots, Writes, Written

FIRST = Written(5, 5, 0, 1_000)
LATER = Written(5, 9, 1, 2_000)
DISABLED = ShardUse.DISABLED


def facts(shards: dict[int, Written] | None = None, **more: Any) -> Facts:
    shards = {1: FIRST, 2: FIRST} if shards is None else shards
    writes = Writes(shards, more.pop("assignment", FIRST), more.pop("slots", FIRST), more.pop("identity", FIRST))
    known = {"version": 0, "id": "x", "events": more.pop("events", ()), "open": more.pop("open", False)}
    made = Facts(
        shards={n: ShardFact(n, f"url-{n}") for n in shards},
        assignment=Assignment(-1 if writes.assignment is None else 0, {} if writes.assignment is None else {1: "a"}),
        slots=Slots(0, (1,) * HASH_SLOTS, {}, 7) if writes.slots is not None else Slots(),
        identity=Identity(**known) if writes.identity is not None else Identity(),
        writes=writes,
    )
    return replace(made, **more)


KNOWN = facts()
EMPTY = Facts()


@pytest.mark.parametrize(
    ("found", "finding"),
    [
        (KNOWN, Finding.SAME),
        (facts({1: LATER, 2: FIRST}), Finding.SAME),
        (facts({1: FIRST}), Finding.SAME),  # an operator removed a shard
        (facts({1: FIRST, 2: Written(6, 6, 0, 900)}), Finding.SAME),  # and added it again
        (EMPTY, Finding.LOST),
        (facts(identity=None), Finding.RESTORED),  # a copy from before the identity
        (facts(assignment=None), Finding.RESTORED),
        (facts(slots=None), Finding.RESTORED),
        (facts({1: Written(5, 8, 0, 2_000), 2: FIRST}), Finding.RESTORED),  # changed after it was put back
        (facts({1: Written(4, 4, 0, 900), 2: FIRST}), Finding.RESTORED),
        (facts(identity=Written(4, 4, 0, 900)), Finding.RESTORED),
        (facts(open=True, events=("lost-1",), identity=LATER), Finding.MERGE),
        (facts(events=("lost-1",), identity=LATER), Finding.MERGE),
    ],
)
def test_a_loss_differs_from_changes(found: Facts, finding: Finding) -> None:
    assert judge(KNOWN, found) is finding


def test_an_event_that_is_missing_is_an_older_copy() -> None:
    """Also when the copy has later transactions than were made after the event."""
    known = facts(events=("lost-2", "lost-1"))
    above = Written(50, 50, 0, 900)
    older = facts({1: above, 2: above}, assignment=above, slots=above, identity=above)
    assert judge(known, older) is Finding.RESTORED
    assert judge(known, replace(older, identity=Identity(0, "x", ("lost-1",)))) is Finding.RESTORED
    assert judge(known, replace(older, identity=Identity(0, "x", ("lost-3", "lost-2")))) is Finding.MERGE


def test_another_identity_is_another_cluster() -> None:
    assert judge(KNOWN, facts(identity=FIRST) and replace(KNOWN, identity=Identity(0, "y"))) is Finding.FOREIGN
    assert judge(replace(KNOWN, identity=Identity()), KNOWN) is Finding.SAME, "the first host has written it"
    assert judge(EMPTY, KNOWN) is Finding.SAME, "a host that has just started"


def lost(**more: Any) -> Facts:
    return replace(EMPTY, identity=Identity(0, "x", ("lost-1",), open=True), **more)


def test_all_is_written_back_to_an_empty_store() -> None:
    known = replace(KNOWN, drained=frozenset({"b"}))
    made = write_back(known, {}, lost())
    assert made.slots == replace(known.slots, version=-1)
    assert made.assignment == ({1: "a"}, -1)
    assert made.shards == tuple((replace(fact, as_of_ms=1_000), -1) for fact in known.shards.values())
    assert [fact.as_of_ms for fact, _ in made.shards] == [1_000, 1_000]
    assert made.drained == {"b"}


def test_nothing_is_written_twice() -> None:
    assert not write_back(KNOWN, {}, replace(KNOWN, identity=lost().identity))
    assert write_back(KNOWN, {}, KNOWN) == WriteBack()


def test_the_later_knowledge_of_a_shard_counts() -> None:
    mine = replace(KNOWN, shards={1: ShardFact(1, "new")}, writes=Writes({1: LATER}))
    written_back = ShardFact(1, "old", as_of_ms=1_000)
    there = lost(shards={1: written_back}, writes=Writes({1: Written(2, 2, 3, 9_000)}))
    ((fact, version),) = write_back(mine, {}, there).shards
    assert (fact.url, fact.as_of_ms, version) == ("new", 2_000, 3)
    earlier = replace(mine, writes=Writes({1: FIRST}))
    assert write_back(earlier, {}, there).shards == ()


def test_an_operator_s_change_after_the_loss_counts() -> None:
    there = lost(shards={1: ShardFact(1, "operator's")}, writes=Writes({1: Written(2, 2, 0, 9_000)}))
    assert [fact.id for fact, _ in write_back(KNOWN, {}, there).shards] == [2]


def test_a_missing_shard_is_added_during_the_event_only() -> None:
    closed = replace(lost(), identity=Identity(1, "x", ("lost-1",)))
    assert write_back(KNOWN, {}, closed).shards == ()
    assert not write_back(replace(KNOWN, drained=frozenset({"b"})), {}, closed).drained


def test_a_removed_shard_that_is_back_is_disabled() -> None:
    older = replace(KNOWN, identity=lost().identity)
    known = facts({1: FIRST})
    made = write_back(known, {2: 1_000}, older)
    ((fact, version),) = made.shards
    assert (fact.id, fact.use, fact.as_of_ms, version, made.disabled) == (2, DISABLED, 1_001, 0, {2})
    disabled = replace(older, shards={**older.shards, 2: fact})
    assert write_back(disabled, {}, older).shards == ((fact, 0),), "the same copy is put back again"
    put_again = replace(older, writes=replace(older.writes, shards={1: FIRST, 2: LATER}))
    assert write_back(known, {2: 1_000}, put_again).shards == ()


def test_older_slots_and_assignments_are_replaced() -> None:
    known = facts(assignment=LATER, slots=LATER)
    before = Written(5, 5, 4, 1_000)
    older = facts(assignment=before, slots=before)
    older = replace(older, assignment=Assignment(4, {1: "b"}), slots=Slots(4, (2,) * HASH_SLOTS, {}, 6))
    made = write_back(known, {}, older)
    assert (made.slots, made.assignment) == (replace(known.slots, version=4), ({1: "a"}, 4))
    newer = replace(older, slots=Slots(4, (2,) * HASH_SLOTS, {}, 8), writes=replace(older.writes, assignment=LATER))
    assert not write_back(known, {}, newer)
