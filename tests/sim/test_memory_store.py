"""The memory store keeps to the contract of the SQL stores, and its database finds what no owner may do."""

from collections.abc import Callable

import pytest

from foqs.rows import Batch, FailureRow, LaneRow, NewItem, ReadyRow, TimerRow
from foqs.store.protocol import ShardStore
from tests.sim.faults import Faults
from tests.sim.memory_database import POISON, DatabaseRuleBroken, MemoryDatabase
from tests.sim.memory_store import MemoryStore
from tests.store.contract import StoreContract, ready_row
from tests.store.shards import NOW_MS, Moment, new_item


class OneFault(Faults):
    def __init__(self) -> None:
        self.next = ""
        self.full = False

    def lacks_room_for_tail(self) -> bool:
        return self.full

    def committing(self) -> str:
        fault, self.next = self.next, ""
        return fault


class MemoryShard:
    """A shard under the contract's test."""

    def __init__(self, *, strict: bool = False) -> None:
        self.db = MemoryDatabase(lambda: NOW_MS, strict=strict)
        self._faults = OneFault()

    def store(self) -> MemoryStore:
        return MemoryStore(self.db, self._faults)

    def cut(self, store: ShardStore) -> None:
        assert isinstance(store, MemoryStore)
        store.cut()

    def lose_next(self, store: ShardStore, moment: Moment) -> None:
        self._faults.next = {
            Moment.BEFORE_COMMIT: "down",
            Moment.COMMIT_LOST: "not applied",
            Moment.REPLY_LOST: "applied",
            Moment.PACKET_LOST: "not applied",
            Moment.PACKET_REPLY_LOST: "applied",
        }[moment]

    def refused(self, stored: NewItem) -> NewItem:
        return new_item(99, payload=POISON)

    def check_closed(self) -> None:
        assert (self.db.indexed_to, self.db.unindexed) == (0, {})

    def fill(self) -> None:
        self._faults.full = True

    def free(self) -> None:
        self._faults.full = False

    def close(self) -> None:
        return


@pytest.fixture
def shard() -> MemoryShard:
    return MemoryShard()


class TestMemoryStore(StoreContract):
    pass


LANE = LaneRow(1, b"ns", b"topic", b"")
ONE = new_item(1)
DELAYED = new_item(2, due_ms=NOW_MS + 5)
WRONG: dict[str, Callable[[], Batch]] = {
    "an id twice": lambda: Batch(inserts=[ONE]),
    "a ready row that is not there": lambda: Batch(ready_gone=[(1, 0, NOW_MS, DELAYED.id)]),
    "a timer row that is not there": lambda: Batch(timer_gone=[ONE.id]),
    "an item without a row": lambda: Batch(ready_gone=[(1, 0, NOW_MS, ONE.id)]),
    "an item in both tables": lambda: Batch(timer_new=[TimerRow(NOW_MS, ONE.id, 1, 7, 1, 100, 7)]),
    "a row of another priority": lambda: Batch(
        timer_gone=[DELAYED.id], ready_new=[ReadyRow(1, 5, NOW_MS + 5, DELAYED.id, 0, 0, 7)]
    ),
    "a row without an item": lambda: Batch(ready_new=[ready_row(new_item(9))]),
    "a lane with items": lambda: Batch(lanes_gone=[1]),
    "a failure of another lane": lambda: Batch(failure_new=[FailureRow(2, 0, ONE.id, 1, 1, 1, b"t", b"", b"")]),
    "a failure without an item": lambda: Batch(failure_new=[FailureRow(1, 0, 9, 1, 1, 1, b"t", b"", b"")]),
    "a move to a lane that is not there": lambda: Batch(
        ready_gone=[(1, 0, NOW_MS, ONE.id)],
        moved=[(ONE.id, 2, NOW_MS, 0)],
        ready_new=[ReadyRow(2, 0, NOW_MS, ONE.id, 0, 0, 7)],
    ),
    "a checkpoint that passes a row": lambda: Batch(due_from_ms=NOW_MS + 6),
}


@pytest.mark.parametrize("what", WRONG)
def test_the_database_finds_what_no_owner_may_do(what: str) -> None:
    store = MemoryShard(strict=True).store()
    store.open("owner", take_over=False)
    store.commit(Batch(lanes_new=[LANE], inserts=[ONE, DELAYED]))
    with pytest.raises(DatabaseRuleBroken):
        store.commit(WRONG[what]())
