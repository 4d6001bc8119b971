"""A host is ready if it serves all its shards, listens, and is not stopping."""

import pytest

from foqs.admin.readiness import assigned, notes, unjoined, unready
from foqs.shardmgr.facts import Assignment, Facts, HostFact, ShardFact, ShardUse
from foqs.shardmgr.lifecycle import ShardState

SERVING, OPENING = ShardState.SERVING, ShardState.OPENING


@pytest.mark.parametrize(
    ("wanted", "states", "listens", "stopping", "missing"),
    [
        ([1, 2], {1: SERVING, 2: SERVING}, True, False, []),
        ([1, 2], {1: SERVING, 2: OPENING}, True, False, ["shard 2 is opening"]),
        ([1, 2], {1: SERVING}, True, False, ["shard 2 is assigned"]),
        ([1], {1: ShardState.CLOSED}, True, False, ["shard 1 is closed"]),
        ([1], {1: ShardState.DRAINING}, True, False, ["shard 1 is draining"]),
        ([1], {1: SERVING, 2: ShardState.DRAINING}, True, False, []),  # shard 2 moves to another host
        ([], {}, True, False, []),
        ([1], {1: SERVING}, False, False, ["not listening yet"]),
        ([1], {1: SERVING}, True, True, ["stopping"]),
        ([1], {1: SERVING}, False, True, ["stopping"]),
    ],
)
def test_missing_parts_are_named(
    wanted: list[int], states: dict[int, ShardState], listens: bool, stopping: bool, missing: list[str]
) -> None:
    assert unready(wanted, states, listens=listens, stopping=stopping) == missing


def test_a_shard_whose_database_answers_no_host_is_not_missing() -> None:
    states = {1: SERVING, 2: OPENING}
    assert unready([1, 2, 3], states, listens=True, stopping=False, unreachable={2, 3}) == []
    assert unready([1, 2, 3], states, listens=True, stopping=False, unreachable={2}) == ["shard 3 is assigned"]
    assert notes({3, 2}) == ["shard 2: its database does not answer", "shard 3: its database does not answer"]
    assert notes({3, 2}, read_only={2, 4}) == [
        "shard 2: its database is read-only: is it a replica, or no longer the primary?",
        "shard 3: its database does not answer",
    ]


def test_a_host_that_alone_reaches_no_database_is_not_ready() -> None:
    told = unready([1, 2], {1: SERVING}, listens=True, stopping=False, unreachable={1, 2}, cut_off={1, 2})
    assert told == [f"shard {n}: this host cannot reach its database, another host can" for n in (1, 2)]


def test_the_answer_is_short() -> None:
    told = unready(range(1, 10_001), {}, listens=True, stopping=False)
    assert (len(told), told[-1]) == (101, "and 9900 more")


def test_a_host_before_its_assignment() -> None:
    shards = {1: ShardFact(1, "sqlite:///x")}
    assert unjoined(Facts(shards=shards), "/foqs", seen=False) == ["not registered as a host of the cluster yet"]
    assert unjoined(Facts(shards=shards), "/foqs", seen=True) == ["no shard of the cluster is assigned yet"]
    assert unjoined(Facts(shards=shards, assignment=Assignment(0, {1: "b"})), "/foqs", seen=True) == []


def test_a_cluster_without_a_shard_is_not_ready() -> None:
    (told,) = unjoined(Facts(assignment=Assignment(0, {})), "/mistyped", seen=True)
    assert told == (
        "the cluster at /mistyped in ZooKeeper has no shard: check zookeeper.root, or add one with `foqs shards add`"
    )


def test_a_host_whose_id_is_taken_names_the_other() -> None:
    twin = HostFact("a", "elsewhere:7707", "run")
    (told,) = unjoined(Facts(hosts={"a": twin}), "/foqs", seen=False, twin=twin)
    assert told == "another host at elsewhere:7707 has the same id a: stop it, or give each host its own server.id"


def test_the_shards_of_one_host() -> None:
    shards = {number: ShardFact(number, "sqlite:///x") for number in (1, 2, 3)}
    facts = Facts(shards, assignment=Assignment(3, {1: "a", 2: "b", 3: "a"}))
    assert (assigned("a", facts), assigned("c", facts)) == ([1, 3], [])


def test_a_host_does_not_miss_shards_that_no_host_may_serve() -> None:
    """The controller has not written the next assignment yet."""
    shards = {1: ShardFact(1, "sqlite:///x"), 2: ShardFact(2, "sqlite:///y", use=ShardUse.DISABLED)}
    facts = Facts(shards, assignment=Assignment(3, {1: "a", 2: "a", 3: "a"}))
    assert assigned("a", facts) == [1]
