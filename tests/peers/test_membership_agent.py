"""The agent's orders to its shards: when it acts, facts that are stale, and sessions that end and return."""

from __future__ import annotations

from dataclasses import replace

import pytest

from foqs.shardmgr.facts import HostFact, OwnerFact, Session, ShardUse
from foqs.shardmgr.lifecycle import ShardState
from foqs.shardmgr.membership import AGAIN_MS, Held
from tests.peers.agents import AgentRig, facts_of
from tests.shardmgr.clusters import host, without

pytestmark = pytest.mark.memory


@pytest.fixture
def rig() -> AgentRig:
    return AgentRig()


# ------------------------------------------------------------------------------------------ when it acts


def test_an_assigned_shard_without_an_owner_is_taken(rig: AgentRig) -> None:
    facts = facts_of({1: "a", 2: "b"})
    rig.learn(replace(facts, owners={2: facts.owners[2]}))
    assert rig.act() == [("take", 1, 0)]


def test_a_shard_is_taken_above_the_epoch_of_a_dead_owner(rig: AgentRig) -> None:
    facts = facts_of({1: "a"})
    rig.learn(replace(facts, owners={1: OwnerFact(1, "dead", "dead:1", 7)}))
    assert rig.act() == [("take", 1, 7)]


def test_a_served_shard_is_announced_once(rig: AgentRig) -> None:
    rig.learn(replace(facts_of({1: "a"}), owners={}))
    rig.serve(1, epoch=3)
    assert rig.act() == [("own", 1, 3, "a:1")]
    assert rig.act(1) == []
    assert rig.act(AGAIN_MS) == [("own", 1, 3, "a:1")], "the facts do not show it"


def test_a_shard_of_another_host_is_released_and_withdrawn(rig: AgentRig) -> None:
    rig.learn(replace(facts_of({1: "b"}), owners={1: OwnerFact(1, "a", "a:1", 1)}))
    rig.serve(1)
    assert rig.act() == [("release", 1)]
    rig.shards.clear()
    assert rig.act() == [("disown", 1, 1)]


def test_a_draining_shard_takes_no_new_items(rig: AgentRig) -> None:
    facts = facts_of({1: "a", 2: "a"})
    draining = replace(facts.shards[2], use=ShardUse.DRAINING)
    rig.learn(replace(facts, shards={**facts.shards, 2: draining}))
    rig.serve(1, 2)
    rig.act()
    assert rig.sealed == {2}


def test_a_higher_epoch_in_the_facts_is_checked_in_the_database(rig: AgentRig) -> None:
    rig.learn(replace(facts_of({1: "a"}), owners={1: OwnerFact(1, "b", "b:1", 5)}))
    rig.serve(1, epoch=4)
    assert rig.act() == [("recheck", 1)]


def test_a_host_that_has_not_joined_does_nothing() -> None:
    rig = AgentRig(joined=False)
    rig.agent.session(Session.CONNECTED)
    rig.learn(facts_of({1: "a"}))
    assert rig.act() == []
    assert rig.agent.fact is None


def test_a_host_acts_once_the_facts_name_it(rig: AgentRig) -> None:
    rig.learn(without(facts_of({1: "a"}), "a"))
    assert rig.act() == []
    rig.learn(replace(facts_of({1: "a"}), owners={}))
    assert rig.act() == [("take", 1, 0)]


def test_an_agent_that_ended_does_nothing(rig: AgentRig) -> None:
    rig.learn(facts_of({1: "a"}))
    rig.agent.end()
    rig.learn(replace(facts_of({1: "a"}), owners={}))
    assert (rig.act(), rig.agent.fact) == ([], None)


# ------------------------------------------------------------------------------------------ the session


def test_nothing_begins_without_a_session(rig: AgentRig) -> None:
    rig.learn(facts_of({1: "b"}))
    rig.serve(1)
    rig.agent.session(Session.SUSPENDED)
    assert rig.act() == []
    assert not rig.agent.fresh


def test_facts_that_arrive_after_the_loss_are_stale(rig: AgentRig) -> None:
    rig.agent.session(Session.SUSPENDED)
    rig.learn(facts_of({1: "b"}))
    rig.serve(1)
    assert rig.act() == []


def test_a_regained_session_acts_on_its_own_facts_alone(rig: AgentRig) -> None:
    rig.learn(replace(facts_of({1: "a"}), owners={}))
    rig.agent.session(Session.SUSPENDED)
    rig.agent.session(Session.CONNECTED)
    assert rig.act() == [], "the facts are those of before"
    rig.learn(replace(facts_of({1: "a"}), owners={}))
    assert rig.act() == [("take", 1, 0)]


def test_shards_are_rechecked_when_the_session_expired(rig: AgentRig) -> None:
    rig.serve(1)
    rig.shards[2] = Held("sqlite://", ShardState.DRAINING, 1)
    rig.shards[3] = Held("sqlite://", ShardState.OPENING)
    rig.agent.session(Session.SUSPENDED)
    assert rig.orders == []
    rig.agent.session(Session.EXPIRED)
    assert rig.orders == [("recheck", 1), ("recheck", 2)]


def test_shards_are_announced_again_after_an_expired_session(rig: AgentRig) -> None:
    facts = replace(facts_of({1: "a"}), owners={})
    rig.learn(facts)
    rig.serve(1)
    assert rig.act() == [("own", 1, 1, "a:1")]
    rig.agent.session(Session.EXPIRED)
    rig.agent.session(Session.CONNECTED)
    rig.learn(facts)
    assert rig.act() == [("own", 1, 1, "a:1")]


def test_states_of_the_session_are_counted(rig: AgentRig) -> None:
    for state in (Session.SUSPENDED, Session.CONNECTED, Session.SUSPENDED, Session.EXPIRED):
        rig.agent.session(state)
    assert rig.agent.state is Session.EXPIRED
    assert dict(rig.agent.changes) == {Session.CONNECTED: 2, Session.SUSPENDED: 2, Session.EXPIRED: 1}


# ------------------------------------------------------------------------------------------ another process, its id


def test_another_process_with_this_id_ends_the_agent(rig: AgentRig) -> None:
    facts = facts_of({1: "a"})
    assert rig.learn(facts) is None
    other = HostFact("a", "elsewhere:1", "another run")
    why = rig.learn(replace(facts, hosts={**facts.hosts, "a": other}))
    assert why is not None
    assert "host a, at elsewhere:1: give each host its own server.id" in why
    assert rig.act() == []


def test_a_record_of_an_earlier_run_is_no_other_process(rig: AgentRig) -> None:
    facts = facts_of({1: "a"})
    earlier = HostFact("a", "a:1", "earlier")
    assert rig.learn(replace(facts, hosts={**facts.hosts, "a": earlier})) is None
    assert not rig.agent.seen
    assert rig.act() == []


def test_a_twin_is_a_process_at_another_address() -> None:
    rig = AgentRig(joined=False)
    rig.learn(facts_of({1: "a"}))
    assert rig.agent.twin("a:1") is None
    twin = rig.agent.twin("here:1")
    assert twin is not None
    assert twin.address == "a:1"
    rig.learn(facts_of({1: "b"}, "b"))
    assert rig.agent.twin("here:1") is None


def test_another_host_can_take_shards_unless_it_leaves(rig: AgentRig) -> None:
    rig.learn(facts_of({1: "a"}, "a", "b"))
    assert rig.agent.others()
    leaving = replace(host("b"), leaving=True)
    rig.learn(replace(rig.agent.facts, hosts={**rig.agent.facts.hosts, "b": leaving}))
    assert not rig.agent.others()
