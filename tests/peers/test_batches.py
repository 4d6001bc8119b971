"""Batches of items whose members and home are on different hosts."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from foqs.errors import Code, Unavailable
from foqs.idl import idl
from foqs.ids import shard_of
from foqs.item_batch import NO_BATCH, BatchState
from tests.api.wire import Wire, codes, spec
from tests.peers.nodes import Cluster, Member
from tests.support.waiting import wait_until


@pytest.fixture
def two(cluster: Cluster) -> tuple[Member, Member]:
    members = cluster.add("a", 1), cluster.add("b", 2)
    cluster.tell()
    return members


@pytest.fixture
def wires(cluster: Cluster, two: tuple[Member, Member]) -> tuple[Wire, Wire]:
    return cluster.wire(two[0]), cluster.wire(two[1])


def create(wire: Wire, **fields: Any) -> int:
    done, end = spec("done", b"all"), spec("end", b"over")
    made = wire.ask("CreateBatch", ns="test", on_success=done, on_end=end, **fields)
    return int(made.id)


def look(wire: Wire, batch: int) -> Any:
    return wire.ask("GetBatch", ns="test", id=batch)


def ended(wire: Wire, batch: int) -> Any:
    wait_until(lambda: look(wire, batch).ended_at_ms is not None, "the end of the batch")
    return look(wire, batch)


def callbacks(*wires: Wire) -> list[tuple[str, str, Any]]:
    """The callbacks on these hosts, each with its batch and its counts."""
    found = []
    for wire in wires:
        for item in wire.take([("done", 100), ("end", 100)]):
            counts = item.headers.get("foqs-batch-counts")
            found.append((item.topic, item.headers["foqs-batch"], counts and json.loads(counts)))
    return sorted(found)


def test_members_are_on_another_host_than_the_home(wires: tuple[Wire, Wire]) -> None:
    batch = create(wires[0])
    assert shard_of(batch) == 1
    ids = wires[1].enqueue(*(spec("work", b"%d" % n, batch=batch) for n in range(5)))
    assert {shard_of(item_id) for item_id in ids} == {2}
    wires[0].ask("CloseBatch", ns="test", id=batch)
    items = [wires[n % 2].one("work") for n in range(5)]
    for item in items[:4]:
        assert wires[0].ack(item) == [0]
    assert callbacks(*wires) == []
    assert wires[1].ack(items[4]) == [0]
    found = ended(wires[1], batch)
    assert (found.state, found.counts.completed, found.counts.members) == (BatchState.SUCCEEDED, 5, 5)
    counts = {"members": 5, "completed": 5}
    assert callbacks(*wires) == [("done", str(batch), None), ("end", str(batch), counts)]


def test_a_batch_on_another_host_ends_in_its_parent(wires: tuple[Wire, Wire]) -> None:
    parent = create(wires[0])
    child = create(wires[1], parent=parent)
    assert (shard_of(parent), shard_of(child)) == (1, 2)
    wires[0].enqueue(spec("work", b"x", batch=child))
    for batch in (parent, child):
        wires[0].ask("CloseBatch", ns="test", id=batch)
    item = wires[1].one("work")
    assert look(wires[0], parent).counts.members == 1
    assert wires[1].settle("Nack", [idl.NackItem(item.id, item.lease, reject=True, reason="bad")]) == [0]
    assert ended(wires[0], child).state == BatchState.ENDED
    found = ended(wires[1], parent)
    assert (found.state, found.failed_ids) == (BatchState.ENDED, [child])
    assert [name for name, _, _ in callbacks(*wires)] == ["end", "end"]


def test_a_cancelled_batch_loses_its_members_everywhere(wires: tuple[Wire, Wire]) -> None:
    batch = create(wires[0])
    child = create(wires[1], parent=batch)
    for wire in wires:
        wire.enqueue(*(spec("work", b"x", batch=number) for number in (batch, child) for _ in range(3)))
    leased = wires[0].one("work")
    wires[1].ask("CancelBatch", ns="test", id=batch)
    wait_until(lambda: sum(len(wire.listed("work")) for wire in wires[:1]) == 1, "the members removed")
    (refused,) = wires[0].outcomes(spec("work", b"x", batch=batch))
    assert (refused.error.code, refused.error.message) == (Code.INVALID, "the batch was cancelled")
    assert look(wires[0], batch).ended_at_ms is None
    assert wires[0].ack(leased) == [0]
    found = ended(wires[0], batch)
    assert found.state == BatchState.CANCELLED
    assert found.counts.members == 7
    assert [name for name, _, _ in callbacks(*wires)] == ["end", "end"]


def test_no_item_joins_a_batch_of_another_namespace(wires: tuple[Wire, Wire]) -> None:
    batch = create(wires[0])
    for wire in wires:
        (refused,) = wire.outcomes(spec("work", b"x", batch=batch), ns="other")
        assert (refused.error.code, refused.error.message) == (Code.INVALID, NO_BATCH)
    assert look(wires[0], batch).counts.members == 0
    wires[0].ask("CloseBatch", ns="test", id=batch)
    assert ended(wires[0], batch).state == BatchState.SUCCEEDED


def test_a_home_that_moves_is_asked_again(
    cluster: Cluster, two: tuple[Member, Member], wires: tuple[Wire, Wire]
) -> None:
    """Its new owner finds the batch, and asks the shards with members."""
    batch = create(wires[0])
    wires[1].enqueue(*(spec("work", b"x", batch=batch) for _ in range(3)))
    wires[0].ask("CloseBatch", ns="test", id=batch)
    cluster.move(1, two[1])
    cluster.until(lambda: two[1].serves(1), "the shard's new host")
    wires[1].enqueue(spec("work", b"x", batch=batch))
    items = [wires[1].one("work") for _ in range(4)]
    assert wires[1].ack(*items) == [0] * 4
    assert ended(wires[1], batch).counts.completed == 4


def test_a_home_without_an_owner_holds_new_members_up(
    cluster: Cluster, two: tuple[Member, Member], wires: tuple[Wire, Wire], monkeypatch: pytest.MonkeyPatch
) -> None:
    batch = create(wires[0])
    monkeypatch.setattr("foqs.buffers.members.JOIN_MS", 300)
    cluster.tell(cluster.routing(two[1], without=[1]))
    cluster.on_loop(two[0].die)
    refused = wires[1].outcomes(spec("work", b"x", batch=batch), spec("work", b"plain"))
    assert codes(refused) == [Code.UNAVAILABLE, 0]
    assert "the home of the batch cannot be reached now" in refused[0].error.message


@pytest.mark.parametrize("lost", ["request", "reply"])
def test_lost_reports_are_sent_again(
    two: tuple[Member, Member], wires: tuple[Wire, Wire], monkeypatch: pytest.MonkeyPatch, lost: str
) -> None:
    messages, losses = two[1].forwarder.batches, [3]
    send = messages._ask

    def ask(address: str, method: str, request: Any, timeout_ms: int, done: Callable[..., None]) -> Any:
        if method == "ReportMembers" and losses[0]:
            losses[0] -= 1
            error = Unavailable("lost")
            if lost == "request":
                done(None, error)
                return None
            return send(address, method, request, timeout_ms, lambda *_: done(None, error))
        return send(address, method, request, timeout_ms, done)

    monkeypatch.setattr(messages, "_ask", ask)
    batch = create(wires[0])
    wires[1].enqueue(spec("work", b"x", batch=batch))
    losses[0] = 3
    wires[0].ask("CloseBatch", ns="test", id=batch)
    assert wires[1].ack(wires[1].one("work")) == [0]
    found = ended(wires[0], batch)
    assert (found.counts.members, found.counts.completed) == (1, 1)
    assert losses[0] < 3
    assert [name for name, _, _ in callbacks(*wires)] == ["done", "end"]
