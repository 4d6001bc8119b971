"""Homes of batches whose database is an older copy, or does not answer."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from foqs.buffers.item_batches import BatchLinks, Question, Report
from foqs.buffers.shard_batch import BatchResult, Outcome
from foqs.engine import batch_homes
from foqs.engine.state import Callbacks
from foqs.ids import Mark
from foqs.item_batch import BatchPart, BatchState, Callback, Counts, NewBatch
from foqs.rows import AT_LEAST_ONCE
from foqs.shardmgr.lifecycle import ShardState
from tests.engine.laboratory import Laboratory


class Home:
    """The home of one batch in a cluster of two shards, whose reports the test makes."""

    def __init__(self, on_end: Callback | None = None) -> None:
        self.asked: list[int] = []
        self._serial = 0
        links = BatchLinks(lambda *_: None, self._ask, lambda: frozenset({1, 2}))
        self.lab = Laboratory(1, callbacks=Callbacks(batches=links))
        made: list[Any] = []
        batch_homes.create(self.lab.engine.state, NewBatch("ns", None, on_end, 1 << 50), made.append, self.lab.now_ms)
        self.lab.settle()
        (self.batch,) = made

    def _ask(self, shard: int, questions: list[Question], forgotten: Callable[[list[int]], None]) -> None:
        self.asked.append(shard)

    @property
    def state(self) -> int:
        return self.lab.dbs[1].batches.rows[self.batch].state

    def report(self, shard: int, **counts: int) -> None:
        self._serial += 1
        part = BatchPart(self.batch, shard, 1, self._serial, Counts(**counts))
        outcomes: list[Any] = []
        batch_homes.take(self.lab.engine.state, 1, [Report(part)], outcomes.extend)
        self.lab.settle()
        assert outcomes == [None]

    def close(self) -> None:
        outcomes: list[Any] = []
        batch_homes.change(self.lab.engine.state, "ns", self.batch, BatchState.CLOSED, outcomes.append)
        self.lab.settle()
        assert outcomes == [None]

    def reopen(self, *, older_copy: bool) -> None:
        lab, store = self.lab, self.lab.stores[1]
        shard = lab.engine.state.shards[1]
        lab.engine.drained(shard, lab.now_ms)
        store.close(clean=True)
        shard.owner.to(ShardState.ASSIGNED)
        shard.owner.to(ShardState.OPENING)
        opened = store.open("host", take_over=False)
        if older_copy:
            opened = replace(opened, behind=Mark(9, 1 << 20, 2 << 20))
        lab.engine.opened(shard, opened, store.max_batch_bytes, lab.now_ms, lab.now_ms)
        lab.settle()


@pytest.mark.parametrize("older_copy", [False, True])
def test_an_older_copy_hears_all_shards_before_a_batch_ends(older_copy: bool) -> None:
    home = Home()
    home.report(2, members=1, completed=1)
    home.reopen(older_copy=older_copy)
    home.close()
    if not older_copy:
        assert home.state == BatchState.SUCCEEDED
        return
    assert home.state == BatchState.CLOSED
    home.lab.go_on(10_000)
    assert set(home.asked) == {1, 2}
    home.report(2, members=2, completed=1)
    home.report(1)
    assert home.state == BatchState.CLOSED, "a member that joined since the copy lives"
    home.report(2, members=2, completed=2)
    assert home.state == BatchState.SUCCEEDED


def test_a_shard_without_members_is_heard_too() -> None:
    home = Home()
    home.reopen(older_copy=True)
    home.close()
    home.report(1)
    assert home.state == BatchState.CLOSED
    home.report(2)
    assert home.state == BatchState.SUCCEEDED


@pytest.mark.parametrize("outcome", [Outcome.COMMITTED, Outcome.FAILED])
def test_the_end_of_a_batch_hangs(outcome: Outcome) -> None:
    """Its outcome counts, however late it comes."""
    home = Home(Callback("done", b"x", None, {}, 0, 0, 0, 0, AT_LEAST_ONCE, "", (), "", 0))
    home.report(2, members=1, completed=1)
    lab = home.lab
    batch_homes.change(lab.engine.state, "ns", home.batch, BatchState.CLOSED, lambda _: None)
    while not ((sent := lab.send()) and sent[0][1].chunks):
        for shard, batch in sent:
            lab.arrive(shard, batch)
    ((shard, batch),) = sent
    for _ in range(4):
        lab.ring(shard.owner.hang_ms)
    assert batch.doubted
    if outcome is Outcome.COMMITTED:
        lab.arrive(shard, batch)
    else:
        lab.arrive(shard, batch, BatchResult(outcome, down=True, error="it went away"))
    lab.go_on(60_000)
    assert home.state == BatchState.SUCCEEDED
    assert not shard.queue.homes.live
    assert [item.payload for item in lab.dbs[1].items.values()] == [b"x"]
