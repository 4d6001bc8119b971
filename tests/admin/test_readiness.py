"""Ready is who serves every shard that it is to serve, listens, and does not stop."""

import pytest

from foqs.admin.readiness import assigned, unjoined, unready
from foqs.shardmgr.facts import Assignment, Facts, ShardFact
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
        ([1], {1: SERVING, 2: ShardState.DRAINING}, True, False, []),  # that one goes to another host
        ([], {}, True, False, []),
        ([1], {1: SERVING}, False, False, ["not listening yet"]),
        ([1], {1: SERVING}, True, True, ["stopping"]),
        ([1], {1: SERVING}, False, True, ["stopping"]),
    ],
)
def test_what_is_missing(
    wanted: list[int], states: dict[int, ShardState], listens: bool, stopping: bool, missing: list[str]
) -> None:
    assert unready(wanted, states, listens=listens, stopping=stopping) == missing


def test_the_answer_is_short() -> None:
    told = unready(range(1, 10_001), {}, listens=True, stopping=False)
    assert (len(told), told[-1]) == (101, "and 9900 more")


def test_who_is_no_host_of_the_cluster_yet() -> None:
    shards = {1: ShardFact(1, "sqlite:///x")}
    assert unjoined(Facts(shards=shards), seen=False) == ["not among the hosts of the cluster"]
    assert unjoined(Facts(shards=shards), seen=True) == ["no shard of the cluster is assigned yet"]
    assert unjoined(Facts(), seen=True) == []
    assert unjoined(Facts(shards=shards, assignment=Assignment(0, {1: "b"})), seen=True) == []


def test_the_shards_of_one_host() -> None:
    facts = Facts(assignment=Assignment(3, {1: "a", 2: "b", 3: "a"}))
    assert (assigned("a", facts), assigned("c", facts)) == ([1, 3], [])
