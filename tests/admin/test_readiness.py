"""A host is ready if it listens, is in its cluster, can route, and is not stopping. Its shards are notes."""

import pytest

from foqs.admin.readiness import assigned, notes, unjoined, unready
from foqs.shardmgr.continuity import Finding
from foqs.shardmgr.facts import Assignment, Facts, HostFact, Session, ShardFact, ShardUse
from foqs.shardmgr.lifecycle import ShardState

SERVING, OPENING = ShardState.SERVING, ShardState.OPENING


READ_ONLY = "its database is read-only: is it a replica, or no longer the primary?"


@pytest.mark.parametrize(
    ("listens", "stopping", "missing"),
    [
        (True, False, []),
        (False, False, ["not listening yet"]),
        (True, True, ["stopping"]),
        (False, True, ["stopping"]),
    ],
)
def test_a_host_is_ready_when_it_listens(listens: bool, stopping: bool, missing: list[str]) -> None:
    assert unready(listens=listens, stopping=stopping) == missing


@pytest.mark.parametrize(
    ("wanted", "states", "noted"),
    [
        ([1, 2], {1: SERVING, 2: SERVING}, []),
        ([1, 2], {1: SERVING, 2: OPENING}, ["shard 2 is opening"]),
        ([1, 2], {1: SERVING}, ["shard 2 is assigned"]),
        ([1], {1: ShardState.CLOSED}, ["shard 1 is closed"]),
        ([1], {1: ShardState.DRAINING}, ["shard 1 is draining"]),
        ([1], {1: SERVING, 2: ShardState.DRAINING}, []),  # shard 2 moves to another host
        ([], {}, []),
    ],
)
def test_shards_that_are_not_served_are_noted(
    wanted: list[int], states: dict[int, ShardState], noted: list[str]
) -> None:
    assert notes(wanted, states) == noted


def test_a_note_names_the_fault_of_a_database() -> None:
    states = {1: SERVING, 2: SERVING, 3: OPENING}
    assert notes([1, 2, 3], states, unreachable={2, 3}) == [
        "shard 2: its database does not answer", "shard 3: its database does not answer"
    ]  # fmt: skip
    assert notes([1, 2, 3], states, unreachable={2, 3}, read_only={2, 4}) == [
        f"shard 2: {READ_ONLY}", "shard 3: its database does not answer"
    ]  # fmt: skip
    cut = [f"shard {n}: this host cannot reach its database, another host can" for n in (1, 2)]
    assert notes([1, 2], {1: SERVING}, unreachable={1, 2}, cut_off={1, 2}) == cut


def test_a_session_that_is_not_connected_is_noted() -> None:
    assert notes([], {}, session=Session.CONNECTED) == []
    (note,) = notes([], {}, session=Session.SUSPENDED)
    assert note == "the session with ZooKeeper is suspended: the host keeps the shards that it has"


def test_lost_data_is_noted() -> None:
    for finding in Finding:
        if finding is not Finding.SAME:
            (note,) = notes([], {}, session=Session.CONNECTED, held=finding)
            assert note.startswith("ZooKeeper ")
            assert note.endswith("the host keeps the shards that it has")


def test_the_answer_is_short() -> None:
    found = notes(range(1, 10_001), {})
    assert (len(found), found[-1]) == (101, "and 9900 more")


def test_a_host_before_its_assignment() -> None:
    shards = {1: ShardFact(1, "sqlite:///x")}
    assert unjoined(Facts(shards=shards), "/foqs", seen=False) == ["not registered as a host of the cluster yet"]
    assert unjoined(Facts(shards=shards), "/foqs", seen=True) == ["no shard of the cluster is assigned yet"]
    assert unjoined(Facts(shards=shards, assignment=Assignment(0, {1: "b"})), "/foqs", seen=True) == []


def test_a_cluster_without_a_shard_is_not_ready() -> None:
    (told,) = unjoined(Facts(assignment=Assignment(0, {})), "/mistyped", seen=True)
    assert told == (
        "the cluster at /mistyped in ZooKeeper has no shard: check zookeeper.root, or add one with `foqs shards add`;"
        " if ZooKeeper lost its data: `foqs cluster import`"
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
