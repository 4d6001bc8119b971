"""Batches from their creation to their callbacks, against a real host, some of them through a kill."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import pytest

from foqs.client import (
    Batch,
    BatchState,
    Client,
    DedupUntil,
    Duplicate,
    FoqsError,
    Invalid,
    Item,
    ItemFilter,
    ItemSpec,
    ItemState,
    NotFound,
)
from foqs.ids import make_id, number_of, shard_of
from tests.client.peer import eventually
from tests.client.real_server import PATIENT_MS, Server, foqs, on_each_host

pytestmark = pytest.mark.timeout(300)
SUCCESS, END = ItemSpec("done", b"success", headers={"own": "1"}), ItemSpec("done", b"end", priority=5)
NO_ITEMS_MS = 1_500
"""Several times what a report to the home takes."""


def create(client: Client, **fields: Any) -> int:
    return client.create_batch(**{"on_success": SUCCESS, "on_end": END, **fields})


def put(client: Client, batch: int, *payloads: bytes, topic: str = "t", **fields: Any) -> list[int]:
    outcomes = client.enqueue_many([ItemSpec(topic, payload, batch=batch, **fields) for payload in payloads])
    ids = [outcome for outcome in outcomes if isinstance(outcome, int)]
    assert len(ids) == len(payloads), outcomes
    return ids


def take(client: Client, count: int, topic: str = "t") -> list[Item]:
    """Lease `count` items, and return them by id."""
    held: list[Item] = []
    while len(held) < count:
        held += client.dequeue(topic, count - len(held), wait_ms=PATIENT_MS, lease_ms=600_000)
    return sorted(held, key=lambda item: item.id)


def ack(client: Client, items: list[Item]) -> None:
    assert client.ack_many(items) == [None] * len(items)


def ended(client: Client, batch: int) -> Batch:
    found: list[Batch] = []
    eventually(lambda: (found.append(client.get_batch(batch)), found[-1].ended)[1], "the batch ends")
    return found[-1]


def counted(client: Client, batch: int, **counts: int) -> None:
    """Wait until the home knows these counts."""

    def known() -> bool:
        now = client.get_batch(batch).counts._asdict()
        return {name: now[name] for name in counts} == counts

    eventually(known, lambda: client.get_batch(batch))


def callbacks(client: Client, count: int, topic: str = "done") -> dict[bytes, Item]:
    """Take `count` callbacks, and see that there are no more."""
    items = take(client, count, topic)
    assert client.dequeue(topic, 10, wait_ms=NO_ITEMS_MS) == []
    made = {item.payload: item for item in items}
    assert len(made) == count
    return made


def told(item: Item, batch: int, state: str, failed_ids: Sequence[int] = (), **counts: int) -> None:
    """The headers of `on_end` say this."""
    headers = item.headers or {}
    assert (headers["foqs-batch"], headers["foqs-batch-state"]) == (str(batch), state)
    assert {name: one for name, one in json.loads(headers["foqs-batch-counts"]).items() if one} == counts
    assert headers.get("foqs-batch-failed", "") == ",".join(map(str, failed_ids))


# ------------------------------------------------------------------------------------------ ends


@on_each_host
def test_a_batch_that_succeeds(client: Client) -> None:
    batch = create(client)
    assert client.get_batch(batch).state is BatchState.OPEN
    ids = [client.enqueue("t", b"1", batch=batch), *put(client, batch, b"2", b"3")]
    other = client.enqueue("t", b"other")
    counted(client, batch, members=3)
    client.close_batch(batch)
    client.close_batch(batch)
    listed = list(client.list_items("t", filter=ItemFilter(batch=batch)))
    assert sorted(item.id for item in listed) == sorted(ids)
    assert {item.batch for item in listed} == {batch}
    items = take(client, 4)
    assert {item.id: item.batch for item in items} == {other: None, **dict.fromkeys(ids, batch)}
    ack(client, items)
    found = ended(client, batch)
    assert (found.state, found.counts.members, found.counts.completed) == (BatchState.SUCCEEDED, 3, 3)
    made = callbacks(client, 2)
    success, end = made[b"success"], made[b"end"]
    assert success.headers == {"own": "1", "foqs-batch": str(batch)}
    told(end, batch, "SUCCEEDED", members=3, completed=3)
    assert (success.id, end.id, end.priority) == (found.success_id, found.end_id, 5)
    assert success.batch is end.batch is None


@on_each_host
def test_members_with_keys(client: Client) -> None:
    batch = create(client)
    ids = put(client, batch, b"1", b"2", order_key="k")
    ids.append(client.enqueue("t", b"3", batch=batch, dedup_key="d", dedup_until=DedupUntil.DONE))
    again = client.enqueue("t", b"3", batch=batch, dedup_key="d", dedup_until=DedupUntil.DONE)
    assert isinstance(again, Duplicate) and again == ids[-1]
    assert {item.batch for item in client.list_items("t")} == {batch}
    client.close_batch(batch)
    counted(client, batch, members=3)
    for _ in ids:  # the second one of the order key comes behind the first
        ack(client, take(client, 1))
    found = ended(client, batch)
    assert (found.state, found.counts.members, found.counts.completed) == (BatchState.SUCCEEDED, 3, 3)
    told(callbacks(client, 2)[b"end"], batch, "SUCCEEDED", members=3, completed=3)


@on_each_host
def test_an_empty_batch_ends_when_it_is_closed(client: Client) -> None:
    batch = create(client)
    client.close_batch(batch)
    assert ended(client, batch).state is BatchState.SUCCEEDED
    assert set(callbacks(client, 2)) == {b"success", b"end"}


@on_each_host
def test_a_batch_without_callbacks(client: Client) -> None:
    batch = client.create_batch()
    put(client, batch, b"1")
    client.close_batch(batch)
    ack(client, take(client, 1))
    found = ended(client, batch)
    assert (found.state, found.success_id, found.end_id) == (BatchState.SUCCEEDED, None, None)


@on_each_host
def test_a_batch_with_failures(client: Client) -> None:
    batch = create(client)
    ids = put(client, batch, b"1", b"2", b"3", b"4", topic="mixed")
    (short,) = put(client, batch, b"short", topic="other", ttl_ms=1)
    first, second, third, fourth = take(client, 4, "mixed")
    assert [item.id for item in (first, second, third, fourth)] == sorted(ids)
    client.nack(first, reject=True, reason="broken")
    client.nack(second, reject=True, reason="broken")
    ack(client, [third])
    assert client.delete_items([fourth.id]) == [None]
    counted(client, batch, members=5, failed=2, completed=1, deleted=1, expired=1)
    assert short not in {item.id for item in client.list_items("other")}
    assert client.get_batch(batch).failed_ids == (first.id, second.id)
    client.close_batch(batch)
    found = ended(client, batch)
    assert (found.state, found.success_id) == (BatchState.ENDED, None)
    (end,) = callbacks(client, 1).values()
    told(end, batch, "ENDED", [first.id, second.id], members=5, failed=2, completed=1, deleted=1, expired=1)
    assert client.redrive("mixed.dlq").at_least == 2, "a redrive after the end changes nothing"
    ack(client, take(client, 2, "mixed"))
    assert client.get_batch(batch) == found
    assert client.dequeue("done", wait_ms=NO_ITEMS_MS) == []


@on_each_host
def test_a_redrive_before_the_end(client: Client) -> None:
    batch = create(client)
    put(client, batch, b"1", b"2")
    first, second = take(client, 2)
    client.nack(first, reject=True)
    counted(client, batch, members=2, failed=1)
    assert client.redrive("t.dlq").at_least == 1
    counted(client, batch, members=2, failed=0)
    client.close_batch(batch)
    (again,) = take(client, 1)
    assert (again.id, again.batch) == (first.id, batch)
    ack(client, [again, second])
    assert ended(client, batch).state is BatchState.SUCCEEDED
    assert set(callbacks(client, 2)) == {b"success", b"end"}


@on_each_host
def test_members_add_members(client: Client) -> None:
    """Also after the batch is closed: it has not ended."""
    batch = create(client)
    put(client, batch, b"4")
    client.close_batch(batch)
    handled = 0
    while handled < 1 + 4 + 4 * 3:
        for item in take(client, 1):
            left = int(item.payload)
            put(client, batch, *([b"%d" % (3 if left == 4 else 0)] * (left if left in (3, 4) else 0)))
            ack(client, [item])
            handled += 1
    found = ended(client, batch)
    assert (found.state, found.counts.completed) == (BatchState.SUCCEEDED, 17)
    assert set(callbacks(client, 2)) == {b"success", b"end"}


@on_each_host
def test_a_batch_expires(client: Client) -> None:
    batch = create(client, ttl_ms=2_000)
    put(client, batch, b"1", b"2")
    first, second = take(client, 2)
    ack(client, [first])
    found = ended(client, batch)
    assert (found.state, found.counts.members) == (BatchState.EXPIRED, 2)
    (end,) = callbacks(client, 1).values()
    assert (end.headers or {})["foqs-batch-state"] == "EXPIRED"
    ack(client, [second])
    assert client.dequeue("done", wait_ms=NO_ITEMS_MS) == []
    assert client.get_batch(batch).state is BatchState.EXPIRED


@on_each_host
def test_a_batch_is_cancelled(client: Client) -> None:
    batch = create(client)
    put(client, batch, b"1", b"2", b"3")
    put(client, batch, b"later", delay_ms=600_000)
    (held,) = take(client, 1)
    client.cancel_batch(batch)
    client.cancel_batch(batch)
    counted(client, batch, members=4, cancelled=3)
    found = client.get_batch(batch)
    assert (found.state, found.ended) == (BatchState.CANCELLED, False)
    assert [item.id for item in client.list_items("t")] == [held.id]
    with pytest.raises(Invalid):
        client.enqueue("t", b"4", batch=batch)
    ack(client, [held])
    found = ended(client, batch)
    assert (found.state, found.success_id) == (BatchState.CANCELLED, None)
    (end,) = callbacks(client, 1).values()
    told(end, batch, "CANCELLED", members=4, completed=1, cancelled=3)


# ------------------------------------------------------------------------------------------ nested


@on_each_host
def test_nested_batches(client: Client) -> None:
    parent = create(client, on_end=None)
    good, bad = [create(client, parent=parent, on_success=None, on_end=ItemSpec("sub", name)) for name in (b"g", b"b")]
    assert client.get_batch(good).parent == parent
    for batch in (good, bad, parent):
        put(client, batch, b"x", topic=str(batch))
        client.close_batch(batch)
    for batch in (good, parent):
        ack(client, take(client, 1, str(batch)))
    counted(client, parent, members=3, completed=2)
    (item,) = take(client, 1, str(bad))
    client.nack(item, reject=True)
    found = ended(client, parent)
    assert (found.state, found.counts.failed, found.failed_ids) == (BatchState.ENDED, 1, (bad,))
    assert (client.get_batch(good).state, client.get_batch(bad).state) == (BatchState.SUCCEEDED, BatchState.ENDED)
    assert set(callbacks(client, 2, "sub")) == {b"g", b"b"}
    assert client.dequeue("done", wait_ms=NO_ITEMS_MS) == []


@on_each_host
def test_a_cancel_goes_down(client: Client) -> None:
    parent = create(client)
    child = create(client, parent=parent, on_success=None, on_end=ItemSpec("sub", b"child"))
    put(client, child, b"x")
    client.cancel_batch(parent)
    assert (ended(client, child).state, ended(client, parent).state) == (BatchState.CANCELLED,) * 2
    assert client.get_batch(parent).counts.cancelled == 1
    assert set(callbacks(client, 1)) == {b"end"}
    assert set(callbacks(client, 1, "sub")) == {b"child"}
    assert list(client.list_items("t")) == []


# ------------------------------------------------------------------------------------------ refusals


@on_each_host
def test_a_batch_that_takes_no_members(server: Server, client: Client) -> None:
    done, live = create(client), create(client)
    client.close_batch(done)
    ended(client, done)
    unknown = make_id(shard_of(live), number_of(live) + 1_000_000)
    with Client(server.address, "other", timeout_ms=PATIENT_MS) as other:
        for of, batch in ((client, done), (client, unknown), (other, live)):
            plain, member, keyed, ordered = of.enqueue_many(
                [
                    ItemSpec("t", b"plain"),
                    ItemSpec("t", b"member", batch=batch),
                    ItemSpec("t", b"keyed", batch=batch, dedup_key="k"),
                    ItemSpec("t", b"ordered", batch=batch, order_key="k"),
                ]
            )
            assert [type(one) for one in (member, keyed, ordered)] == [Invalid] * 3
            assert not isinstance(plain, FoqsError)
            with pytest.raises(Invalid):
                of.create_batch(parent=batch)
            assert [item.payload for item in of.list_items("t")] == [b"plain"]
            assert of.delete_items([plain]) == [None]
        for call in (other.get_batch, other.close_batch, other.cancel_batch):
            with pytest.raises(NotFound):
                call(live)
        for call in (client.get_batch, client.close_batch, client.cancel_batch):
            with pytest.raises(NotFound):
                call(unknown)
            with pytest.raises(NotFound):
                call(make_id(999, 1))
    before = client.get_batch(done)
    client.close_batch(done)
    client.cancel_batch(done)
    assert client.get_batch(done) == before
    assert client.get_batch(live).counts.members == 0


# ------------------------------------------------------------------------------------------ kills, commands


def test_a_batch_outlives_kills(server: Server, client: Client) -> None:
    batch = create(client)
    ids = put(client, batch, *[b"%d" % number for number in range(20)])
    server.kill()
    server.start()
    ack(client, take(client, 10))
    client.close_batch(batch)
    server.kill()
    server.start()
    found = client.get_batch(batch)
    assert (found.state, found.ended) == (BatchState.CLOSED, False)
    ack(client, take(client, 10))
    server.kill()
    server.start()
    found = ended(client, batch)
    assert (found.state, found.counts.members, found.counts.completed) == (BatchState.SUCCEEDED, len(ids), len(ids))
    made = callbacks(client, 2)
    assert (made[b"success"].id, made[b"end"].id) == (found.success_id, found.end_id)


def test_a_batch_ends_while_its_host_is_down(server: Server, client: Client) -> None:
    batch = create(client, ttl_ms=1_000)
    put(client, batch, b"1")
    server.kill()
    server.start()
    assert ended(client, batch).state is BatchState.EXPIRED
    assert set(callbacks(client, 1)) == {b"end"}


def test_a_batch_from_the_shell(server: Server, client: Client) -> None:
    end = '{"topic": "done", "payload": "end"}'
    batch = json.loads(foqs(server, "batch", "create", "--on-end", end).stdout)["id"]
    assert len(foqs(server, "enqueue", "t", "--raw", "--batch", batch, stdin=b"1\n2\n").stdout.splitlines()) == 2
    listed = foqs(server, "items", "t", "--batch", batch).stdout.splitlines()
    assert [json.loads(line)["batch"] for line in listed] == [batch] * 2
    assert json.loads(foqs(server, "item", json.loads(listed[0])["id"]).stdout)["batch"] == batch
    assert foqs(server, "batch", "close", batch).returncode == 0
    ack(client, take(client, 2))
    ended(client, int(batch))
    shown = json.loads(foqs(server, "batch", "show", batch).stdout)
    assert (shown["state"], shown["counts"]["completed"]) == ("SUCCEEDED", 2)
    assert client.get_item(int(shown["end_id"])).state is ItemState.READY
    assert b"had ended before: SUCCEEDED" in foqs(server, "batch", "cancel", batch).stdout
    assert foqs(server, "batch", "show", "5").returncode == 1
