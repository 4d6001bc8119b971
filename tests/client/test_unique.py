"""Unique work through the client and the commands, against a real host that is killed and started again."""

import json
from typing import Any

import pytest

from foqs.client import Client, DedupUntil, Duplicate, Invalid, ItemSpec, NotFound, OnDuplicate, Replaced
from foqs.client.item_copies import spec_of_line
from tests.client.real_server import PATIENT_MS, Server, foqs, on_each_host

pytestmark = pytest.mark.timeout(300)
DONE = DedupUntil.DONE


def test_a_key_is_free_when_its_item_is_done(server: Server, client: Client) -> None:
    first = client.enqueue("mail", b"one", dedup_key="k", dedup_until=DONE)
    again = client.enqueue("mail", b"two", dedup_key="k", dedup_until=DONE)
    assert (again, type(again)) == (first, Duplicate)
    server.kill()
    server.start()
    (item,) = client.dequeue("mail", wait_ms=PATIENT_MS)
    outcomes = client.enqueue_many([ItemSpec("mail", b"three", dedup_key="k", dedup_until=DONE)] * 2)
    assert outcomes == [first, first]
    client.ack(item)
    second = client.enqueue("mail", b"one", dedup_key="k", dedup_until=DONE)
    assert (second == first, isinstance(second, Duplicate)) == (False, False)
    assert client.find_item("k").id == second


def test_a_redrive_skips_a_key_that_is_taken(server: Server, client: Client) -> None:
    ids = [client.enqueue("mail", b"x", dedup_key=key, dedup_until=DONE) for key in "ab"]
    for _ in ids:
        (item,) = client.dequeue("mail", wait_ms=PATIENT_MS)
        client.nack(item, reject=True, reason="bad")
    live = client.enqueue("mail", b"x", dedup_key="a", dedup_until=DONE)
    said = foqs(server, "dead", "redrive", "mail.dlq")
    assert (said.returncode, said.stdout) == (
        0, b"1 item redriven from mail.dlq; 1 item stays, whose dedup_key another item has\n",
    )  # fmt: skip
    assert sorted(item.id for item in client.list_items("mail")) == sorted([ids[1], live])
    found = client.redrive("mail.dlq")
    assert (found.at_least, found.skipped_duplicate) == (0, 1)
    client.delete_items([live])
    server.kill()
    server.start()
    assert client.redrive("mail.dlq").at_least == 1
    assert client.enqueue("mail", b"y", dedup_key="a", dedup_until=DONE) == ids[0]


def test_an_item_is_cancelled_by_its_key(server: Server, client: Client) -> None:
    first = client.enqueue("mail", b"x", dedup_key="k")
    assert client.cancel("k")
    with pytest.raises(NotFound):
        client.cancel("k")
    second = client.enqueue("mail", b"y", dedup_key="k", dedup_until=DONE)
    assert second != first
    (item,) = client.dequeue("mail", wait_ms=PATIENT_MS)
    client.extend(item, lease_ms=600_000, checkpoint=b"half", durable=True)
    assert not client.cancel("k")
    server.kill()
    server.start()
    assert foqs(server, "cancel", "k").returncode == 1
    assert foqs(server, "cancel", "k", "--leased").returncode == 0
    with pytest.raises(NotFound):
        client.ack(item)
    assert not isinstance(client.enqueue("mail", b"z", dedup_key="k"), Duplicate)


def test_an_item_that_waits_gets_a_new_payload(server: Server, client: Client) -> None:
    def enqueue(payload: bytes, **options: Any) -> int:
        return client.enqueue("mail", payload, dedup_key="k", on_duplicate=OnDuplicate.REPLACE, **options)

    first = enqueue(b"a", delay_ms=600_000)
    assert not isinstance(first, Duplicate)
    again = [enqueue(b"b", delay_ms=600_000), enqueue(b"c", priority=-1)]
    assert (again, {type(one) for one in again}) == ([first] * 2, {Replaced})
    server.kill()
    server.start()
    (item,) = client.dequeue("mail", wait_ms=PATIENT_MS)
    assert (item.id, item.payload, item.priority) == (first, b"c", -1)
    begun = enqueue(b"d")
    assert (begun, type(begun)) == (first, Duplicate)
    with pytest.raises(Invalid):
        client.enqueue("other", b"d", dedup_key="k", on_duplicate=OnDuplicate.REPLACE)


@on_each_host
def test_unique_work_on_the_command_line(server: Server, client: Client) -> None:
    one = ["enqueue", "mail", "hi", "--dedup-key", "welcome:42", "--dedup-until", "started"]
    first, again = [json.loads(foqs(server, *one).stdout) for _ in range(2)]
    assert again == {"id": first["id"], "duplicate": True}
    line = b'{"payload": "x", "dedup_key": "welcome:42", "dedup_until": "STARTED"}\n'
    assert json.loads(foqs(server, "enqueue", "mail", stdin=line).stdout) == again
    assert foqs(server, "enqueue", "mail", "--dedup-key", "k", stdin=line).returncode == 2
    with pytest.raises(Invalid, match="dedup_until is none of WINDOW, STARTED, DONE"):
        spec_of_line(b'{"payload": "x", "dedup_until": "never"}', topic="t")
