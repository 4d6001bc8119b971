"""Work in order through the client and the commands, against a real host that is killed and started again."""

import json

import pytest

from foqs import App
from foqs.client import Client, Item, ItemFilter, ItemSpec, ItemState, Producer, Reason
from tests.client.real_server import PATIENT_MS, Server, foqs

pytestmark = pytest.mark.timeout(300)


def one(client: Client, topic: str = "orders") -> Item:
    (item,) = client.dequeue(topic, wait_ms=PATIENT_MS)
    return item


def put(client: Client, *payloads: bytes, key: str = "k") -> list[int]:
    outcomes = client.enqueue_many([ItemSpec("orders", payload, order_key=key) for payload in payloads])
    return [outcome for outcome in outcomes if isinstance(outcome, int)]


def test_items_come_in_order_through_a_kill(server: Server, client: Client) -> None:
    ids = put(client, *[b"%d" % n for n in range(6)])
    assert ids == sorted(ids)
    for at, item_id in enumerate(ids):
        if at == 3:
            server.kill()
            server.start()
        item = one(client)
        assert (item.id, item.order_key, item.payload) == (item_id, "k", b"%d" % at)
        assert not client.dequeue("orders", 10)
        client.ack(item)


def test_a_lease_outlives_a_kill(server: Server, client: Client) -> None:
    """It is committed before the delivery, so the next item waits for it."""
    first, second = put(client, b"1", b"2")
    item = one(client)
    server.kill()
    server.start()
    assert not client.dequeue("orders", 10, wait_ms=1_000)
    client.ack(item)
    assert (item.id, one(client).id) == (first, second)


def test_an_item_that_fails_blocks_its_key_alone(server: Server, client: Client) -> None:
    first, second = put(client, b"1", b"2")
    (other,) = put(client, b"3", key="other")
    for item in (one(client), one(client)):
        if item.id == first:
            client.nack(item, delay_ms=600_000)
        else:
            client.ack(item)
    found = client.get_item(second)
    assert (found.state, found.order_key) == (ItemState.BEHIND, "k")
    why = client.explain(second).reasons[0]
    assert (why.code, why.key, why.count, why.item_ids) == (Reason.BEHIND_IN_ORDER, "k", 1, (first,))
    said = foqs(server, "explain", str(second))
    assert json.loads(said.stdout)["reasons"][0]["item_ids"] == [str(first)]
    said = foqs(server, "items", "orders", "--state", "behind", "--order-key", "k")
    assert [json.loads(line)["id"] for line in said.stdout.splitlines()] == [str(second)]
    stats = client.topic_stats("orders")
    assert (stats.delayed, stats.behind) == (1, 1)
    assert other not in (first, second)


def test_a_list_has_each_item_once(client: Client) -> None:
    ids = put(client, *(b"x" for _ in range(7)))
    ids += [item_id for n in range(3) for item_id in put(client, b"x", b"x", key=str(n))]
    turns = sorted([ids[0], *ids[7::2]])
    for page_items in (2, 100):
        ready = list(client.list_items("orders", state=ItemState.READY, page_items=page_items))
        assert sorted(item.id for item in ready) == turns
        behind = list(client.list_items("orders", state=ItemState.BEHIND, page_items=page_items))
        assert sorted(item.id for item in behind) == sorted({*ids}.difference(turns))
        assert {item.order_key for item in behind} == {"k", "0", "1", "2"}
        every = [(item.id, item.state) for item in client.list_items("orders", page_items=page_items)]
        assert sorted(every) == sorted((item.id, item.state) for item in (*ready, *behind))
    for state, many in ((ItemState.READY, 1), (ItemState.BEHIND, 6), (None, 7)):
        of_key = client.list_items("orders", filter=ItemFilter(state, order_key="k"), page_items=2)
        found = [item.id for item in of_key]
        assert (len(found), {*found} <= {*ids[:7]}) == (many, True)
    (item,) = client.dequeue("orders", 1)
    listed = [one.id for one in client.list_items("orders", state=ItemState.READY)]
    assert sorted(listed) == [item_id for item_id in turns if item_id != item.id]


def test_the_next_item_while_one_waits_for_its_retry(client: Client) -> None:
    client.set_policy("orders", {"order": {"on_failure": "skip"}, "retry": None})
    first, second, third = put(client, b"1", b"2", b"3")
    item = one(client)
    client.nack(item, failed=True, delay_ms=500)
    item = one(client)
    assert item.id == second
    while client.get_item(first).state == ItemState.DELAYED:
        assert not client.dequeue("orders", 10)
    client.ack(item)
    found = []
    for _ in range(2):
        found.append(item := one(client))
        client.ack(item)
    assert [item.id for item in found] == [first, third]


def test_a_redriven_item_has_its_old_place(client: Client) -> None:
    first, second, third = put(client, b"1", b"2", b"3")
    client.nack(one(client), reject=True)
    item = one(client)
    assert client.redrive("orders.dlq").at_least == 1
    client.ack(item)
    assert item.id == second
    for item_id in (first, third):
        item = one(client)
        assert item.id == item_id
        client.ack(item)


def test_a_producer_keeps_the_order(client: Client) -> None:
    with Producer(client, max_items=3, in_flight=4, linger_ms=0) as producer:
        futures = [producer.enqueue("orders", b"%d" % n, order_key=str(n % 2)) for n in range(40)]
    ids = [future.result() for future in futures]
    for start in range(2):
        assert ids[start::2] == sorted(ids[start::2])


def test_tasks_run_one_after_the_other(server: Server) -> None:
    ran: list[int] = []
    with App(server.address, "shop") as app:

        @app.task(topic="orders", order_key="k")
        def note(n: int) -> None:
            ran.append(n)

        for n in range(10):
            note.enqueue(n)
        app.worker(["orders"], concurrency=4).run_until_empty(raise_errors=True)
    assert ran == list(range(10))
