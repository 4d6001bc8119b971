"""When the elected host writes, and what: transcripts of facts and time."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from foqs.shardmgr.controller import Controller, Step, Write, moving, situation_of
from foqs.shardmgr.facts import Assignment, Facts, ShardFact, ShardUse
from tests.shardmgr.clusters import EVEN, LOPSIDED, ME, SETTINGS, cluster, done, host, served, without, written


@pytest.fixture
def controller() -> Controller:
    return Controller(ME, SETTINGS)


# ------------------------------------------------------------------------------------------------------ waiting


def test_a_new_controller_places_orphans_after_one_session(controller: Controller) -> None:
    """The first host that comes back is not given everything."""
    facts = cluster(4, "a", assigned=EVEN)
    assert controller.decide(facts, 0) == Step(None, 10_000)
    assert controller.decide(facts, 9_999) == Step(None, 10_000)
    back = replace(facts, hosts=facts.hosts | {"c": host("c")})
    assert controller.decide(back, 10_000).write == Write({1: "a", 2: "c", 3: "a", 4: "c"}, 7, (2, 4), (), ())


def test_a_host_that_comes_back_in_time_keeps_its_shards(controller: Controller) -> None:
    facts = cluster(4, "a", "b", assigned=EVEN)
    controller.decide(without(facts, "b"), 0)
    assert controller.decide(facts, 5_000).write is None
    assert controller.decide(facts, 10_000) == Step(None, 30_000)


def test_a_host_that_vanishes_later_gets_no_grace(controller: Controller) -> None:
    facts = cluster(4, "a", "b", assigned=EVEN)
    controller.decide(facts, 0)
    step = controller.decide(without(facts, "b"), 10_001)
    assert step.write == Write(dict.fromkeys(EVEN, "a"), 7, (2, 4), (), ())


def test_a_host_that_has_watched_takes_over_at_once(controller: Controller) -> None:
    """A controller that dies costs its shards no second session time-out."""
    facts = cluster(4, "a", "b", assigned=EVEN)
    for now_ms in (0, 20_000):
        assert controller.decide(replace(facts, controller="b"), now_ms) == Step(None, None)
    step = controller.decide(without(facts, "b"), 20_001)
    assert step.write is not None
    assert step.write.placed == (2, 4)


@pytest.mark.parametrize("elected", [True, False])
def test_a_lost_session_restarts_the_wait(controller: Controller, elected: bool) -> None:
    facts = without(cluster(4, "a", "b", assigned=EVEN), "b")
    controller.decide(facts if elected else replace(facts, controller="b"), 0)
    controller.lost()
    assert controller.decide(facts, 50_000) == Step(None, 60_000)
    assert controller.decide(facts, 60_000).write is not None


def test_a_fresh_cluster_waits_for_hosts_started_together(controller: Controller) -> None:
    facts = cluster(4)
    assert controller.decide(replace(facts, hosts={}), 0) == Step(None, None)
    assert controller.decide(cluster(4, "a"), 100_000) == Step(None, 101_000)
    facts = cluster(4, "a", "b")
    assert controller.decide(facts, 100_900) == Step(None, 101_000)
    assert controller.decide(facts, 101_000).write == Write(EVEN, -1, (1, 2, 3, 4), (), ())


def test_after_a_fresh_start_nothing_more_is_waited_for(controller: Controller) -> None:
    facts = cluster(4, "a", "b")
    controller.decide(facts, 0)
    facts = done(facts, controller.decide(facts, 1_000))
    step = controller.decide(replace(facts, shards=cluster(5).shards), 1_001)
    assert step.write is not None
    assert step.write.placed == (5,)


def test_a_deleted_assignment_is_made_from_the_owners(controller: Controller) -> None:
    """Its orphans wait, because their owner may return."""
    facts = replace(cluster(5, "a", "b", assigned={1: "b", 2: "b", 3: "b", 4: "a"}), assignment=Assignment())
    step = controller.decide(facts, 0)
    assert step.write is not None
    assert (step.write.hosts, step.write.version) == ({1: "b", 2: "b", 3: "b", 4: "a"}, -1)
    assert controller.decide(done(facts, step), 1) == Step(None, 10_000)


def test_a_shard_moving_to_a_dead_host_stays_with_its_owner(controller: Controller) -> None:
    facts = cluster(4, "a", "b", "c", assigned=EVEN)
    controller.decide(facts, 0)
    facts = without(replace(facts, assignment=Assignment(8, EVEN | {2: "c"})), "c")
    write = controller.decide(facts, 20_000).write
    assert write is not None
    assert (write.hosts, write.placed, write.moved) == (EVEN, (2,), ())


def test_a_dead_host_that_still_seems_to_serve_is_not_asked_to(controller: Controller) -> None:
    facts = cluster(4, "a", "b", assigned=EVEN)
    controller.decide(facts, 0)
    seen = replace(facts, hosts={"a": host("a")})  # the nodes of one session do not vanish in one moment
    waits = replace(seen, assignment=Assignment(7, EVEN | {2: "c"}))
    assert controller.decide(waits, 1).write is None
    write = controller.decide(seen, 20_000).write
    assert write is not None
    assert write.hosts == dict.fromkeys(EVEN, "a")


def test_placing_a_new_shard_does_not_undo_a_move_under_way(controller: Controller) -> None:
    facts = cluster(4, "a", "b", "c", assigned=EVEN)
    facts = replace(facts, assignment=Assignment(8, EVEN | {1: "c"}), shards=cluster(5).shards)
    controller.decide(facts, 0)
    write = controller.decide(facts, 20_000).write
    assert write is not None
    assert (write.hosts[1], write.placed, write.moved) == ("c", (5,), ())


# ----------------------------------------------------------------------------------------------------- emptying


@pytest.mark.parametrize("how", ["drained", "leaving"])
def test_a_host_to_be_emptied_is_emptied_at_once(controller: Controller, how: str) -> None:
    """More shards than max_moves, and in the time in which orphans still wait."""
    facts = cluster(7, "a", "b", assigned={1: "a", 2: "b", 3: "b", 4: "b", 5: "b", 6: "dead"})
    if how == "drained":
        facts = replace(facts, drained=frozenset({"b"}))
    else:
        facts = replace(facts, hosts=facts.hosts | {"b": host("b", leaving=True)})
    write = controller.decide(facts, 0).write
    assert write == Write({1: "a", 2: "a", 3: "a", 4: "a", 5: "a", 6: "dead"}, 7, (), (2, 3, 4, 5), ())
    assert controller.decide(done(facts, Step(write, 0)), 1) == Step(None, 10_000)


def test_a_controller_that_leaves_empties_itself(controller: Controller) -> None:
    facts = cluster(4, "a", "b", assigned=EVEN)
    step = controller.decide(replace(facts, hosts=facts.hosts | {"a": host("a", leaving=True)}), 0)
    assert step.write is not None
    assert step.write.moved == (1, 3)


def test_without_takers_nothing_is_written(controller: Controller) -> None:
    facts = replace(cluster(4, "a", "b", assigned=EVEN), drained=frozenset({"a", "b"}))
    for now_ms in (0, 10_000, 100_000):
        assert controller.decide(facts, now_ms) == Step(None, None)


def test_the_first_taker_after_a_gap_starts_a_new_wait(controller: Controller) -> None:
    """All other hosts were gone while the controller was drained."""
    facts = cluster(4, "a", "b", assigned=EVEN)
    controller.decide(facts, 0)
    facts = replace(without(facts, "b"), drained=frozenset({"a"}))
    assert controller.decide(facts, 1) == Step(None, None)
    back = replace(facts, hosts=facts.hosts | {"c": host("c")})
    write = controller.decide(back, 50_000).write
    assert write is not None
    assert write.hosts == {1: "c", 2: "b", 3: "c", 4: "b"}
    assert controller.decide(done(back, Step(write, 0)), 50_001) == Step(None, 60_000)


# ----------------------------------------------------------------------------------------------------- disabled


@pytest.mark.parametrize("use", ShardUse)
def test_only_disabled_shards_are_taken_out(controller: Controller, use: ShardUse) -> None:
    facts = cluster(4, "a", "b", assigned=EVEN)
    facts = replace(facts, shards=facts.shards | {3: ShardFact(3, "sqlite://", use=use)})
    write = controller.decide(facts, 0).write
    if use is ShardUse.DISABLED:
        assert write == Write({1: "a", 2: "b", 4: "b"}, 7, (), (), (3,))
    else:
        assert write is None


def test_a_removed_shard_is_taken_out(controller: Controller) -> None:
    facts = replace(cluster(4, "a", "b", assigned=EVEN), shards=cluster(3).shards)
    write = controller.decide(facts, 0).write
    assert write is not None
    assert write.dropped == (4,)


# ------------------------------------------------------------------------------------------------------ writing


def test_a_write_is_asked_for_once_until_the_facts_show_it(controller: Controller) -> None:
    facts = cluster(4, "a", "b")
    controller.decide(facts, 0)
    step = controller.decide(facts, 1_000)
    assert step.next_ms == 1_500
    assert controller.decide(facts, 1_001) == Step(None, 1_500)
    assert controller.decide(facts, 1_500) == Step(step.write, 2_000)
    assert controller.decide(done(facts, step), 1_501) == Step(None, 30_000)


def test_a_conflict_is_decided_again_at_once(controller: Controller) -> None:
    facts = cluster(4, "a", "b")
    controller.decide(facts, 0)
    assert controller.decide(facts, 1_000).write is not None
    other = replace(facts, assignment=Assignment(3, EVEN | {4: "dead"}))
    write = controller.decide(other, 1_001).write
    assert write is not None
    assert (write.version, write.placed) == (3, (4,))


def test_a_host_that_is_not_elected_writes_nothing(controller: Controller) -> None:
    for elected in (None, "b"):
        facts = replace(cluster(4, "a", "b"), controller=elected)
        for now_ms in (0, 100_000):
            assert controller.decide(facts, now_ms) == Step(None, None)


# ------------------------------------------------------------------------------------------------------ balance


def test_balance_is_bounded_and_repeats_after_its_moves(controller: Controller) -> None:
    facts = cluster(8, "a", "b", assigned=LOPSIDED)
    assert controller.decide(facts, 0) == Step(None, 10_000)
    assert controller.decide(facts, 29_999) == Step(None, 30_000)
    for now_ms in (30_000, 60_000):
        step = controller.decide(facts, now_ms)
        assert step.write is not None
        assert len(step.write.moved) == 2
        facts = done(facts, step)
    assert Counter(facts.assignment.hosts.values()) == {"a": 4, "b": 4}
    assert controller.decide(facts, 90_000) == Step(None, 120_000)


def test_balance_does_not_begin_while_hosts_may_come_back() -> None:
    controller = Controller(ME, replace(SETTINGS, balance_every_ms=1_000))
    facts = cluster(8, "a", "b", assigned=LOPSIDED)
    assert controller.decide(facts, 0) == Step(None, 1_000)
    assert controller.decide(facts, 9_999) == Step(None, 10_000)
    assert controller.decide(facts, 10_000).write is not None


def test_balance_waits_for_moves_under_way(controller: Controller) -> None:
    facts = cluster(8, "a", "b", assigned=LOPSIDED)
    controller.decide(facts, 0)
    step = controller.decide(facts, 30_000)
    assert step.write is not None
    half = written(facts, step.write)
    assert moving(half) == set(step.write.moved)
    assert controller.decide(half, 60_000) == Step(None, 90_000)
    assert controller.decide(served(half), 61_000).write is not None


def test_a_shard_that_never_opens_delays_balance_once(controller: Controller) -> None:
    facts = cluster(8, "a", "b", assigned=LOPSIDED)
    facts = replace(facts, owners={shard: owner for shard, owner in facts.owners.items() if shard not in (7, 8)})
    controller.decide(facts, 0)
    assert controller.decide(facts, 30_000) == Step(None, 60_000)
    write = controller.decide(facts, 60_000).write
    assert write is not None
    assert len(write.moved) == 2
    assert not {7, 8} & set(write.moved)


def test_losing_the_election_puts_balance_off(controller: Controller) -> None:
    facts = cluster(8, "a", "b", assigned=LOPSIDED)
    controller.decide(facts, 0)
    controller.decide(replace(facts, controller="b"), 20_000)
    assert controller.decide(facts, 25_000) == Step(None, 55_000)


def test_other_settings_count_from_when_they_came(controller: Controller) -> None:
    facts = cluster(8, "a", "b", assigned=LOPSIDED)
    controller.decide(facts, 0)
    assert controller.decide(facts, 11_000) == Step(None, 30_000)
    controller.reconfigure(replace(SETTINGS, balance_every_ms=5_000, max_moves=1))
    assert controller.decide(facts, 12_000) == Step(None, 17_000)
    write = controller.decide(facts, 17_000).write
    assert write is not None
    assert len(write.moved) == 1


def test_measured_loads_are_balanced() -> None:
    controller = Controller(ME, replace(SETTINGS, balance_every_ms=1_000, session_timeout_ms=0))
    facts = cluster(4, "a", "b", assigned=EVEN)
    measured = {1: 500.0, 2: 10.0, 3: 500.0, 4: 10.0}
    controller.decide(facts, 0, measured)
    write = controller.decide(facts, 1_000, measured).write
    assert write is not None
    assert write.hosts[1] != write.hosts[3]


def test_load_is_weight_times_measured_load() -> None:
    facts = cluster(4, "a", assigned=dict.fromkeys(EVEN, "a"))
    facts = replace(facts, shards=facts.shards | {1: ShardFact(1, "sqlite://", weight=3.0)})
    assert situation_of(facts).loads == {1: 3.0, 2: 1.0, 3: 1.0, 4: 1.0}
    assert situation_of(facts, dict.fromkeys(EVEN, 0.0)).loads == situation_of(facts).loads
    # The mean is 20; shard 4 was not measured, and shard 3 has no traffic.
    assert situation_of(facts, {1: 40.0, 2: 20.0, 3: 0.0}).loads == {1: 6.0, 2: 1.0, 3: 0.1, 4: 1.0}


# -------------------------------------------------------------------------------------------------- all together

EVENTS = st.lists(
    st.tuples(
        st.sampled_from(["come", "go", "drain", "undrain", "leave", "disable", "enable", "serve", "conflict", "lost"]),
        st.integers(1, 6),
        st.integers(0, 20_000),
    ),
    max_size=40,
)


def happened(facts: Facts, event: str, number: int) -> Facts:
    name = "abcdef"[number - 1]
    match event:
        case "come":
            return replace(facts, hosts=facts.hosts | {name: host(name)})
        case "go" if name != ME:
            return without(facts, name)
        case "drain":
            return replace(facts, drained=facts.drained | {name})
        case "undrain":
            return replace(facts, drained=facts.drained - {name})
        case "leave" if name in facts.hosts and name != ME:
            return replace(facts, hosts=facts.hosts | {name: host(name, leaving=True)})
        case "disable" | "enable":
            use = ShardUse.DISABLED if event == "disable" else ShardUse.ENABLED
            return replace(facts, shards=facts.shards | {number: ShardFact(number, "sqlite://", use=use)})
        case "serve":
            return served(facts)
        case "conflict":
            return replace(facts, assignment=Assignment(facts.assignment.version + 1, facts.assignment.hosts))
    return facts


@given(EVENTS)
def test_every_history_ends_even_and_without_writes(
    events: list[tuple[str, int, int]],
) -> None:
    controller, facts, now_ms = Controller(ME, SETTINGS), cluster(12, "a"), 0
    for event, number, pause_ms in events:
        if event == "lost":
            controller.lost()
        facts = happened(facts, event, number)
        step = controller.decide(facts, now_ms)
        if step.write is not None:
            assert step.write.version == facts.assignment.version
            assert set(step.write.moved) | set(step.write.placed) <= step.write.hosts.keys()
            facts = written(facts, step.write)
        now_ms += pause_ms
    facts = replace(facts, drained=facts.drained - {ME})
    for _ in range(60):
        step = controller.decide(facts, now_ms)
        if step.write is not None:
            facts = written(facts, step.write)
        facts = served(facts)
        assert step.next_ms is not None
        assert step.next_ms > now_ms
        now_ms = step.next_ms
    assert controller.decide(facts, now_ms).write is None
    enabled = {shard for shard, fact in facts.shards.items() if fact.use is ShardUse.ENABLED}
    may_take = {name for name, fact in facts.hosts.items() if not fact.leaving and name not in facts.drained}
    assert facts.assignment.hosts.keys() == enabled
    count = Counter(facts.assignment.hosts.values())
    assert count.keys() <= may_take
    assert max(count[name] for name in may_take) - min(count[name] for name in may_take) <= 1
