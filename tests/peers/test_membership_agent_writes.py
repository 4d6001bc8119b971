"""The agent's writes to the facts of the cluster: the assignment, its own record, and the slots of keys."""

from __future__ import annotations

from dataclasses import replace

import pytest

from foqs.ids import HASH_SLOTS
from foqs.shardmgr.facts import Session, SlotMove, Slots
from foqs.shardmgr.membership import AGAIN_MS, NOTICE_MS
from tests.peers.agents import CLOCK_MS, AgentRig, facts_of
from tests.shardmgr.clusters import SETTINGS, cluster

pytestmark = pytest.mark.memory


@pytest.fixture
def rig() -> AgentRig:
    return AgentRig()


# ------------------------------------------------------------------------------------------ the elected host


def test_only_the_elected_host_assigns(rig: AgentRig) -> None:
    rig.learn(replace(cluster(2, "a", "b"), controller="b"))
    assert rig.act(SETTINGS.settle_ms) == []
    rig.learn(replace(rig.agent.facts, controller="a"))
    rig.act()
    ((order, hosts, version),) = rig.act(SETTINGS.settle_ms)
    assert (order, sorted(hosts), version) == ("assign", [1, 2], -1)  # type: ignore[call-overload]


def test_the_next_time_is_the_earliest_of_all(rig: AgentRig) -> None:
    rig.learn(replace(facts_of({1: "a"}), owners={}))
    rig.serve(1)
    at_ms = rig.agent.act(100, {})
    assert at_ms is not None
    assert at_ms <= 100 + AGAIN_MS, "the announcement is repeated then"


# ------------------------------------------------------------------------------------------ the record of this host


def test_databases_that_do_not_answer_are_in_the_hosts_record(rig: AgentRig) -> None:
    rig.learn(facts_of({1: "a"}))
    rig.serve(1)
    rig.unreachable = [1]
    joins = [order for by_ms in (0, 60_000, 1) for order in rig.act(by_ms) if order[0] == "join"]
    assert [order[1].unreachable for order in joins] == [{1}], "written once"  # type: ignore[attr-defined]
    assert rig.agent.fact is not None
    assert rig.agent.fact.unreachable == {1}


def test_what_ails_a_database_is_in_the_hosts_record(rig: AgentRig) -> None:
    rig.learn(facts_of({1: "a", 2: "a"}))
    rig.serve(1, 2)
    rig.silent = {1: 1_500}
    rig.unreachable = rig.closed = [2]
    rig.act()
    rig.act(NOTICE_MS)
    fact = rig.agent.fact
    assert fact is not None
    assert (fact.hanging, fact.unreachable, fact.read_only) == ({1}, {2}, {2})


# ------------------------------------------------------------------------------------------ slots of keys


def test_the_elected_host_shares_out_free_slots(rig: AgentRig) -> None:
    shared = Slots(3, (1,) * (HASH_SLOTS - 1) + (0,), {}, 5)
    rig.learn(replace(facts_of({1: "a"}), slots=shared))
    rig.act()
    assert rig.slots == [], "another host is elected"
    rig.learn(replace(rig.agent.facts, controller="a"))
    rig.act()
    ((wanted, _),) = rig.slots
    assert (wanted.shards, wanted.version) == ((1,) * HASH_SLOTS, 3)
    assert wanted.stamp == CLOCK_MS


def test_one_write_of_slots_at_a_time(rig: AgentRig) -> None:
    rig.learn(facts_of({1: "a"}))
    rig.agent.share_slots()
    rig.agent.share_slots()
    assert len(rig.slots) == 1
    rig.slots[0][1]()
    rig.agent.share_slots()
    assert len(rig.slots) == 2, "it failed: the record is the same"


def test_slots_of_a_newer_record_wait_for_no_open_write(rig: AgentRig) -> None:
    """The answer is late; the record has changed since."""
    rig.learn(facts_of({1: "a"}))
    rig.agent.share_slots()
    rig.learn(replace(rig.agent.facts, slots=Slots(4, (1,) * (HASH_SLOTS - 1) + (0,), {}, 5)))
    rig.agent.share_slots()
    assert [wanted.version for wanted, _ in rig.slots] == [-1, 4]


def test_slots_are_not_written_on_stale_facts(rig: AgentRig) -> None:
    rig.learn(facts_of({1: "a"}))
    rig.agent.session(Session.SUSPENDED)
    rig.agent.share_slots()
    assert rig.slots == []


def test_an_arrived_slot_is_recorded_while_its_move_stands(rig: AgentRig) -> None:
    move = SlotMove(2, 5)
    rig.learn(replace(facts_of({1: "a", 2: "a"}), slots=Slots(3, (1,) * HASH_SLOTS, {9: move}, 5)))
    rig.agent.slots_arrived({9: SlotMove(2, 4)})
    assert rig.slots == [], "an earlier move of the slot"
    rig.agent.slots_arrived({9: move})
    ((wanted, _),) = rig.slots
    assert (wanted.shards[9], wanted.moves, wanted.version) == (2, {}, 3)
