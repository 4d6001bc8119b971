"""What every FactStore does: the real one on a real ZooKeeper, and the fake that simulations run on.

A subclass has a fixture `rig`.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Protocol

import pytest

from foqs.ids import HASH_SLOTS, Mark, Marks
from foqs.shardmgr.facts import Assignment, Facts, HostFact, OwnerFact, Session, ShardFact, ShardUse, SlotMove, Slots
from foqs.zk.protocol import Done, FactStore, ZkConflict, ZkError, ZkUnavailable
from tests.zk.mark_contract import MarkContract
from tests.zk.settings_contract import SettingsFactContract

CONNECTED, SUSPENDED, EXPIRED = Session.CONNECTED, Session.SUSPENDED, Session.EXPIRED


class Rig(Protocol):
    """Makes stores of one cluster, and its faults."""

    def store(self, session_ms: int = 60_000) -> FactStore: ...

    def until(self, condition: Callable[[], object]) -> None:
        """Lets time pass until it holds; fails when it does not in time."""

    def cut(self, store: FactStore) -> None:
        """It has no connection and finds none, until `mend`."""

    def mend(self, store: FactStore) -> None: ...

    def expire(self, store: FactStore) -> None:
        """The servers end its session."""

    def stands(self, store: FactStore, host: str) -> bool:
        """Whether the host is known there as a candidate for controller."""


class Client:
    """A store, and all that it said."""

    def __init__(self, rig: Rig, session_ms: int = 60_000) -> None:
        self.rig = rig
        self.store = rig.store(session_ms)
        self.told: list[Facts] = []
        self.sessions: list[Session] = []
        self.store.start(self.told.append, self.sessions.append)
        rig.until(lambda: self.told)

    @property
    def facts(self) -> Facts:
        return self.told[-1]

    def sees(self, condition: Callable[[Facts], object]) -> None:
        self.rig.until(lambda: condition(self.facts))

    def did(self, what: Callable[[Done], None]) -> ZkError | None:
        """The outcome of a change."""
        outcomes = self.doing(what)
        self.rig.until(lambda: outcomes)
        return outcomes[0]

    def doing(self, what: Callable[[Done], None]) -> list[ZkError | None]:
        outcomes: list[ZkError | None] = []
        what(outcomes.append)
        assert not outcomes, "called back before it returned"
        return outcomes

    # What tests do most.

    def own(self, shard: int, host: str, epoch: int) -> ZkError | None:
        return self.did(lambda done: self.store.own(OwnerFact(shard, host, f"{host}:1", epoch), done))

    def disown(self, shard: int, epoch: int) -> ZkError | None:
        return self.did(lambda done: self.store.disown(shard, epoch, done))

    def assign(self, hosts: dict[int, str], version: int) -> ZkError | None:
        return self.did(lambda done: self.store.assign(hosts, version, done))

    def put(self, fact: ShardFact, *, new: bool) -> ZkError | None:
        return self.did(lambda done: self.store.put_shard(fact, new=new, done=done))

    def remember(self, shard: int, mark: Mark, identity: str = "a1") -> ZkError | None:
        return self.did(lambda done: self.store.remember(shard, identity, mark, done))

    def recall(self, shard: int) -> Marks:
        found: list[tuple[Marks, ZkError | None]] = []
        self.store.recall(shard, lambda marks, error: found.append((marks, error)))
        self.rig.until(lambda: found)
        marks, error = found[0]
        assert error is None
        return marks

    def join(self, host: HostFact) -> None:
        """Until all of it is done: the candidacy is made after the record, and facts name the first candidate only."""
        self.store.join(host)
        self.sees(lambda facts: facts.hosts.get(host.id) == host and facts.controller is not None)
        self.rig.until(lambda: self.rig.stands(self.store, host.id))

    def close(self) -> None:
        closed: list[bool] = []
        self.store.close(lambda: closed.append(True))
        self.rig.until(lambda: closed)


def host(name: str, run: str = "1", **more: Any) -> HostFact:
    return HostFact(name, f"{name}:7707", run, **more)


class FactStoreContract(MarkContract, SettingsFactContract):
    @pytest.fixture
    def rig(self) -> Rig:
        raise NotImplementedError

    @pytest.fixture
    def a(self, rig: Rig) -> Client:
        return Client(rig)

    @pytest.fixture
    def b(self, rig: Rig) -> Client:
        return Client(rig)

    # --------------------------------------------------------------------------------- facts and changes

    def test_a_new_cluster_knows_nothing(self, a: Client) -> None:
        assert a.told == [Facts()]
        assert a.sessions == [CONNECTED]

    def test_shards_are_added_changed_and_removed_and_all_see_it(self, a: Client, b: Client) -> None:
        one = ShardFact(1, "mysql://u:p@h/one", 2.5)
        assert a.put(one, new=True) is None
        b.sees(lambda facts: facts.shards == {1: one})
        assert isinstance(a.put(one, new=True), ZkConflict)

        drained = ShardFact(1, "mysql://u:p@h/moved", 1.0, ShardUse.DRAINING)
        assert b.put(drained, new=False) is None
        a.sees(lambda facts: facts.shards == {1: drained})
        assert isinstance(b.put(ShardFact(2, "x"), new=False), ZkConflict)

        assert a.did(lambda done: a.store.remove_shard(1, done)) is None
        b.sees(lambda facts: not facts.shards)
        assert isinstance(a.did(lambda done: a.store.remove_shard(1, done)), ZkConflict)

    def test_a_later_store_reads_existing_records(self, rig: Rig, a: Client) -> None:
        shards = {n: ShardFact(n, f"sqlite:///{n}") for n in (1, 9, 10, 32_767)}
        outcomes = [a.doing(lambda done, s=s: a.store.put_shard(s, new=True, done=done)) for s in shards.values()]
        rig.until(lambda: all(outcomes))
        a.join(host("h"))
        assert a.own(9, "h", 4) is None
        assert a.assign({1: "h", 9: "h"}, -1) is None
        b = Client(rig)
        assert len(b.told) == 1
        assert b.facts == Facts(
            shards,
            {"h": host("h")},
            {9: OwnerFact(9, "h", "h:1", 4)},
            frozenset(),
            Assignment(0, {1: "h", 9: "h"}),
            "h",
        )

    def test_reported_facts_do_not_change_afterwards(self, a: Client) -> None:
        assert a.put(ShardFact(1, "x"), new=True) is None
        a.sees(lambda facts: 1 in facts.shards)
        before = a.facts
        assert a.put(ShardFact(2, "y"), new=True) is None
        a.sees(lambda facts: 2 in facts.shards)
        assert set(before.shards) == {1}

    def test_the_assignment_is_written_by_compare_and_set(self, a: Client, b: Client) -> None:
        assert isinstance(a.assign({1: "x"}, 0), ZkConflict)
        assert a.assign({1: "x"}, -1) is None
        assert isinstance(b.assign({1: "y"}, -1), ZkConflict)
        b.sees(lambda facts: facts.assignment == Assignment(0, {1: "x"}))
        assert b.assign({1: "y", 2: "x"}, 0) is None
        assert isinstance(a.assign({}, 0), ZkConflict)
        assert a.assign({}, 1) is None
        b.sees(lambda facts: facts.assignment == Assignment(2, {}))

    def test_slots_are_written_by_compare_and_set(self, a: Client, b: Client) -> None:
        def share(client: Client, shard: int, version: int) -> ZkError | None:
            slots = Slots(version, (shard,) * HASH_SLOTS, {7: SlotMove(shard, 5)}, 6)
            return client.did(lambda done: client.store.share_slots(slots, done))

        assert isinstance(share(a, 1, 0), ZkConflict)
        assert share(a, 1, -1) is None
        assert isinstance(share(b, 2, -1), ZkConflict)
        assert share(b, 2, 0) is None
        for client in (a, b, Client(a.rig)):
            client.sees(lambda facts: facts.slots == Slots(1, (2,) * HASH_SLOTS, {7: SlotMove(2, 5)}, 6))
            assert client.facts.assignment == Assignment()

    def test_of_two_that_assign_at_once_one_succeeds(self, rig: Rig, a: Client, b: Client) -> None:
        assert a.assign({}, -1) is None
        for version in range(5):
            outcomes = [
                client.doing(partial(client.store.assign, {1: name}, version)) for client, name in ((a, "a"), (b, "b"))
            ]
            rig.until(partial(all, outcomes))
            errors = [error for (error,) in outcomes]
            assert sum(error is None for error in errors) == 1
            assert sum(isinstance(error, ZkConflict) for error in errors) == 1
            written = Assignment(version + 1, {1: "ab"[errors.index(None)]})
            for client in (a, b):
                rig.until(lambda client=client, written=written: client.facts.assignment == written)

    def test_a_mark_is_set_and_taken_back_any_number_of_times(self, a: Client, b: Client) -> None:
        for drained in (True, True, False, False, True):
            mark = partial(a.store.drain_host, "h/1", drained=drained)
            assert a.did(lambda done, mark=mark: mark(done=done)) is None
            b.sees(lambda facts, drained=drained: ("h/1" in facts.drained) == drained)
        assert b.facts.drained == {"h/1"}

    # --------------------------------------------------------------------------------- hosts and the election

    @pytest.mark.parametrize("name", ["h", ".", "..", "a/b", "-", "h-0000000001", "%2E", "ä 🙂", "a\nb\x00", "x" * 200])
    def test_any_text_is_a_host_s_id(self, rig: Rig, a: Client, name: str) -> None:
        b = Client(rig)
        a.join(host(name))
        b.sees(lambda facts: facts.hosts == {name: host(name)} and facts.controller == name)
        assert a.did(lambda done: a.store.drain_host(name, drained=True, done=done)) is None
        b.sees(lambda facts: facts.drained == {name})

    def test_a_host_s_record_is_replaced_in_place(self, a: Client, b: Client) -> None:
        a.join(host("a"))
        b.join(host("b"))
        told = len(b.told)
        a.join(host("a", leaving=True))
        b.sees(lambda facts: facts.hosts["a"].leaving)
        assert all("a" in facts.hosts and facts.controller == "a" for facts in b.told[told:])

    def test_the_first_host_is_controller_until_it_closes(self, rig: Rig, a: Client) -> None:
        a.join(host("z"))
        others = [Client(rig) for _ in range(3)]
        for name, client in zip("yxw", others, strict=True):
            client.join(host(name))
            assert client.facts.controller == "z"
        a.close()
        others[1].close()
        others[2].sees(lambda facts: facts.controller == "y" and set(facts.hosts) == {"y", "w"})
        others[0].close()
        others[2].sees(lambda facts: facts.controller == "w" and set(facts.hosts) == {"w"})

    def test_records_of_an_earlier_session_are_replaced(self, rig: Rig, b: Client) -> None:
        a = Client(rig)
        a.join(host("a", "first"))
        assert a.own(1, "a", 5) is None
        assert a.own(2, "a", 5) is None
        b.sees(lambda facts: 2 in facts.owners)
        rig.cut(a.store)  # as if its process were gone
        again = Client(rig)
        again.join(host("a", "second"))
        assert again.own(1, "a", 5) is None
        rig.expire(a.store)
        b.sees(lambda facts: 2 not in facts.owners)  # so the earlier session is over
        assert b.facts.owners == {1: OwnerFact(1, "a", "a:1", 5)}
        b.sees(lambda facts: facts.hosts == {"a": host("a", "second")} and facts.controller == "a")

    def test_an_id_is_one_address_s_until_its_session_ends(self, rig: Rig, a: Client, b: Client) -> None:
        a.join(host("a", "first"))
        twin = HostFact("a", "elsewhere:7707", "second")
        b.store.join(twin)
        a.join(host("a", "first", leaving=True))  # its own record it may change
        b.sees(lambda facts: facts.hosts == {"a": host("a", "first", leaving=True)})
        a.close()
        b.sees(lambda facts: facts.hosts == {"a": twin} and facts.controller == "a")

    # --------------------------------------------------------------------------------- owners

    def test_an_owner_is_replaced_by_a_higher_epoch_only(self, a: Client, b: Client) -> None:
        assert a.own(1, "a", 3) is None
        assert isinstance(b.own(1, "b", 2), ZkConflict)
        assert isinstance(b.own(1, "b", 3), ZkConflict)
        assert a.own(1, "a", 3) is None
        b.sees(lambda facts: facts.owners == {1: OwnerFact(1, "a", "a:1", 3)})
        assert b.own(1, "b", 4) is None
        a.sees(lambda facts: facts.owners == {1: OwnerFact(1, "b", "b:1", 4)})
        a.close()
        assert b.own(2, "b", 1) is None
        b.sees(lambda facts: set(facts.owners) == {1, 2})

    def test_disown_takes_back_that_epoch_only(self, a: Client, b: Client) -> None:
        assert a.disown(1, 3) is None
        assert a.own(1, "a", 3) is None
        assert b.own(1, "b", 4) is None
        assert a.disown(1, 3) is None
        a.sees(lambda facts: facts.owners == {1: OwnerFact(1, "b", "b:1", 4)})
        assert b.disown(1, 4) is None
        a.sees(lambda facts: not facts.owners)

    def test_changes_of_one_shard_keep_the_order_of_their_calls(self, rig: Rig, a: Client, b: Client) -> None:
        assert b.own(1, "b", 1) is None
        outcomes = [
            a.doing(lambda done, n=n: a.store.own(OwnerFact(1, "a", "a:1", n), done))
            if n % 2
            else a.doing(lambda done, n=n: a.store.disown(1, n - 1, done))
            for n in range(3, 12)
        ]
        rig.until(lambda: all(outcomes))
        assert [error for (error,) in outcomes] == [None] * 9
        b.sees(lambda facts: facts.owners == {1: OwnerFact(1, "a", "a:1", 11)})

    def test_closing_ends_ephemeral_records_at_once(self, a: Client, b: Client) -> None:
        a.join(host("a"))
        assert a.own(1, "a", 1) is None
        assert a.put(ShardFact(1, "x"), new=True) is None
        b.sees(lambda facts: facts.owners and facts.shards)
        told = len(a.told)
        a.close()
        b.sees(lambda facts: not facts.hosts and not facts.owners and facts.controller is None)
        assert set(b.facts.shards) == {1}
        assert (len(a.told), a.sessions) == (told, [CONNECTED])

    # --------------------------------------------------------------------------------- sessions

    def test_while_suspended_nothing_changes_and_nothing_is_lost(self, rig: Rig, a: Client, b: Client) -> None:
        a.join(host("a"))
        assert a.own(1, "a", 1) is None
        rig.cut(a.store)
        rig.until(lambda: a.sessions == [CONNECTED, SUSPENDED])
        told = len(a.told)
        assert isinstance(a.own(2, "a", 1), ZkUnavailable)
        assert b.put(ShardFact(7, "x"), new=True) is None
        b.sees(lambda facts: 7 in facts.shards)
        assert {"a"} == set(b.facts.hosts)
        assert len(a.told) == told

        rig.mend(a.store)
        a.sees(lambda facts: 7 in facts.shards)
        assert a.sessions == [CONNECTED, SUSPENDED, CONNECTED]
        assert (a.facts.controller, set(a.facts.hosts), set(a.facts.owners)) == ("a", {"a"}, {1})
        assert b.put(ShardFact(7, "y"), new=False) is None
        a.sees(lambda facts: facts.shards[7].url == "y")
        assert set(b.facts.owners) == {1}

    def test_every_connection_reports_the_facts_once(self, rig: Rig, a: Client) -> None:
        for n in range(1, 4):
            rig.cut(a.store)
            rig.until(lambda: a.sessions[-1] is SUSPENDED)
            rig.mend(a.store)
            rig.until(lambda: len(a.told) > n)  # noqa: B023
            assert a.told == [Facts()] * (n + 1)

    def test_after_an_expiry_the_host_is_back_and_its_shards_are_not(self, rig: Rig, a: Client, b: Client) -> None:
        a.join(host("a"))
        b.join(host("b"))
        assert a.own(1, "a", 1) is None
        assert a.put(ShardFact(1, "x"), new=True) is None
        b.sees(lambda facts: facts.owners and facts.shards)
        rig.expire(a.store)
        rig.until(lambda: EXPIRED in a.sessions and a.sessions[-1] is CONNECTED)
        assert a.sessions == [CONNECTED, SUSPENDED, EXPIRED, CONNECTED]
        for client in (a, b):
            client.sees(lambda facts: set(facts.hosts) == {"a", "b"} and facts.controller == "b" and not facts.owners)
        assert set(a.facts.shards) == {1}

        assert a.own(1, "a", 2) is None
        assert b.put(ShardFact(2, "y"), new=True) is None
        a.sees(lambda facts: 2 in facts.shards and 1 in facts.owners)
        b.close()
        a.sees(lambda facts: facts.controller == "a")

    def test_a_session_that_is_silent_for_its_time_out_expires(self, rig: Rig, b: Client) -> None:
        a = Client(rig, session_ms=5_000)  # with a shorter one kazoo gives up a server that is held up for 0.2 s
        a.join(host("a"))
        b.sees(lambda facts: facts.hosts)
        rig.cut(a.store)
        rig.until(lambda: SUSPENDED in a.sessions)
        b.sees(lambda facts: not facts.hosts)
        assert EXPIRED not in a.sessions
        assert set(a.facts.hosts) == {"a"}
        rig.mend(a.store)
        b.sees(lambda facts: set(facts.hosts) == {"a"})
        rig.until(lambda: a.sessions[:4] == [CONNECTED, SUSPENDED, EXPIRED, CONNECTED])

    def test_closing_without_a_connection_ends(self, rig: Rig, a: Client) -> None:
        rig.cut(a.store)
        rig.until(lambda: a.sessions == [CONNECTED, SUSPENDED])
        a.close()

    def test_closing_twice_is_closing_once(self, a: Client) -> None:
        a.close()
        a.close()
