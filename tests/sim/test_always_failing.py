"""Work that always fails, max_attempts 5: how often each item is delivered, and where it is then."""

from __future__ import annotations

import json
import random
from collections import Counter

import pytest

from foqs.engine import item_ops
from foqs.ids import shard_of
from foqs.policies.settings import Settings
from tests.engine.laboratory import Laboratory

ITEMS, ATTEMPTS, KILLS = 40, 5, 12
WRITE_MS, LEASE_MS = 200, 1_000
DEAD = ("ns", "topic.dlq")


class Failing(Laboratory):
    """Consumers take ready items until nothing is left; `delivered` counts by item, `died` items in their topic."""

    def __init__(self, *, exact: bool) -> None:
        super().__init__(1, 2)
        rule = {"kind": "constant", "first_ms": 300}
        entry = {"max_attempts": ATTEMPTS, "retry": rule, "exact_attempts": exact}
        self.engine.state.policies.apply(Settings("ns", 1, {"topic.topic": json.dumps(entry)}))
        self.ids = {item_id for _ in range(ITEMS) for item_id in self.stored()}
        self.delivered: Counter[int] = Counter()

    def take(self, begins: int | None = None) -> list[int]:
        answers = self.dequeue(count=7, lease_ms=LEASE_MS, begins=begins)
        self.settle()
        ids = [item_id for answer in answers for item_id in answer]
        self.delivered.update(ids)
        return ids

    def fail(self, item_id: int) -> None:
        self.operate(item_id, item_ops.fail(self.lease_of(item_id), 0, None, "always"))
        self.settle()

    @property
    def dead(self) -> set[int]:
        return {item_id for db in self.dbs.values() for item_id in db.failures}

    def check(self) -> None:
        """Each item is in the dead-letter topic alone, under its id, and can be taken there."""
        assert self.dead == self.ids
        for db in self.dbs.values():
            lanes = {db.lanes[body.lane].topic for body in db.items.values()}
            assert lanes == {b"topic.dlq"}
            assert sorted(db.items) == sorted(db.ready) == sorted(db.failures)
            assert {row.attempts for row in db.failures.values()} == {ATTEMPTS}
        taken: set[int] = set()
        while ids := self.taken(keys=[DEAD], count=ITEMS):
            taken.update(ids)
        assert taken == self.ids


def test_by_nacks() -> None:
    lab = Failing(exact=False)
    while lab.dead != lab.ids:
        for item_id in lab.take():
            lab.fail(item_id)
        lab.go_on(50)
    lab.check()
    assert set(lab.delivered.values()) == {ATTEMPTS}


def test_by_workers_that_are_killed() -> None:
    lab = Failing(exact=False)
    while lab.dead != lab.ids:
        lab.take()
        lab.go_on(50)
    lab.check()
    assert set(lab.delivered.values()) == {ATTEMPTS}


@pytest.mark.parametrize("exact", [False, True])
def test_by_workers_that_are_killed_while_items_wait(exact: bool) -> None:
    """Each worker takes up to 7 items and begins the first one."""
    lab, begun = Failing(exact=exact), Counter[int]()
    while lab.dead != lab.ids:
        begun.update(lab.take(begins=1)[:1])
        lab.go_on(50)
    lab.check()
    assert set(begun.values()) == {ATTEMPTS}
    assert lab.delivered.total() > 2 * begun.total()


@pytest.mark.parametrize("exact", [False, True])
@pytest.mark.parametrize("seed", range(5))
def test_by_owners_that_are_killed(seed: int, exact: bool) -> None:
    """A delivery is not counted where its owner was killed before the lease was written, unless attempts are exact."""
    lab, rng = Failing(exact=exact), random.Random(seed)
    kills = 0
    while lab.dead != lab.ids:
        for item_id in lab.take():
            if rng.random() < 0.2:
                lab.fail(item_id)
        lab.go_on(rng.choice([10, 50, WRITE_MS]))
        if kills < KILLS and rng.random() < 0.3:
            lab.reopen()
            kills += 1
    lab.check()
    assert kills == KILLS
    most = max(lab.delivered.values())
    if exact:
        assert set(lab.delivered.values()) == {ATTEMPTS}
    else:
        assert ATTEMPTS < most <= ATTEMPTS + kills
    assert {shard_of(item_id) for item_id in lab.delivered} == {1, 2}
