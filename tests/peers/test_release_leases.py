"""ReleaseLeases on several hosts: one request ends the leases of all of them."""

import pytest

from foqs.errors import NotSent
from foqs.idl import idl
from tests.api.wire import Wire
from tests.peers.nodes import Cluster, Member
from tests.support.one_host import OneHost, refused, routing_of


@pytest.fixture
def two(cluster: Cluster) -> tuple[Member, Member]:
    members = cluster.add("a", 1), cluster.add("b", 2)
    cluster.tell()
    return members


def leased(wire: Wire, worker: str, count: int) -> list[int]:
    ids = wire.put("t", *[b"x"] * count)
    assert sorted(item.id for item in wire.dequeue("t", count, worker=worker)) == sorted(ids)
    return ids


def released(wire: Wire, **fields: object) -> tuple[int, list[str]]:
    response = wire.ask("ReleaseLeases", ns="test", topic="t", **fields)
    return response.released, response.missing


def test_one_host_releases_the_leases_of_all(cluster: Cluster, two: tuple[Member, Member]) -> None:
    here, there = (cluster.wire(member) for member in two)
    first, second = leased(here, "stuck", 2)[0], leased(there, "stuck", 3)[0]
    leased(there, "busy", 1)
    assert released(here, worker="stuck", reason="it hangs") == (5, [])
    items = [wire.ask("GetItem", id=item_id).item for wire, item_id in ((here, first), (there, second))]
    assert {item.last_failure.reason for item in items} == {"an operator ended the lease: it hangs"}
    assert released(here, worker="stuck") == (0, [])
    assert {item.attempt for item in there.dequeue("t", 10)} == {2}
    assert released(there, held_longer_than_ms=3_600_000) == (0, [])


def test_a_forwarded_dequeue_names_the_worker(cluster: Cluster, two: tuple[Member, Member]) -> None:
    """Its item is on the other host."""
    here, there = (cluster.wire(member) for member in two)
    (item_id,) = there.put("t", b"x")
    (item,) = here.dequeue("t", 1, wait_ms=60_000, worker="w", begins=0)
    assert item.id == item_id
    given = cluster.on_loop(lambda: two[1].engine.state.shards[2].memory.known[item_id].given)
    assert (given.worker, given.begun) == ("w", False)
    assert released(there, worker="w") == (1, [])
    assert there.one("t").attempt == 1


@pytest.mark.memory
def test_the_answers_are_added_up() -> None:
    host = OneHost(1, routing=routing_of({1: "a", 2: "b"}, "c", "d"))
    call = host.call("ReleaseLeases", ns="n", topic="t")
    asked = [sent.address for sent in host.to("ReleaseLeases")]
    host.reply("ReleaseLeases", idl.ReleaseLeasesResponse(2, []))
    host.reply("ReleaseLeases", NotSent("away"))
    assert not call.answers
    host.reply("ReleaseLeases", idl.ReleaseLeasesResponse(4, ["z:1"]))
    assert call.answer == idl.ReleaseLeasesResponse(6, [asked[1], "z:1"])


@pytest.mark.memory
@pytest.mark.parametrize(
    "fields",
    [
        {"ns": None}, {"ns": ""}, {"topic": None}, {"topic": "t" * 256}, {"worker": ""}, {"worker": "w" * 129},
        {"worker": "a\n"}, {"held_longer_than_ms": -1},
    ],
    ids=str,
)  # fmt: skip
def test_wrong_input(fields: dict[str, object]) -> None:
    assert next(iter(fields)) in refused(OneHost(1), "ReleaseLeases", **{"ns": "n", "topic": "t", **fields})
