"""Operators' commands: the change of the facts, refusals, and the condition for the end."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict, replace

import pytest

from foqs.errors import Invalid
from foqs.shardmgr.facts import Assignment, Facts, HostFact, OwnerFact, ShardFact, ShardUse, Slots
from foqs.shardmgr.operate import (
    Assign,
    Change,
    MarkHost,
    PutShard,
    RemoveShard,
    add_shard,
    drain_host,
    ensure_shard,
    made,
    move_shard,
    rebalance,
    remove_shard,
    shown,
    undrain_host,
    use_shard,
)
from foqs.shardmgr.status import HostAnswer, status_of

SECRET = "hunter2"


def shard(number: int, use: ShardUse = ShardUse.ENABLED) -> ShardFact:
    return ShardFact(number, f"mysql://u:{SECRET}@h/db_{number}", 1.0, use)


def cluster(assigned: dict[int, str], *hosts: str, version: int = 3, served: bool = True) -> Facts:
    owners = {n: OwnerFact(n, at, f"{at}:1", 1) for n, at in assigned.items() if served and at in hosts}
    return Facts(
        {n: shard(n) for n in assigned},
        {host: HostFact(host, f"{host}:1", "run") for host in hosts},
        owners,
        frozenset(),
        Assignment(version, assigned),
        hosts[0] if hosts else None,
    )


TWO = cluster({1: "a", 2: "b"}, "a", "b")


def having(facts: Facts, change: Change) -> Facts:
    """What ZooKeeper shows when the change was made."""
    match change.action:
        case PutShard(fact, _):
            return replace(facts, shards={**facts.shards, fact.id: fact})
        case RemoveShard(before):
            return replace(facts, shards={n: fact for n, fact in facts.shards.items() if n != before.id})
        case Assign(hosts, version):
            return replace(facts, assignment=Assignment(version + 1, hosts))
        case MarkHost(host, drained):
            return replace(facts, drained=facts.drained | {host} if drained else facts.drained - {host})
        case None:
            return facts


def owned(facts: Facts, number: int, host: str | None) -> Facts:
    others = {n: owner for n, owner in facts.owners.items() if n != number}
    new = {number: OwnerFact(number, host, f"{host}:1", 9)} if host is not None else {}
    return replace(facts, owners=others | new)


def assigned(facts: Facts, hosts: dict[int, str]) -> Facts:
    return replace(facts, assignment=Assignment(facts.assignment.version + 1, hosts))


CHANGES: list[tuple[Facts, Callable[[Facts], Change]]] = [
    (TWO, lambda facts: add_shard(facts, shard(3))),
    (TWO, lambda facts: use_shard(facts, 1, ShardUse.DRAINING)),
    (TWO, lambda facts: use_shard(facts, 1, ShardUse.DISABLED)),
    (cluster({1: "a"}), lambda facts: remove_shard(replace(facts, shards={1: shard(1, ShardUse.DISABLED)}), 1)),
    (TWO, lambda facts: move_shard(facts, 1, "b")),
    (cluster({1: "a", 2: "a", 3: "a"}, "a", "b"), rebalance),
    (TWO, lambda facts: drain_host(facts, "a")),
    (replace(TWO, drained=frozenset("a")), lambda facts: undrain_host(facts, "a")),
]


@pytest.mark.parametrize(("facts", "decide"), CHANGES)
def test_a_change_is_shown_once_it_was_made_and_holds_no_url(facts: Facts, decide: Callable[[Facts], Change]) -> None:
    change = decide(facts)
    assert change.action is not None
    before = replace(facts, shards={1: shard(1, ShardUse.DISABLED)}) if change.what == "shard.remove" else facts
    assert not shown(change.action, before)
    assert not made(change.action, before)
    after = having(before, change)
    assert shown(change.action, after)
    assert made(change.action, after)
    said = json.dumps([change.what, change.says, change.then, dict(change.before), dict(change.after)])
    assert SECRET not in said + repr(change)
    assert "\n" not in change.says


def test_a_different_change_of_another_operator_is_noticed() -> None:
    change = move_shard(TWO, 1, "b")
    assert change.action is not None
    other = assigned(TWO, {1: "a", 2: "a"})
    assert shown(change.action, other)
    assert not made(change.action, other)


def refused(decide: Callable[[], Change], words: str) -> None:
    with pytest.raises(Invalid) as refusal:
        decide()
    assert words in refusal.value.message
    assert SECRET not in refusal.value.message
    assert "\n" not in refusal.value.message


def test_refused_changes() -> None:
    refused(lambda: add_shard(TWO, shard(1)), "exists already")
    refused(lambda: add_shard(TWO, replace(shard(1), id=9)), "shard 1 has that URL")
    refused(lambda: add_shard(TWO, shard(0)), "not in 1..32767")
    refused(lambda: add_shard(TWO, replace(shard(3), weight=0.0)), "weight 0 ")
    refused(lambda: add_shard(TWO, replace(shard(3), weight=float("nan"))), "weight nan")
    for use in ShardUse:
        refused(lambda use=use: use_shard(TWO, 7, use), "no shard 7")
    refused(lambda: remove_shard(TWO, 7), "no shard 7")
    refused(lambda: remove_shard(TWO, 1), "disable it first")
    disabled = replace(TWO, shards={1: shard(1, ShardUse.DISABLED), 2: shard(2)})
    refused(lambda: remove_shard(disabled, 1), "still served by a")
    refused(lambda: remove_shard(owned(disabled, 1, None), 1), "still assigned to a")
    refused(lambda: move_shard(disabled, 1, "b"), "disabled")
    refused(lambda: move_shard(TWO, 7, "b"), "no shard 7")
    refused(lambda: move_shard(TWO, 1, "x"), "no host x")
    refused(lambda: move_shard(cluster({1: "a", 2: "b"}, "a"), 1, "b"), "b is not alive")
    refused(lambda: move_shard(replace(TWO, drained=frozenset("b")), 1, "b"), "b is drained")
    leaving = replace(TWO, hosts={**TWO.hosts, "b": HostFact("b", "b:1", "run", leaving=True)})
    refused(lambda: move_shard(leaving, 1, "b"), "b is leaving")
    refused(lambda: drain_host(TWO, "x"), "no host x")
    refused(lambda: drain_host(leaving, "a"), "no other living host")
    refused(lambda: drain_host(cluster({1: "b"}, "a"), "b"), "b is not alive")
    refused(lambda: undrain_host(TWO, "x"), "no host x")
    refused(lambda: rebalance(cluster({1: "a"})), "no living host")
    refused(lambda: move_shard(TWO, 1, "x\x1b[31m\n"), r"'x\x1b[31m\n'")


def test_a_change_that_is_already_made_changes_nothing() -> None:
    for change in (
        use_shard(TWO, 1, ShardUse.ENABLED),
        move_shard(TWO, 1, "a"),
        rebalance(TWO),
        undrain_host(TWO, "a"),
    ):
        assert change.action is None
        assert change.missing(TWO) == []


def test_ensure_adds_a_shard_once_and_never_changes_it() -> None:
    assert ensure_shard(TWO, shard(3)).action == PutShard(shard(3), None)
    again = ensure_shard(TWO, replace(shard(2), weight=3.0, use=ShardUse.DISABLED))
    assert (again.action, again.says) == (None, "shard 2 exists already, with weight 1, which stays")
    refused(lambda: ensure_shard(TWO, replace(shard(2), url="sqlite://")), "another URL")


def test_a_move_is_done_when_the_new_owner_announces_itself() -> None:
    change = move_shard(TWO, 1, "b")
    assert change.says == "moves shard 1 from a to b"
    assert change.action == Assign({1: "b", 2: "b"}, 3)
    now = having(TWO, change)
    assert change.missing(now) == ["shard 1 is still served by a"]
    now = owned(now, 1, None)
    assert change.missing(now) == ["no host serves shard 1 yet"]
    assert change.missing(owned(now, 1, "b")) == []
    with pytest.raises(Invalid, match="shard 1 was assigned to a during the move"):
        change.missing(assigned(now, {1: "a", 2: "b"}))
    with pytest.raises(Invalid, match="taken out"):
        change.missing(assigned(now, {2: "b"}))


def test_the_first_assignment_of_all_may_be_a_move() -> None:
    facts = replace(cluster({1: "a"}, "a", served=False), assignment=Assignment())
    assert move_shard(facts, 1, "a").action == Assign({1: "a"}, -1)


def test_adding_or_enabling_ends_when_a_host_serves_it() -> None:
    added = add_shard(TWO, shard(3))
    now = having(TWO, added)
    assert added.missing(now) == ["shard 3 is not served yet"]
    assert added.missing(owned(now, 3, "a")) == []
    with pytest.raises(Invalid, match="removed"):
        added.missing(TWO)
    nobody = cluster({1: "a"})
    added = add_shard(nobody, shard(3))
    assert added.missing(having(nobody, added)) == []
    assert "no living host" in added.then
    with pytest.raises(Invalid, match="disabled"):
        use_shard(TWO, 1, ShardUse.ENABLED).missing(having(TWO, use_shard(TWO, 1, ShardUse.DISABLED)))


def test_disabling_ends_when_no_host_serves_or_may_open_it() -> None:
    change = use_shard(TWO, 1, ShardUse.DISABLED)
    now = having(TWO, change)
    assert change.missing(now) == ["shard 1 is still served by a"]
    assert change.missing(owned(now, 1, None)) == ["shard 1 is still assigned to a"]
    assert change.missing(assigned(owned(now, 1, None), {2: "b"})) == []
    assert change.missing(replace(now, hosts={}, owners={})) == []
    with pytest.raises(Invalid, match="made shard 1 enabled"):
        change.missing(TWO)
    gone = remove_shard(replace(now, hosts={}, owners={}), 1)
    assert gone.action == RemoveShard(now.shards[1])


def test_draining_a_shard_ends_when_its_slots_are_gone() -> None:
    change = use_shard(TWO, 1, ShardUse.DRAINING)
    now = having(TWO, change)
    assert change.missing(now) == []
    with_slots = replace(now, slots=Slots(0, (1, 2, 1)))
    assert change.missing(with_slots) == ["shard 1 still has 2 slots of deduplication and order keys"]
    alone = {1: with_slots.shards[1], 2: shard(2, ShardUse.DISABLED)}
    assert change.missing(replace(with_slots, shards=alone)) == [], "there is no other to take them"
    with pytest.raises(Invalid, match="made enabled shard 1"):
        change.missing(TWO)


def test_removing_a_shard_names_the_lost_keys() -> None:
    facts = replace(cluster({1: "a"}), shards={1: shard(1, ShardUse.DISABLED)})
    assert "keys" not in remove_shard(facts, 1).says
    assert "keys (2 slots) are lost" in remove_shard(replace(facts, slots=Slots(0, (1, 2, 1))), 1).says


def test_draining_a_host_ends_without_served_and_assigned() -> None:
    change = drain_host(TWO, "a")
    now = having(TWO, change)
    assert change.missing(now) == ["host a still serves 1 shard"]
    assert change.missing(owned(now, 1, "b")) == ["host a is still assigned 1 shard"]
    assert change.missing(assigned(owned(now, 1, "b"), {1: "b", 2: "b"})) == []
    again = drain_host(now, "a")
    assert again.action is None
    assert again.missing(now)
    with pytest.raises(Invalid, match="undrained"):
        change.missing(TWO)
    assert undrain_host(replace(now, hosts={}), "a").action == MarkHost("a", drained=False)
    assert drain_host(cluster({}, "a"), "a").missing(replace(cluster({}, "a"), drained=frozenset("a"))) == []


def test_rebalance_moves_few_and_leaves_shards_under_way() -> None:
    facts = cluster(dict.fromkeys(range(1, 7), "a"), "a", "b")
    change = rebalance(facts)
    assert [move[1:] for move in change.moves] == [("a", "b")] * 3
    assert change.action == Assign(
        {**facts.assignment.hosts, **{move[0]: "b" for move in change.moves}}, facts.assignment.version
    )
    assert len(rebalance(facts, 1).moves) == 1
    assert len(change.missing(having(facts, change))) == 3
    under_way = owned(owned(facts, 1, None), 2, "b")
    assert not {1, 2} & {number for number, _, _ in rebalance(under_way).moves}


# ------------------------------------------------------------------------------------------------------ status


def test_the_status_of_nothing() -> None:
    status = status_of(Facts())
    assert asdict(status) == {
        "assignment_version": -1, "controller": None, "under_way": 0, "imbalance": None, "best_imbalance": None,
        "hosts": (), "shards": (), "writing_back": False,
    }  # fmt: skip


def test_a_row_for_all_that_is_known_of() -> None:
    facts = cluster({1: "a", 2: "b", 3: "gone", 4: "a", 5: "a"}, "a", "b")
    facts = owned(owned(facts, 2, "a"), 4, None)
    facts = replace(
        facts,
        shards={**facts.shards, 5: shard(5, ShardUse.DISABLED), 6: shard(6), 7: shard(7, ShardUse.DISABLED)},
        drained=frozenset({"b", "other"}),
    )
    facts = owned(facts, 8, "a")
    status = status_of(facts)
    assert [(row.id, row.state, row.assigned, row.served) for row in status.hosts] == [
        ("a", "alive", 3, 4), ("b", "drained", 1, 0), ("gone", "not alive", 1, 0),
        ("other", "not alive, drained", 0, 0),
    ]  # fmt: skip
    assert {row.id: row.state for row in status.shards} == {
        1: "served", 2: "moving", 3: "unassigned", 4: "opening", 5: "stopping", 6: "unassigned", 7: "disabled",
        8: "stopping",
    }  # fmt: skip
    assert [row.id for row in status.shards if row.under_way] == [2, 3, 4]
    assert (status.controller, status.under_way, status.imbalance) == ("a", 3, 0.0)
    assert SECRET not in repr(status)


def test_imbalance_is_in_mean_loads() -> None:
    assert status_of(cluster(dict.fromkeys(range(1, 5), "a"), "a", "b")).imbalance == 2.0
    assert status_of(TWO).imbalance == 0.0


def test_the_best_imbalance_of_indivisible_shards_is_known() -> None:
    three = cluster({1: "a", 2: "a", 3: "a", 4: "b", 5: "b", 6: "b", 7: "c", 8: "c"}, "a", "b", "c")
    status = status_of(three)
    assert (status.imbalance, status.best_imbalance) == (0.375, 0.375)
    uneven = status_of(cluster(dict.fromkeys(range(1, 9), "a"), "a", "b", "c"))
    assert (uneven.imbalance, uneven.best_imbalance) == (3.0, 0.375)


def test_answers_of_hosts_are_in_rows_of_hosts_and_shards() -> None:
    status = status_of(TWO, {"a": HostAnswer("1.2", {1: 7.5}, {1: 40}, {1: 3})})
    assert [(row.version, row.load, row.items) for row in status.hosts] == [("1.2", 7.5, 40), (None, None, None)]
    assert [(row.load, row.items, row.order_keys) for row in status.shards] == [(7.5, 40, 3), (None, None, None)]
