"""Questions to a shard's database about its owner: when one is asked, and which answer counts."""

import pytest

from foqs.ids import HASH_SLOTS
from foqs.peers import coordinator
from foqs.peers.coordinator import HashSlotOwners
from foqs.rows import Holding
from foqs.shardmgr.lifecycle import ShardState
from foqs.shardmgr.routing import bits_of
from tests.engine.laboratory import Laboratory
from tests.sim.memory_store import MemoryStore
from tests.support.timers import TestTimers

pytestmark = pytest.mark.memory


class Rig(Laboratory):
    """One shard, which has all slots; `answers` of the questions in order."""

    def __init__(self) -> None:
        super().__init__(1, shards_elsewhere=True)
        self.shard = self.engine.state.shards[1]
        self.shard.queue.keys.wanted = Holding(1, bits_of(range(HASH_SLOTS)))
        self.engine.state.touch(self.shard)
        self.settle()
        self.answers: list[bool | str] = []
        self.owners = HashSlotOwners(self.engine, TestTimers(lambda: self.now_ms), lambda: None)
        self.now_ms += self.shard.config.confirm_ms + 1

    def confirm(self) -> None:
        self.owners.find(0, lambda *_: self.answers.append("then"))

    def check(self) -> None:
        self.owners.check(self.shard, self.answers.append)

    def replace_owner(self) -> None:
        MemoryStore(self.dbs[1]).open("other", take_over=True)


@pytest.fixture
def rig() -> Rig:
    return Rig()


def test_a_shard_that_was_confirmed_lately_is_not_asked(rig: Rig) -> None:
    rig.shard.owner.confirmed_ms = rig.now_ms - rig.shard.config.confirm_ms
    rig.confirm()
    assert rig.answers == ["then"]
    assert rig.send() == []


def test_an_old_confirmation_waits_for_the_next_batch(rig: Rig) -> None:
    rig.confirm()
    assert rig.answers == []
    rig.settle()
    assert rig.answers == ["then"]
    assert rig.shard.owner.confirmed_ms == rig.now_ms


def test_a_confirmation_from_the_future_does_not_count(rig: Rig) -> None:
    """The clock was set back."""
    rig.shard.owner.confirmed_ms = rig.now_ms + 1
    rig.confirm()
    assert rig.answers == []


def test_a_confirmation_is_over_when_the_shard_is_lost(rig: Rig) -> None:
    rig.confirm()
    rig.replace_owner()
    rig.settle()
    assert rig.answers == ["then"]
    assert not rig.shard.owner.confirmed(rig.now_ms)


def test_an_owner_confirmed_lately_is_checked_too(rig: Rig) -> None:
    rig.shard.owner.confirmed_ms = rig.now_ms - 1
    rig.check()
    assert rig.answers == []
    rig.settle()
    assert rig.answers == [True]


def test_a_batch_sent_before_the_question_does_not_count(rig: Rig) -> None:
    """Another owner may have stored more after its answer."""
    rig.enqueue()
    ((shard, batch),) = rig.send()
    rig.now_ms += 5
    rig.check()
    rig.arrive(shard, batch)
    assert rig.answers == []
    rig.replace_owner()
    rig.settle()
    assert rig.answers == [False]


def test_a_batch_that_is_sent_after_the_question_counts(rig: Rig) -> None:
    rig.enqueue()
    ((shard, batch),) = rig.send()
    rig.now_ms += 5
    rig.check()
    rig.arrive(shard, batch)
    rig.settle()
    assert rig.answers == [True]


def test_a_shard_that_is_lost_has_another_owner(rig: Rig) -> None:
    rig.check()
    rig.engine.lose(rig.shard, rig.now_ms)
    assert rig.answers == [False]
    assert rig.shard.owner.state is ShardState.CLOSED


def test_a_shard_that_is_lost_in_flight_is_answered_once(rig: Rig) -> None:
    rig.enqueue()
    rig.send()
    rig.now_ms += 5
    rig.check()
    rig.engine.lose(rig.shard, rig.now_ms)
    assert rig.answers == [False]


def test_questions_that_wait_are_bounded(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(coordinator, "_MOST_CONFIRMING", 2)
    for _ in range(3):
        rig.check()
    assert rig.answers == [False]
    rig.confirm()
    assert rig.answers == [False, "then"]
    rig.settle()
    assert rig.answers == [False, "then", True, True]
