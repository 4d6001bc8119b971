"""Unexpected errors during a shard's transaction: no other shard stores its items a second time."""

from __future__ import annotations

import random

import pytest

from foqs.bounds import Budget
from foqs.buffers.shard_batch import BatchResult, Outcome, ShardBatch
from foqs.config.load import Config
from foqs.config.schema import ShardSection
from foqs.engine.calls import EnqueueCall
from foqs.engine.engine import Engine
from foqs.engine.shard import Shard
from foqs.engine.state import State
from foqs.errors import FoqsError, OutcomeUnknown
from foqs.opened import Opened
from foqs.rows import Batch, Holding, NewItem
from foqs.server.shard_thread import run
from foqs.shardmgr.lifecycle import ShardState
from foqs.store.protocol import Fenced, RowRejected, ShardStore


def new_item(item_id: int = 0) -> NewItem:
    item = NewItem(b"x", None, None, 0, 1, 0, 1, 0, 0, 1)
    item.id = item_id
    return item


class LosesItsShard(ShardStore):
    """Refuses the whole batch for one row, takes the first half of it, and then the shard is another owner's."""

    def __init__(self) -> None:
        self._answers: list[Exception | None] = [RowRejected("a row is refused"), None, Fenced("another owner")]

    def commit(self, batch: Batch) -> None:
        answer = self._answers.pop(0)
        if answer is not None:
            raise answer


def test_a_shard_lost_while_bisecting_keeps_committed_items() -> None:
    batch = Batch(inserts=[new_item(n) for n in (1, 2, 3, 4)])
    result = run(LosesItsShard(), ShardBatch(transaction=batch))
    assert (result.committed, result.failed) == ({1, 2}, {3, 4})
    assert result.down and not result.fenced, "the outcomes are applied first; the reconnect then finds it fenced"


class Refuses(ShardStore):
    """Each transaction with one of these items."""

    def __init__(self, *items: int) -> None:
        self._items = set(items)

    def commit(self, batch: Batch) -> None:
        if self._items.intersection(batch.ids()):
            raise RowRejected("a row is refused")


@pytest.mark.parametrize(("refused", "saved"), [((), True), ((1,), True), ((1, 2), False), ((1, 2, 3), False)])
def test_what_stands_beside_the_items_is_saved_with_one_of_them(refused: tuple[int, ...], saved: bool) -> None:
    items = [new_item(n) for n in ((1, 2) if len(refused) < 3 else (1,))]
    result = run(Refuses(*refused), ShardBatch(transaction=Batch(inserts=items, slots=Holding(1, b"x"))))
    assert result.outcome is Outcome.COMMITTED
    assert result.saved is saved


def test_a_fault_of_the_worker_leaves_an_enqueue_unknown() -> None:
    """The worker's `crashed` says fenced and unknown: the transaction may have been committed."""
    config = Config(shards=(ShardSection(id=1, url="sqlite:///1"), ShardSection(id=2, url="sqlite:///2")))
    sent: list[tuple[Shard, ShardBatch]] = []
    host = Engine(State(config, Budget(1 << 27), random.Random(1)), lambda shard, batch: sent.append((shard, batch)))
    for shard in host.state.shards.values():
        shard.owner.to(ShardState.OPENING)
        host.opened(shard, Opened(1, 1, 0, 0, [], [], {}, 0, [], replaced=False), 1 << 20, 0, 0)
    host.pump(0)
    for shard, batch in sent:
        host.finished(shard, batch, BatchResult(), 0)
    told: list[int | FoqsError] = []
    call = EnqueueCall(1, told.extend)
    sent.clear()
    host.enqueue(call, [0], [new_item()], [("ns", "topic")], [1], 1, 1_000)
    host.pump(1)
    ((shard, batch),) = [(shard, batch) for shard, batch in sent if batch.chunks]
    host.finished(shard, batch, BatchResult(Outcome.UNKNOWN, fenced=True, error="internal error"), 2)
    host.pump(2)
    assert [type(outcome) for outcome in told] == [OutcomeUnknown]
    assert not any(other.queue.chunks for other in host.state.serving)


def test_a_slow_opening_needs_a_confirmation() -> None:
    """The epoch was taken at its beginning; while the backlog was counted another owner may have come."""
    config = Config(shards=(ShardSection(id=1, url="sqlite:///1"),))
    host = Engine(State(config, Budget(1 << 27), random.Random(1)), lambda shard, batch: None)
    (shard,) = host.state.shards.values()
    shard.owner.to(ShardState.OPENING)
    opened = Opened(1, 1, 0, 0, [], [], {}, 0, [], replaced=False)
    host.opened(shard, opened, 1 << 20, begun_ms=5_000, now_ms=5_001 + config.host.confirm_ms)
    assert not shard.may_lease(5_001 + config.host.confirm_ms)
    assert shard.owner.confirm_wanted
