"""Results and kept items through the client and the commands, against a real host that is killed and started again."""

import json
from concurrent.futures import ThreadPoolExecutor

import pytest

from foqs.client import Ack, Client, Invalid, Item, ItemSpec, ItemState, NotFound, Result
from tests.client.peer import eventually
from tests.client.real_server import PATIENT_MS, Server, foqs, on_each_host

KEEP = '{"keep": {"completed_ms": 600000, "failed_ms": 600000}, "dead": null}'
pytestmark = pytest.mark.timeout(300)


@pytest.fixture
def keeping(client: Client) -> Client:
    client.put_settings({"topic.kept": KEEP}, expected_version=client.settings().version)
    return client


def ack_one(client: Client, topic: str, result: bytes | None) -> int:
    (item,) = client.dequeue(topic, wait_ms=PATIENT_MS)
    client.ack(item, result=result)
    return item.id


@on_each_host
def test_a_caller_waits_for_the_result(client: Client) -> None:
    item_id = client.enqueue("mail", b"x")
    assert client.get_result(item_id) == Result(ItemState.READY)
    with ThreadPoolExecutor(1) as threads:
        waiting = threads.submit(client.get_result, item_id, wait_ms=PATIENT_MS)
        eventually(lambda: not waiting.done())
        assert ack_one(client, "mail", b"sent") == item_id
        result = waiting.result(PATIENT_MS / 1000)
    assert (result.state, result.result, result.ended) == (ItemState.COMPLETED, b"sent", True)
    with pytest.raises(NotFound):
        client.get_result(item_id)


@on_each_host
def test_many_acks_bring_their_results(keeping: Client) -> None:
    """More bytes than one request holds, and acks beside a dequeue."""
    ids = keeping.enqueue_many([ItemSpec("kept", b"%d" % number) for number in range(303)])
    held: list[Item] = []
    while len(held) < len(ids):
        held += keeping.dequeue("kept", len(ids), wait_ms=PATIENT_MS)
    large = bytes(64 << 10)
    assert keeping.ack_many([held[0], *[Ack.of(item, large) for item in held[1:301]]]) == [None] * 301
    assert keeping.ack_and_dequeue([Ack.of(held[301], b"r"), held[302]], "kept").outcomes == [None] * 2
    found = [keeping.get_result(item.id) for item in held]
    assert {result.state for result in found} == {ItemState.COMPLETED}
    assert [result.result for result in found] == [None, *[large] * 300, b"r", None]


def test_kept_items_outlive_a_kill(server: Server, keeping: Client) -> None:
    client = keeping
    done = client.enqueue("kept", b"1", dedup_key="k")
    assert ack_one(client, "kept", b"\0result") == done
    failed = client.enqueue("kept", b"2")
    (item,) = client.dequeue("kept", wait_ms=PATIENT_MS)
    client.nack(item, reject=True, reason="broken")
    living = client.enqueue("kept", b"3")
    server.kill()
    server.start()
    result = client.get_result(done)
    assert (result.state, result.result) == (ItemState.COMPLETED, b"\0result")
    assert result.ended_at_ms is not None
    found = client.find_item("k")
    assert (found.id, found.state, found.payload, found.result) == (done, ItemState.COMPLETED, b"1", b"\0result")
    assert found.ended_at_ms == result.ended_at_ms
    result = client.get_result(failed)
    assert result.failure is not None
    assert (result.state, result.failure.reason, result.failure.topic) == (ItemState.FAILED, "broken", "kept")
    listed = {item.id: (item.state, item.payload, item.result) for item in client.list_items("kept")}
    assert listed == {
        done: (ItemState.COMPLETED, b"1", None),
        failed: (ItemState.FAILED, b"2", None),
        living: (ItemState.READY, b"3", None),
    }
    stats = client.topic_stats("kept")
    assert (stats.ready, stats.completed, stats.failed) == (1, 1, 1)
    assert client.delete_items([done, failed]) == [None, None]
    with pytest.raises(NotFound):
        client.get_item(done)


@on_each_host
def test_a_result_that_is_too_long(client: Client) -> None:
    client.enqueue("mail", b"x")
    (item,) = client.dequeue("mail", wait_ms=PATIENT_MS)
    with pytest.raises(Invalid, match="result has 65537 bytes, more than 65536: store it elsewhere"):
        client.ack(item, result=bytes(65_537))
    with pytest.raises(Invalid, match="result"):
        Ack.of(item, bytes(65_537))
    assert client.ack_many([Ack.of(item, bytes(65_536))]) == [None]


@on_each_host
def test_the_commands(server: Server, keeping: Client) -> None:
    item_id = keeping.enqueue("kept", b"x", dedup_key="k")
    leased = foqs(server, "dequeue", "kept", "--wait-ms", str(PATIENT_MS))
    acked = foqs(server, "ack", "--result", "done", stdin=leased.stdout)
    assert (acked.returncode, acked.stderr) == (0, b"")
    shown = foqs(server, "result", str(item_id), "--wait-ms", "1000")
    assert shown.returncode == 0
    result = json.loads(shown.stdout)
    ended_at_ms = result.pop("ended_at_ms")
    assert result == {"id": str(item_id), "state": "COMPLETED", "result": "done"}
    item = json.loads(foqs(server, "item", "--dedup-key", "k").stdout)
    assert (item["id"], item["state"], item["result"], item["ended_at_ms"]) == (
        str(item_id), "COMPLETED", "done", ended_at_ms,
    )  # fmt: skip
    (listed,) = [json.loads(line) for line in foqs(server, "items", "kept", "--state", "completed").stdout.splitlines()]
    assert (listed["id"], listed["state"]) == (str(item_id), "COMPLETED")
    explained = foqs(server, "explain", str(item_id), "--json")
    assert json.loads(explained.stdout) == {"state": "completed", "reasons": []}
    purged = foqs(server, "purge", "kept", "--yes")
    assert b"1 completed\n1 item deleted\n" in purged.stdout
    gone = foqs(server, "result", str(item_id))
    assert gone.returncode == 1
    assert b"no such item: it was acked or deleted" in gone.stderr
