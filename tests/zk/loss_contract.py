"""What every FactStore does when ZooKeeper loses its data, or gets an older copy: a part of `tests.zk.contract`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import pytest

from foqs.ids import HASH_SLOTS
from foqs.policies.settings import adopt
from foqs.shardmgr.continuity import Finding, judge
from foqs.shardmgr.facts import Facts, Identity, OwnerFact, Session, ShardFact, Slots
from foqs.zk.protocol import ZkConflict
from tests.policies.settings_contract import Keeper
from tests.zk.contract import Client, Rig, host

SHORT_MS = 5_000


class LossRig(Rig, Protocol):
    """A rig whose servers can lose their data: no other test may use them."""

    def lose(self) -> None:
        """Start the servers again without data."""

    def copy(self) -> Callable[[], None]:
        """Return a function that starts the servers again with a copy of the data as it is now."""


class LossContract:
    @pytest.fixture
    def loss_rig(self) -> LossRig:
        raise NotImplementedError

    @pytest.fixture
    def one(self, loss_rig: LossRig) -> Client:
        return Client(loss_rig, SHORT_MS)

    def fill(self, one: Client) -> Facts:
        one.join(host("a"))
        assert one.put(ShardFact(1, "x"), new=True) is None
        assert one.put(ShardFact(2, "y"), new=True) is None
        assert one.assign({1: "a", 2: "a"}, -1) is None
        assert one.did(lambda done: one.store.share_slots(Slots(-1, (1,) * HASH_SLOTS, {}, 5), done)) is None
        assert one.did(lambda done: one.store.identify(Identity(-1, "the-id"), done)) is None
        one.sees(lambda facts: facts.identity.id and facts.assignment.hosts and facts.slots.shards)
        return one.facts

    def again(self, one: Client, what: Callable[[], None]) -> Facts:
        """Return the first facts after `what` happened to the servers."""
        told = len(one.told)
        what()
        one.rig.until(lambda: len(one.told) > told and one.sessions[-1] is Session.CONNECTED)
        return one.told[told]

    def test_the_identity_is_written_by_compare_and_set(self, one: Client) -> None:
        first = Identity(-1, "the-id")
        assert one.did(lambda done: one.store.identify(first, done)) is None
        assert isinstance(one.did(lambda done: one.store.identify(first, done)), ZkConflict)
        opened = Identity(0, "the-id", ("lost-1", "lost-0"), open=True)
        assert one.did(lambda done: one.store.identify(opened, done)) is None
        one.sees(lambda facts: facts.identity == Identity(1, "the-id", ("lost-1", "lost-0"), open=True))

    def test_a_store_gets_a_new_session_of_servers_without_data(self, loss_rig: LossRig, one: Client) -> None:
        before = self.fill(one)
        found = self.again(one, loss_rig.lose)
        assert one.sessions == [Session.CONNECTED, Session.SUSPENDED, Session.EXPIRED, Session.CONNECTED]
        assert (found.shards, found.identity, found.assignment.version, found.slots.version) == ({}, Identity(), -1, -1)
        assert judge(before, found) is Finding.LOST
        one.sees(lambda facts: set(facts.hosts) == {"a"} and facts.controller == "a")
        assert one.own(1, "a", 7) is None
        one.sees(lambda facts: facts.owners == {1: OwnerFact(1, "a", "a:1", 7)})

    def test_an_older_copy_is_recognised(self, loss_rig: LossRig, one: Client) -> None:
        self.fill(one)
        put_back = loss_rig.copy()
        assert one.put(ShardFact(2, "z"), new=False) is None
        one.sees(lambda facts: facts.shards[2].url == "z")
        before = one.facts
        found = self.again(one, put_back)
        assert found.shards[2].url == "y"
        assert judge(before, found) is Finding.RESTORED

    def test_a_restart_and_changes_in_the_meantime_are_no_loss(self, loss_rig: LossRig, one: Client) -> None:
        before = self.fill(one)
        found = self.again(one, loss_rig.copy())  # of the present state
        assert judge(before, found) is Finding.SAME
        other = Client(loss_rig, SHORT_MS)
        loss_rig.cut(one.store)
        loss_rig.until(lambda: one.sessions[-1] is Session.SUSPENDED)
        assert other.put(ShardFact(1, "new"), new=False) is None
        assert other.did(lambda done: other.store.remove_shard(2, done)) is None
        assert other.put(ShardFact(2, "again"), new=True) is None
        assert other.assign({1: "b"}, before.assignment.version) is None
        found = self.again(one, lambda: loss_rig.mend(one.store))
        assert (found.shards[2].url, judge(before, found)) == ("again", Finding.SAME)

    def test_a_shard_is_put_back_by_compare_and_set(self, loss_rig: LossRig, one: Client) -> None:
        """It keeps the time of the write that was lost, until an operator writes it."""
        old, twice = ShardFact(1, "x", as_of_ms=77), ShardFact(1, "y", as_of_ms=77)
        for fact, version, made in ((old, 0, False), (old, -1, True), (old, -1, False), (twice, 0, True)):
            error = one.did(lambda done, fact=fact, version=version: one.store.put_back_shard(fact, version, done))
            assert error is None if made else isinstance(error, ZkConflict)
        one.sees(lambda facts: facts.shards and facts.writes.shards[1].version == 1)
        assert one.facts.shards[1].as_of_ms == 77
        assert one.put(one.facts.shards[1], new=False) is None
        one.sees(lambda facts: facts.shards[1].as_of_ms == 0)

    def test_settings_that_vanished_are_written_again(self, loss_rig: LossRig, one: Client) -> None:
        keeper = Keeper(one.store, loss_rig.until)
        keeper.put("shop", {"a": "1"})
        known = keeper.put("shop", {"b": "2"})
        one.sees(lambda facts: facts.settings == {"shop": known})
        found = self.again(one, loss_rig.lose)
        assert (found.settings, found.vanished) == ({"shop": known}, {"shop"})
        outcomes: list[object] = []
        one.store.change_settings("shop", adopt(known, "this host"), outcomes.append)
        loss_rig.until(lambda: outcomes)
        assert outcomes == [known]
        one.sees(lambda facts: facts.settings == {"shop": known} and not facts.vanished)
        assert Client(loss_rig).facts.settings == {"shop": known}
