"""What hosts report of databases that they do not reach, and what the controller makes of it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from foqs.shardmgr.assignment import imbalance
from foqs.shardmgr.controller import Controller, situation_of
from foqs.shardmgr.facts import Facts, ShardFact, decode_host, encode_host
from foqs.shardmgr.membership import (
    HUNG_MS,
    NOTICE_MS,
    PROBE_MS,
    Lasting,
    Reach,
    away,
    cut_off,
    read_only,
    server_of,
    stranded,
    unreachable,
)
from foqs.shardmgr.status import status_of
from tests.shardmgr.clusters import ME, SETTINGS, cluster, host

THREE = {1: "a", 2: "b", 3: "c", 4: "a"}
HOLD_MS = SETTINGS.session_timeout_ms


def reported(facts: Facts, **reports: tuple[set[int], set[int]]) -> Facts:
    """By host, the shards that it does not reach, and those that it reaches."""
    hosts = dict(facts.hosts)
    for name, (bad, good) in reports.items():
        hosts[name] = replace(hosts[name], unreachable=frozenset(bad), reached=frozenset(good))
    return replace(facts, hosts=hosts)


def on_servers(facts: Facts, servers: dict[int, str]) -> Facts:
    return replace(facts, shards={n: ShardFact(n, f"mysql://u:p@{server}/foqs_{n}") for n, server in servers.items()})


def three_hosts() -> Facts:
    """Shards 1 to 3 on the server x, shard 4 on y."""
    return on_servers(cluster(4, "a", "b", "c", assigned=THREE), {1: "x", 2: "x", 3: "x", 4: "y"})


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ("mysql://u:p@db:3306/a", "mysql+pymysql://v:q@db:3306/b?x=1", True),
        ("mysql://u:p@db:3306/a", "mysql://u:p@db:3307/a", False),
        ("sqlite:////data/1.db", "sqlite:////data/2.db", False),
        ("mysql://[::1/a", "mysql://[::1/a", True),
    ],
)
def test_shards_of_one_server_are_known_by_their_urls(one: str, other: str, same: bool) -> None:
    assert (server_of(one) == server_of(other)) is same


def test_a_record_has_reports_and_older_records_have_none() -> None:
    fact = replace(host("a"), unreachable=frozenset({3, 1}), reached=frozenset({7}), hanging=frozenset({9}))
    fact = replace(fact, read_only=frozenset({3}))
    assert decode_host("a", encode_host(fact)) == fact
    assert b"reach" not in encode_host(host("a"))
    assert decode_host("a", encode_host(host("a"))) == host("a")


def test_a_host_is_cut_off_only_if_another_one_is_not() -> None:
    dead = reported(three_hosts(), a=({1}, set()), b=({2}, set()), c=({3}, set()))
    assert (unreachable(dead), cut_off(dead), stranded(dead)) == ({1, 2, 3}, {}, {})
    one = reported(three_hosts(), a=({1}, set()), b=(set(), {1}), c=(set(), {1}))
    assert (unreachable(one), cut_off(one), stranded(one)) == ({1}, {"a": {1}}, {1: {"b", "c"}})


# ------------------------------------------------------------------------------------- the reports of a host


def test_a_short_failure_is_not_reported() -> None:
    reach, facts = Reach("a"), three_hosts()
    first = reach.decide(facts, {1}, {4}, 0)
    assert (first.unreachable, first.next_ms) == (frozenset(), NOTICE_MS)
    assert reach.decide(facts, set(), {1, 4}, 500).next_ms is None
    reach.decide(facts, {1}, {4}, 600)
    assert reach.decide(facts, {1}, {4}, 600 + NOTICE_MS).unreachable == {1}


def test_a_call_that_hangs_is_reported_at_once() -> None:
    """And as unreachable at once when the host gives it up: it has been silent for long by then."""
    reach, facts = Reach("a"), three_hosts()
    report = reach.decide(facts, set(), {1, 4}, 5_000, {1: 1_001})
    assert (report.hanging, report.unreachable, report.probe) == ({1}, set(), None)
    report = reach.decide(facts, {1}, {4}, 5_001, {1: 1_002})
    assert (report.hanging, report.unreachable) == (set(), {1})
    report = reach.decide(facts, set(), {1, 4}, 5_002)
    assert (report.hanging, report.unreachable) == (set(), set())


def test_a_slow_database_does_not_change_the_record_at_each_call() -> None:
    reach, facts = Reach("a"), three_hosts()
    for at_ms in range(0, 20_000, 1_500):
        assert reach.decide(facts, set(), {1, 4}, at_ms, {1: 1_001}).hanging == {1}
        report = reach.decide(facts, set(), {1, 4}, at_ms + 100)
        assert (report.hanging, report.next_ms) == ({1}, at_ms + HUNG_MS)
    report = reach.decide(facts, set(), {1, 4}, at_ms + HUNG_MS)
    assert (report.hanging, report.next_ms) == (set(), None)


def test_a_shard_that_was_lost_after_a_hang_was_silent_before() -> None:
    reach, facts = Reach("a"), three_hosts()
    assert reach.decide(facts, {1}, {4}, 5_000, {1: 400}).next_ms == 5_000 - 400 + NOTICE_MS
    assert reach.decide(facts, {2}, {4}, 6_000, {2: NOTICE_MS}).unreachable == {2}


def test_a_shard_that_hangs_is_away_and_moves_nowhere() -> None:
    facts = reported(three_hosts(), b=(set(), {1}))
    hosts = {**facts.hosts, "a": replace(facts.hosts["a"], hanging=frozenset({1, 3}))}
    facts = replace(facts, hosts=hosts)
    assert (away(facts), unreachable(facts), stranded(facts), cut_off(facts)) == ({1}, set(), {}, {})
    assert 1 in situation_of(facts).under_way
    assert {row.id: row.state for row in status_of(facts).shards} == {
        1: "unreachable", 2: "served", 3: "served", 4: "served"
    }  # fmt: skip


def test_a_read_only_shard_has_a_state_of_its_own() -> None:
    facts = reported(three_hosts(), a=({1, 4}, set()))
    facts = replace(facts, hosts={**facts.hosts, "a": replace(facts.hosts["a"], read_only=frozenset({4}))})
    assert (away(facts), read_only(facts)) == ({1, 4}, {4})
    assert {row.id: row.state for row in status_of(facts).shards} == {
        1: "unreachable", 2: "served", 3: "served", 4: "read-only"
    }  # fmt: skip


def test_a_host_tries_the_server_that_another_one_reports() -> None:
    reach, facts = Reach("b"), reported(three_hosts(), a=({1}, set()))
    asked = reach.decide(facts, set(), {2}, 0)
    assert (asked.probe, asked.check) == (facts.shards[1], (2,))
    assert reach.decide(facts, set(), {2}, 1).probe is None, "one at a time"
    reach.probed(ok=True)
    told = reach.decide(facts, set(), {2}, 2)
    assert (told.reached, told.unreachable, told.probe, told.next_ms) == ({1}, set(), None, PROBE_MS)
    again = reach.decide(facts, set(), {2}, PROBE_MS)
    assert again.probe == facts.shards[1]
    assert again.reached == {1}, "until the outcome is there"
    reach.probed(ok=False)
    told = reach.decide(facts, set(), set(), PROBE_MS + 1)
    assert (told.reached, told.unreachable) == (set(), {1})
    mended = reported(facts, a=(set(), set()))
    assert reach.decide(mended, set(), set(), PROBE_MS + 2).unreachable == {1}, "it still does not answer this host"
    reach.decide(mended, set(), set(), 3 * PROBE_MS)
    reach.probed(ok=True)
    told = reach.decide(mended, set(), set(), 3 * PROBE_MS + 1)
    assert (told.reached, told.unreachable, told.next_ms) == (set(), set(), None)


def test_a_host_reports_a_server_after_its_shards_moved_away() -> None:
    reach, facts = Reach("a"), three_hosts()
    reach.decide(facts, {1}, {4}, 0)
    reach.decide(facts, {1}, {4}, NOTICE_MS)
    away = reach.decide(facts, set(), {4}, NOTICE_MS + 1)
    assert (away.unreachable, away.probe) == ({1}, None)
    probe = reach.decide(facts, set(), {4}, NOTICE_MS + PROBE_MS)
    assert probe.probe == facts.shards[1]


def test_a_shard_that_is_served_again_is_not_reported() -> None:
    reach, facts = Reach("a"), three_hosts()
    reach.decide(facts, {1}, {4}, 0)
    assert reach.decide(facts, {1}, {4}, NOTICE_MS).unreachable == {1}
    assert reach.decide(facts, set(), {1, 4}, NOTICE_MS + 1).unreachable == set()


def test_time_counts_from_when_a_shard_is_named_without_a_break() -> None:
    lasting = Lasting(100)
    assert lasting.update({1}, 0) == set()
    assert (lasting.update({1, 2}, 99), lasting.next_ms(99)) == (set(), 100)
    assert (lasting.update({1, 2}, 100), lasting.next_ms(100)) == ({1}, 199)
    assert lasting.update({2}, 150) == set()
    assert lasting.update({1, 2}, 199) == {2}


# ------------------------------------------------------------------------------------- the controller


def test_a_shard_goes_to_a_host_that_reaches_its_database() -> None:
    controller = Controller(ME, SETTINGS)
    facts = reported(three_hosts(), a=({1}, set()), b=(set(), {1}), c=({1}, set()))
    assert controller.decide(facts, 0).next_ms == HOLD_MS
    write = controller.decide(facts, HOLD_MS).write
    assert write is not None
    assert (write.moved, write.hosts[1]) == ((1,), "b")
    assert write.hosts[4] == "a", "what the host does reach stays"


def test_a_database_that_comes_back_in_time_moves_nothing() -> None:
    controller = Controller(ME, SETTINGS)
    facts = reported(three_hosts(), a=({1}, set()), b=(set(), {1}))
    controller.decide(facts, 0)
    controller.decide(three_hosts(), HOLD_MS - 1)
    assert controller.decide(facts, HOLD_MS).write is None


def test_shards_of_a_dead_database_do_not_skew_balance() -> None:
    """One keeps the load that it had, one was never measured and counts as a mean one; both stay."""
    facts = on_servers(cluster(6, "a", "b", assigned=dict.fromkeys(range(1, 7), "a")), dict.fromkeys(range(1, 7), "y"))
    facts = replace(facts, shards={**facts.shards, 1: ShardFact(1, "mysql://x/1"), 2: ShardFact(2, "mysql://x/2")})
    facts = replace(facts, owners={n: owner for n, owner in facts.owners.items() if n > 2})
    facts = reported(facts, a=({1, 2}, set()), b=({1}, set()))
    measured = {1: 50.0, 3: 50.0, 4: 50.0, 5: 50.0, 6: 50.0}
    assert set(situation_of(facts, measured).loads.values()) == {1.0}
    controller = Controller(ME, SETTINGS)
    controller.decide(facts, 0, measured)
    write = controller.decide(facts, SETTINGS.balance_every_ms, measured).write
    assert write is not None
    assert set(write.moved) <= {3, 4, 5, 6}
    assert len(write.moved) == SETTINGS.max_moves


def test_a_host_that_is_cut_off_is_given_nothing() -> None:
    facts = on_servers(
        cluster(4, "a", "b", "c", assigned=dict.fromkeys(range(1, 5), "a")), dict.fromkeys(range(1, 5), "x")
    )
    facts = reported(facts, b=({1}, set()), c=(set(), {1}))
    controller = Controller(ME, SETTINGS)
    controller.decide(facts, 0)
    write = controller.decide(facts, SETTINGS.balance_every_ms).write
    assert write is not None
    assert sorted(write.hosts.values()) == ["a", "a", "c", "c"]
    assert imbalance(write.hosts, dict.fromkeys(write.hosts, 1.0), "ac") == 0
